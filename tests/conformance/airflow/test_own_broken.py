"""Parts of EGS that end the process which imports them, in an Airflow of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from egs_airflow.compat import airflow_version
from tests.conformance.airflow.conftest import require_airflow
from tests.conformance.airflow.live import SOURCES, live_airflow
from tests.conformance.airflow.test_airflow_observe_mode import rows

PLAIN = """
from airflow.sdk import DAG, task

with DAG("plain", schedule=None):

    @task
    def one() -> int:
        return 1

    @task
    def two(x: int) -> None:
        print(x)

    two(one())
"""

BROKEN = """
import sys


class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name in ("egs_airflow.observe.listener", "egs_airflow.order.strategy", "egs_airflow.order.policy"):
            raise SystemExit(f"{name} is broken")
        return None


sys.meta_path.insert(0, Refuses())
"""


@pytest.mark.slow  # an Airflow of its own
def test_a_broken_egs_leaves_runs_successful(tmp_path: Path) -> None:
    """An Airflow that EGS does not know, and each part of EGS ends the process that imports it: the DAG run succeeds,
    natively, and each fault is one line in the log of a process."""
    require_airflow()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(BROKEN)
    environment = {"EGS_MODE": "on", "EGS_AIRFLOW_WITHOUT": "version", "EGS_POOLS": "gpu=1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(broken), *map(str, SOURCES)])
    with live_airflow(tmp_path / "home", environment, {"plain": PLAIN}) as hit:
        hit.run("plain")
        logs = (hit.home / "scheduler.log").read_text()
        assert rows(hit, "select pool from slot_pool") == [("default_pool",)]
    for line in (
        f"egs: Airflow {airflow_version()} is not a version EGS knows (3.3, 3.2): observing only",
        "egs_airflow.observe.listener:listeners is off, Airflow runs without it: SystemExit",
        "egs_airflow.order.strategy:priority_weight_strategies is off, Airflow runs without it: SystemExit",
    ):
        assert line in logs
