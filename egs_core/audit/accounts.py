"""GPU time by job and by task name: taken = queued + held, held = used + cold starts + idle, for every row and for the
sum of rows. The same of CPU time, where no GPU is known.

admitted ├─ queued ─┤ Started ├─ cold start ─┤═══ used ═══┤─ idle ─┤═ used ═┤─ idle ─┤ Ended

Queued is what a phase has taken before its executor starts it: nobody else can have it, and nothing uses it. That is
known of frameworks that say when they admit a phase (the kind `executor` of `Held`); for others it is 0.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from egs_core.runlog.flow import amount_of
from egs_core.runlog.intervals import Hold, Timeline, Wait
from egs_core.runlog.labels import label_of

EXECUTOR = "executor"
"""The kind of hold in which a phase has been admitted, with all that it needs."""


class GpuTime(msgspec.Struct):
    """GPU (or CPU) seconds of the phases under one name. runs: how many phases held one; held_s: since they started."""

    name: str
    runs: int = 0
    held_s: float = 0.0
    used_s: float = 0.0
    cold_s: float = 0.0
    idle_s: float = 0.0
    queued_s: float = 0.0

    @property
    def taken_s(self) -> float:
        """What nobody else could have."""
        return self.held_s + self.queued_s

    @property
    def wasted_s(self) -> float:
        """Taken and not used."""
        return self.cold_s + self.idle_s + self.queued_s

    def add(self, hold: Hold, kind: str = "gpu") -> None:
        """Count one phase in. A CPU is at work for as long as it is held, but for cold starts."""
        amount, held_s, cold_s = amount_of(hold.demand, kind), hold.end_s - hold.start_s, _length(hold.cold)
        used_s = _length(hold.useful) if kind == "gpu" else held_s - cold_s
        self.runs += 1
        self.held_s += amount * held_s
        self.used_s += amount * used_s
        self.cold_s += amount * cold_s
        self.idle_s += amount * max(0.0, held_s - used_s - cold_s)

    def add_queued(self, wait: Wait, kind: str = "gpu") -> None:
        """Count in what one phase had taken before it started."""
        pieces = [(start, end) for start, end, held in wait.pieces if held == EXECUTOR]
        self.queued_s += amount_of(wait.demand, kind) * _length(pieces)


def gpu_time_by_job(line: Timeline, kind: str = "gpu") -> list[GpuTime]:
    """One row for each workload that held a GPU, the most wasteful first."""
    return _accounts(line, lambda one: one.workload, kind)


def gpu_time_by_task(line: Timeline, kind: str = "gpu") -> list[GpuTime]:
    """One row for each name of tasks that held a GPU, the most wasteful first."""
    return _accounts(line, lambda one: name_of(line, one.workload, one.task), kind)


def gpu_time(line: Timeline, kind: str = "gpu") -> GpuTime:
    """All of it."""
    total = GpuTime("total")
    for hold in line.holds:
        if amount_of(hold.demand, kind) > 0:
            total.add(hold, kind)
    for wait in line.waits:
        total.add_queued(wait, kind)
    return total


def name_of(line: Timeline, workload: str, task: str) -> str:
    """What a task is called; its id where it has no name."""
    added = line.tasks.get((workload, task))
    return (added.name if added else "") or task


def label_in(line: Timeline, workload: str, task: str) -> str:
    """What its user calls it, or its name, where no other task has that, else with what tells it from those; as
    `egs why` takes it."""
    added = line.tasks.get((workload, task))
    if added is None:
        return task
    called = added.label or added.name or task
    is_alone = sum(called in (other.label, other.name) for other in line.tasks.values()) <= 1
    return called if is_alone else label_of(added)


def _accounts(line: Timeline, name: Callable[[Hold | Wait], str], kind: str) -> list[GpuTime]:
    rows: dict[str, GpuTime] = {}
    for hold in line.holds:
        if amount_of(hold.demand, kind) > 0:
            key = name(hold)
            rows.setdefault(key, GpuTime(key)).add(hold, kind)
    for wait in line.waits:
        if amount_of(wait.demand, kind) > 0 and any(held == EXECUTOR for _, _, held in wait.pieces):
            key = name(wait)
            rows.setdefault(key, GpuTime(key)).add_queued(wait, kind)
    return sorted(rows.values(), key=lambda row: (-row.wasted_s, -row.held_s, row.name))


def _length(parts: list[tuple[float, float]]) -> float:
    return sum(end - start for start, end in parts)
