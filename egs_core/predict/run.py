"""What a workload's run teaches about itself: a slow machine or a large data set shows in all that is still to come."""

from __future__ import annotations

import msgspec

from egs_core.predict.window import Triple, Window, blended

_PHASES, _NEWEST = 40, 2  # sizes of windows
_COUNT = 2.0  # a run's factor counts half after so many of its phases


class Run(msgspec.Struct):
    """One workload's run. usual: what each category was believed to take when the run first had one of it."""

    usual: dict[str, Triple | None] = {}
    factors: Window = msgspec.field(default_factory=lambda: Window(_PHASES))  # log(duration / usual median)
    own: dict[str, Window] = {}
    newest: dict[str, Window] = {}

    def opinions(self, category: str, otherwise: Triple) -> list[Triple]:
        """What was usual for the category when the run began with it, times how much slower the run is than usual; the
        category in this run; its newest two there. otherwise: what other runs say."""
        factored, n = otherwise, len(self.factors.recent)
        if n:
            factor = self.factors.quantiles[0] * (n / (n + _COUNT))
            p50, p90, p95 = self.usual.get(category) or otherwise
            factored = (p50 + factor, p90 + factor, p95 + factor)
        own = blended(self.own.get(category), factored)
        return [factored, own, blended(self.newest.get(category), own)]

    def learn(self, category: str, believed: Triple | None, value: float) -> None:
        """One logarithm of a duration. believed: what the category takes in other runs, None if it is new."""
        usual = self.usual.setdefault(category, believed)
        if usual is not None:
            self.factors.add(value - usual[0])
        self.own.setdefault(category, Window(_PHASES)).add(value)
        self.newest.setdefault(category, Window(_NEWEST)).add(value)
