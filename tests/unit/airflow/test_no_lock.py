"""On SQLite a reader that goes on keeps every writer out: what EGS reads in the scheduler, it lets go at once."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("airflow.sdk", reason="apache-airflow is not installed")

from airflow.models import import_all_models
from airflow.models.dag import DagTag
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import create_engine, insert, text
from sqlalchemy.engine import Connection

from egs_airflow import compat, shared
from egs_airflow.executors import gang_rows, reading
from egs_airflow.order.record import read_record

ROWS = 2_000
ID = uuid.uuid4()
READS: dict[str, Callable[[Connection], Any]] = {
    "scheduled_runs": gang_rows.scheduled_runs,
    "scheduled_versions": gang_rows.scheduled_versions,
    "tags_of": lambda connection: reading.tags_of(connection, "a"),
    "active_tasks": lambda connection: reading.active_tasks(connection, [("a", "r")]),
    "contended": lambda connection: reading.contended(connection, [ID]),
    "waiting": lambda connection: reading.waiting(connection, "p", 4, 1, 60.0, frozenset()),
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All of Airflow's tables in a file, in SQLite's own journal as Airflow has it; more tags than one page holds."""
    engine = create_engine(f"sqlite:///{tmp_path / 'metadata.sqlite'}")
    with engine.begin() as connection:
        import_all_models()
        TaskInstance.metadata.create_all(connection)
        connection.execute(text("PRAGMA foreign_keys=OFF"))
        connection.execute(insert(DagTag.__table__), [{"dag_id": "a", "name": f"{n:050}"} for n in range(ROWS)])
    monkeypatch.setattr(compat, "connect", engine.connect)
    return tmp_path / "metadata.sqlite"


def write(file: Path) -> None:
    """Take the lock that a commit takes, without waiting. Raises sqlite3.OperationalError: database is locked."""
    with sqlite3.connect(file, timeout=0, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        other.execute("ROLLBACK")
    other.close()


@pytest.mark.parametrize("name", READS)
def test_a_read_of_the_executor_locks_nothing_once_it_returns(file: Path, name: str) -> None:
    """While the connection on which it read is still open, another process can write."""
    with compat.connect() as connection:
        READS[name](connection)
        write(file)


def test_what_components_share_is_read_without_a_lock(file: Path) -> None:
    """The record of the engine's host, and the Variables."""
    assert read_record() is None
    assert shared.Reader(shared.POOLS)() is None
    write(file)


def test_a_read_that_is_not_finished_keeps_writers_out(file: Path) -> None:
    """So the tests above can fail."""
    with compat.connect() as connection:
        rows = connection.execute(text("SELECT name FROM dag_tag"))
        rows.fetchone()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            write(file)
        rows.close()
