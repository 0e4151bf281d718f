"""What `egs serve` is started with and must not use: a name that is none, a database that is somebody else's."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from egs_core.cli.app import run as egs
from egs_core.errors import InputError
from egs_core.server.database import FILE_NAME, make_engine
from egs_core.server.store import SqlStore
from tests.unit.server.databases import Where, database, server, where

__all__ = ["database", "server", "where"]

FOREIGN = "CREATE TABLE alembic_version (version_num VARCHAR(32))", "CREATE TABLE dag (dag_id VARCHAR(250))"


def run(where: Where, *statements: str) -> None:
    engine = make_engine(where)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))
    engine.dispose()


def tables(where: Where) -> set[str]:
    engine = make_engine(where)
    found = set(sa.inspect(engine).get_table_names())
    engine.dispose()
    return found


def test_a_database_of_another_application_is_refused(where: Where) -> None:
    """Also one whose revisions are Alembic's; nothing is made in it."""
    run(where, *FOREIGN, "INSERT INTO alembic_version VALUES ('0002')")
    with pytest.raises(InputError, match="has tables, and they are not EGS's: alembic_version, dag"):
        SqlStore(where, 0.0)
    assert tables(where) == {"alembic_version", "dag"}


def test_others_may_come_beside(where: Where) -> None:
    """What EGS has made is its own, whatever is added later."""
    SqlStore(where, 0.0).close()
    run(where, FOREIGN[1])
    SqlStore(where, 0.0).close()
    assert "dag" in tables(where)


def test_a_schema_of_its_own(database: sa.URL) -> None:
    """As the error says: another application's tables stay alone."""
    run(database, *FOREIGN, "CREATE SCHEMA site")  # one with the user's name is found without being named
    own = database.update_query_dict({"options": "-csearch_path=site"})
    assert "options=-csearch_path%3Dsite" in own.render_as_string()
    for _ in range(2):
        SqlStore(own, 0.0).close()
    assert tables(database) == {"alembic_version", "dag"}
    assert {"meta", "runs", "entries", "alembic_version"} <= tables(own)


@pytest.mark.parametrize("more", [("--port", "0"), ("--join", "http://127.0.0.1:1")], ids=["serve", "join"])
@pytest.mark.parametrize("name", ["a b", "-a", "a/b", "x" * 300], ids=["space", "dash", "slash", "long"])
def test_a_name_that_is_none_is_refused(
    name: str,
    more: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the same rule for a server's own host and for one that joins; nothing is begun."""
    for variable, value in (("EGS_HOST", name), ("EGS_TOKEN", "some"), ("XDG_DATA_HOME", str(tmp_path))):
        monkeypatch.setenv(variable, value)
    assert egs(["serve", "--emulated-gpus", "1", *more]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: EGS_HOST: {name!r} is no name of a host: "), line
    assert not list(tmp_path.rglob(FILE_NAME))
