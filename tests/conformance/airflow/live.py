"""The local Airflow of the tests: that of the package, with this checkout's sources before installed ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from egs_airflow.local import LocalAirflow, free_ports, local_airflow, wait_until
from egs_airflow.local import make_environment as own_environment

ROOT = Path(__file__).resolve().parents[3]
SOURCES = (ROOT, ROOT / "plugins" / "airflow")
LiveAirflow = LocalAirflow

__all__ = ["SOURCES", "LiveAirflow", "free_ports", "live_airflow", "make_environment", "wait_until"]


def make_environment(home: Path, port: int = 0) -> dict[str, str]:
    """The variables of an Airflow of its own, with this checkout's sources."""
    return {**own_environment(home, port), "PYTHONPATH": os.pathsep.join(map(str, SOURCES))}


@contextmanager
def live_airflow(
    home: Path, environment: Mapping[str, str], sources: Mapping[str, str] | None = None
) -> Iterator[LiveAirflow]:
    """A fresh Airflow with these DAG files; gone, with all of its processes, at the end."""
    with local_airflow(home, {"PYTHONPATH": os.pathsep.join(map(str, SOURCES)), **environment}, sources) as airflow:
        yield airflow
