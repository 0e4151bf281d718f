"""Signals that are blocked, taken one by one, by Linux's `signalfd`.

Not by Python's `sigtimedwait`: where the process was stopped, or its host suspended, until the patience was over, that
returns whatever is on its stack, also a SIGHUP that nobody has sent.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
from collections.abc import Iterable

INFO = struct.Struct("=Iii")  # what a signalfd begins with: the signal, an error, the code that says who has sent it
INFO_BYTES = 128
SET_BYTES = 128  # a `sigset_t` of 1024 signals
SI_KERNEL = 0x80  # the code of what a terminal has sent


class SignalQueue:
    """Those of these signals that come; they have to be blocked in all threads. is_from_terminal: whether the kernel
    has sent the last one by itself. Raises OSError."""

    def __init__(self, signals: Iterable[int]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        wanted = ctypes.create_string_buffer(SET_BYTES)
        libc.sigemptyset(wanted)
        for number in signals:
            libc.sigaddset(wanted, int(number))
        self._file = libc.signalfd(-1, wanted, os.O_CLOEXEC | os.O_NONBLOCK)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "signals cannot be waited for")
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLIN)
        self.is_from_terminal = False

    def close(self) -> None:
        os.close(self._file)

    def fileno(self) -> int:
        return int(self._file)

    def watch(self, handle: int) -> None:
        """Do not wait for a signal while this can be read."""
        self._poll.register(handle, select.POLLIN)

    def leave(self, handle: int) -> None:
        self._poll.unregister(handle)

    def next(self, patience_s: float) -> signal.Signals | None:
        """The next one; None when there is none in time."""
        if not self._poll.poll(patience_s * 1000):
            return None
        try:
            found = os.read(self._file, INFO_BYTES)
        except BlockingIOError:  # it is no longer pending
            return None
        number, _, code = INFO.unpack_from(found)
        self.is_from_terminal = code == SI_KERNEL
        return signal.Signals(number)
