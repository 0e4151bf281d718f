"""A preload steps aside for the processor, and nothing of it stays behind; where it could not come back it does not."""

from __future__ import annotations

import os
import threading

import pytest

from egs_ray.worker.niceness import Niceness


def policies() -> set[int]:
    """Of every thread of this process."""
    return {os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")}


def test_all_threads_come_back() -> None:
    """Also those that were started meanwhile, which inherit what the thread that started them had."""
    own, inside = Niceness(), []
    ready, end = threading.Event(), threading.Event()

    def work() -> None:
        inside.append(os.sched_getscheduler(0))
        ready.set()
        end.wait(30)

    own.lower()
    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(30)
    own.restore_this()
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert inside == [os.SCHED_IDLE if own.may_lower else os.SCHED_OTHER]
    own.restore()
    assert policies() == {os.SCHED_OTHER}
    end.set()
    thread.join()


def test_unprivileged_processes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a thread could step aside but not come back, none does but the one that tried."""
    policy, tried_by = [os.SCHED_OTHER], []

    def change(_thread: int, wanted: int, _param: os.sched_param) -> None:
        if policy[0] == os.SCHED_IDLE:
            raise PermissionError(1, "Operation not permitted")
        policy[0] = wanted
        tried_by.append(threading.current_thread())

    monkeypatch.setattr(os, "sched_setscheduler", change)
    monkeypatch.setattr(os, "sched_getscheduler", lambda _thread: policy[0])
    own = Niceness()
    assert not own.may_lower
    own.lower()
    own.restore()
    assert len(tried_by) == 1
    assert tried_by[0] is not threading.current_thread()


def test_a_policy_that_was_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that its user gave another policy is left alone."""
    asked: list[int] = []
    monkeypatch.setattr(os, "sched_getscheduler", lambda _thread: os.SCHED_BATCH)
    monkeypatch.setattr(os, "sched_setscheduler", lambda _thread, policy, _param: asked.append(policy))
    own = Niceness()
    own.lower()
    own.restore()
    assert asked == []
