"""The routes of `egs_core.client.outlooks`. What is told is not kept: it is of a moment, and told again."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any, TypeVar

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from egs_core.client.outlooks import Named, Naming, Outlook, Question
from egs_core.server.outlooks import Outlooks, named
from egs_core.server.principals import SUBMITTING
from egs_core.server.runs import Refusal
from egs_core.server.thinking import Thinking
from egs_core.server.who import Who

T = TypeVar("T")


def add_outlook_routes(app: FastAPI) -> None:
    outlooks = Outlooks(time.monotonic())
    thinking = Thinking()

    @app.post("/v1/outlooks")
    async def told(who: Who, request: Request) -> dict[str, Any]:
        who.need(SUBMITTING, "to tell of a cluster's queues")
        outlooks.tell(who, _decoded(await request.body(), Outlook), time.monotonic())
        return {}

    @app.post("/v1/outlooks/named", response_class=JSONResponse)
    async def asked(who: Who, request: Request) -> Response:
        who.need(SUBMITTING, "to ask where work should go")
        question, now = _decoded(await request.body(), Question), time.monotonic()
        think = partial(_within, question, outlooks.seen(who, now), outlooks.is_young(now))
        found = await asyncio.wrap_future(thinking.begin(who, think))
        return Response(msgspec.json.encode(Named(tuple(found))), media_type="application/json")


def _within(
    question: Question, seen: dict[str, tuple[Outlook, float]], is_young: bool, budget_s: float
) -> list[Naming]:
    until = time.monotonic() + budget_s
    return named(question, seen, is_late=lambda: time.monotonic() > until, is_young=is_young)


def _decoded(body: bytes, kind: type[T]) -> T:
    """Raises Refusal."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(422, f"no {kind.__name__.lower()}: {error}") from None
