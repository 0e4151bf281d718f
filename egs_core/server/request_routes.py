"""The routes of GPU requests: see `egs_core.client.requests`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Protocol, TypeVar

from fastapi import FastAPI, Path

from egs_core.client import messages as c
from egs_core.client import requests as q
from egs_core.server import requests
from egs_core.server.logic import SiteLogic
from egs_core.server.who import Who

T = TypeVar("T")
Number = Annotated[str, Path(max_length=32)]


class Asked(Protocol):
    """The site, as `app.Site`."""

    async def ask(self, question: Callable[[SiteLogic], T]) -> T:
        """The answer, once it is durable."""


def add_request_routes(app: FastAPI, site: Asked) -> None:
    @app.get("/v1/requests")
    async def gpu_requests(who: Who, ended: bool = False) -> q.Requests:
        return await site.ask(lambda logic: requests.listed(logic.book, who, with_ended=ended))

    @app.post("/v1/requests")
    async def ask_for(who: Who, ask: q.GpuRequest) -> q.RequestView:
        return await site.ask(lambda logic: requests.ask_for(logic.book, who, ask))

    @app.get("/v1/requests/{request}")
    async def gpu_request(who: Who, request: Number) -> q.RequestView:
        return await site.ask(lambda logic: requests.view(logic.book, who, request))

    @app.post("/v1/requests/{request}/extend")
    async def extend(who: Who, request: Number, ask: q.Extend) -> q.RequestView:
        return await site.ask(lambda logic: requests.extend(logic.book, who, request, ask))

    @app.post("/v1/requests/{request}/release")
    async def release(who: Who, request: Number, ask: c.Control) -> q.RequestView:
        return await site.ask(lambda logic: requests.release(logic.book, who, request, ask))
