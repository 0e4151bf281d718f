"""DAG runs on an Airflow of their own, natively or with EGS, to their end; and their run log.

Every run gets a fresh Airflow with default settings, but for the number of slots: the default pool has one for each
CPU, the pool `gpu` one for each GPU. Those GPUs are emulated.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from egs_airflow import compat
from egs_airflow.history.read import read_airflow
from egs_airflow.local import LocalAirflow, LocalAirflowError, local_airflow, wait_until
from egs_airflow.order.durations import Durations, write_durations
from egs_airflow.replay.notes import read_notes, records_of
from egs_airflow.replay.play import NOTES
from egs_airflow.rest import Rest
from egs_core.adapter import Progress
from egs_core.errors import InputError
from egs_core.replayed import arrivals
from egs_core.runlog.records import Header, Record

GPU_POOL = "gpu"
LOOK_EVERY_S = 0.5
RARELY_S = 10.0
"""Airflow is asked so often for its runs until all tasks have noted themselves: each question is work for its
api-server, for which tasks wait."""
LOG_LINES = 8  # of a failed task, that are shown
OFF = {"EGS_MODE": "off"}
ON = {"EGS_MODE": "on", "AIRFLOW__CORE__EXECUTOR": "egs_airflow.executors.EgsLocalExecutor"}


class DagRuns(msgspec.Struct, frozen=True):
    """What is to run: DAG files by name; for each run DAG id, arrival in seconds, and conf; how many tasks all have.

    environment: of Airflow's processes, beside what `with_egs` sets. durations: what EGS has learned before.
    """

    sources: Mapping[str, str]
    dags: Sequence[tuple[str, float, Mapping[str, Any]]]
    tasks: int
    cpus: int
    gpus: int
    with_egs: bool
    environment: Mapping[str, str] = {}
    durations: Durations = {}


def carry_out(runs: DagRuns, progress: Progress | None = None) -> tuple[Header, list[Record]]:
    """Run all of it, and give the run log's header and records. Raises InputError where Airflow is not installed,
    LocalAirflowError where it does not start or a run fails.
    """
    _require_airflow()
    with tempfile.TemporaryDirectory(prefix="egs-airflow-") as name:
        folder, home = Path(name), Path(name) / "home"
        notes = folder / "notes.jsonl"
        environment = {**_environment(runs, home), NOTES: str(notes)}
        with local_airflow(home, environment, {} if runs.with_egs else runs.sources) as airflow:
            if runs.gpus:
                _make_pool(airflow, runs)
            if runs.with_egs:
                airflow.add_dags(**runs.sources)
            since_s = time.time()
            for place in arrivals([submit_s for _, submit_s, _ in runs.dags]):
                dag_id, _, conf = runs.dags[place]
                airflow.trigger(dag_id, dict(conf))
            _wait(airflow, lambda: _are_over(progress, notes, runs.tasks))
            seen = read_airflow(Rest(airflow.url, airflow.token), since_s)
            return records_of(seen, GPU_POOL, read_notes(notes), runs.durations if runs.with_egs else None)


def _require_airflow() -> None:
    if not compat.airflow_version():
        raise InputError("--on airflow", "Airflow is not installed here", "pip install airflow-provider-egs")


def _environment(runs: DagRuns, home: Path) -> dict[str, str]:
    """Slots of the default pool as many as CPUs, no other limit, and what EGS is told.

    A process lives on for a moment after its task has given its slot back, so there may be more of them than slots.
    """
    most = str(2 * (runs.cpus + runs.gpus))
    limits = {"PARALLELISM": most, "MAX_ACTIVE_TASKS_PER_DAG": most, "DEFAULT_POOL_TASK_SLOT_COUNT": str(runs.cpus)}
    sizes = {f"AIRFLOW__CORE__{name}": value for name, value in limits.items()}
    if not runs.with_egs:
        return {**sizes, **OFF, **runs.environment}
    durations = home / "durations.json"
    if runs.durations:
        home.mkdir(parents=True, exist_ok=True)
        write_durations(durations, runs.durations)
    pools = {"EGS_POOLS": f"{GPU_POOL}={runs.gpus}"} if runs.gpus else {}
    return {**sizes, **ON, **pools, "EGS_DURATIONS": str(durations), **runs.environment}


def _make_pool(airflow: LocalAirflow, runs: DagRuns) -> None:
    """The pool of GPUs; with EGS its executor makes it, and tasks get it only in DAG files that are read after that."""
    if runs.with_egs:
        wait_until(
            lambda: GPU_POOL in {pool["name"] for pool in airflow.rest("GET", "/pools")["pools"]}, "the GPU pool"
        )
    else:
        airflow.rest("POST", "/pools", {"name": GPU_POOL, "slots": runs.gpus, "include_deferred": True})


def _wait(airflow: LocalAirflow, are_over: Callable[[], bool]) -> None:
    """Until all runs have ended, which they must in success. are_over: whether all tasks seem to have ended."""
    asked_s = time.monotonic()
    while True:
        airflow.check_alive()
        if are_over() or time.monotonic() - asked_s > RARELY_S:
            asked_s = time.monotonic()
            if not airflow.rest("GET", "/dags/~/dagRuns?state=queued&state=running&limit=1")["total_entries"]:
                break
        time.sleep(LOOK_EVERY_S)
    if airflow.rest("GET", "/dags/~/dagRuns?state=failed&limit=1")["total_entries"]:
        failed = airflow.rest("GET", "/dags/~/dagRuns/~/taskInstances?state=failed&limit=10")["task_instances"]
        names = ", ".join(f"{one['dag_id']}.{one['task_id']}" for one in failed)
        logs = task_log(airflow, failed[0]["task_id"]) if failed else airflow.last_lines()
        raise LocalAirflowError(f"a run has failed: {names}\n{logs}")
    are_over()


def task_log(airflow: LocalAirflow, task_id: str) -> str:
    """The last lines of what a task printed."""
    found = sorted(airflow.home.glob(f"logs/**/task_id={task_id}/*.log"))
    return "\n".join(found[-1].read_text(errors="replace").splitlines()[-LOG_LINES:]) if found else ""


def _are_over(progress: Progress | None, notes: Path, tasks: int) -> bool:
    """Whether as many tasks as there are have noted themselves; who watches is told how many."""
    ended = notes.read_bytes().count(b"\n") if notes.exists() else 0
    if progress is not None:
        progress(min(ended, tasks), tasks)
    return ended >= tasks
