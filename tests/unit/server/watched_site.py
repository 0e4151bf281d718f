"""A site whose devices and runs are watched by rules: what was measured is said by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from egs_core.client.watching import DeviceHealth
from egs_core.engine import Engine
from egs_core.server.book import CONFIG
from egs_core.server.logic import SiteLogic
from egs_core.server.principals import Principal
from egs_core.server.runs import SiteFacts
from egs_core.server.watching.rules import Alert, SiteRules
from egs_core.server.watching.tasks import WatchedTask
from egs_core.watch_rules import parse_rules
from tests.unit.server.site_steps import ROOT
from tests.unit.server.site_world import OFFER

WATCHED = msgspec.structs.replace(OFFER, is_watched=True)
ALERTS = "alerts: {webhook: 'http://example.org'}\n"


def ok(device: str, **more: Any) -> DeviceHealth:
    fields = {"temperature_c": 50, "power_limit_w": 700, "memory_used": 0.1, "busy": 1.0, "ecc_errors": 0}
    return DeviceHealth.model_validate({"device": device, "throttled": (), **fields, **more})


class Site:
    """Three devices with rules. head: of their file, before `rules`."""

    def __init__(self, rules: str, head: str = "dry_run: false\n") -> None:
        self.logic = SiteLogic(SiteFacts("site", 1000.0), Engine(CONFIG))
        self.logic.offer(WATCHED)
        self.logic.occupied({})
        self.rules = SiteRules(parse_rules(f"{head}{ALERTS}rules: {rules}"))
        self._last: list[DeviceHealth] = []

    def see(self, after_s: float = 1.0, found: Sequence[DeviceHealth] | None = None, **of_0: Any) -> list[Alert]:
        """It is so much later, and now this is measured: of device 0, or all of it; until then what was before."""
        alerts: list[Alert] = []
        while after_s > 10:
            alerts += self._look(10, [one.model_copy(update={"xids": ()}) for one in self._last])
            after_s -= 10
        self._last = [ok("0", **of_0), ok("1"), ok("2")] if found is None else list(found)
        return alerts + self._look(after_s, self._last)

    def see_tasks(
        self, tasks: Sequence[WatchedTask], after_s: float = 1.0, found: Sequence[DeviceHealth] = ()
    ) -> list[Alert]:
        """The same of tasks of frameworks that run then."""
        return self._look(after_s, found, tasks)

    def _look(self, after_s: float, found: Sequence[DeviceHealth], tasks: Sequence[WatchedTask] = ()) -> list[Alert]:
        self.logic.at(self.logic.now + after_s)
        alerts = self.rules.look(self.logic.book, found, tasks)
        self.logic.validate()
        return alerts

    @property
    def drained(self) -> tuple[int, ...]:
        return self.logic.book.drained

    def did(self, who: Principal = ROOT) -> list[tuple[str, str, str]]:
        """Action, subject and outcome of each."""
        return [(one.action, one.subject, one.outcome) for one in self.rules.view(self.logic.book, who).done]

    def logged(self) -> list[tuple[str, str, str]]:
        """Who, what, of what: since the last call."""
        return [(line.who.name, line.verb, line.run or line.text) for line in self.logic.take().log]
