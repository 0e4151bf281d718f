"""The agent without an Airflow: what it decides, its lock, its commands, and that it waits when nobody answers."""

from __future__ import annotations

import os
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egs_airflow import cli
from egs_airflow.agent import loop
from egs_airflow.agent.commands import learn_every_s, run_abort, run_agent, run_ps
from egs_airflow.agent.instances import MOST_NOTE, Instance, noted
from egs_airflow.agent.learner import Learner
from egs_airflow.agent.lock import take_lock
from egs_airflow.agent.loop import Agent, reason_of, select_marked
from egs_airflow.agent.processes import TaskProcess
from egs_airflow.rest import Rest, Unreachable
from egs_core.errors import InputError
from tests.unit.airflow.recorded import RecordedAirflow, recorded_airflow

ABORTED = "mine\nEGS: aborted by me@here: wrong data"


@pytest.fixture
def airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedAirflow]:
    """An Airflow that answers as recorded, and folders of the test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("EGS_RUNLOG", str(tmp_path / "runlog"))
    monkeypatch.setenv("EGS_MODE", "observe")
    for name in ("AIRFLOW_CLI_TOKEN", "EGS_AIRFLOW_USER"):
        monkeypatch.delenv(name, raising=False)
    with recorded_airflow() as server:
        yield server


def test_which_processes_are_ended() -> None:
    """Those whose try was marked: in mode on all, else only what an operator has aborted; never one that was not."""
    processes = [TaskProcess(number, f"id{number}", 0.0) for number in range(4)]
    marked = [
        Instance("id0", "on", "r", "t", state="failed"),
        Instance("id1", "off", "r", "t", state="failed", note="EGS: over its limit of 3 s: failed"),
        Instance("id2", "off", "r", "t", state="failed", note=ABORTED),
        Instance("elsewhere", "on", "r", "t", state="failed"),
    ]
    found = select_marked(processes, marked, lambda dag: "on" if dag == "on" else "observe")
    assert [(process.pid, one.id) for process, one in found] == [(0, "id0"), (2, "id2")]
    assert [reason_of(one) for one in marked[:3]] == [
        "marked failed, and its process ran on",
        "over its limit of 3 s: failed",
        "aborted by me@here: wrong data",
    ]


def test_a_note_keeps_what_the_user_wrote() -> None:
    """As far as Airflow takes it; ours is one line at its end."""
    assert noted("", "over\nits limit") == "EGS: over its limit"
    assert noted("mine", "why") == "mine\nEGS: why"
    long = noted("x" * MOST_NOTE, "why")
    assert (len(long), long.endswith("\nEGS: why")) == (MOST_NOTE, True)


def test_one_agent_a_host_and_airflow(airflow: RecordedAirflow) -> None:
    """A second one is an InputError with the number of the first; another Airflow has its own; a lock that was let go
    can be taken."""
    lock, other = take_lock(airflow.url), take_lock("http://elsewhere:8080")
    with pytest.raises(InputError, match=f"has an agent on this host already: process {os.getpid()}"):
        take_lock(airflow.url)
    os.close(lock)
    os.close(other)
    os.close(take_lock(airflow.url))


def test_the_agent_waits_for_airflow(
    airflow: RecordedAirflow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """While Airflow answers 503 the agent asks again, ever more rarely: one line then, one when it answers again. A
    host without tasks asks nothing, and the first question goes back to the start of the oldest process."""
    asked: list[float] = []
    processes: list[TaskProcess] = []

    def answer(*_: object) -> tuple[int, Any]:
        asked.append(time.monotonic())
        return (503, {}) if len(asked) < 4 else (200, {"task_instances": [], "total_entries": 0})

    airflow.answer = answer
    monkeypatch.setattr(loop, "LOOK_S", 0.05)
    monkeypatch.setattr(loop, "task_processes", lambda: list(processes))
    agent = Agent(Rest(airflow.url), Learner(airflow.url, "", 0.0))
    looks = threading.Event()

    def stop(tells: bool) -> None:
        assert tells  # no agent of which this one knows hosts the engine
        if looks.is_set():
            raise SystemExit

    monkeypatch.setattr(agent._learner, "tick", stop)

    def run() -> None:
        with pytest.raises(SystemExit):
            agent.run()

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.1)
    assert not asked
    processes.append(TaskProcess(1, "id1", 1_700_000_000.0))
    until = time.monotonic() + 120
    while len(asked) < 6:
        assert time.monotonic() < until, asked
        time.sleep(0.01)
    looks.set()
    thread.join(120)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2, told
    assert told[0].endswith("answers 503 Service Unavailable; trying again")
    assert told[1] == "egs agent: Airflow answers again"
    assert asked[3] - asked[0] > 0.4  # 0.1 + 0.2 + 0.4 s of waiting, not 3 x 0.05
    first = dict(part.split("=") for part in airflow.requests[0][1].partition("?")[2].split("&"))
    assert first["updated_at_gte"].startswith("2023-11-14T22%3A12%3A50")


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("EGS_MODE", "off", "[egs] mode: is off"),
        ("EGS_LEARN_EVERY", "often", "[egs] learn_every"),
        ("EGS_LIMITS", "/nowhere/limits.yaml", "/nowhere/limits.yaml: cannot be read"),
    ],
)
def test_settings_that_mean_nothing(
    airflow: RecordedAirflow,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: str,
    problem: str,
) -> None:
    """One line on stderr, exit code 2, and Airflow is not asked."""
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        run_agent(Namespace(url=airflow.url, user=""))
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert problem in told
    assert told.count("\n") == 1
    assert not airflow.requests


def test_how_often_it_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every hour where nothing is said, and never where that is."""
    assert learn_every_s() == 3600.0
    monkeypatch.setenv("EGS_LEARN_EVERY", "never")
    assert learn_every_s() == 0.0


@pytest.mark.usefixtures("airflow")
def test_learning_that_fails_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The agent goes on, and starts it again when it is due: not before."""
    learner = Learner("http://127.0.0.1:1", "", 3600.0)
    learner._command = ["sh", "-c", "echo first; echo 'error: nobody there' >&2; exit 2"]
    Path(os.environ["XDG_DATA_HOME"], "egs", "airflow").mkdir(parents=True)
    until, told = time.monotonic() + 120, ""
    while "failed" not in told:
        assert time.monotonic() < until
        learner.tick()
        told += capsys.readouterr().err
    assert told == "egs agent: learning has failed: error: nobody there\n"
    learner.tick()
    assert learner._process is None


def test_a_token_that_has_expired_is_asked_for_again(airflow: RecordedAirflow) -> None:
    """An agent lives longer than a token; one that was given cannot be renewed, and says so."""
    airflow.token, airflow.users = "token", {"me": "secret"}
    rest, given = Rest(airflow.url, user="me", password="secret"), Rest(airflow.url, token="token")
    answers = [_refusal]

    def answer(path: str, query: dict[str, str]) -> tuple[int, Any]:
        return (answers.pop() if answers else airflow.recorded)(path, query)

    airflow.answer = answer
    assert rest.get("version") == airflow.data["version"]
    assert [path for _, path in airflow.requests].count("/auth/token") == 2
    answers.append(_refusal)
    with pytest.raises(InputError, match=r"refuses the request for version \(401"):
        given.get("version")


def _refusal(*_: object) -> tuple[int, Any]:
    return 401, {}


def test_nobody_there_is_another_error_than_a_refusal(airflow: RecordedAirflow) -> None:
    """So that the agent knows when to wait and when to end."""
    with pytest.raises(Unreachable):
        Rest("http://127.0.0.1:1").get("version")
    airflow.answer = lambda *_: (200, b"<html>")
    with pytest.raises(InputError) as caught:
        Rest(airflow.url).get("version")
    assert not isinstance(caught.value, Unreachable)


def test_abort_of_what_is_not_there(airflow: RecordedAirflow, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names what runs, and exit code 2."""
    wanted = Namespace(workload="train/typo", task="", group="", reason="", grace="0s", url=airflow.url, user="")
    with pytest.raises(SystemExit) as ended:
        run_abort(wanted)
    assert ended.value.code == 2
    assert "error: train/typo: no such DAG run (DAG/RUN; there run: " in capsys.readouterr().err


def test_ps_logs_in_as_whom_it_is_told(airflow: RecordedAirflow, monkeypatch: pytest.MonkeyPatch) -> None:
    """`airflow egs ps --user vera`, as `agent`, `learn` and `abort` have it."""
    airflow.token, airflow.users, airflow.data["runs"] = "a-token", {"vera": "secret"}, []
    monkeypatch.setenv("EGS_AIRFLOW_PASSWORD", "secret")
    run_ps(Namespace(url=airflow.url, user="vera"))
    assert airflow.tokens[-1] == "Bearer a-token"
    with pytest.raises(SystemExit):
        run_ps(Namespace(url=airflow.url, user="nora"))
    (group,) = cli.get_cli_commands()
    args = {command.name: command.args for command in group.subcommands}
    assert all(cli.ARG_USER in args[name] for name in ("ps", "agent", "learn", "abort"))
