"""How a task's process tells the scheduler at once that its end is in the metadata database: by a byte in a pipe.

    scheduler ─ fork ─► process of the executor ─ fork ─► task ─ success ─► api-server
        ▲ asks the database now, not within a tenth of a second               │
        └───────────────────────────── a byte ────────────────────────────────┘

The scheduler makes the pipe, and a task has it, because it is a fork of a fork; one that runs as another user, or by
another executor, has not. A byte is only a reason to ask: what is lost, or too much, changes nothing but when that is.
Standard library only.
"""

from __future__ import annotations

import os
from contextlib import suppress

MOST_BYTES = 4096


class Bell:
    """One pipe, of which neither end ever waits."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        self._is = self._identity()

    def _identity(self) -> tuple[int, int]:
        found = os.fstat(self._writer)
        return found.st_dev, found.st_ino

    def ring(self) -> None:
        """In a task's process. Never raises, and writes nothing where its code has made something else of that file."""
        with suppress(OSError):
            if self._identity() == self._is:
                os.write(self._writer, b"!")

    def has_rung(self) -> bool:
        """In the scheduler: whether somebody has rung since this was asked."""
        with suppress(OSError):
            return bool(os.read(self._reader, MOST_BYTES))
        return False

    def close(self) -> None:
        """In the scheduler, when its executor ends."""
        for end in (self._reader, self._writer):
            with suppress(OSError):
                os.close(end)


hung: Bell | None = None
"""The bell of this process and its forks."""


def hang() -> Bell:
    """Make the bell, before the first fork."""
    global hung
    hung = Bell()
    return hung


def take_down() -> None:
    """There is none any more."""
    global hung
    bell, hung = hung, None
    if bell is not None:
        bell.close()
