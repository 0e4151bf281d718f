"""The engine on a real Airflow with two schedulers and two agents: one agent hosts it, and when that dies the other."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_airflow import local
from egs_airflow.agent.commands import order_lines
from egs_airflow.agent.lease import TTL_S
from egs_airflow.executors.health import read_states
from egs_airflow.order.durations import write_durations
from egs_airflow.rest import Rest
from tests.conformance.airflow.agents import Agent, an_agent
from tests.conformance.airflow.conftest import require_airflow
from tests.conformance.airflow.live import LiveAirflow, free_ports, live_airflow, wait_until
from tests.conformance.airflow.postgres import metadata_in, postgres

pytestmark = pytest.mark.slow  # an Airflow of its own, with two schedulers
DEADLINE_S = 600.0

SOURCE = """
import time
from pathlib import Path
from airflow.sdk import DAG, task

HOME = Path({home!r})

with DAG("host_holder", tags=["egs-on"], schedule=None):
    @task(pool="host")
    def holder(run_id=None):
        (HOME / f"holding {{run_id}}").touch()
        while not (HOME / f"release {{run_id}}").exists():
            time.sleep(0.05)

    holder()

with DAG("host_long", tags=["egs-on"], schedule=None):
    @task(pool="host")
    def first():
        pass

    @task(pool="host")
    def second():
        pass

    first() >> second()

with DAG("host_short", tags=["egs-on"], schedule=None):
    @task(pool="host")
    def only():
        pass

    only()
"""
LEARNED = {
    "host_long": {"first": 600.0, "second": 600.0},
    "host_short": {"only": 60.0},
    "host_holder": {"holder": 60.0},
}


@pytest.fixture
def airflow(tmp_path: Path) -> Iterator[LiveAirflow]:
    """In mode on, with EgsLocalExecutor, metadata in PostgreSQL, and two schedulers."""
    require_airflow()
    home = tmp_path / "airflow"
    home.mkdir()
    own = {
        "EGS_MODE": "on",
        "EGS_TAGS": "egs-on",
        "EGS_RUNLOG": str(home / "runlog"),
        "EGS_HISTORY": f"sqlite:///{home / 'history.sqlite'}",
        "EGS_DURATIONS": str(home / "durations.json"),
        "EGS_LEARN_EVERY": "never",
        "AIRFLOW__CORE__EXECUTOR": "egs_airflow.executors.EgsLocalExecutor",
    }
    with postgres() as url, live_airflow(home, {**own, **metadata_in(url)}, many_commands=True) as made:
        (port,) = free_ports(1)
        second = LiveAirflow(
            made.url, home, {**made.environment, "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(port)}
        )
        (home / "scheduler.log").rename(home / "scheduler-1.log")  # the second one has a log of its own
        made.processes.append(local.start(second, "scheduler"))
        yield made


def test_two_schedulers_and_two_agents(airflow: LiveAirflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an agent the weights from creation stand: the longest path goes first. One of two agents hosts the engine
    then, and both schedulers let the run go first that has less work left. That agent is killed: the other one takes
    over once its time to live is over, the runs go on, and so does the order."""
    monkeypatch.setenv("XDG_DATA_HOME", airflow.environment["XDG_DATA_HOME"])
    rest = Rest(airflow.url, airflow.token)
    write_durations(airflow.home / "durations.json", LEARNED)
    airflow.rest("POST", "/pools", {"name": "host", "slots": 1, "include_deferred": False})
    airflow.add_dags(host=SOURCE.format(home=str(airflow.home)))
    wait_until(lambda: len(read_states(time.time())) == 2, "two schedulers", DEADLINE_S)
    assert order_lines(rest)[0].startswith("no agent hosts the engine")
    assert _who_is_first(airflow, rest, "") == "host_long"
    homes = [str(tmp_path / name) for name in ("one", "two")]
    with (
        an_agent(airflow, tmp_path / "one.log", airflow.url, XDG_DATA_HOME=homes[0]) as one,
        an_agent(airflow, tmp_path / "two.log", airflow.url, XDG_DATA_HOME=homes[1]) as two,
    ):
        agents = [one, two]
        wait_until(lambda: any(_hosts(agent, 1) for agent in agents), "a host", DEADLINE_S)
        (host,) = (agent for agent in agents if _hosts(agent, 1))
        (other,) = (agent for agent in agents if agent is not host)
        wait_until(lambda: f":{host.process.pid}:" in other.said(), "the other one to look on", DEADLINE_S)
        assert _who_is_first(airflow, rest, "epoch 1") == "host_short"
        assert "hosts the engine" not in other.said()
        host.process.send_signal(signal.SIGKILL)
        host.process.wait()
        began = time.monotonic()
        assert airflow.run("host_short", deadline_s=DEADLINE_S)
        wait_until(lambda: _hosts(other, 2), "the other one to take over", DEADLINE_S)
        print(f"taken over after {time.monotonic() - began:.1f} s; time to live {TTL_S:g} s")
        assert f":{other.process.pid}:" in order_lines(rest)[0]
        assert _who_is_first(airflow, rest, "epoch 2") == "host_short"
        other.process.send_signal(signal.SIGTERM)
        assert other.process.wait(DEADLINE_S) == 0
    assert order_lines(rest)[0].startswith("no agent hosts the engine")
    assert "Traceback" not in one.said() + two.said()


def _hosts(agent: Agent, epoch: int) -> bool:
    return f"hosts the engine, epoch {epoch}\n" in agent.said()


def _who_is_first(airflow: LiveAirflow, rest: Rest, epoch: str) -> str:
    """Which DAG's task starts first, of two that wait for the same slot. epoch: both schedulers follow its order when
    the slot is given back; "" for nobody's."""
    holder = airflow.trigger("host_holder")
    wait_until((airflow.home / f"holding {holder}").exists, "the slot to be held", DEADLINE_S)
    runs = {dag: airflow.trigger(dag) for dag in ("host_long", "host_short")}
    wait_until(lambda: all(_is_waiting(airflow, dag, run) for dag, run in runs.items()), "two that wait", DEADLINE_S)
    if epoch:
        wait_until(lambda: len(order_lines(rest)) == 3, "an order of both", DEADLINE_S)
        said = f"{epoch}, 2 waiting"
        wait_until(
            lambda: [s.follows for s in read_states(time.time())] == [said] * 2, "schedulers to know", DEADLINE_S
        )
    (airflow.home / f"release {holder}").touch()
    for dag, run in runs.items():
        assert airflow.wait_run(dag, run, deadline_s=DEADLINE_S) == "success"
    return min(runs, key=lambda dag: str(airflow.task_instances(dag, runs[dag])[0]["start_date"]))


def _is_waiting(airflow: LiveAirflow, dag: str, run: str) -> bool:
    return any(ti["state"] == "scheduled" for ti in airflow.task_instances(dag, run))
