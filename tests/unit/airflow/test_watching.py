"""What the process that watches a task does otherwise: with Airflow's own processes, without its server."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from egs_airflow import compat, own_supervisor
from egs_airflow.executors import bell
from tests.unit.airflow.watched import lets_run, supervise

pytest.importorskip("airflow.sdk.execution_time.supervisor", reason="apache-airflow is not installed")
# Python 3.12 and later warn of any fork beside threads, which the process of the tests may have
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

DEADLINE_S = 90.0
LONG_S = 600
CHANGED = ("wait", "_handle_request", "_service_subprocess", "_monitor_subprocess")
FORK = multiprocessing.get_context("fork")
DAG = """
import os, time
from pathlib import Path
from airflow.sdk import DAG, task

FOLDER = Path({folder!r})

def note(what):
    (FOLDER / what).touch()

def wait_for(what):
    end = time.monotonic() + {deadline_s}
    while not (FOLDER / what).exists():
        assert time.monotonic() < end, what
        time.sleep(0.02)

{top}
with DAG("watched", schedule=None):
    @task({arguments})
    def work(of):
        {body}
    work("{{{{ ds_nodash | default('x') }}}}")
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of one DAG file, and of what its task notes; Airflow's heartbeats are an hour apart."""
    from airflow.sdk.execution_time import supervisor

    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(tmp_path))
    monkeypatch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
    monkeypatch.setattr("airflow.settings.DAGS_FOLDER", str(tmp_path))
    monkeypatch.setattr(supervisor, "MIN_HEARTBEAT_INTERVAL", LONG_S)
    monkeypatch.setattr(supervisor, "HEARTBEAT_TIMEOUT", LONG_S)
    return tmp_path


@pytest.fixture
def rung() -> Iterator[bell.Bell]:
    """Tasks of this process' forks are watched by ours."""
    made = bell.hang()
    undo = own_supervisor.watch(made.ring)
    yield made
    undo()
    bell.take_down()


class Run:
    """One run of the task, in a process of its own. requests: those that the api-server got, by their last words."""

    def __init__(self, home: Path, answer: Callable[[httpx.Request], httpx.Response] = lets_run, **parts: str) -> None:
        text = {"top": "", "arguments": "", "body": "pass", **parts}
        (home / "watched.py").write_text(DAG.format(folder=str(home), deadline_s=DEADLINE_S, **text))
        self.home, self.answer, self._requests = home, answer, home / "requests"
        self.process = FORK.Process(target=self._run)
        self.process.start()

    def _run(self) -> None:
        supervise("watched", "watched.py", self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        with self._requests.open("a") as file:
            file.write(request.url.path.rsplit("/", 1)[-1] + "\n")
        return self.answer(request)

    def noted(self, what: str) -> bool:
        """Whether the task has noted it."""
        return (self.home / what).exists()

    def requests(self) -> list[str]:
        """What the api-server was asked, when all is over."""
        self.end()
        return self._requests.read_text().split()

    def end(self) -> None:
        """Wait for the end of the process that watches."""
        self.process.join(DEADLINE_S)
        is_over = not self.process.is_alive()
        self.process.kill()
        self.process.join()
        assert is_over, "the process of the executor is not free within the deadline"


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "not within the deadline"
        time.sleep(0.02)


def test_a_short_task_makes_no_heartbeat(home: Path, rung: bell.Bell) -> None:
    """Its start was one; natively another one follows at once, and the user's code waits for it."""
    assert Run(home).requests() == ["run", "state", "rtif"]
    assert rung.has_rung()


def test_airflow_alone_makes_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test before this one proves is there to be saved."""
    monkeypatch.setattr("airflow.sdk.execution_time.supervisor.MIN_HEARTBEAT_INTERVAL", 5)
    assert "heartbeat" in Run(home).requests()


def test_the_users_code_does_not_wait_for_what_the_ui_shows(home: Path, rung: bell.Bell) -> None:
    """Where tasks begin others do, for whose requests the api-server is needed: rendered fields come after the end of a
    short task. The api-server refuses them: the task has ended well."""

    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/rtif"):
            return lets_run(request)
        until((home / "code").exists)
        return httpx.Response(422, json={"detail": "no"})

    assert Run(home, answer, body="note('code')").requests() == ["run", "state", "rtif"]
    assert rung.has_rung()


@pytest.mark.usefixtures("rung")
def test_what_the_ui_shows_is_there_while_a_task_runs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a moment, also of a task that says nothing more, where nothing else wakes who watches it for an hour."""
    monkeypatch.setattr(own_supervisor, "FIELDS_S", 0.1)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/rtif"):
            (home / "sent").touch()
        return lets_run(request)

    assert Run(home, answer, body="wait_for('sent')").requests() == ["run", "rtif", "state"]


@pytest.mark.usefixtures("rung")
@pytest.mark.parametrize("tried_again", [True, False])
def test_of_a_try_that_fails_it_is_sent_before_its_end(home: Path, tried_again: bool) -> None:
    """The next try has another id, and the api-server knows this one no more; a process that is killed is a failure."""

    def answer(request: httpx.Request) -> httpx.Response:
        found = lets_run(request)
        if not request.url.path.endswith("/run"):
            return found
        return httpx.Response(200, json=json.loads(found.content) | {"max_tries": 1, "should_retry": tried_again})

    body = "raise ValueError" if tried_again else "os.kill(os.getpid(), 9)"
    assert Run(home, answer, body=body).requests() == ["run", "rtif", "state"]


def test_a_process_of_the_executor_is_free_when_its_task_has_ended(home: Path, rung: bell.Bell) -> None:
    """A task whose process closes all of its pipes a moment before it ends, as each does: Airflow next looks after an
    interval of heartbeats, which is ten minutes here."""
    slow = """
end = os._exit
def _exit(code):
    os.closerange(0, 256)
    time.sleep(0.5)
    end(code)
os._exit = _exit
"""
    run = Run(home, top=slow)
    run.end()
    assert run.requests() == ["run", "state", "rtif"]
    assert rung.has_rung()


def test_it_rings_when_the_end_is_known(home: Path, rung: bell.Bell) -> None:
    """Not before, and whatever the task's callbacks then do with their time."""
    asked, may_answer = FORK.Event(), FORK.Event()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/state"):
            asked.set()
            assert may_answer.wait(DEADLINE_S)
        return lets_run(request)

    run = Run(home, answer, arguments="on_success_callback=lambda _: wait_for('over')")
    assert asked.wait(DEADLINE_S)
    assert not rung.has_rung()
    may_answer.set()
    until(rung.has_rung)
    assert run.process.is_alive()
    (home / "over").touch()
    run.end()


def test_the_scheduler_hears_at_once() -> None:
    """Its sleep ends with the byte, or with the end of a process, not with the next look; where neither can be heard it
    sleeps."""
    from egs_airflow.executors.local import EgsLocalExecutor

    own: Any = SimpleNamespace(result_queue=FORK.SimpleQueue())
    made = bell.hang()
    hear = partial(EgsLocalExecutor._hear, own)
    begin_s = time.monotonic()
    try:
        threading.Timer(0.1, made.ring).start()
        hear(DEADLINE_S)
        assert made.has_rung()
        own.result_queue.put("ended")
        hear(DEADLINE_S)
        assert own.result_queue.get() == "ended"
    finally:
        bell.take_down()
    assert time.monotonic() - begin_s < DEADLINE_S
    own.result_queue.close()
    hear(0.05)


def test_this_airflow_has_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both known versions have; left out, or changed, nothing is done."""
    assert compat.available("watching")
    with monkeypatch.context() as without:
        without.setenv(compat.WITHOUT, "watching")
        assert not compat.available("watching")
    from airflow.sdk.execution_time.supervisor import ActivitySubprocess

    native = [getattr(ActivitySubprocess, name) for name in CHANGED]
    undo = own_supervisor.watch(lambda: None)
    assert all(getattr(ActivitySubprocess, name) is not own for name, own in zip(CHANGED, native, strict=True))
    assert compat.available("watching")  # asked again, as by doctor in this process
    undo()
    assert [getattr(ActivitySubprocess, name) for name in CHANGED] == native
    for name in ("wait", "_handle_request", "_monitor_subprocess"):
        monkeypatch.setattr(ActivitySubprocess, name, getattr(ActivitySubprocess, name))  # as two leave them
    undos = [own_supervisor.watch(lambda: None) for _ in range(2)]  # of two executors, ended as they were started
    for undo in undos:
        undo()
    assert ActivitySubprocess._service_subprocess is own_supervisor._service()
    monkeypatch.setattr(ActivitySubprocess, "_handle_request", lambda *_: None)
    assert not compat.available("watching")
