"""A pass of the scheduler gives way to tasks that have just got their slots, for a moment, until their code begins."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("airflow.executors.local_executor", reason="apache-airflow is not installed")

from egs_airflow import compat
from egs_airflow.executors import bell, reading, waking
from egs_airflow.executors.local import EgsLocalExecutor
from egs_airflow.executors.reading import End
from egs_airflow.executors.waking import GIVE_WAY_S, Manners
from egs_airflow.observe.listener import TaskListener

PATIENCE_S = 60.0


@pytest.fixture
def bells() -> Iterator[tuple[bell.Bell, bell.Bell]]:
    """For the ends of tasks, and for their begins."""
    rung = bell.hang()
    assert bell.begun is not None
    yield rung, bell.begun
    bell.take_down()


class Executor:
    """As much of one as a pass needs. waiting: tasks for which slots can be handed out, one for each that ends; ended:
    what the database says of those that ring; given: the tasks that have been given slots."""

    def __init__(self, *waiting: bytes, may: bool = True) -> None:
        self.waiting, self.given, self.may = list(waiting), list[bytes](), may
        self.ended: list[End] = []
        self.then: Callable[[], object] = lambda: None
        own: Any = SimpleNamespace(slots_available=8, _handed=set(), _manners=Manners(), heartbeat=lambda: None)
        self.own: Any = own
        self.own._hand_out = partial(EgsLocalExecutor._hand_out, own)
        self.own._ended_now = lambda: bool(self.ended)
        self.own._started = SimpleNamespace(take_over=self._take_over)

    def _take_over(self) -> list[End]:
        found, self.ended = self.ended, []
        return found

    def _hand_out(self) -> int:
        if not self.waiting:
            return 0
        task = self.waiting.pop(0)
        self.given.append(task)
        self.own._handed.add(task)
        self.then()
        return 1

    def before_pass(self, over: list[End], early: set[bytes] | None = None) -> None:
        self.ended = list(over)
        gate: Any = SimpleNamespace(may_hand_out=lambda _: self.may)
        assert bell.begun is not None
        assert bell.hung is not None
        EgsLocalExecutor._give_way(self.own, gate, self._hand_out, early or set(), bell.begun, bell.hung)


END = End(1, True, None)
A, B = uuid.uuid4().bytes, uuid.uuid4().bytes


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "GIVE_WAY_S", PATIENCE_S)


def after(seconds: float, action: Callable[[], object]) -> None:
    threading.Timer(seconds, action).start()


@pytest.mark.usefixtures("patient")
def test_it_waits_until_the_code_of_what_was_given_slots_begins(bells: tuple[bell.Bell, bell.Bell]) -> None:
    """Also of what the pass before has given them; others that begin are not meant. For what has begun it does not."""
    executor, begin_s = Executor(A), time.monotonic()
    after(0.05, lambda: bells[1].ring(uuid.uuid4().bytes))
    after(0.2, lambda: bells[1].ring(A))
    executor.before_pass([END])
    assert executor.given == [A]
    assert 0.15 < time.monotonic() - begin_s < PATIENCE_S
    executor.own._manners = Manners()
    executor.own._handed = {B}
    after(0.1, lambda: bells[1].ring(B))
    executor.before_pass([])
    executor.own._handed = {B}
    executor.own._manners = Manners()
    executor.before_pass([], early={B})
    executor.before_pass([])
    assert time.monotonic() - begin_s < PATIENCE_S


@pytest.mark.usefixtures("patient")
def test_a_slot_that_comes_free_meanwhile_is_given_again_at_once(bells: tuple[bell.Bell, bell.Bell]) -> None:
    """And waited for, too; an end after which nothing can be handed out is for the pass, which begins."""
    executor = Executor(A, B)

    def end() -> None:
        executor.ended = [END]
        bells[0].ring()

    def begin() -> None:
        for task in executor.given:
            bells[1].ring(task)

    executor.then = lambda: after(0.1, end if len(executor.given) == 1 else begin)
    executor.before_pass([END])
    assert executor.given == [A, B]
    executor = Executor(A)
    begin_s = time.monotonic()
    after(0.1, end)
    executor.before_pass([END])
    assert time.monotonic() - begin_s < PATIENCE_S


def test_who_has_rung_in_a_pass_is_asked_for_before_the_next(bells: tuple[bell.Bell, bell.Bell]) -> None:
    """It has not slept in between, and would else look at all DAG runs first."""
    executor = Executor(A)
    asked: list[bool] = []

    def ended_now() -> bool:
        asked.append(True)
        return True

    executor.own._ended_now = ended_now
    executor.before_pass([])
    assert asked == []
    bells[0].ring()
    executor.before_pass([END])
    assert (asked, executor.given) == ([True], [A])


@pytest.mark.usefixtures("bells")
def test_it_waits_for_a_moment_and_a_part_of_the_time_only() -> None:
    """For tasks that do not begin. And not after it has waited just now, nor for many, where they have slots for which
    nobody waited."""
    executor, begin_s = Executor(A), time.monotonic()
    executor.before_pass([END])
    first_s = time.monotonic() - begin_s
    assert first_s >= GIVE_WAY_S
    assert executor.own._manners.again_s - begin_s > 3.9 * GIVE_WAY_S
    begin_s = time.process_time()
    with executor.own._manners.waiting({A}, follows=False) as until_s:
        assert until_s <= time.monotonic()
    for tasks in (set[bytes](), {bytes([n]) for n in range(waking.MOST_TASKS)}):
        with Manners().waiting(tasks, follows=False) as until_s:
            assert until_s <= time.monotonic()
    assert time.process_time() - begin_s < GIVE_WAY_S


@pytest.mark.usefixtures("bells")
def test_a_wait_in_vain_is_not_made_again_at_once() -> None:
    """Tasks that never say that they begin cost passes a part of the time, no more, though others waited for their
    slots; where what was waited for began, the next such wait may follow at once."""
    executor = Executor(A, B)
    executor.before_pass([END])
    manners, before_s = executor.own._manners, time.process_time()
    assert manners.was_vain
    executor.before_pass([END])
    assert executor.given == [A, B]
    assert time.process_time() - before_s < GIVE_WAY_S
    with manners.waiting({A}, follows=True) as until_s:
        assert until_s <= time.monotonic()
    manners.again_s = 0.0
    tasks = {A}
    with manners.waiting(tasks, follows=True) as until_s:
        assert until_s > time.monotonic()
        tasks.clear()
    with manners.waiting({A}, follows=True) as until_s:
        assert until_s > time.monotonic()
    manners = Manners()
    with manners.waiting({A}, follows=False) as until_s:
        assert until_s > time.monotonic()
    with manners.waiting({A}, follows=True) as until_s:
        assert until_s > time.monotonic()


@pytest.mark.usefixtures("bells")
def test_nothing_is_kept_for_a_pass_that_nobody_goes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the scheduler could not be changed, neither what was handed out nor what has ended is noted for ever;
    nor the former where the gate is paused."""
    from airflow.executors.local_executor import LocalExecutor

    workload = SimpleNamespace(ti=SimpleNamespace(id=uuid.uuid4(), key="k"))
    own: Any = EgsLocalExecutor.__new__(EgsLocalExecutor)
    own.gate, own.running, own._handed, own._started = object(), set(), set(), waking.Running()
    monkeypatch.setattr(LocalExecutor, "_process_workloads", lambda *_: None)
    monkeypatch.setattr(compat, "connect", nullcontext)
    monkeypatch.setattr(reading, "ended", lambda *_: [END])
    for is_followed in (False, True):
        own._started.is_followed = is_followed
        own._process_workloads([workload])
        own._started.ask_now()
        assert own._started.have_ended()
        assert own.running == {"k"}
        assert own._handed == ({workload.ti.id.bytes} if is_followed else set())
        assert own._started.over == ([END] if is_followed else [])
    own.gate = SimpleNamespace(guard=lambda _: None)  # one that is paused
    EgsLocalExecutor._before_pass(own, lambda: 0)
    assert own._handed == set()


def test_a_task_says_that_its_code_begins_from_a_fork_of_a_fork(bells: tuple[bell.Bell, bell.Bell]) -> None:
    """Through Airflow's listener, by its id; what has none of Airflow's says nothing."""
    tasks = [uuid.uuid4() for _ in range(300)]

    def run() -> None:
        for one in [*tasks, "none", ""]:
            TaskListener().on_task_instance_running(SimpleNamespace(id=one))

    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            try:
                run()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    assert bells[1].ids() == {one.bytes for one in tasks}
    assert bells[1].ids() == set()
    assert not bells[0].has_rung()
