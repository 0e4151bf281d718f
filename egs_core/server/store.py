"""Where a site keeps what must outlive it: the engine's journal, the runs, tokens, who changed what; one transaction
a batch.

SQLite in a folder, without any set-up: WAL, and `synchronous=FULL`, so that what `commit` has taken outlives the
machine. Neither arguments nor environments of commands are in it, and of tokens only hashes.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec
import sqlalchemy as sa

from egs_core.client.tokens import Role
from egs_core.driver.journal import folded
from egs_core.engine import Engine
from egs_core.errors import InputError
from egs_core.server.book import CONFIG, LogLine
from egs_core.server.logic import Batch, SiteLogic
from egs_core.server.runs import Run, SiteFacts

VERSION = "1"
FILE_NAME = "site.db"
COMPACT_EVERY = 20_000  # entries: a recovery folds no more than these

_tables = sa.MetaData()
_meta = sa.Table("meta", _tables, sa.Column("name", sa.String, primary_key=True), sa.Column("value", sa.LargeBinary))
_entries = sa.Table(
    "entries", _tables, sa.Column("number", sa.Integer, primary_key=True), sa.Column("entry", sa.LargeBinary)
)
_runs = sa.Table("runs", _tables, sa.Column("number", sa.Integer, primary_key=True), sa.Column("run", sa.LargeBinary))
_tokens = sa.Table(  # `tokens`, of earlier versions, had but the token that each start writes
    "access_tokens",
    _tables,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("digest", sa.String, unique=True),
    sa.Column("name", sa.String),
    sa.Column("role", sa.String),
    sa.Column("team", sa.String),
    sa.Column("created_at", sa.Float),
    sa.Column("created_by", sa.String),
    sa.Column("expires_at", sa.Float),
    sa.Column("revoked_at", sa.Float),
)
_log = sa.Table(
    "log",
    _tables,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("at", sa.Float),
    *(sa.Column(name, sa.String) for name in ("who", "role", "origin", "verb", "subject", "team", "text")),
)


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

    def logic(self, place: str) -> SiteLogic:
        """The site's logic as it was after the last commit. Raises InputError for a damaged store."""
        state = folded(self.snapshot, self.entries, place)
        return SiteLogic(self.facts, Engine(CONFIG, state), self.runs)


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
    """See the module. now: seconds since 1970, where a new site's clock begins."""

    def __init__(self, folder: Path, now: float) -> None:
        self.path = folder / FILE_NAME
        self._engine = sa.create_engine(f"sqlite:///{self.path}")
        sa.event.listen(self._engine, "connect", _set_up)
        self._count, self._epoch = 0, now
        with self._begin() as connection:
            _tables.create_all(connection)
            version = self._value(connection, "version")
            if version is None:
                facts = SiteFacts(secrets.token_hex(8), now)
                values = {"version": VERSION.encode(), "facts": msgspec.json.encode(facts)}
                connection.execute(_meta.insert(), [{"name": name, "value": value} for name, value in values.items()])
            elif version.decode() != VERSION:
                raise InputError(str(self.path), f"is of format {version.decode()}", f"readable: {VERSION}")

    def load(self) -> Kept:
        with self._begin() as connection:
            facts = msgspec.json.decode(self._value(connection, "facts") or b"", type=SiteFacts)
            entries = list(connection.scalars(sa.select(_entries.c.entry).order_by(_entries.c.number)))
            rows = connection.scalars(sa.select(_runs.c.run).order_by(_runs.c.number))
            runs = [msgspec.json.decode(row, type=Run) for row in rows]
            self._count, self._epoch = len(entries), facts.epoch
            return Kept(facts, self._value(connection, "snapshot") or b"", entries, runs)

    def commit(self, batch: Batch) -> None:
        with self._begin() as connection:
            if batch.entries:
                connection.execute(_entries.insert(), [{"entry": entry} for entry in batch.entries])
            if batch.runs:
                rows = [{"number": int(run.id), "run": msgspec.json.encode(run)} for run in batch.runs]
                connection.execute(_runs.insert().prefix_with("OR REPLACE"), rows)
            if batch.forgotten:
                gone = [{"gone": int(run)} for run in batch.forgotten]
                connection.execute(_runs.delete().where(_runs.c.number == sa.bindparam("gone")), gone)
            if batch.log:
                connection.execute(_log.insert(), [msgspec.structs.asdict(self._logged(one)) for one in batch.log])
        self._count += len(batch.entries)

    def compact(self, snapshot: bytes) -> None:
        with self._begin() as connection:
            self._set(connection, "snapshot", snapshot)
            connection.execute(_entries.delete())
        self._count = 0

    @property
    def wants_snapshot(self) -> bool:
        return self._count >= COMPACT_EVERY

    def close(self) -> None:
        self._engine.dispose()

    # --- what is kept beside the runs ---

    def devices(self) -> tuple[str, ...]:
        """Ids of the devices that the site offered last."""
        with self._begin() as connection:
            return tuple(msgspec.json.decode(self._value(connection, "devices") or b"[]", type=list[str]))

    def set_devices(self, ids: tuple[str, ...]) -> None:
        with self._begin() as connection:
            self._set(connection, "devices", msgspec.json.encode(ids))

    def tokens(self) -> list[KeptToken]:
        """All that were made, oldest first."""
        with self._begin() as connection:
            rows = connection.execute(sa.select(_tokens).order_by(_tokens.c.created_at, _tokens.c.id)).mappings().all()
            return [KeptToken(**row) for row in rows]

    def put_token(self, token: KeptToken, change: LoggedChange) -> None:
        """A new or changed one, and its line in the log."""
        with self._begin() as connection:
            connection.execute(_tokens.insert().prefix_with("OR REPLACE"), msgspec.structs.asdict(token))
            connection.execute(_log.insert(), msgspec.structs.asdict(change))

    def log(self, limit: int, teams: Sequence[str] | None) -> list[LoggedChange]:
        """The last changes, oldest first. teams: only those of these; None: of all."""
        wanted = sa.select(_log).order_by(_log.c.number.desc()).limit(limit)
        if teams is not None:
            wanted = wanted.where(_log.c.team.in_(teams))
        with self._begin() as connection:
            rows = connection.execute(wanted).mappings().all()
            return [LoggedChange(**row) for row in reversed(rows)]

    def _logged(self, one: LogLine) -> LoggedChange:
        who = one.who
        at = self._epoch + one.at
        return LoggedChange(at, who.name, who.role, who.origin, one.verb, one.run, one.team, one.text)

    # --- SQL ---

    @contextmanager
    def _begin(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except (sa.exc.SQLAlchemyError, msgspec.MsgspecError, OSError) as error:
            raise StoreError(f"{self.path}: {getattr(error, 'orig', None) or error}") from error

    def _value(self, connection: sa.Connection, name: str) -> bytes | None:
        return connection.scalar(sa.select(_meta.c.value).where(_meta.c.name == name))

    def _set(self, connection: sa.Connection, name: str, value: bytes) -> None:
        connection.execute(_meta.delete().where(_meta.c.name == name))
        connection.execute(_meta.insert(), {"name": name, "value": value})


def _set_up(connection: Any, _record: Any) -> None:
    """Of each connection to SQLite."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()
