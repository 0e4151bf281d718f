"""Deadlines in the order: a phase whose slack is about used up goes before its equals, while that can still help.

                 urgent_at              latest_start              deadline
    --- ordinary ---|------- urgent --------|-- too late: ordinary --|---> now
                    |<--- as long again --->|<- remaining path, P95 ->|

The moments follow from the deadline and the estimates alone, so keys are made anew only when one of them has come or an
estimate has changed. Who cannot be in time any more, even as expected, waits like everybody: that is said, and
starves nobody.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from math import inf

import msgspec

from egs_core.engine.columns import Columns

NO_DEADLINE = inf
LEAD = 1.0  # of the remaining path: how much slack is "about used up"


class Window(msgspec.Struct, frozen=True):
    """When a phase is urgent: from urgent_at until before too_late_at; latest_start: to be in time by its P95."""

    deadline: float
    urgent_at: float
    latest_start: float
    too_late_at: float

    def term(self, now: float) -> float:
        """The number in the order: the earliest latest start first; NO_DEADLINE outside of the window."""
        return self.latest_start if self.urgent_at <= now < self.too_late_at else NO_DEADLINE

    def next_change(self, now: float) -> float | None:
        if now < self.urgent_at:
            return self.urgent_at
        return self.too_late_at if now < self.too_late_at else None


def window_of(state: Columns, phases: Iterable[int]) -> Window | None:
    """The window of phases that start together: of the one that must start first. None without a deadline."""
    windows = [window for p in phases for window in _windows(state, p)]
    return min(windows, key=lambda window: window.latest_start) if windows else None


def _windows(state: Columns, phase: int) -> list[Window]:
    """By its workload's deadline, with all that follows on the longest path; and by what tasks of their own state."""
    task = state.task_of[phase]
    workload = state.workloads[state.task_workload[task]]
    ends = range(phase, state.first_phase[task + 1])
    own_s = sum(state.estimate_s[p] for p in ends)
    spread_s = sum(state.estimate_p95_s[p] - state.estimate_s[p] for p in ends)
    whole_s, own_end_s = state.workload_deadline_s(task), state.latest_end_s.get(task)
    found = []
    for path_s, end_s in ((state.rank_s[phase], whole_s), (own_s, own_end_s)):
        if end_s is not None:
            deadline = workload.submitted_at + end_s
            latest, lead_s = deadline - path_s - spread_s, LEAD * (path_s + spread_s)
            found.append(Window(deadline, latest - lead_s, latest, deadline - path_s))
    return found


def pass_up(state: Columns, tasks: Iterable[int]) -> list[int]:
    """Deadlines that these new tasks state, as the latest end of each task before them, by the estimates as they are;
    returns the tasks whose latest end has changed. Highest number first, so that each task passes on its final one."""
    pending: list[int] = []
    for task in tasks:
        if (own_s := state.options_of(task).deadline_s) is not None:
            _end_by(state, task, own_s, pending)
    changed: list[int] = []
    while pending:
        task = -heapq.heappop(pending)
        if changed and changed[-1] == task:
            continue
        changed.append(task)
        start_s = state.latest_end_s[task] - sum(state.estimate_s[p] for p in state.phases_of(task))
        for parent in state.parents[task]:
            _end_by(state, parent, start_s, pending)
    return changed


def _end_by(state: Columns, task: int, end_s: float, pending: list[int]) -> None:
    if end_s < state.latest_end_s.get(task, inf):
        state.latest_end_s[task] = end_s
        heapq.heappush(pending, -task)


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
