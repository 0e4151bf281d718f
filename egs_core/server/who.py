"""The parameter of each route that names who asks."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import Depends, Header, HTTPException, Request

from egs_core.client import messages as c
from egs_core.server.access import Access
from egs_core.server.bounds import BEAT_COST, Scope
from egs_core.server.pools import is_driver
from egs_core.server.principals import Principal
from egs_core.server.runs import Refusal

PASSED_ON = ("runs", "requests", "queue", "check", "hosts", "overview")


async def principal(
    request: Request,
    authorization: Annotated[str | None, Header()] = None,
    egs_protocol: Annotated[str | None, Header()] = None,
    egs_peer: Annotated[str | None, Header()] = None,
    egs_by_token: Annotated[str | None, Header()] = None,
) -> Principal:
    """Who asks, in a version of the protocol that this server has."""
    return asking(request.app.state.site, request.scope, authorization, egs_protocol, egs_peer, egs_by_token)


def asking(
    site: Any, scope: Scope, authorization: str | None, protocol: str | None, peer: str | None, by_token: str | None
) -> Principal:
    """Of a request of this `Site`, by its headers. Raises HTTPException, Refusal."""
    if protocol is not None and protocol != str(c.PROTOCOL):
        raise HTTPException(400, f"protocol {protocol[:20]!r} is unknown: this server has version {c.PROTOCOL}")
    site.check_active()  # tokens may have changed at the active one
    access: Access = site.access
    found = access.of_request(scope, authorization, time.time(), by_token=by_token is not None)
    if found is None:
        raise nobody()
    if peer is not None:
        found = access.at_host(found, peer)
        check_passed_on(scope["method"], scope["path"])
    if found.role != "admin":
        is_frequent = scope["path"].endswith(("/beat", "/batch", "/poll", "/report"))
        cost = BEAT_COST if is_frequent else 1.0
        site.rates.take(f"{found.name} on {found.host}" if found.host else found.name, cost, time.monotonic())
    return found


def nobody() -> HTTPException:
    problem = f"{c.NOBODY}: send a good token: Authorization: Bearer …"
    return HTTPException(c.UNKNOWN, problem, headers={"WWW-Authenticate": "Bearer"})


def check_passed_on(method: str, path: str) -> None:
    """An agent passes on what plain commands need. Raises Refusal (403) for the rest: it takes a token of one's own."""
    parts = path.split("/")
    is_known = len(parts) > 2 and parts[1] == "v1" and parts[2] in PASSED_ON
    if not is_known or (method != "GET" and len(parts) > 3 and is_driver(parts[3])):
        raise Refusal(403, "not over the socket of a joined host: ask the server itself, by EGS_URL and a token")


Who = Annotated[Principal, Depends(principal)]
