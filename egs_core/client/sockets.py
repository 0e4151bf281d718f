"""The places of Unix sockets: who takes one, and takes it away, does so by turns with whoever else may."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TURN_S = 5.0


def leave_socket(path: Path, made: os.stat_result) -> None:
    """Take it away, unless it is another one's by now: that one came when this one had ceased to answer. made: of the
    path, when this one had made it."""
    with suppress(OSError), by_turns(path.parent):
        found = path.stat()
        if (found.st_ino, found.st_mtime_ns) == (made.st_ino, made.st_mtime_ns):  # numbers alone are used again
            path.unlink()


@contextmanager
def by_turns(folder: Path) -> Iterator[None]:
    """One at a time: two that start at once would both find a place free. Anybody may hold that lock who can read the
    folder, so who holds it for long means none of that, and is not waited for."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    until = time.monotonic() + TURN_S
    try:
        while time.monotonic() < until:
            with suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.02)
        yield
    finally:
        os.close(handle)
