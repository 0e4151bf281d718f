"""Processes that stand ready, in an Airflow of their own."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from tests.conformance.airflow.conftest import require_airflow
from tests.conformance.airflow.live import live_airflow

READS = """
import time
READ = time.time()
from airflow.sdk import DAG, task

with DAG("preload_reads", schedule=None, tags=["egs-on"]):
    @task
    def read(n):
        return READ

    read.expand(n=list(range(10)))
"""


@pytest.mark.slow  # an Airflow of its own
def test_dag_files_are_read_before_their_tasks_come(tmp_path: Path) -> None:
    """Ten tasks for eight processes, twice: some have their DAG file read when they begin to run, by a process that
    stood ready; without those each reads it after that. No task fails. In an Airflow that all tests share, other DAG
    files would want these processes, too."""
    require_airflow()
    settings = {"AIRFLOW__CORE__EXECUTOR": "egs_airflow.executors.EgsLocalExecutor", "EGS_MODE": "on"}
    ahead = []
    with live_airflow(tmp_path / "home", settings, {"preload_reads": READS}) as airflow:
        for _ in range(2):
            run = airflow.run("preload_reads")
            for ti in airflow.task_instances("preload_reads", run):
                path = f"/dags/preload_reads/dagRuns/{run}/taskInstances/read/xcomEntries/return_value"
                read = airflow.rest("GET", f"{path}?map_index={ti['map_index']}")["value"]
                ahead.append(read < datetime.fromisoformat(ti["start_date"]).timestamp())
    assert len(ahead) == 20
    assert any(ahead)
    assert not ahead[0]  # nobody knew
