"""Airflow without a server: a home of its own, so that importing it writes nothing into the user's."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

# At import, because Airflow reads its home once, whichever test first imports it; at the end it is gone.
_HOME = tempfile.TemporaryDirectory(prefix="egs-airflow-tests-")
os.environ["AIRFLOW_HOME"] = _HOME.name
(Path(_HOME.name) / "airflow.cfg").touch()


@pytest.fixture(autouse=True)
def _fresh_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test reads the settings anew and starts without EGS's variables."""
    from egs_airflow import config

    for name in [name for name in os.environ if name.startswith("EGS_")]:
        monkeypatch.delenv(name)
    config.settings.cache_clear()
    config.warn.cache_clear()
