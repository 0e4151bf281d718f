"""The store on both databases: what outlives a server, and what becomes of older databases."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from msgspec.structs import replace

from egs_core.errors import InputError
from egs_core.server import logic
from egs_core.server import store as store_module
from egs_core.server.database import FILE_NAME, HEAD, MIGRATIONS, make_engine, parse_database
from egs_core.server.store import KeptToken, LoggedChange, SqlStore, StoreError
from egs_core.server.tables import TABLES
from egs_core.server.writer import Turns
from tests.postgres import Postgres
from tests.unit.server.databases import Where, database, server, where
from tests.unit.server.proxy import Proxy
from tests.unit.server.real_site import PATIENCE_S
from tests.unit.server.site_steps import ANN, BOB, end, request, start
from tests.unit.server.site_world import OFFER

__all__ = ["database", "server", "where"]

BEFORE_REVISIONS = """
CREATE TABLE access_tokens (id VARCHAR NOT NULL, digest VARCHAR, name VARCHAR, role VARCHAR, team VARCHAR,
    created_at FLOAT, created_by VARCHAR, expires_at FLOAT, revoked_at FLOAT, PRIMARY KEY (id), UNIQUE (digest));
CREATE TABLE entries (number INTEGER NOT NULL, entry BLOB, PRIMARY KEY (number));
CREATE TABLE log (number INTEGER NOT NULL, at FLOAT, who VARCHAR, role VARCHAR, origin VARCHAR, verb VARCHAR,
    subject VARCHAR, team VARCHAR, text VARCHAR, PRIMARY KEY (number));
CREATE TABLE meta (name VARCHAR NOT NULL, value BLOB, PRIMARY KEY (name));
CREATE TABLE runs (number INTEGER NOT NULL, run BLOB, PRIMARY KEY (number));
"""
"""The tables as they were made before there were revisions."""


@contextlib.contextmanager
def opened(where: Where, now: float = 1000.0) -> Iterator[SqlStore]:
    found = SqlStore(where, now)
    try:
        yield found
    finally:
        found.close()


def turns_of(store: SqlStore) -> Turns:
    return Turns(store, OFFER, clock=lambda: 1000.0)


def test_a_site_goes_on_from_its_database(where: Where) -> None:
    """Leases, what waits, their order and keys are there again, also after the journal was compacted; a site's own
    facts are those of its first start."""
    with opened(where) as store:
        turns = turns_of(store)
        (first, _), _ = turns.take([lambda site: start(site, 1, gpus=3), lambda site: site.submit(BOB, request(2))])
        before, facts = turns.logic.views.listed(), turns.logic.facts
    with opened(where, 5000.0) as store:
        again = turns_of(store)
        assert (again.logic.views.listed(), again.logic.facts) == (before, facts)
        again.logic.validate()
        store.compact(again.logic.snapshot())
    with opened(where, 9000.0) as store:
        last = turns_of(store)
        assert last.logic.views.listed() == before
        assert last.logic.submit(ANN, request(1)).id == first.id
        end(last.logic, first)
        assert last.logic.view(ANN, "2").state == "granted"


def test_what_is_forgotten_leaves_the_database(where: Where, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logic, "MOST_ENDED", 1)
    with opened(where) as store:
        turns = turns_of(store)
        turns.take([lambda site, n=n: end(site, start(site, n)) for n in range(1, 4)])  # type: ignore[misc]  # one each
        turns.take([])
        assert [run.id for run in store.load().runs] == ["3"]


def test_tokens_are_kept_as_hashes_and_expire(where: Where) -> None:
    """A revoked one is kept, for the list; each change has its line in the log."""
    kept = KeptToken("1", "digest", "ann", "viewer", "vision", 0.0, "root", expires_at=100.0)
    with opened(where) as store:
        store.put_token(kept, LoggedChange(0.0, "root", "admin", "socket", "token create", "1", "vision"))
        assert store.tokens() == [kept]
        assert (kept.is_good(99.0), kept.is_good(100.0)) == (True, False)
        revoked = replace(kept, revoked_at=50.0)
        store.put_token(revoked, LoggedChange(50.0, "root", "admin", "socket", "token revoke", "1", "vision"))
    with opened(where) as store:
        assert (store.tokens(), revoked.is_good(60.0)) == ([revoked], False)
        assert [one.verb for one in store.log(10, None)] == ["token create", "token revoke"]
        assert [one.verb for one in store.log(1, ["vision"])] == ["token revoke"]
        assert store.log(10, ["other"]) == []


def test_a_text_that_a_database_does_not_take_fails_nothing(where: Where) -> None:
    """A NUL, which PostgreSQL's texts may not have: the line is kept, and read."""
    kept = KeptToken("1", "digest", "ann", "viewer", "", 0.0, "root", expires_at=100.0)
    with opened(where) as store:
        store.put_token(kept, LoggedChange(0.0, "ann", "admin", "socket", "token create", "1", text="x\0y"))
        assert [one.text for one in store.log(2, None)] == ["x\ufffdy"]


def test_the_devices_that_were_offered_are_kept(where: Where) -> None:
    with opened(where) as store:
        assert store.devices() == ()
        store.set_devices(("GPU-1", "GPU-2"))
        store.set_devices(("GPU-2",))
        assert store.devices() == ("GPU-2",)


def test_the_revisions_lead_to_the_tables_that_are_read(where: Where) -> None:
    """Alembic finds no difference between what its revisions made and what the store's statements are made of; the last
    one is the one that is taken for today's."""
    with opened(where):
        engine = make_engine(where)
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), TABLES) == []
        engine.dispose()
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def test_a_database_of_a_later_version_is_refused(where: Where) -> None:
    with opened(where):
        pass
    engine = make_engine(where)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(InputError, match=f"has tables of format 9999.*up to {HEAD}"):
        SqlStore(where, 0.0)


def test_a_database_from_before_there_were_revisions_is_taken_over(tmp_path: Path) -> None:
    """What it has stays as it is, its tables too, and a site goes on from it; one of an earlier version that lacks
    tables gets them."""
    new, old = tmp_path / "new", tmp_path / "old"
    new.mkdir()
    with opened(new) as store:
        turns_of(store).take([lambda site: start(site, 1, gpus=3), lambda site: site.submit(BOB, request(2))])
    old.mkdir()
    with contextlib.closing(sqlite3.connect(old / FILE_NAME)) as connection:
        connection.executescript(BEFORE_REVISIONS)
        connection.execute("ATTACH ? AS made", (str(new / FILE_NAME),))
        for name in _content(connection):
            connection.execute(f"INSERT INTO main.{name} SELECT * FROM made.{name}")
        connection.commit()
        before = _content(connection)
    with opened(old) as store:
        assert [run.id for run in store.load().runs] == ["1", "2"]
    with contextlib.closing(sqlite3.connect(old / FILE_NAME)) as connection:
        assert {name: _content(connection)[name] for name in before} == before
        assert connection.execute("SELECT * FROM alembic_version").fetchall() == [(HEAD,)]
        connection.execute("DROP TABLE log")
        connection.execute("DROP TABLE alembic_version")
    with opened(old) as store:
        turns = turns_of(store)
        assert [view.state for view in turns.logic.views.listed().runs] == ["running", "waiting"]
        turns.take([lambda site: site.submit(BOB, request(3))])
        assert [one.verb for one in store.log(10, None)] == ["submit"]


def _content(connection: sqlite3.Connection) -> dict[str, object]:
    """Of each table its definition, and its rows."""
    tables = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
    return {name: (sql, connection.execute(f"SELECT * FROM {name}").fetchall()) for name, sql in tables}


def test_sqlite_is_durable_and_of_a_known_format(tmp_path: Path) -> None:
    """WAL and a sync at each commit; a newer format is refused with its number."""
    with opened(tmp_path) as store, store.begin() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as changed:
        changed.execute("UPDATE meta SET value = CAST('9' AS BLOB) WHERE name = 'version'")
        changed.commit()
    with pytest.raises(InputError, match="is of format 9"):
        SqlStore(tmp_path, 0.0)


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("hello " * 1000)
    with pytest.raises(StoreError, match=r"site\.db: file is not a database"):
        SqlStore(tmp_path, 0.0)


def test_postgresql_is_durable_whatever_its_users_default_is(database: sa.URL) -> None:
    """`synchronous_commit=off` would lose what was told; a name of it for people has no password."""
    engine = make_engine(database)
    with engine.begin() as connection:
        connection.execute(sa.text(f'ALTER DATABASE "{database.database}" SET synchronous_commit = off'))
    engine.dispose()
    with opened(database.set(password="secret")) as store, store.begin() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
        assert "secret" not in store.place


def test_postgresql_that_cannot_be_reached_is_named(server: Postgres) -> None:
    """Also a database that is not there; without a password in the message."""
    for url in (server.url("absent"), "postgresql://ann:secret@127.0.0.1:1/egs"):
        with pytest.raises(StoreError, match=r"absent|127\.0\.0\.1:1/egs") as raised:
            SqlStore(parse_database(url), 0.0)
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize("text", ["egs", "mysql://ann@db/egs", "sqlite:///site.db", "postgresql://ann:secret@db"])
def test_an_address_that_is_none_of_postgresql_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--database") as raised:
        parse_database(text)
    assert "secret" not in str(raised.value)


def test_a_database_that_takes_all_and_never_answers_is_given_up(
    server: Postgres, database: sa.URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a proxy that has lost its other end, which TCP does not notice: what waits fails as by any end of a
    connection, and the next ones are used at once; a transaction that lasts, and is answered, is left alone."""
    monkeypatch.setattr(store_module, "ANSWERS_S", 2.0)
    proxy = Proxy(server.port)
    with ThreadPoolExecutor(1) as beside, contextlib.closing(proxy), opened(database.set(port=proxy.port)) as store:
        turns = turns_of(store)
        proxy.cut()
        failed = beside.submit(turns.take, [lambda site: start(site, 1)]).exception(PATIENCE_S)
        assert isinstance(failed, StoreError)
        proxy.forget()
        turns.recover()
        turns.take([lambda site: start(site, 2)])
        assert [run.name for run in store.load().runs] == ["job2"]
        with store.begin() as connection:
            assert connection.scalar(sa.text("SELECT 1 FROM pg_sleep(1)")) == 1
