"""Preload on a real Airflow: what the scheduler has imported before its executor started is there in every task."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil
import pytest

from egs_airflow.local import ENDED
from tests.conformance.airflow.live import LiveAirflow

MODULE = "wave"  # of the standard library, and nothing in Airflow imports it
AIRFLOW_ENVIRONMENT = {
    "AIRFLOW__CORE__EXECUTOR": "egs_airflow.executors.EgsLocalExecutor",
    "EGS_PRELOAD_MODULES": f"no_such_module, {MODULE}",
}
LOOKS = f"""
import sys
from airflow.sdk import DAG, task

with DAG("preload_looks", schedule=None):
    @task
    def look(n):
        return [name in sys.modules for name in ("{MODULE}", "tabnanny")]

    look.expand(n=[1, 2, 3])
"""

CLOSES = """
import os, time
from airflow.sdk import DAG, task

end = os._exit
def end_late(code):
    os.closerange(0, 256)
    time.sleep(0.3)
    end(code)

with DAG("preload_closes", schedule=None, tags=["egs-on"]):
    @task
    def close(n):
        os._exit = end_late

    close.expand(n=list(range(16)))
"""


@pytest.mark.proves("airflow executor, agent", "preload")
def test_preloaded_modules_are_there_in_tasks(airflow: LiveAirflow) -> None:
    """Before the user's code has imported anything, in each process of the executor; what fails is one warning."""
    airflow.add_dags(preload_looks=LOOKS)
    run = airflow.run("preload_looks")
    path = f"/dags/preload_looks/dagRuns/{run}/taskInstances/look/xcomEntries/return_value"
    looks = [airflow.rest("GET", f"{path}?map_index={n}")["value"] for n in range(3)]
    assert looks == [[True, False]] * 3
    assert airflow.logs().count("no_such_module is not preloaded: ModuleNotFoundError") == 1


def test_a_process_of_the_executor_hears_when_its_task_has_ended(airflow: LiveAirflow) -> None:
    """Tasks whose processes close their pipes a moment before they end, as every process does: most are waited for at
    once. To Airflow alone each is a zombie until the next heartbeat, nearly five seconds, in which its executor's
    process can take no other task."""
    airflow.add_dags(preload_closes=CLOSES)
    run, seen = airflow.trigger("preload_closes"), dict[int, list[float]]()
    while airflow.state("preload_closes", run) not in ENDED:
        for zombie in zombies(airflow):
            seen.setdefault(zombie, []).append(time.monotonic())
        time.sleep(0.1)
    assert airflow.state("preload_closes", run) == "success"
    lasted_s = [times[-1] - times[0] for times in seen.values()]
    tasks = len(airflow.task_instances("preload_closes", run))
    assert tasks == 16
    assert sum(seconds > 2.5 for seconds in lasted_s) < tasks / 2


def zombies(airflow: LiveAirflow) -> list[int]:
    """Processes of tasks that have ended, and for which nobody has waited yet."""
    found = []
    for process in psutil.Process(airflow.processes[1].pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found
