"""GPU tasks of frameworks' drivers, as rules look at them: since when they run, how long their like took, what
their code tells of how far they are, and which devices they have, where that is known.

The framework's books say that a task runs, and its driver tells. Tasks of one user, framework, workload and name with
as many GPUs are alike. What is known of them is kept in memory alone, and learned anew by a server that starts again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from egs_core.site.messages import Where
from egs_core.watch_rules import SAMPLES

MOST_KEPT = 200  # times of one kind
MOST_KINDS = 10_000
Kind = tuple[str, str, str, str, float]  # user, framework, workload, name, GPUs
Place = tuple[str, int, int]  # pool, phase, attempt


class GpuTask(msgspec.Struct):
    """One that runs. task: as the framework calls it; took_s: since it has started; key: of this attempt of it, unlike
    that of any run; devices: that it has, by their UUIDs, () where nobody has said; told: how far it is, None where it
    has not told that."""

    place: Place
    driver: str
    framework: str
    user: str
    team: str
    queue: str
    workload: str
    task: str
    name: str
    gpus: float
    took_s: float
    key: str
    devices: tuple[str, ...] = ()
    told: Where | None = None

    @property
    def kind(self) -> Kind:
        return self.user, self.framework, self.workload, self.name, self.gpus

    @property
    def called(self) -> str:
        """Unlike any other that runs."""
        return f"{self.driver}/{self.task}"


class WatchedTask(NamedTuple):
    """p99_s: of its like; None while too few have succeeded."""

    task: GpuTask
    p99_s: float | None


class TaskTimes:
    """How long tasks took that succeeded, by kind."""

    def __init__(self) -> None:
        self._running: dict[Place, GpuTask] = {}
        self._times: dict[Kind, deque[float]] = {}
        self._p99_s: dict[Kind, float] = {}

    def look(self, running: Iterable[GpuTask], succeeded: Iterable[Place]) -> list[WatchedTask]:
        """What runs now, each with what is known of its like. succeeded: of those that were told last, which have. A
        time is right but for what has passed since the last look."""
        for place in succeeded:
            self._note(self._running[place])
        self._running = {one.place: one for one in running}
        return [WatchedTask(one, self._p99_s.get(one.kind)) for one in self._running.values()]

    @property
    def seen(self) -> Iterable[Place]:
        """What ran at the last look."""
        return self._running.keys()

    def _note(self, task: GpuTask) -> None:
        times = self._times.pop(task.kind, None) or deque(maxlen=MOST_KEPT)
        times.append(task.took_s)
        self._times[task.kind] = times  # as the latest
        if len(self._times) > MOST_KINDS:
            oldest = next(iter(self._times))
            del self._times[oldest]
            self._p99_s.pop(oldest, None)
        if len(times) >= SAMPLES:
            self._p99_s[task.kind] = sorted(times)[math.ceil(0.99 * len(times)) - 1]
