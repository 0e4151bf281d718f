"""Where a site keeps what must outlive it: the engine's journal, the runs, tokens, who changed what; one transaction
a batch.

In SQLite or PostgreSQL (`database`). Neither arguments nor environments of commands are in it, and of tokens only
hashes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import msgspec
import sqlalchemy as sa

from egs_core.client.tokens import Role
from egs_core.described import describe
from egs_core.driver.journal import folded
from egs_core.engine import Engine
from egs_core.errors import InputError
from egs_core.server.book import CONFIG, LogLine
from egs_core.server.database import ANSWERS_S, Prepared, make_engine, migrate, place_of, upsert
from egs_core.server.hosts import JoinedHost
from egs_core.server.logic import Batch, SiteLogic
from egs_core.server.overdue import Overdue
from egs_core.server.runs import Run, SiteFacts
from egs_core.server.spending import Saved
from egs_core.server.tables import ENTRIES, LOG, META, RUNS, TOKENS, text

VERSION = "1"
COMPACT_EVERY = 20_000  # entries: a recovery folds no more than these
COLUMNS = tuple([column.name for column in LOG.columns if not column.primary_key])

describe(SiteFacts, Run, list[JoinedHost], Saved)


class StoreError(Exception):
    """The store did not take a batch, or cannot be read now; nothing of the batch is in it."""


class KeptToken(msgspec.Struct, frozen=True):
    """A token, as `tokens.TokenView`. digest: of the token, which is not kept."""

    id: str
    digest: str
    name: str
    role: Role
    team: str
    created_at: float
    created_by: str
    expires_at: float
    revoked_at: float | None = None

    def is_good(self, now: float) -> bool:
        return self.revoked_at is None and now < self.expires_at


class LoggedChange(msgspec.Struct, frozen=True):
    """A line of the log, as `tokens.LogEntry`."""

    at: float
    who: str
    role: str
    origin: str
    verb: str
    subject: str
    team: str = ""
    text: str = ""
    number: int | None = None


class Kept(msgspec.Struct):
    """What a store has. snapshot: b"" for none; entries: those after it."""

    facts: SiteFacts
    snapshot: bytes
    entries: list[bytes]
    runs: list[Run]
    hosts: list[JoinedHost] = []
    spending: Saved = Saved()

    def logic(self, place: str) -> SiteLogic:
        """The site's logic as it was after the last commit. Raises InputError for a damaged store."""
        state = folded(self.snapshot, self.entries, place)
        return SiteLogic(self.facts, Engine(CONFIG, state), self.runs, self.hosts)


class Store(Protocol):
    """What the writer needs. Raises StoreError."""

    def load(self) -> Kept:
        """All of it."""

    def commit(self, batch: Batch) -> None:
        """Take all of the batch, or nothing; durable when it returns."""

    def compact(self, snapshot: bytes) -> None:
        """Replace all entries by the state that they lead to."""

    @property
    def wants_snapshot(self) -> bool:
        """Whether so many entries have gathered that `compact` is due."""


class SqlStore:
    """See the module. where: a folder for SQLite, or the URL of PostgreSQL; now: seconds since 1970, where a new site's
    clock begins. guard: called at the beginning of each transaction that writes; raises StoreError where it may not."""

    def __init__(self, where: Path | sa.URL, now: float) -> None:
        self.place = place_of(where)
        self._engine = make_engine(where)
        self._overdue = None if isinstance(where, Path) else Overdue(self._engine, ANSWERS_S)
        dialect = self._engine.dialect
        self._put_entries = Prepared(dialect, ENTRIES.insert(), ["entry"])
        self._put_runs = Prepared(dialect, upsert(dialect, RUNS), ["number", "run"])
        self._put_log = Prepared(dialect, LOG.insert(), COLUMNS)
        self._count, self._epoch = 0, now
        self.guard: Callable[[sa.Connection], None] = _anybody
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        with self.begin() as connection:
            migrate(connection, self.place)
            version = self._value(connection, "version")
            if version is None:
                facts = SiteFacts(secrets.token_hex(8), self._epoch)
                values = {"version": VERSION.encode(), "facts": msgspec.json.encode(facts)}
                connection.execute(META.insert(), [{"name": name, "value": value} for name, value in values.items()])
            elif version.decode() != VERSION:
                raise InputError(self.place, f"is of format {version.decode()}", f"readable: {VERSION}")

    def load(self) -> Kept:
        with self.begin() as connection:
            if connection.dialect.name == "postgresql":  # SQLite reads one moment anyway
                connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            facts = msgspec.json.decode(self._value(connection, "facts") or b"", type=SiteFacts)
            entries = list(connection.scalars(sa.select(ENTRIES.c.entry).order_by(ENTRIES.c.number)))
            rows = connection.scalars(sa.select(RUNS.c.run).order_by(RUNS.c.number))
            runs = [msgspec.json.decode(row, type=Run) for row in rows]
            self._count, self._epoch = len(entries), facts.epoch
            hosts = msgspec.json.decode(self._value(connection, "hosts") or b"[]", type=list[JoinedHost])
            spending = msgspec.json.decode(self._value(connection, "spending") or b"{}", type=Saved)
            return Kept(facts, self._value(connection, "snapshot") or b"", entries, runs, hosts, spending)

    def commit(self, batch: Batch) -> None:
        with self._write() as connection:
            if batch.entries:
                self._put_entries.put(connection, [{"entry": entry} for entry in batch.entries])
            if batch.runs:
                rows = [{"number": int(run.id), "run": msgspec.json.encode(run)} for run in batch.runs]
                self._put_runs.put(connection, rows)
            if batch.forgotten:
                gone = [{"gone": int(run)} for run in batch.forgotten]
                connection.execute(RUNS.delete().where(RUNS.c.number == sa.bindparam("gone")), gone)
            if batch.hosts:
                self._set(connection, "hosts", msgspec.json.encode(batch.hosts))
            if batch.spending is not None:
                self._set(connection, "spending", msgspec.json.encode(batch.spending))
            if batch.log:
                self._put_log.put(connection, [_line(self._logged(one)) for one in batch.log])
        self._count += len(batch.entries)

    def compact(self, snapshot: bytes) -> None:
        with self._write() as connection:
            self._set(connection, "snapshot", snapshot)
            connection.execute(ENTRIES.delete())
        self._count = 0

    @property
    def wants_snapshot(self) -> bool:
        return self._count >= COMPACT_EVERY

    def close(self) -> None:
        if self._overdue is not None:
            self._overdue.close()
        self._engine.dispose()

    # --- what is kept beside the runs ---

    def site(self) -> str:
        """Its id."""
        with self.begin() as connection:
            return msgspec.json.decode(self._value(connection, "facts") or b"", type=SiteFacts).id

    def devices(self) -> tuple[str, ...]:
        """Ids of the devices that the site offered last."""
        with self.begin() as connection:
            return tuple(msgspec.json.decode(self._value(connection, "devices") or b"[]", type=list[str]))

    def set_devices(self, ids: tuple[str, ...]) -> None:
        with self._write() as connection:
            self._set(connection, "devices", msgspec.json.encode(ids))

    def tokens(self) -> list[KeptToken]:
        """All that were made, oldest first."""
        with self.begin() as connection:
            rows = connection.execute(sa.select(TOKENS).order_by(TOKENS.c.created_at, TOKENS.c.id)).mappings().all()
            return [KeptToken(**row) for row in rows]

    def put_token(self, token: KeptToken, change: LoggedChange) -> None:
        """A new or changed one, and its line in the log."""
        with self._write() as connection:
            connection.execute(upsert(connection.dialect, TOKENS), msgspec.structs.asdict(token))
            self._put_log.put(connection, [_line(change)])

    def log(self, limit: int, teams: Sequence[str] | None) -> list[LoggedChange]:
        """The last changes, oldest first. teams: only those of these; None: of all."""
        wanted = sa.select(LOG).order_by(LOG.c.number.desc()).limit(limit)
        if teams is not None:
            wanted = wanted.where(LOG.c.team.in_(teams))
        with self.begin() as connection:
            rows = connection.execute(wanted).mappings().all()
            return [LoggedChange(**row) for row in reversed(rows)]

    def _logged(self, one: LogLine) -> LoggedChange:
        who = one.who
        at = self._epoch + one.at
        return LoggedChange(at, who.name, who.role, who.origin, one.verb, one.run, one.team, one.text)

    # --- SQL ---

    @contextmanager
    def begin(self) -> Iterator[sa.Connection]:
        """A transaction. Raises StoreError."""
        try:
            with self._overdue.timed() if self._overdue else nullcontext(), self._engine.begin() as connection:
                yield connection
        except (sa.exc.SQLAlchemyError, msgspec.MsgspecError, OSError) as error:
            raise StoreError(f"{self.place}: {getattr(error, 'orig', None) or error}") from error

    @contextmanager
    def _write(self) -> Iterator[sa.Connection]:
        with self.begin() as connection:
            self.guard(connection)
            yield connection

    def _value(self, connection: sa.Connection, name: str) -> bytes | None:
        return connection.scalar(sa.select(META.c.value).where(META.c.name == name))

    def _set(self, connection: sa.Connection, name: str, value: bytes) -> None:
        connection.execute(META.delete().where(META.c.name == name))
        connection.execute(META.insert(), {"name": name, "value": value})


def _anybody(_connection: sa.Connection) -> None:
    """Who has the database alone needs no leader."""


def _line(change: LoggedChange) -> dict[str, Any]:
    """Its columns; its number is the database's to give."""
    values = [getattr(change, name) for name in COLUMNS]
    return {name: text(value) if type(value) is str else value for name, value in zip(COLUMNS, values, strict=True)}
