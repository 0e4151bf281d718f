"""What a server has counted for its objectives since it started: events and errors by queue, team and objective, for
Prometheus. Pure; part of `tally`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from egs_core.server.runs import Run
from egs_core.server.slo import ended
from egs_core.slo import Slo

Key = tuple[str, str]  # queue, team


class SloTally:
    """objectives: by queue."""

    def __init__(self) -> None:
        self.objectives: Mapping[str, tuple[Slo, ...]] = {}
        self.events: Counter[tuple[Key, str]] = Counter()
        self.errors: Counter[tuple[Key, str]] = Counter()

    def granted(self, key: Key, waited_s: float) -> None:
        """A run has got its GPUs after so long."""
        for slo in self.objectives.get(key[0], ()):
            if slo.kind == "wait" and slo.target_s is not None:
                self._count(key, slo, waited_s <= slo.target_s)

    def ended(self, key: Key, run: Run) -> None:
        """A run has ended."""
        for slo in self.objectives.get(key[0], ()):
            if slo.kind != "wait" and (event := ended(slo, run)) is not None:
                self._count(key, slo, event.is_good)

    def _count(self, key: Key, slo: Slo, is_good: bool) -> None:
        self.events[key, slo.name] += 1
        self.errors[key, slo.name] += not is_good
