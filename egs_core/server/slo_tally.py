"""What a server has counted for its objectives since it started: events and errors by queue, team and objective, for
Prometheus. Pure; part of `tally`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from egs_core.server.runs import Run
from egs_core.server.slo import event_of
from egs_core.slo import Slo

Key = tuple[str, str]  # queue, team
ROUNDED_S = 0.001
Told = set[tuple[Key, Slo]]
"""What an open run has said: it is counted once."""


class SloTally:
    """objectives: by queue. began_at: what has happened by then, of the site's clock, was for another process to
    count."""

    def __init__(self) -> None:
        self.objectives: Mapping[str, tuple[Slo, ...]] = {}
        self.events: Counter[tuple[Key, str]] = Counter()
        self.errors: Counter[tuple[Key, str]] = Counter()
        self.began_at = float("-inf")

    def look(self, key: Key, run: Run, now: float, told: Told) -> None:
        """Count what the run says by now and has not said before."""
        for slo in self.objectives.get(key[0], ()):
            if (key, slo) in told or (event := event_of(slo, run, now)) is None:
                continue
            told.add((key, slo))
            if event.at_s >= self.began_at - ROUNDED_S:
                self.events[key, slo.name] += 1
                self.errors[key, slo.name] += not event.is_good


def wait_anew(told: Told) -> None:
    """It had its GPUs, and waits for others, which counts again."""
    told -= {one for one in told if one[1].kind == "wait"}
