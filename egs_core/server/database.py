"""The database behind a site's store: SQLite in a folder, without any set-up, or PostgreSQL by URL; its schema.

SQLite: WAL, and `synchronous=FULL`. PostgreSQL: never with `synchronous_commit=off`. So what a commit has taken
outlives the machine. Revisions of the schema are Alembic's, and run in one transaction when a database is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from egs_core.errors import InputError, listed
from egs_core.server.tables import ENTRIES, META, RUNS

FILE_NAME = "site.db"
APPLICATION = "egs-server"
HEAD = "0002"
MIGRATIONS = Path(__file__).parent / "migrations"
DRIVER = "postgresql+psycopg"
EXAMPLE = f"for example {DRIVER}://egs@db.example/egs"
INSTALL = "pip install 'egs-core[server]'"
SETTINGS = ("SET lock_timeout = '5s'", "SET statement_timeout = '60s'")
ANSWERS_S = 65.0  # of a transaction: by then a database that is reached has answered, or given up a statement
DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
OWN_TABLES = {META.name, ENTRIES.name, RUNS.name}  # that every version has had
SCHEMA = ", or after CREATE SCHEMA egs a schema of its own: URL?options=-csearch_path%3Degs"
MIGRATING = 7_300_471  # of an advisory lock: two servers may open a new database at one time
CONNECTION = {
    "application_name": APPLICATION,
    "connect_timeout": 3,
    # a database that is cut off is noticed, instead of waited for as long as TCP does
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 4000,
}


def parse_database(text: str) -> sa.URL:
    """The URL that `--database` has. Raises InputError."""
    try:
        url = sa.engine.make_url(text)
    except sa.exc.ArgumentError:
        raise InputError("--database", "is not the address of a database", EXAMPLE) from None
    if url.drivername not in ("postgresql", DRIVER) or not url.database:
        problem = f"{url.render_as_string()!r} is not the address of a PostgreSQL database"
        raise InputError("--database", problem, f"{EXAMPLE}; SQLite needs none, only --data")
    if find_spec("psycopg") is None:
        raise InputError("--database", "PostgreSQL needs psycopg", INSTALL)
    return url.set(drivername=DRIVER)


def place_of(where: Path | sa.URL) -> str:
    """Its name for people, without a password."""
    return str(where / FILE_NAME) if isinstance(where, Path) else where.render_as_string()


def make_engine(where: Path | sa.URL) -> sa.Engine:
    """where: a folder, or of PostgreSQL."""
    if isinstance(where, Path):
        engine = sa.create_engine(f"sqlite:///{where / FILE_NAME}")
        sa.event.listen(engine, "connect", _set_up_sqlite)
        return engine
    engine = sa.create_engine(where, pool_pre_ping=True, connect_args=CONNECTION)
    sa.event.listen(engine, "connect", _set_up_postgresql)
    return engine


def upsert(dialect: sa.Dialect, table: sa.Table) -> Any:
    """An INSERT of rows of which some may be there: those become as these. By the primary key."""
    new = import_module(f"sqlalchemy.dialects.{dialect.name}").insert(table)  # only the dialect that is used is loaded
    others = {column.name: new.excluded[column.name] for column in table.columns if not column.primary_key}
    return new.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=others)


class Prepared:
    """Puts rows in by a statement that is made into the database's own text once: SQLAlchemy's way there costs more
    than a short commit itself. Values are bound as they are: types of ours (`tables.Text`) do nothing to them."""

    def __init__(self, dialect: sa.Dialect, statement: Any, names: Sequence[str]) -> None:
        compiled = statement.compile(dialect=dialect, column_keys=list(names))
        self._text = str(compiled)
        self._order = tuple(compiled.positiontup) if compiled.positional else None

    def put(self, connection: sa.Connection, rows: list[dict[str, Any]]) -> None:
        """rows: at least one, each with the names."""
        order = self._order
        values: Any = rows if order is None else [tuple([row[name] for name in order]) for row in rows]
        connection.exec_driver_sql(self._text, values)


def migrate(connection: sa.Connection, place: str) -> None:
    """Make the tables those of this version. Raises InputError for those of a later one, and where all that is there
    is somebody else's."""
    if _is_postgresql(connection):
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATING)))
    _check_owner(connection, place)
    found = _revision(connection)
    if found == HEAD:
        return
    try:
        from alembic import command
        from alembic.config import Config
        from alembic.util import CommandError
    except ImportError as error:  # whoever had the extra before it was part of it
        raise InputError(place, f"needs {error.name} to make its tables", INSTALL) from None

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError:
        raise InputError(place, f"has tables of format {found}", f"readable: up to {HEAD}") from None


def _check_owner(connection: sa.Connection, place: str) -> None:
    """Raises InputError for tables of which none says that EGS has made them: those of a mistyped database. Of several
    schemas the connection's own is meant, the first of its search path."""
    there = set(sa.inspect(connection).get_table_names())
    if there and not there >= OWN_TABLES:
        problem = f"has tables, and they are not EGS's: {listed(sorted(there), 4)}"
        raise InputError(place, problem, "name an empty database" + (SCHEMA if _is_postgresql(connection) else ""))


def _is_postgresql(connection: sa.Connection) -> bool:
    return bool(connection.dialect.name == "postgresql")


def _revision(connection: sa.Connection) -> str | None:
    """That of its tables, None for tables from before there were revisions, or for none."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    return found


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    """Of each connection."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _set_up_postgresql(connection: Any, _record: Any) -> None:
    """Of each connection."""
    cursor = connection.cursor()
    for statement in (*SETTINGS, DURABLE):
        cursor.execute(statement)
    cursor.close()
    connection.commit()
