"""The intervals that a run consists of: holds, waits, preloads and workloads. `timeline` makes them from records."""

from __future__ import annotations

import msgspec

from egs_core.runlog.records import Capacity, TaskAdded
from egs_core.runlog.steps import Interval


class Demand(msgspec.Struct, frozen=True):
    """What a phase needs on one node; kind is `cpu` or `gpu`."""

    kind: str = "cpu"
    cpus: float = 0.0
    gpus: float = 0.0
    memory_bytes: int = 0


class Hold(msgspec.Struct):
    """A phase from `Started` to `Ended` (or to the end of the log when `outcome` is empty)."""

    workload: str
    task: str
    phase: int
    attempt: int
    start_s: float
    end_s: float
    demand: Demand
    node: str = ""
    devices: tuple[int, ...] = ()
    warm: bool | None = None
    outcome: str = ""
    reason: str = ""  # the term that decided, where the engine granted it
    cold: list[Interval] = []
    useful: list[Interval] = []  # of the GPU; empty where none is held

    @property
    def cold_started(self) -> bool:
        return self.warm is False or bool(self.cold)


STARTING = "starting"
"""The kind of what is left of a wait when the engine has let the phase go: its framework starts it."""
LET_GO = "EGS had let it go: process start, environment set-up, or a limit of the framework's; it does not say"


class Wait(msgspec.Struct):
    """A ready phase that is not started, in pieces by the reason that held it; hold is empty while none was given.

    told: by kind of `Held`, the words that the log has for it, the last ones; granted_s: when the engine let it go."""

    workload: str
    task: str
    phase: int
    attempt: int
    demand: Demand
    pieces: list[tuple[float, float, str]] = []
    started: bool = False
    told: dict[str, str] = {}
    granted_s: float | None = None

    @property
    def kind(self) -> str:
        """What it waited for longest, which all readers of a log go by: a kind of `Held`, or `starting`; "" for what
        the log does not say."""
        seconds: dict[str, float] = {}
        for start, end, kind in self.pieces:
            let_go = end if self.granted_s is None else min(max(self.granted_s, start), end)
            seconds[kind] = seconds.get(kind, 0.0) + let_go - start
            seconds[STARTING] = seconds.get(STARTING, 0.0) + end - let_go
        return max(seconds, key=lambda kind: seconds[kind], default="")

    @property
    def wait_s(self) -> float:
        return sum(end - start for start, end, _ in self.pieces)


class Preload(msgspec.Struct):
    """work ends when it is warm (or fails); the memory stays held until it is used, unused or failed."""

    workload: str
    task: str
    node: str
    start_s: float
    work_end_s: float
    end_s: float
    cpus: float
    memory_bytes: int
    outcome: str = ""  # used, unused, failed; empty: the log ends before


class WorkloadSpan(msgspec.Struct):
    """One workload: when its first task was submitted, and when it was done. end_s is None while something is open."""

    name: str
    tenant: str = ""
    queue: str = ""
    submitted_s: float | None = None
    end_s: float | None = None


class Timeline(msgspec.Struct):
    """All intervals of one run; window is (first submission of a task, last end)."""

    window: Interval = (0.0, 0.0)
    holds: list[Hold] = []
    waits: list[Wait] = []
    preloads: list[Preload] = []
    workloads: dict[str, WorkloadSpan] = {}
    tasks: dict[tuple[str, str], TaskAdded] = {}
    capacities: list[Capacity] = []
    skipped: int = 0
