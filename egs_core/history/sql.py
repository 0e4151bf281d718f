"""The history in a database: SQLite by default, PostgreSQL by URL. It fails open, see `stored`.

A plain SQLite file needs none of this: see `sqlite`, and `opened`, which chooses.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from egs_core.history.stored import FILE_NAME as FILE_NAME
from egs_core.history.stored import SCHEMA_VERSION, StoredHistory
from egs_core.history.stored import UnknownVersionError as UnknownVersionError
from egs_core.places import data_folder

_metadata = sa.MetaData()
_schema = sa.Table("egs_history_schema", _metadata, sa.Column("version", sa.Integer, primary_key=True))
_phases = sa.Table(
    "egs_history_phase",
    _metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("pipeline", sa.Text, nullable=False),
    sa.Column("task", sa.Text, nullable=False),
    sa.Column("phase", sa.Integer, nullable=False),
    sa.Column("cpu_milli", sa.BigInteger, nullable=False),
    sa.Column("gpu_milli", sa.BigInteger, nullable=False),
    sa.Column("memory_bytes", sa.BigInteger, nullable=False),
    sa.Column("gpu_memory_bytes", sa.BigInteger, nullable=False),
    sa.Column("flavor", sa.Text, nullable=False),
    sa.Column("input_bytes", sa.BigInteger, nullable=False),
    sa.Column("seconds", sa.Double, nullable=False),
    sa.Column("warmup_s", sa.Double, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("ended_at", sa.Double, nullable=False),
    sa.Column("framework", sa.Text, nullable=False),
    sa.Index("egs_history_phase_by_pipeline", "pipeline", "ended_at"),
)
_profiles = sa.Table(
    "egs_history_profile",
    sa.MetaData(),  # made when the first is kept: see `sqlite`
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("ended_at", sa.Double, nullable=False),
    sa.Column("measured", sa.Text, nullable=False),
)


class SqlHistory(StoredHistory):
    """See `StoredHistory`."""

    def __init__(self, url: str, *, busy_timeout_s: float = 5.0) -> None:
        super().__init__(url, busy_timeout_s=busy_timeout_s)
        self._engine: sa.Engine | None = None

    @classmethod
    def in_folder(cls, folder: str | Path, *, busy_timeout_s: float = 5.0) -> SqlHistory:
        """The SQLite history in a folder, which is made when the first row is kept."""
        url = sa.URL.create("sqlite", database=str(Path(folder) / FILE_NAME))
        return cls(url.render_as_string(hide_password=False), busy_timeout_s=busy_timeout_s)

    @classmethod
    def of_user(cls, url: str | None = None) -> SqlHistory:
        """The history at a URL, else at that of EGS_HISTORY, else in the user's data folder."""
        url = url or os.environ.get("EGS_HISTORY")
        return cls(url) if url else cls.in_folder(data_folder())

    def close(self) -> None:
        """Give back what is open; the history can be used again after it."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def shown_url(self) -> str:
        """See `StoredHistory`."""
        try:
            return sa.make_url(self.url).render_as_string(hide_password=True)
        except sa.exc.ArgumentError:
            return "with an unreadable URL"

    def _insert(self, values: list[dict[str, Any]]) -> int:
        with self._opened(create=True).begin() as connection:
            connection.execute(sa.insert(_phases), values)
        return len(values)

    def _newest(self, pipeline: str, limit: int) -> list[dict[str, Any]]:
        newest = sa.select(_phases).where(_phases.c.pipeline == pipeline)
        return self._read(newest.order_by(_phases.c.ended_at.desc(), _phases.c.id.desc()).limit(limit))

    def _names(self) -> list[str]:
        return [str(found["pipeline"]) for found in self._read(sa.select(_phases.c.pipeline).distinct())]

    def _insert_profile(self, values: list[dict[str, Any]]) -> int:
        with self._opened(create=True).begin() as connection:
            _profiles.create(connection, checkfirst=True)
            connection.execute(sa.insert(_profiles), values)
        return len(values)

    def _newest_profile(self, name: str, limit: int) -> list[str]:
        if not self._has_profiles():
            return []
        newest = sa.select(_profiles.c.measured).where(_profiles.c.name == name)
        found = self._read(newest.order_by(_profiles.c.ended_at.desc(), _profiles.c.id.desc()).limit(limit))
        return [str(one["measured"]) for one in found]

    def _profile_names(self) -> list[str]:
        found = self._read(sa.select(_profiles.c.name).distinct()) if self._has_profiles() else []
        return [str(one["name"]) for one in found]

    def _has_profiles(self) -> bool:
        if self._engine is None and _is_missing_file(self.url):
            return False
        return bool(sa.inspect(self._opened(create=False)).has_table(_profiles.name))

    def _read(self, query: sa.Select[Any]) -> list[dict[str, Any]]:
        if self._engine is None and _is_missing_file(self.url):
            return []  # nothing was recorded yet: reading does not create the store
        with self._opened(create=False).connect() as connection:
            return [{str(name): v for name, v in found.items()} for found in connection.execute(query).mappings()]

    def _opened(self, create: bool) -> sa.Engine:
        if self._engine is None:
            if create:
                _make_folder(self.url)
            engine = _make_engine(self.url, self.busy_timeout_s)
            _prepare(engine)
            self._engine = engine
        return self._engine


def _make_engine(url: str, busy_timeout_s: float) -> sa.Engine:
    # No pool: a connection for each call is cheap here, and nothing is shared by a fork or left open at exit.
    options: dict[str, Any] = {"poolclass": sa.pool.NullPool}
    if sa.make_url(url).get_backend_name() == "sqlite":
        options["connect_args"] = {"timeout": busy_timeout_s}
    return sa.create_engine(url, **options)


def _prepare(engine: sa.Engine) -> None:
    """Make the tables where they are missing, and check the version where they are not."""
    if engine.dialect.name == "sqlite":
        # The mode stays with the file. Two processes that switch it at once: one is refused, and need not mind.
        with engine.connect() as connection, contextlib.suppress(sa.exc.OperationalError):
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    version = _version(engine)
    if version is None:
        try:
            _create(engine)
        except sa.exc.IntegrityError:  # PostgreSQL, when another process makes them at the same moment
            _create(engine)
        version = _version(engine)
    if version != SCHEMA_VERSION:
        raise UnknownVersionError(version)


def _version(engine: sa.Engine) -> int | None:
    if not sa.inspect(engine).has_table(_schema.name):
        return None
    with engine.connect() as connection:
        return connection.execute(sa.select(sa.func.max(_schema.c.version))).scalar()


def _create(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")  # one process makes them, the others wait and find them
        _metadata.create_all(connection)
        if connection.execute(sa.select(sa.func.max(_schema.c.version))).scalar() is None:
            connection.execute(sa.insert(_schema).values(version=SCHEMA_VERSION))


def _sqlite_path(url: str) -> Path | None:
    parsed = sa.make_url(url)
    plain = parsed.get_backend_name() == "sqlite" and parsed.database and not parsed.database.startswith("file:")
    return Path(parsed.database) if plain and parsed.database else None


def _is_missing_file(url: str) -> bool:
    path = _sqlite_path(url)
    return path is not None and not path.exists()


def _make_folder(url: str) -> None:
    path = _sqlite_path(url)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
