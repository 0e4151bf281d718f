"""The route of `egs_core.client.watching`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from fastapi import FastAPI

from egs_core.client.watching import Watching
from egs_core.server.logic import SiteLogic
from egs_core.server.watching.watcher import Watcher
from egs_core.server.who import Who


class Asks(Protocol):
    """Whoever takes a question to the logic. watcher: None of a server without rules."""

    watcher: Watcher | None

    async def ask(self, question: Callable[[SiteLogic], Any]) -> Any: ...


def add_watch_route(app: FastAPI, site: Asks) -> None:
    @app.get("/v1/watch")
    async def watching(who: Who) -> Watching:
        if (watcher := site.watcher) is None:
            who.need_to_see()
            return Watching(is_on=False)
        found: Watching = await site.ask(lambda logic: watcher.site_rules.view(logic.book, who))
        return found
