"""From queued to the end of a task's imports on Airflow, with modules preloaded into EgsLocalExecutor and without.

    python -m benchmarks.airflow_preload --rounds 10

Two real Airflows of our own side by side, in mode on, that differ in `[egs] preload_modules` only; in each, turn by
turn, a task that imports numpy, pandas and pyarrow. Memory: what the scheduler and the processes of its executor hold
when all is over, pages that they share counted once (PSS).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from egs_airflow.local import LocalAirflow, local_airflow

MODULES = "numpy pandas pyarrow"
SIDES = {"without": "", "preloaded": MODULES}
DAG = f"""
import time
from airflow.sdk import DAG, task

with DAG("imports", schedule=None):
    @task
    def use():
        import {MODULES.replace(" ", ", ")}
        return time.time()

    use()
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="runs of each side")
    rounds = parser.parse_args(arguments).rounds
    with tempfile.TemporaryDirectory(prefix="egs-preload-") as folder, ExitStack() as stack:
        airflows = {
            side: stack.enter_context(local_airflow(Path(folder) / side, environment_of(modules), {"imports": DAG}))
            for side, modules in SIDES.items()
        }
        for airflow in airflows.values():
            queued_to_imported_s(airflow)  # the first task of an Airflow waits for more than its imports
        seconds = [{side: queued_to_imported_s(airflow) for side, airflow in airflows.items()} for _ in range(rounds)]
        memory = {side: memory_mib(airflow) for side, airflow in airflows.items()}
    figures = {side: told([one[side] for one in seconds]) | memory[side] for side in SIDES}
    json.dump(figures, sys.stdout, indent=2)
    print()
    return 0


def environment_of(modules: str) -> dict[str, str]:
    """The settings of one side."""
    executor = "egs_airflow.executors.EgsLocalExecutor"
    return {"EGS_MODE": "on", "EGS_PRELOAD_MODULES": modules, "AIRFLOW__CORE__EXECUTOR": executor}


def queued_to_imported_s(airflow: LocalAirflow) -> float:
    """Run the task once."""
    run = airflow.run("imports")
    task = airflow.task_instances("imports", run)[0]
    path = f"/dags/imports/dagRuns/{run}/taskInstances/use/xcomEntries/return_value"
    imported_s = float(airflow.rest("GET", path)["value"])
    return imported_s - datetime.fromisoformat(task["queued_when"]).timestamp()


def memory_mib(airflow: LocalAirflow) -> dict[str, Any]:
    """Of the scheduler itself, and of its executor's processes together."""
    scheduler = psutil.Process(airflow.processes[1].pid)
    workers = [mib for child in scheduler.children(recursive=True) if (mib := worker_mib(child))]
    own = scheduler.memory_full_info().pss / 2**20
    return {"scheduler_mib": round(own, 1), "workers": len(workers), "workers_mib": round(sum(workers), 1)}


def worker_mib(process: psutil.Process) -> float:
    """What a process of the executor holds; 0 for another, and for a task that is ending."""
    try:
        is_worker = "LocalExecutor" in " ".join(process.cmdline())
        return process.memory_full_info().pss / 2**20 if is_worker else 0.0
    except psutil.Error:
        return 0.0


def told(seconds: list[float]) -> dict[str, Any]:
    """Median and spread."""
    low, median, high = (round(float(np.percentile(seconds, q)), 3) for q in (0, 50, 100))
    return {"median_s": median, "lowest_s": low, "highest_s": high, "rounds": len(seconds)}


if __name__ == "__main__":
    sys.exit(main())
