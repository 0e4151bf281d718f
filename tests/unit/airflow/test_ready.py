"""A process that has read its DAG file before its task comes: Airflow's own processes of tasks, without its server."""

from __future__ import annotations

import multiprocessing
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from egs_airflow import compat, config, features
from egs_airflow.executors import ready
from egs_airflow.executors.demand import MOST_BYTES, DagFile, Shared
from egs_airflow.executors.ready import ReadyQueue, fork_ready, stamps_of
from egs_airflow.executors.room import Room
from egs_core.demand import WORTH_S
from tests.unit.airflow.watched import lets_run, supervise

pytest.importorskip("airflow.sdk.execution_time.supervisor", reason="apache-airflow is not installed")
# Python 3.12 and later warn of any fork beside threads, which the process of the tests may have
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

DEADLINE_S = 90.0
FORK = multiprocessing.get_context("fork")
GOOD = """
import os
from pathlib import Path
import {helper}
from airflow.sdk import DAG, task

def note(what):
    with Path({log!r}).open("a") as file:
        file.write(f"{{what}} {{os.getpid()}}\\n")

note("read")
with DAG("ready_dag", schedule=None):
    @task
    def work():
        note("run")
    work()
"""
UNFIT = {
    "error": "raise ValueError('no licence')",
    "variable": "from airflow.sdk import Variable\nVariable.get('egs_test_place', default='here')",
    "context": "from airflow.sdk import get_parsing_context\nget_parsing_context()",
    "cuda": "import sys, types\ncuda = types.SimpleNamespace(is_initialized=lambda: True)\n"
    "sys.modules['torch'] = types.SimpleNamespace(cuda=cuda)",
    "other": "",
}


@pytest.fixture
def dags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of DAG files of an Airflow in mode on."""
    folder = tmp_path / "dags"
    folder.mkdir()
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(folder))
    monkeypatch.setenv("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(tmp_path / "logs"))
    monkeypatch.setattr("airflow.settings.DAGS_FOLDER", str(folder))
    monkeypatch.setenv("EGS_MODE", "on")
    monkeypatch.setenv("EGS_DAGS", "ready_*")
    return folder


@pytest.fixture
def executor(dags: Path, tmp_path: Path) -> Iterator[Executor]:
    """One process that runs what it takes from a queue, as LocalExecutor has them."""
    made = Executor(dags, tmp_path)
    yield made
    made.end()


class Executor:
    """The process, what its tasks have noted, and its DAG file with a module of its own."""

    def __init__(self, dags: Path, folder: Path) -> None:
        self.log, self.helper = folder / "log.txt", f"egs_helper_{uuid.uuid4().hex[:8]}"
        (dags / f"{self.helper}.py").write_text("VALUE = 1\n")
        (dags / "good.py").write_text(GOOD.format(helper=self.helper, log=str(self.log)))
        self.dag_file = dags / "good.py"
        self.helper_file, self.room = dags / f"{self.helper}.py", Room(1)
        self.queue = FORK.SimpleQueue()
        self.taken = ReadyQueue(self.queue, self.room)
        self.process = self.begin()

    def begin(self) -> Any:
        """Fork the process."""
        process = FORK.Process(target=_work, args=(self.taken,))
        process.start()
        return process

    def notes(self, what: str) -> list[int]:
        """The processes that have noted it, in their order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [int(line.split()[1]) for line in lines if line.startswith(f"{what} ")]

    def run(self) -> int:
        """Run the task; its process."""
        done = len(self.notes("run"))
        self.queue.put("good.py")
        until(lambda: len(self.notes("run")) > done)
        return self.notes("run")[-1]

    def stands(self) -> int:
        """The process that stands ready, once one does."""
        until(lambda: self.room.uses() and self.notes("read")[-1] not in self.notes("run"))
        return self.notes("read")[-1]

    def end(self) -> None:
        """As LocalExecutor ends its processes."""
        if self.process.is_alive():
            self.queue.put(None)
        self.process.join(DEADLINE_S)
        self.process.kill()
        self.process.join()
        self.room.close()


def _work(queue: ReadyQueue) -> None:
    while (path := queue.get()) is not None:
        supervise("ready_dag", path, lets_run)


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "not within the deadline"
        time.sleep(0.02)


def test_a_task_is_run_by_the_process_that_has_read_its_file(executor: Executor) -> None:
    """The first one reads it itself; then each has a process that read it before, once, and is the task's alone. With
    the executor the one that stands ready ends."""
    first = executor.run()
    assert executor.notes("read")[0] == first
    for _ in range(2):
        stands = executor.stands()
        assert executor.run() == stands
    assert len(set(executor.notes("run"))) == 3
    assert set(executor.notes("run")) <= set(executor.notes("read"))
    last = executor.stands()
    assert len(executor.notes("read")) == 4
    executor.end()
    until(lambda: not psutil.pid_exists(last))
    assert executor.process.exitcode == 0


def test_what_has_changed_is_read_again(executor: Executor) -> None:
    """The file, or a module that it imports: the process that read it before is ended, and the task reads it itself."""
    executor.run()
    stands = executor.stands()
    executor.helper_file.write_text("VALUE = 2222\n")
    other = executor.run()
    assert other != stands
    assert other in executor.notes("read")
    until(lambda: not psutil.pid_exists(stands))


@pytest.mark.parametrize("name", UNFIT)
def test_some_files_are_read_with_their_task_only(dags: Path, name: str) -> None:
    """One with an error, one that asks for a Variable or for its task, one that initialises CUDA, and one of a DAG that
    mode on is not for: nothing is different there from Airflow without EGS."""
    dag_id = "another" if name == "other" else "ready_dag"
    (dags / f"{name}.py").write_text(
        f"{UNFIT[name]}\nfrom airflow.sdk import DAG\ndag = DAG('{dag_id}', schedule=None)\n"
    )
    (dags / "well.py").write_text("from airflow.sdk import DAG\ndag = DAG('ready_dag', schedule=None)\n")
    unfit, well = (fork_ready(DagFile("dags-folder", None, file), 0.0) for file in (f"{name}.py", "well.py"))
    try:
        path = str(dags / "well.py")
        found = well.stamps(DEADLINE_S)
        assert found is not None
        assert found[path] == stamps_of({path})[path]
        assert unfit.stamps(DEADLINE_S) is None
    finally:
        unfit.close()
        well.close()
    assert not psutil.pid_exists(well.pid)


def test_one_that_stands_ready_ends_with_its_executor(dags: Path) -> None:
    """Also where that is killed: it hears of it by the pipes, and says nothing."""
    (dags / "well.py").write_text("from airflow.sdk import DAG\ndag = DAG('ready_dag', schedule=None)\n")
    receiver, sender = FORK.Pipe(duplex=False)

    def stand() -> None:
        made = fork_ready(DagFile("dags-folder", None, "well.py"), 0.0)
        sender.send((made.pid, made.stamps(DEADLINE_S) is not None))
        time.sleep(DEADLINE_S)

    executor = FORK.Process(target=stand)
    executor.start()
    try:
        assert receiver.poll(DEADLINE_S)
        pid, is_ready = receiver.recv()
        assert is_ready
    finally:
        executor.kill()
        executor.join()
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_one_that_is_killed_leaves_its_place(executor: Executor) -> None:
    """The process of the executor is killed while one stands ready for it: the next one finds room for its own."""
    executor.run()
    alone = executor.stands()
    executor.process.kill()
    executor.process.join()
    until(lambda: not executor.room.uses())
    until(lambda: _is_over(alone))
    executor.process = executor.begin()
    executor.run()
    stands = executor.stands()
    assert stands != alone
    assert executor.run() == stands


def test_one_whose_file_is_gone_leaves_its_place(executor: Executor) -> None:
    """Soon, for another file's: one that has read it, as that is seen; one that finds none to read at once, whatever
    its age may be."""
    executor.run()
    stands = executor.stands()
    began_s = time.monotonic()
    executor.dag_file.unlink()
    until(lambda: _is_over(stands))
    until(lambda: not executor.room.uses())  # nor does the next one, which finds no file
    assert time.monotonic() - began_s < ready.MOST_AGE_S


def _is_over(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_when_one_stands_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a file of which tasks came, here or elsewhere, while there is room; not after one in vain, not for a file
    that is unfit, not too long after the last task, when one that stands goes too; and one that is too old is another
    one."""
    now = [0.0]
    made: list[ready.Process] = []

    class Fake(ready.Process):
        def stamps(self, patience_s: float = 0.0) -> ready.Stamps | None:  # noqa: ARG002  # as the real one
            return None if self.file.path == "unfit.py" else {}

        def close(self) -> None:
            made.remove(self)

    def fork(file: DagFile, now_s: float) -> ready.Process:
        made.append(Fake(0, file, [], multiprocessing.Pipe()[0], now_s))
        return made[-1]

    monkeypatch.setattr(ready, "fork_ready", fork)
    good, other, unfit = (DagFile("b", None, f"{name}.py") for name in ("good", "other", "unfit"))
    room = Room(1)
    demand = Shared(FORK.Array("c", MOST_BYTES))
    one, two, three = (ready.Ready(room, demand, lambda: now[0]) for _ in range(3))
    one.stand()
    assert not made  # nobody knows for what
    assert one.take(good) is None
    assert two.take(good) is None
    one.stand()
    two.stand()
    assert [process.file for process in made] == [good]  # there is room for one
    assert (one.look_in_s(), two.look_in_s()) == (ready.LEAST_LOOK_S, ready.MOST_AGE_S)
    now[0] = ready.MOST_AGE_S
    old = one.process
    one.renew()
    assert not made
    one.stand()
    assert one.process is not old
    assert one.take(other) is None  # in vain: the next has none
    one.stand()
    assert not made
    assert room.uses() == []
    now[0] += WORTH_S - 1.0
    one.take(other)
    one.stand()
    assert one.take(other) is not None
    made.clear()
    now[0] += 10 * WORTH_S
    one.take(unfit)
    one.stand()
    assert one.take(unfit) is None
    one.stand()
    assert not made
    now[0] += ready.UNFIT_S
    one.take(unfit)
    one.stand()
    assert [process.file for process in made] == [unfit]
    one.drop()
    now[0] += 10 * WORTH_S
    one.take(good)
    three.stand()  # it has had no task, and knows what others had
    assert [process.file for process in made] == [good]
    assert [seen.standing for seen in one._seen() if seen.file == good] == [1]
    three.drop()
    assert [seen.standing for seen in one._seen() if seen.file == good] == [0]
    now[0] += 2 * ready.UNFIT_S
    one.stand()
    three.stand()
    assert (made, room.uses()) == ([], [])
    late = ready.Ready(room, Shared(FORK.Array("c", MOST_BYTES)), lambda: now[0])
    late.take(good)
    now[0] += WORTH_S - 5.0
    late.stand()
    late.renew()
    assert len(made) == 1
    now[0] += 6.0
    late.renew()  # young, but nothing is likely to come for it any more
    assert (made, room.uses()) == ([], [])
    room.close()


def test_it_can_be_done_on_this_airflow_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both known versions have what it needs; doctor says so, and where one has not or none is asked for."""
    monkeypatch.setenv("EGS_MODE", "on")
    monkeypatch.setattr(features, "_executor", lambda: "egs_airflow.executors.EgsLocalExecutor")
    told = features.FEATURES["processes ready"]
    assert told() == (True, "active: at most 4")
    with monkeypatch.context() as without:
        without.setenv(compat.WITHOUT, "ready")
        assert told() == (False, f"off: {compat.FEATURES['ready'].lost}, for this Airflow has not the API `ready`")
    monkeypatch.setenv("EGS_READY_PROCESSES", "many")
    assert config.number_of("ready_processes") == 4
    monkeypatch.setenv("EGS_READY_PROCESSES", "0")
    assert told() == (True, "off: [egs] ready_processes")
    monkeypatch.delenv("EGS_READY_PROCESSES")
    monkeypatch.setattr(features, "_executor", lambda: "LocalExecutor")
    assert told() == (True, "off: LocalExecutor is no executor that can (EgsLocalExecutor is)")
