"""The history in a plain SQLite file, by the standard library alone.

It reads and writes the same tables as `egs_core.history.sql`, which imports SQLAlchemy for a third of a second: too
much before the first task of a short pipeline, or behind its last one.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from egs_core.history.stored import SCHEMA_VERSION, StoredHistory, UnknownVersionError

PREFIX = "sqlite:///"
COLUMNS = {
    "pipeline": "TEXT",
    "task": "TEXT",
    "phase": "INTEGER",
    "cpu_milli": "BIGINT",
    "gpu_milli": "BIGINT",
    "memory_bytes": "BIGINT",
    "gpu_memory_bytes": "BIGINT",
    "flavor": "TEXT",
    "input_bytes": "BIGINT",
    "seconds": "DOUBLE",
    "warmup_s": "DOUBLE",
    "outcome": "TEXT",
    "ended_at": "DOUBLE",
    "framework": "TEXT",
}
_TABLES = (
    "CREATE TABLE IF NOT EXISTS egs_history_schema (version INTEGER NOT NULL, PRIMARY KEY (version))",
    "CREATE TABLE IF NOT EXISTS egs_history_phase (id INTEGER NOT NULL, "
    + ", ".join(f"{name} {kind} NOT NULL" for name, kind in COLUMNS.items())
    + ", PRIMARY KEY (id))",
    "CREATE INDEX IF NOT EXISTS egs_history_phase_by_pipeline ON egs_history_phase (pipeline, ended_at)",
)
_INSERT = f"INSERT INTO egs_history_phase ({', '.join(COLUMNS)}) VALUES ({', '.join(':' + n for n in COLUMNS)})"
_PROFILES = (
    "CREATE TABLE IF NOT EXISTS egs_history_profile (id INTEGER NOT NULL, name TEXT NOT NULL, "
    "ended_at DOUBLE NOT NULL, measured TEXT NOT NULL, PRIMARY KEY (id))"
)
"""Made when the first is kept: an earlier EGS, to which the other tables are all there is, does not mind it."""
_INSERT_PROFILE = "INSERT INTO egs_history_profile (name, ended_at, measured) VALUES (:name, :ended_at, :measured)"
_NEWEST_PROFILE = "SELECT measured FROM egs_history_profile WHERE name = ? ORDER BY ended_at DESC, id DESC LIMIT ?"
_HAS_PROFILES = "SELECT 1 AS found FROM sqlite_master WHERE type = 'table' AND name = 'egs_history_profile'"
_NEWEST = "SELECT * FROM egs_history_phase WHERE pipeline = ? ORDER BY ended_at DESC, id DESC LIMIT ?"


def plain_path(url: str) -> Path | None:
    """The file that a URL names, where it is SQLite and says nothing else that SQLite would have to be told."""
    path = url.removeprefix(PREFIX)
    if path == url or not path or "?" in path or path.startswith((":", "file:")):
        return None
    return Path(path)


class SqliteHistory(StoredHistory):
    """See `StoredHistory`. A connection for each call: cheap here, and nothing is shared by a fork or left open."""

    def __init__(self, path: Path, *, busy_timeout_s: float = 5.0) -> None:
        super().__init__(f"{PREFIX}{path}", busy_timeout_s=busy_timeout_s)
        self._path = path
        self._is_prepared = False

    def _insert(self, values: list[dict[str, Any]]) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._connected() as connection, _transaction(connection):
            connection.executemany(_INSERT, values)
        return len(values)

    def _newest(self, pipeline: str, limit: int) -> list[dict[str, Any]]:
        return self._read(_NEWEST, pipeline, limit)

    def _names(self) -> list[str]:
        return [str(row["pipeline"]) for row in self._read("SELECT DISTINCT pipeline FROM egs_history_phase")]

    def _insert_profile(self, values: list[dict[str, Any]]) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._connected() as connection, _transaction(connection):
            connection.execute(_PROFILES)
            connection.executemany(_INSERT_PROFILE, values)
        return len(values)

    def _newest_profile(self, name: str, limit: int) -> list[str]:
        rows = self._read(_NEWEST_PROFILE, name, limit) if self._read(_HAS_PROFILES) else []
        return [str(row["measured"]) for row in rows]

    def _profile_names(self) -> list[str]:
        rows = self._read("SELECT DISTINCT name FROM egs_history_profile") if self._read(_HAS_PROFILES) else []
        return [str(row["name"]) for row in rows]

    def _read(self, query: str, *values: object) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []  # nothing was recorded yet: reading does not create the store
        with self._connected() as connection:
            return [dict(row) for row in connection.execute(query, values)]

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._path, timeout=self.busy_timeout_s, isolation_level=None)
        connection.row_factory = sqlite3.Row
        try:
            if not self._is_prepared:
                # The mode stays with the file. Two processes that switch it at once: one is refused, and need not mind.
                with contextlib.suppress(sqlite3.OperationalError):
                    connection.execute("PRAGMA journal_mode=WAL")
                _prepare(connection)
                self._is_prepared = True
            yield connection
        finally:
            connection.close()


def _prepare(connection: sqlite3.Connection) -> None:
    """Make the tables where they are missing, and check the version where they are not."""
    version = _version(connection)
    if version is None:
        with _transaction(connection):  # one process makes them, the others wait and find them
            for table in _TABLES:
                connection.execute(table)
            if _version(connection) is None:
                connection.execute("INSERT INTO egs_history_schema (version) VALUES (?)", (SCHEMA_VERSION,))
        version = _version(connection)
    if version != SCHEMA_VERSION:
        raise UnknownVersionError(version)


def _version(connection: sqlite3.Connection) -> Any:
    known = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'egs_history_schema'"
    if connection.execute(known).fetchone() is None:
        return None
    return connection.execute("SELECT max(version) FROM egs_history_schema").fetchone()[0]


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
