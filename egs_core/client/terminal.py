"""A terminal for a command (`egs run --pty`): what it writes goes to standard output, what the user types to it.

    user's terminal (raw) ─► one thread ─► pseudo-terminal ─► the command, which leads a session of its own
                          ◄─            ◄─

Ctrl-C is a byte on the way in, and a signal at the command. The window's size follows the user's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import sys
import termios
import threading
import tty
from collections.abc import Callable
from typing import Any

LOOK_S, LAST_S = 0.2, 2.0
CHUNK = 1 << 16
END_OF_INPUT = b"\x04"


class Terminal:
    """One command's. typed: called when its user has typed something; `slave`: the path of its side;
    `close` gives the user's terminal back."""

    def __init__(self, typed: Callable[[], None]) -> None:
        self._master, self._slave_handle = os.openpty()
        self.slave = os.ttyname(self._slave_handle)
        self._typed = typed
        self._is_over = threading.Event()
        self._before: list[Any] | None = None
        self._size = b""
        self._thread = threading.Thread(target=self._copy, name="egs-pty", daemon=True)
        if os.isatty(0):
            self._before = termios.tcgetattr(0)
        self._follow_size()

    def start(self) -> None:
        """Once the command has been started: what it writes comes from now on."""
        os.close(self._slave_handle)
        if self._before is not None:
            tty.setraw(0)
        self._thread.start()

    def close(self) -> None:
        """After the command's end: the rest of its output, then the user's terminal as it was."""
        self._is_over.set()
        self._thread.join(LAST_S)
        if self._before is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)
        os.close(self._master)

    def _copy(self) -> None:
        has_input = True
        while True:
            self._follow_size()
            readable = select.select([self._master, *([0] if has_input else [])], [], [], LOOK_S)[0]
            if self._master in readable:
                try:
                    written = os.read(self._master, CHUNK)
                except OSError:  # nobody has the other side any more
                    return
                _write(sys.stdout.fileno(), written)
            elif self._is_over.is_set():
                return
            if 0 in readable:
                typed = os.read(0, CHUNK)
                has_input = bool(typed)
                if typed:
                    self._typed()
                with contextlib.suppress(OSError):
                    _write(self._master, typed or END_OF_INPUT)

    def _follow_size(self) -> None:
        with contextlib.suppress(OSError):  # standard output is no terminal
            size = fcntl.ioctl(1, termios.TIOCGWINSZ, bytes(8))
            if size != self._size:
                self._size = size
                fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)


def _write(handle: int, content: bytes) -> None:
    while content:
        content = content[os.write(handle, content) :]
