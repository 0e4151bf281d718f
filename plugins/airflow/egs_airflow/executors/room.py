"""How many processes may stand ready, and for what, by the kernel: who is killed leaves its place with its life.

Each place is a file in memory, made before the forks. Whoever has it locked has the place, and writes into it what for.
The lock is of the open file, so it is gone when nobody has that open any more. Standard library only.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

MOST_BYTES = 8192
"""Of a use."""


class Room:
    """So many places, for all forks of the process that made it. OSError where this system has no files in memory."""

    def __init__(self, most: int) -> None:
        self._files = [os.memfd_create("egs-ready") for _ in range(most)]

    def take(self, use: bytes = b"") -> int | None:
        """A place for this use, to be given back; None where all are taken, or nobody can say."""
        for file in self._files:
            place = _lock(file, fcntl.LOCK_EX)
            if place is not None:
                os.ftruncate(place, 0)
                os.pwrite(place, use, 0)
                return place
        return None

    def give_back(self, place: int) -> None:
        """It is free, also where a fork of this process has it too."""
        with suppress(OSError):
            fcntl.flock(place, fcntl.LOCK_UN)
            os.close(place)

    def uses(self) -> list[bytes]:
        """What those that are taken now are used for, by any process."""
        return [os.pread(file, MOST_BYTES, 0) for file in self._files if self._is_taken(file)]

    def _is_taken(self, file: int) -> bool:
        place = _lock(file, fcntl.LOCK_SH)
        if place is not None:
            self.give_back(place)
        return place is None

    def close(self) -> None:
        """In the process that made it, when its executor ends."""
        files, self._files = self._files, []
        for file in files:
            with suppress(OSError):
                os.close(file)


def _lock(file: int, kind: int) -> int | None:
    """The file opened anew, and locked; None where another has it."""
    with suppress(OSError):
        place = os.open(f"/proc/self/fd/{file}", os.O_RDWR)
        try:
            fcntl.flock(place, kind | fcntl.LOCK_NB)
        except OSError:
            os.close(place)
        else:
            return place
    return None
