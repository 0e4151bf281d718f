"""The route of `egs_core.client.slo`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from fastapi import FastAPI

from egs_core.client.slo import Slos
from egs_core.server.logic import SiteLogic
from egs_core.server.slo import slos_of
from egs_core.server.who import Who
from egs_core.server.writer import Writer


class Asks(Protocol):
    """Whoever takes a question to the logic, and answers once that is durable."""

    writer: Writer

    async def ask(self, question: Callable[[SiteLogic], Any]) -> Any: ...


def add_slo_route(app: FastAPI, site: Asks) -> None:
    @app.get("/v1/slo")
    async def slo(who: Who) -> Slos:
        found: Slos = await site.ask(lambda logic: slos_of(logic.book, site.writer.tally.slos.objectives, who))
        return found
