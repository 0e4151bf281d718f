"""Databases of a test's own: SQLite in a folder, and a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from egs_core.server.database import parse_database
from tests.postgres import Postgres, postgres

Where = Path | sa.URL


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A PostgreSQL server for a file's tests; they skip where none is installed."""
    with postgres() as found:
        yield found


@pytest.fixture
def database(server: Postgres) -> sa.URL:
    """An empty one of its own."""
    return parse_database(server.new_database())


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return tmp_path
    found: sa.URL = request.getfixturevalue("database")  # SQLite needs no server
    return found
