"""How long a pass of Airflow's scheduler takes while a DAG run of 1,000 tasks goes on, with and without EGS.

    python -m benchmarks.airflow_loop [--tasks 1000] [--window-s 60] [--rounds 3]

Each way gets a fresh Airflow a round, natively with LocalExecutor or in mode on with EgsLocalExecutor; SQLite. Tasks
sleep for a second in a pool of four slots. Prints one JSON object: passes and their times in milliseconds, by the
scheduler's own account ("Ran scheduling loop in …"), over the window after the first task has started.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from egs_airflow.local import LocalAirflow, local_airflow, wait_until
from egs_airflow.replay.runs import OFF, ON

DAG = """
import time
from airflow.sdk import DAG, task

def step():
    time.sleep(1)

with DAG("large", schedule=None, max_active_tasks=1000):
    before = None
    for number in range({tasks}):
        now = task(step, task_id=f"step{{number}}", pool="few")()
        if before is not None and number % 10:
            before >> now
        before = now
"""
LOOP = re.compile(r"Ran scheduling loop in ([\d.]+) ms")
LOGGING = {"AIRFLOW__LOGGING__NAMESPACE_LEVELS": "airflow.jobs.scheduler_job_runner.SchedulerJobRunner=DEBUG"}
WAYS = {"native": OFF, "egs": ON}


def main(arguments: list[str] | None = None) -> int:
    """Measure both ways in turn, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--window-s", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    for number in range(options.rounds):
        for name in sorted(WAYS, reverse=bool(number % 2)):
            found[name].append(measure(name, options.tasks, options.window_s))
            print(f"round {number + 1}, {name}: {found[name][-1]}", file=sys.stderr, flush=True)
    p99 = [one["p99_ms"] / other["p99_ms"] for one, other in zip(found["egs"], found["native"], strict=True)]
    command = f"python -m benchmarks.airflow_loop --tasks {options.tasks} --rounds {options.rounds}"
    told = {"command": command, "window_s": options.window_s, **found, "p99_egs_over_native": round(np.median(p99), 3)}
    print(json.dumps(told))
    return 0


def measure(way: str, tasks: int, window_s: float) -> dict[str, float]:
    """The passes of one fresh Airflow."""
    with tempfile.TemporaryDirectory(prefix="egs-bench-") as folder:
        home = Path(folder) / "home"
        environment = {**WAYS[way], **LOGGING, "EGS_DURATIONS": str(home / "durations.json")}
        with local_airflow(home, environment, {"large": DAG.format(tasks=tasks)}) as airflow:
            airflow.rest("POST", "/pools", {"name": "few", "slots": 4, "include_deferred": False})
            run = airflow.trigger("large")
            wait_until(lambda: ended(airflow, run), "the first task's end", 120.0)
            before = len(passes_ms(airflow))
            time.sleep(window_s)
            found = passes_ms(airflow)[before:]
            done = ended(airflow, run)
    return {
        "passes": len(found),
        "p50_ms": round(float(np.percentile(found, 50)), 1),
        "p99_ms": round(float(np.percentile(found, 99)), 1),
        "mean_ms": round(float(np.mean(found)), 1),
        "ended": done,
    }


def ended(airflow: LocalAirflow, run: str) -> int:
    """How many tasks have succeeded."""
    path = f"/dags/large/dagRuns/{run}/taskInstances?state=success&limit=1"
    found: dict[str, Any] = airflow.rest("GET", path)
    return int(found["total_entries"])


def passes_ms(airflow: LocalAirflow) -> list[float]:
    """The times of all passes so far."""
    return [float(one) for one in LOOP.findall(airflow.logs())]


if __name__ == "__main__":
    sys.exit(main())
