"""The routes of `egs_core.client.overview` and `egs_core.client.outlines`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Protocol

import msgspec
from fastapi import FastAPI, Query, Response
from fastapi.responses import JSONResponse

from egs_core.client.outlines import Outlines
from egs_core.client.overview import Me, Overview
from egs_core.server.logic import SiteLogic
from egs_core.server.outlines import outlines_steps
from egs_core.server.overview import overview_steps
from egs_core.server.sharing import Sharing
from egs_core.server.steps import in_turns
from egs_core.server.who import Who
from egs_core.server.writer import Writer


class Asks(Protocol):
    """Whoever takes a question to the logic, and answers once that is durable; sharing: the pools of drivers."""

    sharing: Sharing
    writer: Writer

    async def ask(self, question: Callable[[SiteLogic], Any]) -> Any: ...


def add_overview_routes(app: FastAPI, site: Asks) -> None:
    @app.get("/v1/me")
    async def me(who: Who) -> Me:
        team, since = who.teams[0] if who.teams else "", site.writer.epoch
        return Me(name=who.name, role=who.role, team=team, every_team=who.teams is None, since=since)

    @app.get("/v1/overview", response_model=Overview)
    async def whole(who: Who, own: bool = True) -> Response:
        asker = who if own else msgspec.structs.replace(who, name="")  # nobody's runs are its own
        found: Overview = await in_turns(site.ask, lambda logic: overview_steps(logic.book, asker))
        drivers = await in_turns(site.sharing.ask, lambda pools: pools.listed_steps(asker))
        # Written here: FastAPI would look at each of some thousand fields once more, and nothing is granted meanwhile.
        body = found.model_copy(update={"drivers": drivers}).model_dump_json()
        return Response(body, media_type="application/json")

    @app.get("/v1/outlines", response_class=JSONResponse)
    async def outlines(
        who: Who,
        epoch: Annotated[str, Query(max_length=64)] = "",
        since: Annotated[int, Query(ge=0, le=2**62)] = 0,
    ) -> Response:
        """Of the asker's teams alone, as `overview` without its own."""
        asker = msgspec.structs.replace(who, name="")
        found: Outlines = await in_turns(
            site.ask, lambda logic: outlines_steps(logic.book, logic.changes, asker, epoch, since)
        )
        return Response(msgspec.json.encode(found), media_type="application/json")
