"""What a program and all that it starts took of the processors: processes and CPU seconds, also of daemons.

Found is each process that has the variable of a run in its environment, or whose parent is one of these: Ray's daemons
leave their parent's tree, and what they start changes its own environment's memory. A look is every LOOK_S, so a
process that lives shorter may be missed, and of each one's last moment nothing is known. Linux.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict

import msgspec

LOOK_S = 0.05
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
KINDS = {
    b"gcs_server": "gcs",
    b"raylet/raylet": "raylet",
    b"Agent": "agent",
    b"default_worker": "worker",
    b"ray::": "worker",
}


class Used(msgspec.Struct, frozen=True):
    """processes: how many there were, workers: those of them that are Ray's workers; cpu_s: seconds of a core, of all;
    driver_cpu_s: of the program itself; by_kind: of each kind."""

    processes: int = 0
    workers: int = 0
    cpu_s: float = 0.0
    driver_cpu_s: float = 0.0
    by_kind: dict[str, float] = {}


class Watched:
    """Looks from its making until `stop`, on a thread of its own. first: the program's process; mark: NAME=value, what
    its environment has that no other's has."""

    def __init__(self, first: int, mark: str) -> None:
        self._first, self._mark = first, mark.encode()
        self._own: dict[int, str] = {first: "driver"}
        self._others: set[int] = set()
        self._seconds: dict[int, float] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="processes", daemon=True)
        self._thread.start()

    def stop(self) -> Used:
        """What was seen; call it when the program has ended."""
        self._is_over.set()
        self._thread.join()
        by_kind: defaultdict[str, float] = defaultdict(float)
        for pid, seconds in self._seconds.items():
            by_kind[self._own[pid]] += seconds
        workers = sum(self._own[pid] == "worker" for pid in self._seconds)
        kinds = {kind: round(seconds, 2) for kind, seconds in sorted(by_kind.items())}
        total = sum(self._seconds.values())
        return Used(len(self._seconds), workers, total, self._seconds.get(self._first, 0.0), kinds)

    def _run(self) -> None:
        while not self._is_over.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        there = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
        self._others &= there
        for pid in sorted(there - self._others):
            try:
                fields = _read(pid, "stat").rpartition(b")")[2].split()
                if pid not in self._own:
                    if int(fields[1]) not in self._own and self._mark not in _read(pid, "environ").split(b"\0"):
                        self._others.add(pid)
                        continue
                    self._own[pid] = "other"
                self._seconds[pid] = (int(fields[11]) + int(fields[12])) * TICK_S
                if pid != self._first:  # again, as it starts as a copy of its parent
                    self._own[pid] = _kind(_read(pid, "cmdline")) or self._own[pid]
            except OSError:  # it has ended, or is another user's
                if pid not in self._own:
                    self._others.add(pid)


def _kind(command: bytes) -> str:
    """ "": its command cannot be read any more."""
    return next((kind for word, kind in KINDS.items() if word in command), "other") if command else ""


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()
