"""Airflow without a server: a home of its own, so that importing it writes nothing into the user's."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import Connection

# At import, because Airflow reads its home once, whichever test first imports it; at the end it is gone.
_HOME = tempfile.TemporaryDirectory(prefix="egs-airflow-tests-")
os.environ["AIRFLOW_HOME"] = _HOME.name
(Path(_HOME.name) / "airflow.cfg").touch()


@pytest.fixture
def metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    """Tables of Airflow's metadata, which EGS reads on connections of its own."""
    from egs_airflow import compat
    from tests.unit.airflow.metadata import make_tables

    engine = create_engine(f"sqlite:///{tmp_path / 'metadata.sqlite'}")
    monkeypatch.setattr(compat, "connect", engine.connect)
    with engine.connect() as connection:
        make_tables(connection)
        yield connection
    engine.dispose()


@pytest.fixture(autouse=True)
def _fresh_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test reads the settings anew and starts without EGS's variables."""
    from egs_airflow import config
    from egs_airflow.order import durations

    for name in [name for name in os.environ if name.startswith("EGS_")]:
        monkeypatch.delenv(name)
    config.settings.cache_clear()
    config.warn.cache_clear()
    durations._shared.clear()
    durations._current.clear()
