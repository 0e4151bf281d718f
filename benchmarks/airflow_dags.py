"""What EGS costs Airflow: the time to read a DAG file of 1,000 tasks, to make the task instances of a run, and the
versions of a DAG that come of 100 readings.

    python -m benchmarks.airflow_dags [--tasks 1000] [--rounds 9]

A fresh Airflow home with SQLite, without a server. All ways are interleaved in one process; the rounds begin with
another way each. Prints one JSON object, times in seconds of the processor: others use the machine too.
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
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DAG = """
from airflow.sdk import DAG, task

def step():
    pass

with DAG("large", tags=["egs-on"], schedule=None):
    before = None
    for number in range({tasks}):
        now = task(step, task_id=f"step{{number}}")()
        if before is not None and number % 10:
            before >> now
        before = now
"""
MODES = ("off", "observe", "on")


def main(arguments: list[str] | None = None) -> int:
    """Measure in a process of its own, which has the home, and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--readings", type=int, default=100)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.inside:
        print(json.dumps(measure(options.tasks, options.rounds, options.readings)))
        return 0
    with tempfile.TemporaryDirectory(prefix="egs-bench-") as folder:
        home = Path(folder)
        (home / "dags").mkdir()
        (home / "dags" / "large.py").write_text(DAG.format(tasks=options.tasks))
        environment = environment_of(home)
        for words in (("db", "migrate"), ("dags", "reserialize")):
            airflow = [sys.executable, "-m", "airflow", *words]
            subprocess.run(airflow, env=environment, check=True, capture_output=True)
        numbers = [f"--{name}={getattr(options, name)}" for name in ("tasks", "rounds", "readings")] + ["--inside"]
        command = [sys.executable, "-m", "benchmarks.airflow_dags", *numbers]
        done = subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    print(done.stdout.splitlines()[-1])
    return 0


def environment_of(home: Path) -> dict[str, str]:
    """Of an Airflow that knows nothing of the user's, in mode on."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "EGS_", "XDG_"))}
    sources = [str(ROOT), str(ROOT / "plugins" / "airflow"), kept.get("PYTHONPATH", "")]
    own = {
        "HOME": str(home),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "EGS_MODE": "on",
        "EGS_DURATIONS": str(home / "durations.json"),
        "PYTHONPATH": os.pathsep.join(filter(None, sources)),
    }
    return {**kept, **own}


def measure(tasks: int, rounds: int, readings: int) -> dict[str, Any]:
    """All figures; called in the process that has the home."""
    command = f"python -m benchmarks.airflow_dags --tasks {tasks} --rounds {rounds} --readings {readings}"
    parsed, versions, made = parse_s(rounds), versions_of(readings), make_s(rounds)
    return {
        "command": command,
        "tasks": tasks,
        "rounds": rounds,
        "parse_s": parsed,
        "parse_on_over_off": ratio(parsed, "on", "off"),
        "readings": readings,
        "versions": versions,
        "make_s": made,
        "make_on_over_off": ratio(made, "on", "off"),
    }


def parse_s(rounds: int) -> dict[str, list[float]]:
    """Reading the file and storing its DAG, as a dag-processor does, in each mode."""
    return interleaved(rounds, {mode: partial(read, mode) for mode in MODES})


def read(mode: str) -> Any:
    """The DAG as it would be stored."""
    from egs_airflow import compat, config

    os.environ["EGS_MODE"] = mode
    config.settings.cache_clear()
    dags, errors = compat.read_dag_file(Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"]))
    if errors:
        raise RuntimeError(str(errors))
    return compat.serialize(dags["large"])


def versions_of(readings: int) -> int:
    """Versions of the DAG in Airflow's own tables after readings in mode on, each with other durations."""
    from airflow.models.dag_version import DagVersion
    from airflow.utils.session import create_session
    from sqlalchemy import func, select

    from egs_airflow.order.durations import write_durations

    for number in range(readings):
        write_durations(Path(os.environ["EGS_DURATIONS"]), {"large": {"step0": number, "step1": number**2}})
        store("on")
    with create_session() as session:
        return int(session.scalar(select(func.count()).select_from(DagVersion)) or 0)


def store(mode: str) -> None:
    """Read the file and store what is in it."""
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.serialization.serialized_objects import LazyDeserializedDAG

    SerializedDagModel.write_dag(LazyDeserializedDAG(data=read(mode)), bundle_name="dags-folder", bundle_version=None)


def make_s(rounds: int) -> dict[str, list[float]]:
    """Making the task instances of a run, by Airflow alone in bulk, and in mode on one by one, each with its weight."""
    from airflow import settings

    from egs_airflow import compat, config
    from egs_airflow.order.strategy import OrderPolicy

    os.environ["EGS_MODE"] = "on"
    config.settings.cache_clear()
    compat.install_policy(OrderPolicy)
    hook = settings.task_instance_mutation_hook

    def run(is_noop: bool) -> None:
        hook.is_noop = is_noop
        make_run()

    return interleaved(rounds, {"off": partial(run, True), "on": partial(run, False)})


def make_run() -> None:
    """A run of the stored DAG, with all of its task instances."""
    types = import_module("airflow.utils.types")
    from airflow.models.dagbag import DBDagBag
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState

    with create_session() as session:
        dag = DAG_OF.setdefault("large", DBDagBag().get_latest_version_of_dag("large", session=session))
        moment = datetime.now(UTC)
        dag.create_dagrun(
            run_id=f"bench_{moment.timestamp()}",
            run_after=moment,
            run_type=types.DagRunType.MANUAL,
            triggered_by=types.DagRunTriggeredByType.TEST,
            state=DagRunState.QUEUED,
            session=session,
        )


DAG_OF: dict[str, Any] = {}
"""The stored DAG, read once: reading it takes longer than making a run."""


def interleaved(rounds: int, ways: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Processor seconds of each way in each round, after one that does not count."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            begin = time.process_time()
            ways[name]()
            if number:
                found[name].append(round(time.process_time() - begin, 4))
    return found


def ratio(found: dict[str, list[float]], one: str, other: str) -> float:
    """Median of the ratios within the rounds."""
    return round(statistics.median(a / b for a, b in zip(found[one], found[other], strict=True)), 3)


if __name__ == "__main__":
    sys.exit(main())
