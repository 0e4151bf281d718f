"""The routes of hosts that join, and which requests an agent may pass on: see `egs_core.client.hosts`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Protocol

from fastapi import FastAPI, Path

from egs_core.client import hosts as h
from egs_core.server.logic import SiteLogic
from egs_core.server.principals import Principal
from egs_core.server.watching.watcher import Watcher
from egs_core.server.who import Who

HostPath = Annotated[str, Path(max_length=200)]


class Asks(Protocol):
    """Whoever takes a question to the logic, and answers once that is durable; watcher: its rules, if it has any."""

    watcher: Watcher | None

    async def ask(self, question: Callable[[SiteLogic], Any]) -> Any: ...


def add_host_routes(app: FastAPI, site: Asks) -> None:
    @app.get("/v1/hosts")
    async def hosts(who: Who) -> h.Hosts:
        found: h.Hosts = await site.ask(lambda logic: logic.listed_hosts(who))
        return found

    @app.post("/v1/hosts/join")
    async def join(who: Who, ask: h.HostOffer) -> h.Joined:
        found: h.Joined = await site.ask(lambda logic: logic.join_host(who, ask))
        return found

    @app.post("/v1/hosts/report")
    async def report(who: Who, ask: h.Report) -> h.Watches:
        found: h.Watches = await site.ask(lambda logic: _report(logic, who, ask, site.watcher))
        return found

    @app.post("/v1/hosts/{host}/forget")
    async def forget(who: Who, host: HostPath) -> h.Hosts:
        found: h.Hosts = await site.ask(lambda logic: logic.forget_host(who, host))
        return found


def _report(logic: SiteLogic, who: Principal, ask: h.Report, watcher: Watcher | None) -> h.Watches:
    told = logic.report(who, ask)
    if watcher is None:
        return told
    known = {device.id for device in logic.views.devices_of(who.host)}
    watcher.measured(logic, who.host, [one for one in ask.health if one.device in known])
    return told.model_copy(update={"wants_health": True})
