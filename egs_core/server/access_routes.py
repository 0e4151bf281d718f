"""Tokens and the log over HTTP: the routes of `egs_core.client.tokens`."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import FastAPI, Path, Query

from egs_core.client import tokens as t
from egs_core.server.access import Access
from egs_core.server.who import Who

TokenId = Annotated[str, Path(max_length=32)]


def add_access_routes(app: FastAPI, access: Access) -> None:
    """What is written is written on another thread."""

    @app.get("/v1/tokens")
    async def tokens(who: Who) -> t.Tokens:
        return access.tokens(who)

    @app.post("/v1/tokens")
    async def new_token(who: Who, ask: t.TokenRequest) -> t.NewToken:
        return await asyncio.to_thread(access.new_token, who, ask, time.time())

    @app.post("/v1/tokens/{token}/revoke")
    async def revoke(who: Who, token: TokenId) -> t.TokenView:
        return await asyncio.to_thread(access.revoke, who, token, time.time())

    @app.get("/v1/log")
    async def log(who: Who, limit: Annotated[int, Query(ge=1, le=t.MOST_LOGGED)] = 100) -> t.Log:
        return await asyncio.to_thread(access.log, who, limit)
