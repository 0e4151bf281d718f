"""How the scheduler is told at once that a task's end is in the metadata database: by a byte in a pipe.

    scheduler ─ fork ─► process of the executor ─ fork ─► task
        ▲                  │     ▲                          │
        └────── a byte ────┘     └──────── success ─────────┘
        asks the database now, not within a tenth of a second

The scheduler makes the pipe, and its forks have it. The process that watches a task rings once the api-server has the
end; where that cannot be changed (`own_supervisor`) the task itself does, through Airflow's listener, unless it runs as
another user. A byte is only a reason to ask: what is lost, or too much, changes nothing but when that is.

By a second pipe tasks say that their code begins, each by its id of 16 bytes. Standard library only.
"""

from __future__ import annotations

import os
from contextlib import suppress

MOST_BYTES = 4096  # a multiple of what is written at once
ID_BYTES = 16


class Bell:
    """One pipe, of which neither end ever waits. tasks_ring: whether nobody does so for them."""

    tasks_ring = True

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        self._is = self._identity()

    def _identity(self) -> tuple[int, int]:
        found = os.fstat(self._writer)
        return found.st_dev, found.st_ino

    def fileno(self) -> int:
        """What can be read once somebody has rung."""
        return self._reader

    def ring(self, word: bytes = b"!") -> None:
        """Never raises, and writes nothing where a task's code has made something else of that file."""
        with suppress(OSError):
            if self._identity() == self._is:
                os.write(self._writer, word)

    def has_rung(self) -> bool:
        """In the scheduler: whether somebody has rung since this was asked."""
        return bool(self.heard())

    def heard(self) -> bytes:
        """In the scheduler: what was said since this was asked, so much at once."""
        with suppress(OSError):
            return os.read(self._reader, MOST_BYTES)
        return b""

    def ids(self) -> set[bytes]:
        """The same in parts of ID_BYTES."""
        found = set[bytes]()
        while text := self.heard():
            found |= {text[at : at + ID_BYTES] for at in range(0, len(text), ID_BYTES)}
        return found

    def close(self) -> None:
        """In the scheduler, when its executor ends."""
        for end in (self._reader, self._writer):
            with suppress(OSError):
                os.close(end)


hung: Bell | None = None
"""The bell of this process and its forks."""
begun: Bell | None = None
"""By which tasks say that their code begins."""


def hang() -> Bell:
    """Make both, before the first fork; the first of them."""
    global hung, begun
    hung, begun = Bell(), Bell()
    return hung


def take_down() -> None:
    """There is none any more."""
    global hung, begun
    bells, hung, begun = (hung, begun), None, None
    for bell in bells:
        if bell is not None:
            bell.close()
