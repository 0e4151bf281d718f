"""What it costs Airflow to make the task instances of a DAG run, with and without EGS.

    python -m benchmarks.airflow_create [--tasks 1500] [--runs 9] [--rounds 2]

Each way is a process of its own on a fresh metadata database (SQLite), with learned durations; the run is rolled back
each time. Prints one JSON object: processor time in seconds, the least and the median of each round's runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from egs_airflow.local import make_environment
from egs_airflow.order.durations import packed
from egs_airflow.shared import DURATIONS

WAYS = {"native": {"EGS_MODE": "off"}, "egs": {"EGS_MODE": "on"}}
DAG_ID = "large"


def main(arguments: list[str] | None = None) -> int:
    """Measure both ways in turn, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=1500)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--in-airflow", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.in_airflow:
        print(json.dumps(measure(options.tasks, options.runs)))
        return 0
    found: dict[str, list[Any]] = {name: [] for name in WAYS}
    for number in range(options.rounds):
        for name in sorted(WAYS, reverse=bool(number % 2)):
            found[name].append(_in_airflow(WAYS[name], options.tasks, options.runs))
    print(json.dumps({"tasks": options.tasks, "runs": options.runs, **found}))
    return 0


def _in_airflow(settings: dict[str, str], tasks: int, runs: int) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**make_environment(Path(folder)), **settings}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        learned = ("variables", "set", DURATIONS, packed({DAG_ID: {"t1": 3.0}}))
        for words in (("db", "migrate"), learned):
            command = [sys.executable, "-m", "airflow", *words]
            subprocess.run(command, env=environment, check=True, capture_output=True)
        measured = [sys.executable, "-m", "benchmarks.airflow_create", "--in-airflow"]
        measured += ["--tasks", str(tasks), "--runs", str(runs)]
        done = subprocess.run(measured, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(done.stdout.splitlines()[-1])


def measure(tasks: int, runs: int) -> dict[str, float]:
    """Inside a process of Airflow's: store a DAG, make its runs' task instances, and take them back."""
    from airflow import plugins_manager
    from airflow.models.dag import DagModel
    from airflow.models.dag_version import DagVersion
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.dagrun import DagRun
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.serialization.serialized_objects import LazyDeserializedDAG
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    plugins_manager.get_priority_weight_strategy_plugins()  # as the scheduler does: the weights' hook comes with them
    for row in (DagBundleModel(name="b"), DagModel(dag_id=DAG_ID, bundle_name="b", fileloc="x", relative_fileloc="x")):
        with create_session() as session:
            session.add(row)
    with create_session() as session:
        SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(_dag(tasks)), bundle_name="b", session=session)
    with create_session() as session:
        stored = session.query(SerializedDagModel).one()
        dag, version = stored.dag, stored.dag_version_id
    took = []
    for number in range(runs):
        with create_session() as session:
            run = DagRun(
                dag_id=DAG_ID,
                run_id=str(number),
                run_type=DagRunType.MANUAL,
                state=DagRunState.QUEUED,
                triggered_by=DagRunTriggeredByType.TEST,
            )
            run.created_dag_version = session.get(DagVersion, version)
            session.add(run)
            session.flush()
            run.dag = dag
            begin = time.process_time()
            run.verify_integrity(session=session, dag_version_id=version)
            took.append(time.process_time() - begin)
            session.rollback()
    return {"least_s": round(min(took), 3), "median_s": round(statistics.median(took), 3)}


def _dag(tasks: int) -> Any:
    """Chains of three."""
    from airflow.sdk import DAG, task

    with DAG(DAG_ID, schedule=None) as dag:
        before = None
        for number in range(tasks):
            now = task(_step).override(task_id=f"t{number}")()
            if before is not None and number % 3:
                before >> now
            before = now
    return dag


def _step() -> None:
    """Never run."""


if __name__ == "__main__":
    sys.exit(main())
