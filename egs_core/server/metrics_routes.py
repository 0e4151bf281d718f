"""`GET /metrics`, for Prometheus. Nothing of it is computed, nor its library imported, before somebody asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Any, Protocol

from fastapi import Depends, FastAPI, Header, Request, Response

from egs_core.server.leader import NotActive
from egs_core.server.logic import SiteLogic
from egs_core.server.principals import Principal
from egs_core.server.sharing import Sharing
from egs_core.server.watching.watcher import Watcher
from egs_core.server.who import nobody, principal
from egs_core.server.writer import Writer


class Asked(Protocol):
    """The site, as `app.Site`."""

    writer: Writer
    sharing: Sharing
    watcher: Watcher | None

    @property
    def clients(self) -> int: ...

    async def ask(self, question: Callable[[SiteLogic], Any]) -> Any: ...


async def scraper(
    request: Request,
    authorization: Annotated[str | None, Header()] = None,
    egs_protocol: Annotated[str | None, Header()] = None,
    egs_peer: Annotated[str | None, Header()] = None,
) -> Principal | None:
    """Who asks; None at a server that stands by, for whoever it knows: it has the tokens of its start."""
    try:
        return await principal(request, authorization, egs_protocol, egs_peer)
    except NotActive:
        if request.app.state.site.access.of_request(request.scope, authorization, time.time()) is None:
            raise nobody() from None
        return None


def add_metrics_route(app: FastAPI, site: Asked) -> None:
    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics(who: Annotated[Principal | None, Depends(scraper)]) -> Response:
        from egs_core.server import metrics as m  # 45 ms of every start

        if who is None:
            found = m.standby_families()
        else:
            drivers, used = await site.sharing.ask(lambda pools: pools.counts())
            steps = site.watcher.site_rules.steps if site.watcher is not None else {}  # the writer's, as the logic is
            beside = m.Beside(drivers, used, site.clients, steps)
            found = await site.ask(lambda logic: m.families(logic.book, site.writer.tally, beside, who))
        return Response(await asyncio.to_thread(m.text_of, found), media_type=m.CONTENT_TYPE)
