"""When deadlines change the place of queued phases."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from math import inf

from egs_core.engine.rules.deadlines import NO_DEADLINE, window_of
from egs_core.engine.state.columns import Columns


class Urgency:
    """When the place of each queued phase changes because of its deadline: a heap in which an entry may be too early,
    and is then put back. keys: the queued phases; members: which start together with one."""

    def __init__(self, state: Columns, keys: dict[int, tuple[float, ...]], members: Callable[[int], Sequence[int]]):
        self._state = state
        self._keys = keys
        self._members = members
        self._heap: list[tuple[float, int]] = []
        self._at: dict[int, float] = {}  # phase -> its entry in the heap; others of it are outdated

    def clear(self) -> None:
        self._heap.clear()
        self._at.clear()

    def term(self, phase: int) -> float:
        """The deadline term of a queued phase, now."""
        window = window_of(self._state, self._members(phase))
        return NO_DEADLINE if window is None else window.term(self._state.now)

    def enter(self, phase: int) -> None:
        """The phase has been queued, or its estimates or deadline are others."""
        at = self._next_change(phase)
        if at is not None and at < self._at.get(phase, inf):
            self._at[phase] = at
            heapq.heappush(self._heap, (at, phase))

    def next_change(self) -> float | None:
        """When the next place changes."""
        while self._heap:
            at, phase = self._heap[0]
            if self._at.get(phase) == at and self._next_change(phase) == at:
                return at
            self._pop()
            if phase in self._keys:
                self.enter(phase)
        return None

    def changed(self, now: float) -> list[int]:
        """The phases whose moment has come."""
        out = []
        while self._heap and self._heap[0][0] <= now:
            phase = self._pop()
            if phase in self._keys:
                out.append(phase)
                self.enter(phase)
        return out

    def _pop(self) -> int:
        at, phase = heapq.heappop(self._heap)
        if self._at.get(phase) == at:
            del self._at[phase]
        return phase

    def _next_change(self, phase: int) -> float | None:
        window = window_of(self._state, self._members(phase)) if phase in self._keys else None
        return None if window is None else window.next_change(self._state.now)
