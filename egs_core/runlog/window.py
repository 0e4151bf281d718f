"""From when to when a run is measured: from the first submission of a task to the last end. The one definition of it.

    session begins      first task is submitted                last task ends      session ends
       │ framework starts      │◄──────────── makespan ─────────────►│

What comes before the first task is submitted (a framework starts, a script imports) is nobody's scheduling, and a log
may or may not know of it: an observed script's log begins with its session, that of a graph with the graph.
"""

from __future__ import annotations

from collections.abc import Iterable

from egs_core.runlog.steps import Interval


def submission_of(added_s: float | None, ready_s: float | None, stated_s: float | None) -> float | None:
    """When the first task of a workload was submitted. added_s: first `TaskAdded`, which some logs write only at the
    task's start, so that it was ready (ready_s) before; stated_s: `WorkloadSubmitted`, for a log without tasks."""
    if added_s is None:
        return stated_s
    return added_s if ready_s is None else min(added_s, ready_s)


def window_of(submitted_s: Iterable[float], ended_s: Iterable[float]) -> Interval:
    """From the first submission to the last end; empty at the first submission where nothing has ended."""
    start = min(submitted_s)
    return start, max([start, *ended_s])


def makespan_of(submitted_s: Iterable[float], ended_s: Iterable[float]) -> float:
    """The length of that window."""
    start, end = window_of(submitted_s, ended_s)
    return end - start
