"""Loading beside others' work without being in its way: only the processor time that nobody else wants, where that can
be taken back.

Linux has a scheduling policy for this (SCHED_IDLE). A lower priority would not do: Ray runs its workers at 15 of 19, so
the lowest that is left still takes a third of a core from a task beside it. Threads that a library starts while it is
imported (OpenBLAS, Arrow) keep the policy of the thread that imported it, and only privileged processes (CAP_SYS_NICE)
may leave it again. So elsewhere nothing is changed: the task would run with it to its end.
"""

from __future__ import annotations

import contextlib
import os
import threading


class Niceness:
    """Of this process. `lower` is for the calling thread and those that it starts from then on; `restore` for all."""

    def __init__(self) -> None:
        self.may_lower = _may_come_back()

    def lower(self) -> None:
        if self.may_lower:
            _set(0, os.SCHED_IDLE)

    def restore_this(self) -> None:
        """Only the calling thread."""
        if self.may_lower:
            _set(0, os.SCHED_OTHER)

    def restore(self) -> None:
        """Every thread of the process that steps aside; costs microseconds each."""
        if self.may_lower:
            for thread in map(int, os.listdir("/proc/self/task")):
                with contextlib.suppress(OSError):  # it has ended
                    if os.sched_getscheduler(thread) == os.SCHED_IDLE:
                        _set(thread, os.SCHED_OTHER)


def _may_come_back() -> bool:
    """Whether a thread of this process can step aside and come back: tried in one that ends then."""
    if not hasattr(os, "SCHED_IDLE") or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False  # not Linux, or its user chose a policy
    came_back: list[bool] = []

    def there_and_back() -> None:
        _set(0, os.SCHED_IDLE)
        _set(0, os.SCHED_OTHER)
        came_back.append(os.sched_getscheduler(0) == os.SCHED_OTHER)

    thread = threading.Thread(target=there_and_back, name="egs-try")
    thread.start()
    thread.join()
    return came_back == [True]


def _set(thread: int, policy: int) -> None:
    with contextlib.suppress(OSError):  # it has ended, or may not
        os.sched_setscheduler(thread, policy, os.sched_param(0))
