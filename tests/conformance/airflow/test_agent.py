"""Abort and the agent of a host on a real Airflow: processes dead at once, nothing tried again, limits kept; and what
becomes of runs when the agent is killed, or does not reach Airflow."""

from __future__ import annotations

import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from egs_airflow.agent.control import abort, running
from egs_airflow.agent.instances import Instance, instances_place, read_instances, set_state
from egs_airflow.agent.processes import TaskProcess, is_there, task_processes
from egs_airflow.rest import Rest
from egs_core.adapter import ControlRequest
from egs_core.errors import InputError
from tests.conformance.airflow.agents import an_agent
from tests.conformance.airflow.live import WAIT_S, LiveAirflow, free_ports, wait_until

AIRFLOW_ENVIRONMENT = {"AIRFLOW__CORE__EXECUTOR": "egs_airflow.executors.EgsLocalExecutor", "EGS_POOLS": "order_gpu=2"}
LIMIT_S = 10
"""Of a task that runs again when it is over it: a busy machine may take seconds to start and to end a task."""

HOLD = """
import subprocess, time
from datetime import timedelta
from airflow.sdk import DAG, TaskGroup, task

def hold(number=0):
    subprocess.Popen(["sleep", "600"])
    time.sleep(600)

def nothing():
    pass

for dag_id, tags in (("agent_abort", []), ("agent_marks", ["egs-on"]), ("agent_runs", ["egs-on"])):
    with DAG(dag_id, tags=tags, schedule=None, default_args={"retries": 2, "retry_delay": timedelta(0)}):
        if dag_id == "agent_runs":
            task(hold, task_id="alone")()
            continue
        task(hold, task_id="many").expand(number=list(range(2)))
        if dag_id == "agent_abort":
            with TaskGroup("group"):
                task(hold, task_id="one")()
            task(hold, task_id="alone")() >> task(nothing, task_id="after")()
"""

LIMITS = """
import time
from datetime import timedelta
from airflow.sdk import DAG, get_current_context, task

def again():
    if get_current_context()["ti"].try_number == 1:
        time.sleep({sleeps_s})
    return get_current_context()["ti"].try_number

def spent():
    time.sleep(600)

for dag_id, tags in (("agent_limits", ["egs-on"]), ("agent_observed", [])):
    with DAG(dag_id, tags=tags, schedule=None, default_args={{"retries": 2, "retry_delay": timedelta(0)}}):
        config = {{"egs": {{"max_runtime": {limit_s}, "on_limit": "requeue"}}}}
        first = task(again, task_id="again", executor_config=config)()
        if tags:
            config = {{"egs": {{"max_gpu_time": 6}}}}
            first >> task(spent, task_id="spent", pool="order_gpu", pool_slots=2, executor_config=config)()
"""

RULES = """
limits:
  - dag: agent_runs
    run: {max_runtime: 2s}
"""


@pytest.mark.proves("airflow mode, executor, agent", "abort")
def test_abort_of_tasks_a_group_and_a_run(airflow: LiveAirflow) -> None:
    """In a DAG that is only observed: processes are ended with their children, at once and by EGS; states and notes say
    why, nothing is tried again, the rest runs on; what is not there is an error that names what is."""
    airflow.add_dags(agent_hold=HOLD)
    rest, run_id = _rest(airflow), airflow.trigger("agent_abort")
    workload = f"agent_abort/{run_id}"
    processes = _processes(rest, "agent_abort", run_id, 4)
    for name in ("many[0]", "many[1]"):
        _abort(rest, workload, [processes[name]], task=name)
    _abort(rest, workload, [processes["group.one"]], stage="group", reason="wrong data")
    with pytest.raises(InputError, match=r"typo is not there, or has ended \(open are: after, alone\)"):
        abort(rest, ControlRequest("abort", workload, task="typo"))
    (found,) = [one for one in running(airflow.url) if one.workload == workload]
    assert [task.task for task in found.running] == ["alone"]
    assert is_there(processes["alone"])
    _abort(rest, workload, [processes["alone"]])
    assert airflow.wait_run("agent_abort", run_id) == "failed"
    for one in _instances(rest, "agent_abort", run_id).values():
        assert (one.state, one.number) == (("skipped", 0) if one.name == "after" else ("failed", 1)), one
        assert one.name == "after" or one.note.startswith("EGS: aborted by "), one
    with pytest.raises(InputError, match="has ended: failed"):
        abort(rest, ControlRequest("abort", workload))
    with pytest.raises(InputError, match="no such DAG run"):
        abort(rest, ControlRequest("abort", "agent_abort/typo"))


@pytest.mark.proves("airflow agent", "limits", "max_runtime", "max_gpu_time")
def test_the_agent(airflow: LiveAirflow, tmp_path: Path) -> None:
    """It waits for Airflow and learns; is the only one; ends what was marked; keeps limits; survives that Airflow is
    not reached and its own death, during which runs go on; ends on SIGTERM."""
    limits = LIMITS.format(sleeps_s=LIMIT_S + 2, limit_s=LIMIT_S)
    airflow.add_dags(agent_hold=HOLD, agent_limits=limits)
    (tmp_path / "limits.yaml").write_text(RULES)
    rest, (port,) = _rest(airflow), free_ports(1)
    environment = {"EGS_LIMITS": str(tmp_path / "limits.yaml"), "EGS_MODE": "on", "EGS_TAGS": "egs-on"}
    url = f"http://127.0.0.1:{port}"
    with an_agent(airflow, tmp_path / "first", url, **environment) as agent:
        wait_until(lambda: "no answer" in agent.said(), "a warning")
        with an_agent(airflow, tmp_path / "wrong", airflow.url, AIRFLOW_CLI_TOKEN="wrong") as wrong:
            assert wrong.process.wait(WAIT_S) == 2
            assert wrong.said().startswith(f"error: {airflow.url}: refuses the request for dags")
            assert wrong.said().count("\n") == 1
        with _forwarded(port, airflow.url) as cut:
            wait_until(lambda: f"for {url}, mode on" in agent.said(), "the agent's start")
            with an_agent(airflow, tmp_path / "second", url, **environment) as second:
                assert second.process.wait(WAIT_S) == 2
                assert f"has an agent on this host already: process {agent.process.pid}" in second.said()
            marks, over = airflow.trigger("agent_marks"), airflow.trigger("agent_runs")
            limited, observed = airflow.trigger("agent_limits"), airflow.trigger("agent_observed")
            processes = _processes(rest, "agent_marks", marks, 2)
            place = f"/{instances_place('agent_marks', marks)}/many"
            with _unwatched(airflow, processes["many[0]"]):
                airflow.rest("PATCH", f"{place}/0", {"new_state": "failed"})
                _wait_dead([processes["many[0]"]], "marked by hand")
            assert airflow.wait_run("agent_runs", over) == "failed"
            assert airflow.wait_run("agent_observed", observed) == "success"
            assert airflow.wait_run("agent_limits", limited) == "failed"
            wait_until(lambda: "learned: " in agent.said(), "durations")
            cut()
            wait_until(lambda: agent.said().count("trying again") == 2, "a second warning")
        agent.process.kill()
    _check_limits(rest, limited, observed)
    assert "over its limit of 2 s" in airflow.rest("GET", f"/dags/agent_runs/dagRuns/{over}")["note"]
    assert is_there(processes["many[1]"])
    with an_agent(airflow, tmp_path / "third", airflow.url, **environment) as agent:
        wait_until(lambda: "mode on" in agent.said(), "the agent's second start")
        one = _instances(rest, "agent_marks", marks)["many[1]"]
        with _unwatched(airflow, processes["many[1]"]):
            set_state(rest, [one], "failed", "aborted by a test on another host")
            _wait_dead([processes["many[1]"]], "aborted on another host")
        wait_until(lambda: "aborted by a test on another host" in agent.said(), "the reason")
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(WAIT_S) == 0
        assert agent.said().splitlines()[-1] == "egs agent: ended"
    assert airflow.wait_run("agent_marks", marks) == "failed"


def _check_limits(rest: Rest, limited: str, observed: str) -> None:
    found = _instances(rest, "agent_limits", limited)
    assert (found["again"].state, found["again"].number) == ("success", 2), found["again"]
    assert (found["spent"].state, found["spent"].number) == ("failed", 1)
    assert found["spent"].note == "EGS: over its limit of 6 s of GPU time: failed"
    (again,) = _instances(rest, "agent_observed", observed).values()
    assert (again.number, again.note) == (1, "")


def _abort(
    rest: Rest, workload: str, processes: list[TaskProcess], stage: str = "", task: str = "", reason: str = ""
) -> None:
    """Abort by one call, which ends the processes; their children are gone too."""
    children = [child for one in processes for child in psutil.Process(one.pid).children(recursive=True)]
    assert len(children) == len(processes)
    done = abort(rest, ControlRequest("abort", workload, stage, task, reason=reason))
    _wait_dead(processes, task or stage or "the run")
    assert len(done.here) == len(processes), done
    assert not done.hosts
    _, there = psutil.wait_procs(children, timeout=WAIT_S)
    alive = [child for child in there if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert not alive  # who reaps an orphan, and when, is the machine's affair


def _wait_dead(processes: list[TaskProcess], what: str) -> None:
    wait_until(lambda: not any(is_there(process) for process in processes), f"death of {what}")


@contextmanager
def _unwatched(airflow: LiveAirflow, process: TaskProcess) -> Iterator[None]:
    """Airflow's own supervisor of the task stands still: it does not end the task, at whichever heartbeat."""
    supervisor = psutil.Process(process.pid).parent()
    assert supervisor is not None
    assert supervisor.pid not in [one.pid for one in airflow.processes]
    supervisor.suspend()
    try:
        yield
    finally:
        supervisor.resume()


def _rest(airflow: LiveAirflow) -> Rest:
    return Rest(airflow.url, airflow.token)


def _instances(rest: Rest, dag_id: str, run_id: str) -> dict[str, Instance]:
    return {one.name: one for one in read_instances(rest, instances_place(dag_id, run_id))}


def _processes(rest: Rest, dag_id: str, run_id: str, count: int) -> dict[str, TaskProcess]:
    """The processes of a run's tasks by name, once there are so many and each has started its child."""

    def found() -> dict[str, TaskProcess]:
        names = {one.id: name for name, one in _instances(rest, dag_id, run_id).items()}
        there = {names[one.instance]: one for one in task_processes() if one.instance in names}
        holding = all(psutil.Process(one.pid).children() for one in there.values())
        return there if holding and len(there) == count else {}

    here = wait_until(found, f"{count} processes of {dag_id}")
    assert isinstance(here, dict)
    return here


@contextmanager
def _forwarded(port: int, url: str) -> Iterator[Callable[[], None]]:
    """What connects to the port reaches the api-server, until the function that this gives is called."""
    target = int(url.rpartition(":")[2])
    server = socket.create_server(("127.0.0.1", port))

    def serve() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=_forward, args=(client, target), daemon=True).start()

    thread = threading.Thread(target=serve)
    thread.start()

    def cut() -> None:
        if thread.is_alive():
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
        server.close()

    try:
        yield cut
    finally:
        cut()


def _forward(client: socket.socket, port: int) -> None:
    """Pass on what comes from either side, until one of them ends."""
    with suppress(OSError), client, socket.create_connection(("127.0.0.1", port)) as there:
        other = {client: there, there: client}
        while True:
            for source in select.select(list(other), [], [])[0]:
                if not (data := source.recv(65_536)):
                    return
                other[source].sendall(data)
