"""The rules of a running server: reads what is measured, lets the writer look, and sends alerts once all is durable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from egs_core.client.messages import Beat
from egs_core.client.watching import DeviceHealth
from egs_core.server.leader import NotActive
from egs_core.server.logic import SiteLogic
from egs_core.server.runs import Offer
from egs_core.server.sharing import Sharing
from egs_core.server.watching.alerts import Alerts
from egs_core.server.watching.readings import LOOK_S, Readings
from egs_core.server.watching.rules import Alert, SiteRules
from egs_core.server.watching.tasks import TaskTimes, WatchedTask
from egs_core.server.writer import Unavailable
from egs_core.watch_rules import OF_TASKS, Rules

LOG = logging.getLogger("uvicorn.error")


class Asks(Protocol):
    """Whoever takes a question to the logic, and answers once that is durable. sharing: the pools of drivers."""

    sharing: Sharing

    async def ask(self, question: Callable[[SiteLogic], Any]) -> Any: ...


class Watcher:
    """See the module. offer: of the server's own host."""

    def __init__(self, rules: Rules, offer: Offer) -> None:
        self.site_rules = SiteRules(rules)
        self.reads_progress = rules.uses("no_progress_for")
        self._times = TaskTimes() if any(map(rules.uses, OF_TASKS)) else None
        self._readings = Readings([one.id for one in offer.devices] if offer.is_watched else ())
        self._alerts = Alerts(rules.webhook, offer.host, rules.apprise)

    async def follow(self, site: Asks) -> None:
        """Look again and again, as long as the server is there and they can be followed."""
        self._readings.start()
        self._alerts.start()
        try:
            while not self.site_rules.problem:
                own = self._readings.take()
                tasks = await self._tasks(site)
                try:
                    for alert in await site.ask(partial(self._look, own, tasks)):
                        self._alerts.send(alert)
                except (Unavailable, NotActive):  # the writer has said why; nothing that was done is durable
                    self.site_rules.forget()
                    self._readings.give_back(own)
                await asyncio.sleep(LOOK_S)
        finally:
            self._readings.close()
            self._alerts.close()

    async def _tasks(self, site: Asks) -> list[WatchedTask]:
        """Those of drivers, where a rule looks at tasks. A bug turns the rules off, and nothing else."""
        times = self._times
        if times is None:
            return []
        try:
            return await site.sharing.ask(lambda pools: pools.watched(times))
        except Exception as error:
            self._give_up(error)
            return []

    # --- on the writer's thread ---

    def _look(self, own: list[DeviceHealth], tasks: list[WatchedTask], logic: SiteLogic) -> list[Alert]:
        """A bug must not stop the server: the writer goes on from what is durable, and the rules are off."""
        try:
            return self.site_rules.look(logic.book, own, tasks)
        except Exception as error:
            self._give_up(error)
            raise

    def _give_up(self, error: Exception) -> None:
        self.site_rules.problem = f"{type(error).__name__}: {error}"
        LOG.exception("the rules are not followed any more, until the server is started again: this is a bug")

    def measured(self, logic: SiteLogic, host: str, found: Iterable[DeviceHealth]) -> None:
        """What the agent of a joined host has read there."""
        self.site_rules.health(logic.now).note(host, found, logic.now)

    def told(self, logic: SiteLogic, run: str, beat: Beat) -> None:
        """What the heartbeat of a run's supervisor says of its work, and of where it is."""
        health = self.site_rules.health(logic.now)
        if beat.told_s is not None:
            health.told(run, logic.now - beat.told_s)
        if beat.progress is not None:
            health.progressed(run, beat.progress, logic.now)
