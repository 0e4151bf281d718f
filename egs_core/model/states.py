"""Assignments that the search changes: what a change would make of T, computed without starting anew.

Both keep the loss of `loss.py` but for the idle memory: `attempt` says what T (and, for `stream`, a little of how
evenly the rest is spread) would be, `keep` makes the change stay, `undo` takes it back.
"""

from __future__ import annotations

from collections.abc import Sequence

from egs_core.model.levels import Level
from egs_core.model.loss import Objective

Change = tuple[int, int]
"""An operator and the device that it goes to."""
STRIDE = 16
EVEN = 0.02
"""Weight of evenness in `stream`: the maximum alone does not tell most changes apart."""


class RequestState:
    """`request`: the schedule in topological order. A change is followed from the first operator that it touches, and
    no further than the limit is passed by what must still follow."""

    def __init__(self, level: Level, speeds: Sequence[float], assignment: Sequence[int]) -> None:
        self.assignment = list(assignment)
        self.spent = 0
        self._inputs = level.inputs
        self._count = len(level)
        by_speed = {speed: [seconds / speed for seconds in level.seconds] for speed in set(speeds)}
        self._time_s = [by_speed[speed] for speed in speeds]
        self._rest_s = rest_s(level, max(speeds))
        self._end_s = [0.0] * self._count
        self._free_s: list[list[float]] = [[0.0] * len(speeds)]  # of each device, before each STRIDE-th operator
        self._changed: list[Change] = []
        self._run(0, float("inf"))
        self.keep()

    @property
    def seconds(self) -> float:
        return self._seconds

    def critical_path(self) -> list[int]:
        """Operators of which each begins when the one before it lets it, back from the one that ends last."""
        end, assignment = self._end_s, self.assignment
        before, last = [-1] * self._count, dict[int, int]()  # on the same device
        for i, d in enumerate(assignment):
            before[i], last[d] = last.get(d, -1), i
        i, path = end.index(self._seconds), list[int]()
        while i >= 0:
            path.append(i)
            d = assignment[i]
            causes = [(end[before[i]], before[i])] if before[i] >= 0 else []
            causes += [(end[j] + (transfer_s if assignment[j] != d else 0.0), j) for j, transfer_s in self._inputs[i]]
            i = max(causes, default=(0.0, -1))[1]
        return path

    def attempt(self, changes: Sequence[Change], limit: float) -> float | None:
        """T with these changes, None if it is above the limit; then they are undone."""
        self._changed = [(i, self.assignment[i]) for i, _ in changes]
        for i, d in changes:
            self.assignment[i] = d
        if self._run(min(i for i, _ in changes) // STRIDE, limit):
            return self._new_seconds
        self.undo()
        return None

    def keep(self) -> None:
        self._end_s, self._seconds = self._new_end_s, self._new_seconds
        self._free_s[self._from :] = self._new_free_s
        self._changed = []

    def undo(self) -> None:
        for i, d in reversed(self._changed):
            self.assignment[i] = d
        self._changed = []

    def _run(self, block: int, limit: float) -> bool:
        """The schedule anew from a block of operators on; whether it stays below the limit."""
        assignment, inputs, times, rest = self.assignment, self._inputs, self._time_s, self._rest_s
        free, end = self._free_s[block].copy(), self._end_s.copy()
        kept = []
        for start in range(block * STRIDE, self._count, STRIDE):
            kept.append(free.copy())
            stop = min(start + STRIDE, self._count)
            for i in range(start, stop):
                d = assignment[i]
                t = free[d]
                for j, transfer_s in inputs[i]:
                    arrived = end[j] if assignment[j] == d else end[j] + transfer_s
                    if arrived > t:
                        t = arrived
                free[d] = end[i] = t = t + times[d][i]
                if t + rest[i] > limit:
                    self.spent += i + 1 - block * STRIDE
                    return False
        self.spent += self._count - block * STRIDE
        self._from, self._new_free_s, self._new_end_s = block, kept, end
        self._new_seconds = max(free)
        return True


class StreamState:
    """`stream`: seconds of each device, and of each link at a * devices + b."""

    def __init__(self, level: Level, speeds: Sequence[float], assignment: Sequence[int]) -> None:
        self.assignment = list(assignment)
        self.spent = 0
        self._level, self._speeds, self._width = level, speeds, len(speeds)
        self._busy = [0.0] * self._width
        self._link = [0.0] * self._width**2
        for i, d in enumerate(self.assignment):
            self._busy[d] += level.seconds[i] / speeds[d]
            for j, transfer_s in level.outputs[i]:
                if self.assignment[j] != d:
                    self._link[d * self._width + self.assignment[j]] += transfer_s
        self._scale = max(1e-300, sum(level.seconds) / sum(speeds) * len(speeds))
        self._changed: list[Change] = []

    @property
    def seconds(self) -> float:
        return max(max(self._busy), max(self._link))

    def busiest(self) -> tuple[int, ...]:
        """The device that takes longest, or both ends of the link that does."""
        busy, link = max(self._busy), max(self._link)
        return (self._busy.index(busy),) if busy >= link else divmod(self._link.index(link), self._width)

    def attempt(self, changes: Sequence[Change], limit: float) -> float | None:
        """T with these changes and a little for evenness, None if T is above the limit; then they are undone."""
        self._changed = []
        for i, d in changes:
            self._changed.append((i, self.assignment[i]))
            self._move(i, d)
        self.spent += 2 + (len(self._link) >> 5)
        seconds = self.energy()
        if seconds > limit:
            self.undo()
            return None
        return seconds

    def energy(self) -> float:
        """T and a little for evenness."""
        return self.seconds + EVEN * sum([s * s for s in self._busy]) / self._scale

    def keep(self) -> None:
        self._changed = []

    def undo(self) -> None:
        for i, d in reversed(self._changed):
            self._move(i, d)
        self._changed = []

    def _move(self, i: int, d: int) -> None:
        before, width, link, level = self.assignment[i], self._width, self._link, self._level
        self._busy[before] -= level.seconds[i] / self._speeds[before]
        self._busy[d] += level.seconds[i] / self._speeds[d]
        self.assignment[i] = d
        self.spent += len(level.inputs[i]) + len(level.outputs[i])
        for j, transfer_s in level.inputs[i]:
            at = self.assignment[j]
            if at != before:
                link[at * width + before] -= transfer_s
            if at != d:
                link[at * width + d] += transfer_s
        for j, transfer_s in level.outputs[i]:
            at = self.assignment[j]
            if at != before:
                link[before * width + at] -= transfer_s
            if at != d:
                link[d * width + at] += transfer_s


State = RequestState | StreamState


def state_of(objective: Objective, level: Level, speeds: Sequence[float], assignment: Sequence[int]) -> State:
    return (RequestState if objective == "request" else StreamState)(level, speeds, assignment)


def rest_s(level: Level, speed: float) -> list[float]:
    """What must follow the end of each operator at least: the longest path behind it at this speed, no transfers."""
    rest = [0.0] * len(level)
    for i in range(len(level) - 1, -1, -1):
        rest[i] = max([level.seconds[j] / speed + rest[j] for j, _ in level.outputs[i]], default=0.0)
    return rest
