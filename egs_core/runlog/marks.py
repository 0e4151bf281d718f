"""What a task notes about itself while a replay or a demo runs it: one JSON line appended to a file when it ends.

Runs inside a framework's workers, in the same way natively and with EGS, so it uses the standard library only. Times
are Unix times: all workers share one machine and so one clock. An adapter adds what its framework says of the task.

    start                                                                  end
      |  cold (imports)  cpu (decode)  held[ cold (load)  gpu (fit) ]  cpu (write)
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

MARKS_FILE = "marks.jsonl"
WATCH_EVERY_S = 0.25


class Marking:
    """The stretches of one running task: kinds `cpu`, `gpu`, `cold` and `held`, each with its start and end."""

    def __init__(self) -> None:
        self.stretches: list[tuple[str, float, float]] = []
        self.devices: str = ""

    @contextmanager
    def _stretch(self, kind: str, length_s: float = 0.0) -> Iterator[None]:
        start = time.time()
        yield
        time.sleep(max(0.0, start + length_s - time.time()))
        self.stretches.append((kind, start, time.time()))

    @contextmanager
    def cpu(self, length_s: float) -> Iterator[None]:
        """A CPU phase: the real computation inside, then a wait until it lasted `length_s`."""
        with self._stretch("cpu", length_s):
            yield

    @contextmanager
    def gpu(self, length_s: float) -> Iterator[None]:
        """A GPU phase on an emulated GPU: the real computation inside, then a wait until it lasted `length_s`."""
        self.devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        with self._stretch("gpu", length_s):
            yield

    @contextmanager
    def cold(self) -> Iterator[None]:
        """Imports and loading: takes no time when the process is warm."""
        with self._stretch("cold"):
            yield

    @contextmanager
    def held(self) -> Iterator[None]:
        """The part of the task that asks for the GPU; with EGS the only part that holds it."""
        with self._stretch("held"):
            yield


def append(path: Path, note: dict[str, Any]) -> None:
    """Add one line in one write, so that lines of different processes never mix."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, json.dumps(note).encode() + b"\n")
    finally:
        os.close(descriptor)


def process_start(pid: int | None = None) -> float | None:
    """Unix time at which a process (None: this one) was created, to 10 ms; None where the system does not say: it has
    ended, or there is no /proc.

    Counted back from now on the clock that the kernel used, because the boot time it publishes is in whole seconds.
    """
    try:
        fields = Path(f"/proc/{pid or 'self'}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[19])  # field 22 of proc(5), `starttime`, counted after the name
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return None
    return time.time() - age_s


@contextmanager
def watched(folder: str, total: int, progress: Callable[[int, int], None] | None) -> Iterator[None]:
    """Tell `progress(ended, total)` now and then how many notes there are, from a thread; None: nobody asks."""
    if progress is None:
        yield
        return
    over = Event()

    def watch() -> None:
        path = Path(folder) / MARKS_FILE
        while not over.wait(WATCH_EVERY_S):
            progress(min(total, path.read_bytes().count(b"\n")) if path.exists() else 0, total)

    thread = Thread(target=watch, name="egs-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
