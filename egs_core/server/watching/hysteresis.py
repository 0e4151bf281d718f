"""For how long a condition holds, and whether it is new: so that what flickers fires once. Pure.

          for               for, at least a minute
        ├──────┤           ├──────────────┤
holds  ─┴───────●───┐ ┌────┘              ┊              ● fires, once
gone                └─┘ (too short)       └ counts as new from here on

While it is not known whether it holds, what waits to fire begins anew, and what has fired stays so.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from egs_core.server.watching.conditions import Finding
from egs_core.watch_rules import Rule


class Holding(msgspec.Struct):
    """A condition that holds for a device or run, or did lately. since: the site's clock; gone_since: None while it
    holds; is_told: its alert went out; has_fired: all is done; is_waiting: for the bound of an hour, which was said."""

    since: float
    finding: Finding
    gone_since: float | None = None
    is_told: bool = False
    has_fired: bool = False
    is_waiting: bool = False


class Hysteresis:
    """One rule's."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self.holding: dict[str, Holding] = {}

    def interrupt(self) -> None:
        """Nobody looked for a while: what waits to fire begins anew."""
        self.holding = {subject: one for subject, one in self.holding.items() if one.has_fired}

    def advance(self, found: Iterable[Finding], now: float) -> list[Holding]:
        """What is true now; those that are to fire."""
        before, self.holding = self.holding, {}
        for one in found:
            kept = _next(self._rule, before.get(one.subject), one, now)
            if kept is not None:
                self.holding[one.subject] = kept
        return [
            one
            for one in self.holding.values()
            if not one.has_fired and one.gone_since is None and now - one.since >= self._rule.for_s
        ]


def _next(rule: Rule, known: Holding | None, found: Finding, now: float) -> Holding | None:
    if found.holds:
        if known is None:
            return Holding(now, found)
        known.finding, known.gone_since = found, None
        return known
    if known is None or not known.has_fired:
        return None
    if found.holds is None:
        return known
    known.gone_since = now if known.gone_since is None else known.gone_since
    return None if now - known.gone_since >= rule.clear_s else known
