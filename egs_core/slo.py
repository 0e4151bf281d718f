"""Service level objectives of queues: what a file of queues may promise, and how far the promise is kept. Pure.

slo: {wait_p95: 10m, jct_p95: 4h, deadline_share: 0.95}

`wait_p95: 10m` says that 95 of 100 runs get their GPUs within ten minutes of their turn. Five of 100 may fail to: that
is the error budget. The *burn rate* of a time is how fast it is used up then: at 1 it lasts exactly for the period, at
10 for a tenth of it. Somebody has to look when it is high for long and still is: the windows and factors of Google's
SRE workbook (Alerting on SLOs, multiwindow, multi-burn-rate), which Sloth writes, too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from egs_core.yaml_file import FileModel, Seconds

PERIOD_S = 30 * 86400.0
WINDOWS = {"5m": 300.0, "30m": 1800.0, "1h": 3600.0, "2h": 7200.0, "6h": 21600.0, "1d": 86400.0, "3d": 259200.0}
Severity = Literal["page", "ticket"]
Kind = Literal["wait", "jct", "deadline"]


class Alert(NamedTuple):
    """Look when the burn rate is above `factor` in both windows."""

    severity: Severity
    short: str
    long: str
    factor: float


ALERTS = (
    Alert("page", "5m", "1h", 14.4),
    Alert("page", "30m", "6h", 6.0),
    Alert("ticket", "2h", "1d", 3.0),
    Alert("ticket", "6h", "3d", 1.0),
)

Target = Annotated[Seconds, Field(gt=0)]


class Slo(NamedTuple):
    """One objective. share: of events that have to be good; target_s: within which they are, None of deadlines, which
    runs have themselves."""

    name: str
    kind: Kind
    share: float
    target_s: float | None


class Objectives(FileModel):
    """What is promised to those who use a queue, for `egs slo` and alerts; while it is at risk the queue's order heeds
    it."""

    wait_p95: Target | None = None
    """95 of 100 runs get their GPUs within so long of their turn."""
    wait_p99: Target | None = None
    """99 of 100 do."""
    jct_p95: Target | None = None
    """95 of 100 runs that succeed have done so within so long of their submission."""
    jct_p99: Target | None = None
    """99 of 100 have."""
    deadline_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """This share of runs with a deadline succeeds in time."""

    def slos(self) -> tuple[Slo, ...]:
        """Those that are stated."""
        shares = {"wait_p95": 0.95, "wait_p99": 0.99, "jct_p95": 0.95, "jct_p99": 0.99}
        found = [
            Slo(name, "wait" if name.startswith("wait") else "jct", share, target_s)
            for name, share in shares.items()
            if (target_s := getattr(self, name)) is not None
        ]
        if self.deadline_share is not None:
            found.append(Slo("deadline_share", "deadline", self.deadline_share, None))
        return tuple(found)


class Event(NamedTuple):
    """Something that an objective speaks of. at_s: of any clock."""

    at_s: float
    is_good: bool


class Report(NamedTuple):
    """How far it is kept. events, bad: in the period; budget_left: share of the error budget, below 0 when more than
    all of it is used; burn: by window. None where there was no event. alert: how soon somebody has to look, "" for
    not."""

    events: int
    bad: int
    budget_left: float | None
    burn: dict[str, float | None]
    alert: Severity | Literal[""]


def report(slo: Slo, events: Iterable[Event], now: float) -> Report:
    """From events of the period, in any order."""
    ordered = sorted(event for event in events if now - PERIOD_S < event.at_s <= now)
    times = [event.at_s for event in ordered]
    bad = [0, *accumulate(not event.is_good for event in ordered)]

    def burn(window_s: float) -> float | None:
        first = bisect_right(times, now - window_s)
        total = len(times) - first
        return None if not total else (bad[-1] - bad[first]) / total / (1 - slo.share)

    rates = {name: burn(window_s) for name, window_s in WINDOWS.items()}
    used = burn(PERIOD_S)
    return Report(len(times), bad[-1], None if used is None else 1 - used, rates, _alert(rates))


def _alert(rates: dict[str, float | None]) -> Severity | Literal[""]:
    for one in ALERTS:
        if min(rates[one.short] or 0.0, rates[one.long] or 0.0) > one.factor:
            return one.severity
    return ""
