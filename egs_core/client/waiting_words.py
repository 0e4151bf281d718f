"""When a run starts, or its GPU request ends, and what it waits for: as commands tell it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

from egs_core.client import messages as c

HOW_TO_END = {"ok": "", "any": " (however it ends)", "failed": " to fail"}
"""What is said behind a run that another one waits for: see `messages.After`."""

MOST_EVICTIONS = 5  # that are told of a run


def ends_line(view: c.RunView, ends_at: float) -> str:
    """That the request in which the run is ends soon."""
    left_s = max(0.0, ends_at - time.time())
    how = f"`egs request extend {view.inside} --for 1h` makes it last longer"
    return f"request {view.inside} ends in {left_s:.0f} s, and run {view.id} with it: {how}"


def why_words(view: c.RunView) -> str:
    """waits, for what, and until when as far as that is known."""
    note = f"; {view.note}" if view.note else ""
    return f"waits: {view.reason}; {starts_words(view)}{note}"


def starts_words(view: c.RunView) -> str:
    return moment_words(view.starts_in_s, "start")


def moment_words(in_s: float | None, verb: str) -> str:
    """When something should be.

    >>> moment_words(89.4, "begin"), moment_words(None, "begin")
    ('it should begin in 89 s', 'when it begins is not known')
    """
    return f"when it {verb}s is not known" if in_s is None else f"it should {verb} {in_words(in_s)}"


def starts_cell(view: c.RunView) -> str:
    """The same in a table."""
    return "not known" if view.starts_in_s is None else in_words(view.starts_in_s)


def evicted_words(view: c.RunView) -> Iterator[str]:
    """That it was evicted: how often, when (in this machine's time), after how long, and why, as far as that is
    known; nothing of one that was not."""
    if not view.evictions:
        return
    known = view.earlier[-min(view.evictions, MOST_EVICTIONS) :]
    times = "once" if view.evictions == 1 else f"{view.evictions} times"
    last = f", the last {len(known)}" if 0 < len(known) < view.evictions else ""
    told = []
    for one in known:
        at = datetime.fromtimestamp(one.ended_at)
        when = f"{at:%H:%M:%S}" if at.date() == datetime.now().date() else f"{at:%Y-%m-%d %H:%M:%S}"
        told.append(f"{when} after {time_words(one.ended_at - one.started_at)}{cause_words(one.why)}")
    yield f"evicted {times}{last}" + (f": {'; '.join(told)}" if told else "")


def cause_words(why: str) -> str:
    """Of an eviction, to be written behind it.

    >>> cause_words("preempted for 15 (hi5): priority")
    ', for 15 (hi5): priority'
    """
    return f", {why.removeprefix('preempted ')}" if why else ""


def in_words(seconds: float) -> str:
    """How far away a moment is.

    >>> in_words(89.4)
    'in 89 s'
    """
    return f"in {time_words(seconds)}"


def time_words(seconds: float) -> str:
    """A time as people read it; 0 s for less than none.

    >>> time_words(89.4), time_words(1800), time_words(7200)
    ('89 s', '30 min', '2.0 h')
    """
    whole = max(0, round(seconds))
    if whole < 90:
        return f"{whole} s"
    return f"{whole / 60:.0f} min" if whole < 5400 else f"{whole / 3600:.1f} h"
