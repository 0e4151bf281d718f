"""The agent stages files on a real Airflow: what a task reads is in memory when it starts, and what it cost is told."""

from __future__ import annotations

import json
import os
import socket
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.airflow.agents import Agent, an_agent
from tests.conformance.airflow.live import LiveAirflow, wait_until

pytestmark = pytest.mark.slow  # two runs, each with an agent of its own
AIRFLOW_ENVIRONMENT = {"AIRFLOW__CORE__EXECUTOR": "egs_airflow.executors.EgsLocalExecutor"}
SIZE = 256 << 20
BEFORE_S = 6.0  # what is said of the predecessors; they last until the files have been read

DAG = """
import os
import time
from pathlib import Path

import egs_core as egs
from airflow.sdk import DAG, task
from egs_airflow.preload.files import resident_bytes

MODEL, OTHER = {model!r}, {other!r}

def wait(fails, run_id=None):
    end = time.monotonic() + 600
    while not Path({folder!r}, run_id).exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    if fails:
        raise ValueError("on purpose")

@egs.task(preload=[egs.modules("json"), egs.files(MODEL, "relative.pt")])
def read():
    file = os.open(MODEL, os.O_RDONLY)
    size = os.fstat(file).st_size
    resident = resident_bytes(file, size) / size
    return resident

@egs.task(preload=egs.files(OTHER, "/no/such/file"))
def never():
    pass

for dag_id, tags in (("stage_on", ["egs-on"]), ("stage_observed", [])):
    with DAG(dag_id, tags=tags, schedule=None):
        first = task(wait, task_id="first")(False)
        first >> task(read)() >> task(read, task_id="again")()
        task(wait, task_id="fails")(True) >> task(never)()
"""


@pytest.mark.proves("airflow agent", "preload")
def test_files_are_in_memory_when_the_task_starts(airflow: LiveAirflow, tmp_path: Path) -> None:
    """In a chosen DAG the file was read from disk before its task began, once for two tasks; in an observed one it was
    not. Lines say what it took; what was read in vain, and why a file could not be, is said too."""
    model, other = tmp_path / "model.pt", tmp_path / "other.pt"
    for path, size in ((model, SIZE), (other, 1 << 20)):
        path.write_bytes(os.urandom(1 << 20) * (size >> 20))
    airflow.add_dags(stage=DAG.format(model=str(model), other=str(other), folder=str(tmp_path)))
    airflow.tell_durations({"stage_on": {"first": BEFORE_S, "read": 1.0}})
    resident, runs = {}, {}
    for dag_id in ("stage_on", "stage_observed"):  # an agent each: the next one would know that the file was just read
        with _agent(airflow, tmp_path / f"{dag_id}.log") as agent:
            wait_until(lambda a=agent: "mode on" in a.said(), "the agent's start")  # type: ignore[misc]  # as below
            for path in (model, other):
                drop(path)
            run = runs[dag_id] = airflow.trigger(dag_id)
            for name in ("read", "never") if dag_id == "stage_on" else ():
                staged = f"staged for {dag_id}/{run} {name}, "
                wait_until(lambda a=agent, s=staged: s in a.said(), staged)  # type: ignore[misc]  # as below
            (tmp_path / run).touch()
            airflow.wait_run(dag_id, run)
            place = f"/dags/{dag_id}/dagRuns/{run}/taskInstances/read/xcomEntries/return_value"
            resident[dag_id] = float(airflow.rest("GET", place)["value"])
            if dag_id == "stage_on":
                wait_until(lambda a=agent: "staged in vain for" in a.said(), "the report of the run's end")  # type: ignore[misc]  # mypy has no types for such a lambda
                _check_said(agent, f"{dag_id}/{run}")
    assert resident["stage_on"] > 0.9, resident
    assert resident["stage_observed"] < 0.5, resident
    acts = [act for act in _acts(airflow) if act["run"] in runs.values()]
    (read,) = (act for act in acts if act["act"] == "staged for" and act["task"] == "read")
    assert read["bytes"] == SIZE
    assert read["cold_bytes"] > 0.9 * SIZE
    assert not [act for act in acts if act["task"] == "again" or act["dag"] == "stage_observed"]


def _check_said(agent: Agent, workload: str) -> None:
    said = agent.said()
    assert f"staged for {workload} read, try 0: 1 files, 268 MB, " in said, said
    assert "/no/such/file No such file or directory" in said, said
    assert f"staged in vain for {workload} never, try 0: it has not run on this host" in said, said


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
