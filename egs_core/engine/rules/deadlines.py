"""Deadlines in the order: a phase whose slack is about used up goes before its equals, while that can still help.

                 urgent_at              latest_start              deadline
    --- ordinary ---|------- urgent --------|-- too late: ordinary --|---> now
                    |<--- as long again --->|<- remaining path, P95 ->|

The moments follow from the deadline and the estimates alone, so keys are made anew only when one of them has come or an
estimate has changed. A task that cannot be in time any more, even as expected, loses its urgency; `explain`
reports it.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import msgspec

from egs_core.engine.state.columns import Columns

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
        return self.latest_start if self.is_open(now) else NO_DEADLINE

    def is_open(self, now: float) -> bool:
        """Whether it is urgent now."""
        return self.urgent_at <= now < self.too_late_at

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
    submitted_at = state.workloads[state.task_workload[task]].submitted_at
    ends = range(phase, state.first_phase[task + 1])
    own_s = sum(state.estimate_s[p] for p in ends)
    whole_s, own_end_s = state.workload_deadline_s(task), state.latest_end_s.get(task)
    stated = ((state.rank_s[phase], whole_s), (own_s, own_end_s))
    return [window_before(state, phase, submitted_at + end_s, path_s) for path_s, end_s in stated if end_s is not None]


def window_before(state: Columns, phase: int, deadline: float, path_s: float) -> Window:
    """Of a phase with this path before that moment."""
    ends = range(phase, state.first_phase[state.task_of[phase] + 1])
    spread_s = sum(state.estimate_p95_s[p] - state.estimate_s[p] for p in ends)
    latest, lead_s = deadline - path_s - spread_s, LEAD * (path_s + spread_s)
    return Window(deadline, latest - lead_s, latest, deadline - path_s)
