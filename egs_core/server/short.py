"""The short way of the few requests of which there are many: the same handlers, without a framework around each call.

    POST /v1/runs, /v1/runs/ID/beat, /claim, /end ─► ShortWay ─ plain and valid ─► who asks ─► the route's own function
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
from starlette.routing import BaseRoute, Match, NoMatchFound

from egs_core.server.principals import Principal
from egs_core.server.who import asking, principal

RUNS = "/v1/runs"
VERBS = frozenset({"beat", "claim", "end"})
MOST_ID = 32  # characters of a run's id, as its route has it
HEADERS = tuple([name.replace("_", "-").encode() for name in signature(principal).parameters if name != "request"])
"""By which it is found out who asks, as `asking` wants them."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Way(msgspec.Struct, frozen=True):
    """route: as FastAPI has it, with its function; ask: what the body is."""

    route: APIRoute
    ask: type[BaseModel]


class ShortWay(BaseRoute):
    """See the module. It stands before the routes that it shortens, and is no part of the description."""

    def __init__(self, app: FastAPI) -> None:
        routes = {(one.path, *sorted(one.methods)): one for one in app.routes if isinstance(one, APIRoute)}
        self._site = app.state.site
        self._submit = _way(routes[RUNS, "POST"])
        self._verbs = {verb: _way(routes[f"{RUNS}/{{run}}/{verb}", "POST"]) for verb in VERBS}

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] == "http" and scope["method"] == "POST" and not scope.get("root_path"):
            path: str = scope["path"]
            if path == RUNS:
                return Match.FULL, {"short": (self._submit, {})}
            if path.startswith(f"{RUNS}/"):
                run, _, verb = path[len(RUNS) + 1 :].partition("/")
                if verb in VERBS and 0 < len(run) <= MOST_ID:
                    return Match.FULL, {"short": (self._verbs[verb], {"run": run})}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        way, named = scope["short"]
        first = await receive()
        try:
            if first["type"] != "http.request" or first.get("more_body"):
                raise ValueError("it comes in pieces")
            ask = way.ask.model_validate_json(first["body"])
        except ValueError:  # pydantic's are, too
            await _long_way(way.route, first, scope, receive, send)
            return
        view = await way.route.endpoint(who=self._principal(scope), ask=ask, **named)
        body = view.model_dump_json().encode()
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


def _way(route: APIRoute) -> Way:
    return Way(route, get_type_hints(route.endpoint)["ask"])


async def _long_way(
    route: APIRoute, first: MutableMapping[str, Any], scope: Scope, receive: Receive, send: Send
) -> None:
    """The request, with what was read of it already, to the route itself."""
    pending = [first]

    async def again() -> MutableMapping[str, Any]:
        return pending.pop() if pending else await receive()

    _, child = route.matches(scope)
    scope.update(child, route=route)
    await route.handle(scope, again, send)
