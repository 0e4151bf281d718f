"""The agent stages files on a real Airflow: what a task reads is in memory when it starts, and what it cost is told.

`pytest tests/conformance/airflow/test_staging.py -m slow -s` prints how long a task took to read its cold file with and
without: both DAGs in turn, the file dropped from the page cache before each run.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from egs_airflow.order.durations import load_durations, write_durations
from tests.conformance.airflow.agents import Agent, an_agent
from tests.conformance.airflow.live import LiveAirflow, wait_until

pytestmark = pytest.mark.slow  # predecessors must last longer than reading takes, and there are several runs
AIRFLOW_ENVIRONMENT = {"AIRFLOW__CORE__EXECUTOR": "egs_airflow.executors.EgsLocalExecutor"}
SIZE = 256 << 20
BEFORE_S = 6.0
ROUNDS = 2

DAG = """
import os
import time
from pathlib import Path

import egs_core as egs
from airflow.sdk import DAG, task
from egs_airflow.preload.files import resident_bytes

MODEL, OTHER = {model!r}, {other!r}

def wait(fails):
    time.sleep({before_s})
    if fails:
        raise ValueError("on purpose")

@egs.task(preload=[egs.modules("json"), egs.files(MODEL, "relative.pt")])
def read():
    file = os.open(MODEL, os.O_RDONLY)
    size = os.fstat(file).st_size
    resident = resident_bytes(file, size) / size
    began = time.monotonic()
    Path(MODEL).read_bytes()
    return [resident, time.monotonic() - began]

@egs.task(preload=egs.files(OTHER, "/no/such/file"))
def never():
    pass

for dag_id, tags in (("stage_on", ["egs-on"]), ("stage_observed", [])):
    with DAG(dag_id, tags=tags, schedule=None):
        first = task(wait, task_id="first")(False)
        first >> task(read)() >> task(read, task_id="again")()
        task(wait, task_id="fails")(True) >> task(never)()
"""


def test_files_are_in_memory_when_the_task_starts(airflow: LiveAirflow, tmp_path: Path) -> None:
    """In a chosen DAG the file was read from disk before its task began, once for two tasks; in an observed one it was
    not. Lines say what it took; what was read in vain, and why a file could not be, is said too."""
    model, other = tmp_path / "model.pt", tmp_path / "other.pt"
    for path, size in ((model, SIZE), (other, 1 << 20)):
        path.write_bytes(os.urandom(1 << 20) * (size >> 20))
    airflow.add_dags(stage=DAG.format(model=str(model), other=str(other), before_s=BEFORE_S))
    durations = airflow.home / "xdg_data_home" / "egs" / "airflow" / "durations.json"
    write_durations(durations, {**load_durations(durations), "stage_on": {"first": BEFORE_S, "read": 1.0}})
    found: dict[str, list[Any]] = {"stage_on": [], "stage_observed": []}
    for number in range(ROUNDS):
        for dag_id in found:  # an agent a run: the next one would know that the file was read a moment ago
            with _agent(airflow, tmp_path / f"{number}_{dag_id}.log") as agent:
                wait_until(lambda a=agent: "mode on" in a.said(), "the agent's start")  # type: ignore[misc]  # as below
                for path in (model, other):
                    drop(path)
                run = airflow.trigger(dag_id)
                airflow.wait_run(dag_id, run)
                found[dag_id].append(_looked(airflow, dag_id, run))
                if dag_id == "stage_on":
                    wait_until(lambda a=agent: "staged in vain for" in a.said(), "the report of the run's end")  # type: ignore[misc]  # mypy has no types for such a lambda
                    _check_said(agent, f"{dag_id}/{run}")
    seconds = {dag_id: [round(looked[1], 3) for looked in several] for dag_id, several in found.items()}
    medians = {dag_id: median(several) for dag_id, several in seconds.items()}
    print(f"reading {SIZE >> 20} MiB, s: {seconds}; medians {medians}")
    assert min(looked[0] for looked in found["stage_on"]) > 0.9, found
    assert max(looked[0] for looked in found["stage_observed"]) < 0.5, found
    acts = _acts(airflow)
    assert len([act for act in acts if act["act"] == "staged for" and act["task"] == "read"]) == ROUNDS
    assert not [act for act in acts if act["task"] == "again" or act["dag"] == "stage_observed"]
    assert all(act["bytes"] == SIZE for act in acts if act["act"] == "staged for" and act["task"] == "read")
    assert all(act["cold_bytes"] > 0.9 * SIZE for act in acts if act["act"] == "staged for" and act["task"] == "read")


def _check_said(agent: Agent, workload: str) -> None:
    said = agent.said()
    assert f"staged for {workload} read, try 0: 1 files, 268 MB, " in said, said
    assert "/no/such/file No such file or directory" in said, said
    assert f"staged in vain for {workload} never, try 0: it has not run on this host" in said, said


def _looked(airflow: LiveAirflow, dag_id: str, run: str) -> Any:
    """Share of the file that was in memory, seconds of reading it."""
    place = f"/dags/{dag_id}/dagRuns/{run}/taskInstances/read/xcomEntries/return_value"
    return airflow.rest("GET", place)["value"]


def _acts(airflow: LiveAirflow) -> list[dict[str, Any]]:
    path = Path(airflow.environment["EGS_RUNLOG"]) / f"agent-{socket.gethostname()}.jsonl"
    acts = [json.loads(line) for line in path.read_text().splitlines()]
    return [act for act in acts if act["act"].startswith("staged") and act["dag"].startswith("stage_")]


def _agent(airflow: LiveAirflow, log: Path) -> AbstractContextManager[Agent]:
    return an_agent(airflow, log, airflow.url, EGS_LEARN_EVERY="never", AIRFLOW_CLI_TOKEN=airflow.token)


def drop(path: Path) -> None:
    """Take a file out of the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
