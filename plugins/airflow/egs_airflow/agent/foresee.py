"""When the tasks of a DAG run are expected to start. Pure: no clock, no request.

    now │
        a ████████┄┄┄┄┐                 runs: what is left of it, given that it has lasted so long already
        b ███████████┄┴┄┐               c starts when the later of a and b has ended,
        c               └ ▓▓▓▓▓┐        d after c, each with its early side: a moment that is before the real one
        d                      └ ▓▓     in 19 of 20 cases

What is not known is not guessed: a task behind one without a learned duration has no time. Waiting for a slot is not in
it, so a start is rather expected too early than too late.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from egs_airflow.agent.instances import Instance
from egs_core.engine.rules.durations import NOW, TimeEstimate, after, latest, length_of, remaining

TAIL = 2.0
"""The 95th percentile of a duration whose median is all that is known, in medians: as `egs_core.predict` begins."""


def expected_starts(
    parents: Mapping[str, Collection[str]],
    instances: Iterable[Instance],
    seconds: Mapping[str, float],
    now_s: float,
) -> dict[str, TimeEstimate | None]:
    """By id of each task that has not begun, in how many seconds it starts; None where that is not known.

    seconds: learned medians, by task id.
    """
    found: dict[str, list[Instance]] = {}
    for one in instances:
        found.setdefault(one.task_id, []).append(one)
    try:
        order = list(TopologicalSorter({task: set(above) for task, above in parents.items()}).static_order())
    except CycleError:
        return {}
    starts: dict[str, TimeEstimate | None] = {}
    ends: dict[str, TimeEstimate | None] = {}
    for task in order:
        own = found.get(task, [])
        begun = [one for one in own if one.state == "running"]
        if own and not any(one.is_open for one in own):
            ends[task] = NOW
            continue
        start = _last(ends.get(parent) for parent in parents.get(task, ()))
        if not begun:
            starts[task] = start
        ends[task] = _end(start, begun, seconds.get(task), now_s)
    return starts


def is_next(task: str, parents: Mapping[str, Collection[str]], instances: Collection[Instance]) -> bool:
    """Whether all that a task still waits for runs already."""
    above, waited = list(parents.get(task, ())), set[str]()
    while above:
        parent = above.pop()
        if parent not in waited:
            waited.add(parent)
            above += parents.get(parent, ())
    return all(one.state == "running" for one in instances if one.task_id in waited and one.is_open)


def _end(
    start: TimeEstimate | None, begun: list[Instance], median_s: float | None, now_s: float
) -> TimeEstimate | None:
    if median_s is None:
        return None
    if not begun:
        return None if start is None else after(start, length_of(median_s, TAIL * median_s))
    return _last(remaining(median_s, TAIL * median_s, max(0.0, now_s - one.started_s)) for one in begun)


def _last(moments: Iterable[TimeEstimate | None]) -> TimeEstimate | None:
    last = NOW
    for moment in moments:
        if moment is None:
            return None
        last = latest(last, moment)
    return last
