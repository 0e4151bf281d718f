"""What of EGS dies, breaks or raises on a real Airflow while DAG runs go on, and that hinted limits are kept."""

from __future__ import annotations

import socket
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from egs_airflow.agent.instances import instances_place, read_instances
from egs_airflow.order.durations import VARIABLE
from egs_airflow.rest import Rest
from tests.conformance.airflow.agents import Agent, an_agent
from tests.conformance.airflow.broken import break_airflow, broken_airflow, mend_airflow
from tests.conformance.airflow.conftest import require_airflow
from tests.conformance.airflow.live import LiveAirflow, wait_until

AIRFLOW_ENVIRONMENT = {"AIRFLOW__CORE__EXECUTOR": "egs_airflow.executors.EgsLocalExecutor", "EGS_POOLS": "order_gpu=2"}

LIMITS = """
import time
from datetime import timedelta
from pathlib import Path

import egs_core as egs
from airflow.sdk import DAG, get_current_context, task

@egs.task(max_runtime="2s")
def endless():
    time.sleep(600)

@egs.task(max_runtime="15s")  # its second try has to start and to end in that time
def again():
    if get_current_context()["ti"].try_number == 1:
        Path({begun!r}).touch()
        time.sleep(600)

@egs.task(gpus=2)
def patient():
    end = time.monotonic() + 600
    while not Path({released!r}).exists():
        assert time.monotonic() < end
        time.sleep(0.05)

with DAG("faults", tags=["egs-on"], schedule=None, default_args={{"retries": 2, "retry_delay": timedelta(0)}}):
    task(endless)()
    task(patient)() >> task(again)()
"""

PLAIN = """
import egs_core as egs
from airflow.sdk import DAG, task

with DAG("plain", tags=["egs-on"], schedule=None):
    @task
    @egs.task(gpus=1)
    def train():
        pass

    @task
    def last():
        pass

    train() >> last()
"""

RULES = """
limits:
  - dag: faults
    task: again
    limits: {on_limit: requeue}
"""


@pytest.mark.slow  # a task that is queued again waits for Airflow's heartbeat
def test_the_agent_dies_and_comes_back(airflow: LiveAirflow, tmp_path: Path) -> None:
    """Durations and history are corrupt, and each is one warning. A hinted limit fails one task; the agent is
    killed with -9, and the run goes on; a new one queues another task again at its hinted limit, and that succeeds."""
    begun, released = tmp_path / "begun", tmp_path / "released"
    airflow.add_dags(faults=LIMITS.format(begun=str(begun), released=str(released)))
    (tmp_path / "limits.yaml").write_text(RULES)
    break_airflow(airflow, "store")
    try:
        run = airflow.trigger("faults")
        rest = Rest(airflow.url, airflow.token)
        with _agent(airflow, tmp_path / "first.log", tmp_path) as agent:
            wait_until(lambda: "failed faults/" in agent.said(), "the first limit")
            learning = airflow.home / "xdg_data_home" / "egs" / "airflow" / f"learn-{socket.gethostname()}.log"
            wait_until(lambda: "is not usable, going on without it" in learning.read_text(), "a warning of the history")
            agent.process.kill()
            agent.process.wait()
        released.touch()
        wait_until(begun.exists, "a task that begins without an agent")
        with _agent(airflow, tmp_path / "second.log", tmp_path) as agent:
            wait_until(lambda: "queued again faults/" in agent.said(), "the second limit")
            assert airflow.wait_run("faults", run) == "failed"
    finally:
        mend_airflow(airflow, "store")
    found = {one.name: one for one in read_instances(rest, instances_place("faults", run))}
    states = {name: (one.state, one.number) for name, one in found.items()}
    assert states == {"endless": ("failed", 1), "patient": ("success", 1), "again": ("success", 2)}
    assert found["endless"].note == "EGS: over its limit of 2 s: failed"
    assert airflow.logs().count(f"{VARIABLE}: no durations can be read from it") in (1, 2)  # each process for itself


@pytest.mark.long  # what has raised stays off: not in the Airflow of other tests
def test_hooks_that_raise(tmp_path: Path) -> None:
    """Every hook of EGS raises SystemExit: where task instances are made, in the scheduler's pass, where tasks read
    their DAG file, and at their end. The run succeeds with Airflow's own weights, and each is one warning."""
    require_airflow()
    with broken_airflow("engine", tmp_path / "own") as (airflow, _):
        break_airflow(airflow, "engine")
        airflow.add_dags(plain=PLAIN)
        run = airflow.run("plain")
        found = airflow.task_instances("plain", run)
        assert {ti["task_id"]: ti["priority_weight"] for ti in found} == {"train": 2, "last": 1}
        tasks = [path.read_text() for path in airflow.home.glob("logs/dag_id=plain/**/*.log")]
        assert "Airflow's own weights hold: SystemExit: injected" in airflow.logs()
    assert len(tasks) == len(found)
    for said in ("tasks keep what they were written with", "this task is not recorded, it is not affected"):
        assert [task.count(f"{said}: SystemExit: injected") for task in tasks] == [1] * len(tasks), tasks


def _agent(airflow: LiveAirflow, log: Path, folder: Path) -> AbstractContextManager[Agent]:
    history = f"sqlite:///{airflow.home / 'history.sqlite'}"
    settings = {"EGS_LIMITS": str(folder / "limits.yaml"), "EGS_HISTORY": history, "AIRFLOW_CLI_TOKEN": airflow.token}
    return an_agent(airflow, log, airflow.url, **settings)
