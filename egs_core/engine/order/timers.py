"""Moments at which something changes by time alone: one heap for each part that has such moments."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import inf


class Timers:
    """A heap of (moment, subject), which its owner alone changes. moment_of: when the subject's moment really is, None
    for never. An entry may be too early, and is then put back; never too late: what brings a moment nearer enters it
    again. at: subject -> its entry; others of it are outdated."""

    def __init__(self, moment_of: Callable[[int], float | None]) -> None:
        self._moment_of = moment_of
        self.heap: list[tuple[float, int]] = []
        self.at: dict[int, float] = {}

    def clear(self) -> None:
        self.heap.clear()
        self.at.clear()

    def enter(self, subject: int) -> None:
        """Its moment is new, or may be nearer than it was."""
        at = self._moment_of(subject)
        if at is not None:
            self.set(subject, at)

    def set(self, subject: int, at: float) -> None:
        """The same, by who knows the moment."""
        if at < self.at.get(subject, inf):
            self.at[subject] = at
            heapq.heappush(self.heap, (at, subject))

    def forget(self, subject: int) -> None:
        """It has no moment any more, or a later one that is set after this."""
        self.at.pop(subject, None)

    def next_due(self) -> float | None:
        """The next moment of all."""
        heap = self.heap
        while heap:
            at, subject = heap[0]
            is_current = self.at.get(subject) == at
            if is_current and self._moment_of(subject) == at:
                return at
            heapq.heappop(heap)
            if is_current:
                del self.at[subject]
                self.enter(subject)
        return None

    def pop(self, now: float) -> int | None:
        """The first subject whose moment has come, which then is in the heap no more."""
        due = self.next_due()
        if due is None or due > now:
            return None
        subject = heapq.heappop(self.heap)[1]
        del self.at[subject]
        return subject

    def take(self, now: float) -> list[int]:
        """All subjects whose moment may have come, for an owner who looks at each himself; they are in the heap no
        more."""
        heap, found = self.heap, list[int]()
        while heap and heap[0][0] <= now:
            at, subject = heapq.heappop(heap)
            if self.at.get(subject) == at:
                del self.at[subject]
                found.append(subject)
        return found
