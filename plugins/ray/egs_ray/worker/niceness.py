"""Loading beside others' work without being in its way: a lower priority for the processor, where it can be taken back.

Threads that a library starts while it is imported (OpenBLAS, Arrow) keep the priority of the thread that imported it,
and only privileged processes may raise one again. So elsewhere nothing is lowered: the task would run with it to its
end.
"""

from __future__ import annotations

import contextlib
import os
import threading

LOWER, LOWEST = 10, 19  # about a tenth of a core, where somebody else wants it


class Niceness:
    """Of this process. `lower` is for the calling thread and those that it starts from then on; `restore` for all."""

    def __init__(self) -> None:
        self._usual = os.getpriority(os.PRIO_PROCESS, 0)
        self.may_lower = _may_come_back(self._usual)

    def lower(self) -> None:
        if self.may_lower:
            _set(0, min(LOWEST, self._usual + LOWER))

    def restore_this(self) -> None:
        """Only the calling thread."""
        if self.may_lower:
            _set(0, self._usual)

    def restore(self) -> None:
        """Every thread of the process; costs microseconds each."""
        if self.may_lower:
            for thread in os.listdir("/proc/self/task"):
                _set(int(thread), self._usual)


def _may_come_back(usual: int) -> bool:
    """Whether a thread of this process can lower its priority and raise it again: tried in one that ends then."""
    came_back: list[bool] = []

    def there_and_back() -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, min(LOWEST, usual + 1))
            os.setpriority(os.PRIO_PROCESS, 0, usual)
            came_back.append(True)

    thread = threading.Thread(target=there_and_back, name="egs-try")
    thread.start()
    thread.join()
    return bool(came_back)


def _set(thread: int, priority: int) -> None:
    with contextlib.suppress(OSError):  # it has ended
        os.setpriority(os.PRIO_PROCESS, thread, priority)
