"""The short way of the few requests of which there are many: the same handlers, without a framework around each call.

    POST /v1/runs, /v1/runs/ID/beat, /claim, /end
    POST /v1/drivers/ID/batch, /poll ─► ShortWay ─ plain and valid ─► who asks ─► the route's own function
                                           └─ anything else ─► FastAPI's route, which answers as always

What is described, and what a wrong request is told, is FastAPI's and pydantic's affair alone: a body that is not as its
model wants goes on to the route as it came. What is raised goes to the application's handlers, as from any route.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from inspect import signature
from typing import Any, get_type_hints

import msgspec
from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound

from egs_core.server.principals import Principal
from egs_core.server.who import asking, principal

RUNS = "/v1/runs"
PLACES = {RUNS: ("run", ("beat", "claim", "end")), "/v1/drivers": ("driver", ("batch", "poll"))}
"""Of what is asked for by its id: what its routes call that, and the verbs that are short."""
MOST_ID = 32  # characters of an id, as its route has it
HEADERS = tuple([name.replace("_", "-").encode() for name in signature(principal).parameters if name != "request"])
"""By which it is found out who asks, as `asking` wants them."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Way(msgspec.Struct, frozen=True):
    """route: as FastAPI has it, with its function; ask: what the body is, None where the function reads it itself;
    name: of the id in its path."""

    route: APIRoute
    ask: type[BaseModel] | None
    name: str = ""


class ShortWay(BaseRoute):
    """See the module. It stands before the routes that it shortens, and is no part of the description."""

    def __init__(self, app: FastAPI) -> None:
        routes = {(one.path, *sorted(one.methods)): one for one in app.routes if isinstance(one, APIRoute)}
        self._site = app.state.site
        self._submit = _way(routes[RUNS, "POST"])
        self._verbs = {
            (place, verb): _way(routes[f"{place}/{{{name}}}/{verb}", "POST"], name)
            for place, (name, verbs) in PLACES.items()
            for verb in verbs
        }

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] == "http" and scope["method"] == "POST" and not scope.get("root_path"):
            path: str = scope["path"]
            if path == RUNS:
                return Match.FULL, {"short": (self._submit, "")}
            place, _, verb = path.rpartition("/")
            place, _, one = place.rpartition("/")
            way = self._verbs.get((place, verb))
            if way is not None and 0 < len(one) <= MOST_ID:
                return Match.FULL, {"short": (way, one)}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        way, one = scope["short"]
        first = await receive()
        named: dict[str, Any] = {way.name: one} if way.name else {}
        try:
            if first["type"] != "http.request" or first.get("more_body"):
                raise ValueError("it comes in pieces")
            if way.ask is None:
                named["request"] = Request(scope, _after(first, receive))
            else:
                named["ask"] = way.ask.model_validate_json(first["body"])
        except ValueError:  # pydantic's are, too
            await _long_way(way.route, first, scope, receive, send)
            return
        found = await way.route.endpoint(who=self._principal(scope), **named)
        if isinstance(found, Response):
            await found(scope, receive, send)
            return
        body = found.model_dump_json().encode()
        headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _principal(self, scope: Scope) -> Principal:
        found: dict[bytes, str] = {}
        for name, value in scope["headers"]:
            if name in HEADERS:
                found.setdefault(name, value.decode("latin-1"))
        return asking(self._site, scope, *[found.get(name) for name in HEADERS])

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        raise NoMatchFound(name, path_params)


def _way(route: APIRoute, name: str = "") -> Way:
    return Way(route, get_type_hints(route.endpoint).get("ask"), name)


def _after(first: MutableMapping[str, Any], receive: Receive) -> Receive:
    """What gives again what was read already."""
    pending = [first]

    async def again() -> MutableMapping[str, Any]:
        return pending.pop() if pending else await receive()

    return again


async def _long_way(
    route: APIRoute, first: MutableMapping[str, Any], scope: Scope, receive: Receive, send: Send
) -> None:
    """The request, with what was read of it already, to the route itself."""
    _, child = route.matches(scope)
    scope.update(child, route=route)
    await route.handle(scope, _after(first, receive), send)
