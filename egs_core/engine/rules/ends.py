"""When what holds a lease will have ended: by the 95th percentile, for what is promised, or as expected, for what is
compared. What has outlived its estimate is not about to end: it is taken to run as long again.
"""

from __future__ import annotations

from collections.abc import Iterable

from egs_core.engine.rules.flavors import held_flavor, seconds_on
from egs_core.engine.state.lifecycle import RUNNING
from egs_core.engine.state.state import State

SOONEST_S = 1.0  # what has outlived its estimate is not expected to end sooner than in so long


def sure_ends(state: State, phases: Iterable[int]) -> list[tuple[float, int]]:
    """Of phases that hold leases: when each has ended with 95 % certainty, with the phase, the first first; of one that
    is being stopped: now."""
    recalled, p95_s = state.recalled, state.estimate_p95_s
    by_flavor = bool(state.flavors or state.flavor_estimates)
    ends: list[tuple[float, int]] = []
    for phase in phases:
        if recalled and state.task_of[phase] in recalled:
            ends.append((state.now, phase))
        else:
            seconds = seconds_on(state, phase, held_flavor(state, phase))[1] if by_flavor else p95_s[phase]
            ends.append((_end_s(state, phase, seconds), phase))
    ends.sort()
    return ends


def expected_end_s(state: State, phase: int) -> float:
    """When the task of a phase has ended, by the medians of the phase and those that follow it."""
    flavor, task = held_flavor(state, phase), state.task_of[phase]
    end = _end_s(state, phase, seconds_on(state, phase, flavor)[0], SOONEST_S)
    return end + sum(seconds_on(state, p, flavor)[0] for p in range(phase + 1, state.first_phase[task + 1]))


def _end_s(state: State, phase: int, seconds: float, soonest_s: float = 0.0) -> float:
    """When a phase ends that takes so long, seen from now."""
    now = state.now
    since = state.started_at[phase] if state.status[phase] == RUNNING else now
    end = since + seconds
    return end if end > now else now + max(now - since, soonest_s)
