"""When what is told to stop should have: for those that wait for what it holds. Pure; moments are the site's."""

from __future__ import annotations

from collections.abc import Sequence

from egs_core.server.forecast import UNKNOWN_S
from egs_core.server.runs import Run

LATE_S = 2.0  # so long after its grace what was killed has been seen to be gone
PUT_ASIDE = "the time that CUDA's driver takes to put aside what is on a GPU"


def known_end(run: Run, now: float) -> float | None:
    """None for what runs on; UNKNOWN_S where nobody knows when: it should have stopped by now, or CUDA's driver puts it
    aside, for as long as that takes."""
    if not run.stop:
        return None
    is_put_aside = run.suspends and run.is_evicted  # not where it is aborted
    return UNKNOWN_S if is_put_aside or is_late(run, now) else _stops_at(run, now)


def is_late(run: Run, now: float) -> bool:
    """Whether it was told to stop, and should have by now."""
    return bool(run.stop) and _stops_at(run, now) <= now - LATE_S


def takes(runs: Sequence[Run]) -> str:
    """How long these may take to stop, in words."""
    ends = [run.grace_s for run in runs if not run.suspends]
    driver = PUT_ASIDE if len(ends) < len(runs) else ""
    return " or ".join(filter(None, [f"{max(ends):g} s" if ends else "", driver]))


def _stops_at(run: Run, now: float) -> float:
    """now: where nobody has noted since when it is to."""
    return (now if run.stop_at is None else run.stop_at) + run.grace_s
