"""A preload steps aside for the processor, and nothing of it stays behind; where it could not come back it does not."""

from __future__ import annotations

import os
import threading

import pytest

from egs_ray.worker import niceness
from egs_ray.worker.niceness import LOWER, LOWEST, Niceness


def priorities() -> dict[int, int]:
    """Of every thread of this process."""
    threads = [int(name) for name in os.listdir("/proc/self/task")]
    return {thread: os.getpriority(os.PRIO_PROCESS, thread) for thread in threads}


def test_all_threads_come_back() -> None:
    """Also those that were started meanwhile, which inherit what the thread that started them had."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    own, inside = Niceness(), []
    ready, end = threading.Event(), threading.Event()

    def work() -> None:
        inside.append(os.getpriority(os.PRIO_PROCESS, 0))
        ready.set()
        end.wait(30)

    own.lower()
    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(30)
    own.restore_this()
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
    assert inside == [min(LOWEST, before + LOWER) if own.may_lower else before]
    own.restore()
    assert set(priorities().values()) == {before}
    end.set()
    thread.join()


def test_unprivileged_processes_lower_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where priority cannot be raised again, it stays as it is."""
    monkeypatch.setattr(niceness, "_may_come_back", lambda _usual: False)
    before = priorities()
    own = Niceness()
    own.lower()
    own.restore()
    assert priorities() == before
