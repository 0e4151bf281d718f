"""An Airflow's metadata in a PostgreSQL server of a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests import postgres as servers
from tests.postgres import is_installed as is_installed


@contextmanager
def postgres() -> Iterator[str]:
    """The URL of an empty database, which is gone at the end; skips where there is no server or no driver."""
    with servers.postgres("airflow") as server:
        yield server.url()


def metadata_in(url: str) -> dict[str, str]:
    """The variables of an Airflow that keeps its metadata there."""
    return {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url, "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": url}
