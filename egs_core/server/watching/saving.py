"""How often a run should save its work: by what is lost without, against what saving takes. Pure.

    saving: each interval, for so long  ─╮                    ╭─  lost in a failure: half the interval
                                         ╰──╮            ╭────╯
                             sum of both    ╰────────────╯       least at √(2 · takes · time between failures)
                                                                 (Young 1974; Daly's first order)

What an hour costs is on both sides, so the interval is the same in money and in GPU hours. Failures are those of the
runs that a site keeps, counted from their tenth minute on: what fails at once has nothing to lose, and says nothing of
what runs for days. A gang fails with each of its members.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from egs_core.server.runs import Run

SETTLED_S = 600.0
FEW = 5  # failures; of fewer nobody knows how often
ASSUMED_S = 86400.0
LEAST_S = 60.0
FAILED = ("failed", "lost")


class Failures:
    """How long runs went on between two failures, of those that a site keeps."""

    AGAIN_S = 60.0

    def __init__(self) -> None:
        self._between_s = ASSUMED_S
        self._at = -math.inf

    def between_s(self, ended: Iterable[Run], now: float) -> float:
        """Of one run; a day while too few have failed."""
        if now - self._at >= self.AGAIN_S:
            self._at, self._between_s = now, between_s(ended)
        return self._between_s


def between_s(ended: Iterable[Run]) -> float:
    """See `Failures.between_s`."""
    total_s, failures = 0.0, 0
    for run in ended:
        if run.started_at is None or run.ended_at is None or run.is_request:
            continue
        settled_s = run.ended_at - run.started_at - SETTLED_S
        if settled_s > 0:
            total_s += settled_s
            failures += run.outcome in FAILED
    return total_s / failures if failures >= FEW else ASSUMED_S


def interval_s(takes_s: float, between_s: float, members: int = 1) -> float:
    """After so long without one a checkpoint is worth its time. members: of its gang.

    >>> round(interval_s(30, 86400)), round(interval_s(30, 86400, 4))
    (2277, 1138)
    """
    return max(LEAST_S, takes_s, math.sqrt(2 * takes_s * between_s / members))
