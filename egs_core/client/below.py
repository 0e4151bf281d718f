"""The processes of a command of `egs run`, as its supervisor has them: below this process; or, where the command's
process stood ready (`ready`), below what holds that, which tells how it ends."""

from __future__ import annotations

import contextlib
import os
import signal

from egs_core.client.hooked import send_to
from egs_core.client.messages import Process
from egs_core.client.processes import descendants, is_alive
from egs_core.client.ready import Standing
from egs_core.client.signals import SignalQueue

LOST = 128 + signal.SIGKILL
"""The exit code of a command of which nobody knows it."""
MOST_BYTES = 1 << 12


class Below:
    """Of one start. held: its process where that stood ready; signals: are not waited for while there is news."""

    def __init__(self, signals: SignalQueue, held: Standing | None = None) -> None:
        self._signals, self._held = signals, held
        self._known: tuple[Process, ...] = () if held is None else (held.one,)
        self._is_over = self._is_lost = False
        if held is not None:
            held.control.setblocking(False)
            signals.watch(held.control.fileno())

    def processes(self) -> tuple[Process, ...]:
        """Parents first."""
        if self._held is None:
            return tuple(descendants(os.getpid()))
        below = () if self._is_lost else tuple(descendants(self._held.holder))
        self._known = below or tuple(one for one in self._known if is_alive(one))  # what held it may just be killed
        return self._known

    def reap(self, child: int, code: int | None) -> tuple[int | None, bool]:
        """The command's exit code when it has ended, and whether no process of it is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                is_empty = True
                break
            if pid == 0:
                is_empty = False
                break
            if pid == child:
                ended = os.waitstatus_to_exitcode(status)
                code = ended if ended >= 0 else 128 - ended
        return (code, is_empty) if self._held is None else self._told(self._held, code)

    def _told(self, held: Standing, code: int | None) -> tuple[int | None, bool]:
        while not self._is_over:
            try:
                heard = held.control.recv(MOST_BYTES).decode(errors="replace")
            except BlockingIOError:
                break
            except OSError:
                heard = ""
            kind, _, rest = heard.partition(" ")
            if kind == "ended":
                code = int(rest)
                continue
            self._is_over, self._is_lost = True, kind != "over"
            self._signals.leave(held.control.fileno())
            held.control.close()
        if self._is_lost:  # what held it was killed, and nobody hears how it ends
            code = LOST if code is None else code
            living = [one for one in self._known if is_alive(one)]
            self._known = tuple({*living, *(below for one in living for below in descendants(one.pid))})
            send_to([one.pid for one in self._known], signal.SIGKILL)
        return code, self._is_over and not (self._is_lost and self._known)

    def close(self) -> None:
        if self._held is not None and not self._is_over:
            with contextlib.suppress(OSError, KeyError):
                self._signals.leave(self._held.control.fileno())
            self._held.control.close()
