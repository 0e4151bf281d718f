"""The parameter of each route that names who asks."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import Depends, Header, HTTPException, Request

from egs_core.client import messages as c
from egs_core.server.access import Access
from egs_core.server.bounds import BEAT_COST
from egs_core.server.principals import Principal


async def principal(
    request: Request,
    authorization: Annotated[str | None, Header()] = None,
    egs_protocol: Annotated[str | None, Header()] = None,
) -> Principal:
    """Who asks, in a version of the protocol that this server has."""
    if egs_protocol is not None and egs_protocol != str(c.PROTOCOL):
        raise HTTPException(400, f"protocol {egs_protocol[:20]!r} is unknown: this server has version {c.PROTOCOL}")
    access: Access = request.app.state.site.access
    found = access.of_request(request.scope, authorization, time.time())
    if found is None:
        problem = "nobody is known by this request: send a good token: Authorization: Bearer …"
        raise HTTPException(401, problem, headers={"WWW-Authenticate": "Bearer"})
    if found.role != "admin":
        is_frequent = request.scope["path"].endswith(("/beat", "/batch", "/poll"))
        cost = BEAT_COST if is_frequent else 1.0
        request.app.state.site.rates.take(found.name, cost, time.monotonic())
    return found


Who = Annotated[Principal, Depends(principal)]
