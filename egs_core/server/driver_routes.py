"""The routes of drivers that share a pool: see `egs_core.client.messages` and `egs_core.site.wire`; and of what is
planned for their tasks: `egs_core.client.ahead`, and of what they held: `egs_core.client.driver_use`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import FastAPI, Path, Query, Request
from fastapi.responses import JSONResponse, Response

from egs_core.client import messages as c
from egs_core.server.driver_use import COARSE_FOR_S
from egs_core.server.sharing import Sharing
from egs_core.server.steps import in_turns
from egs_core.server.who import Who

DriverId = Annotated[str, Path(max_length=32)]
Over = Annotated[float, Query(gt=0, le=COARSE_FOR_S, allow_inf_nan=False)]


def add_driver_routes(app: FastAPI, sharing: Sharing) -> None:
    @app.post("/v1/drivers")
    async def join(who: Who, ask: c.DriverRequest) -> c.Driver:
        return await sharing.ask(lambda pools: pools.join(who, ask))

    @app.post("/v1/drivers/{driver}/batch", response_class=JSONResponse)
    async def batch(who: Who, driver: DriverId, request: Request) -> Response:
        return Response(await sharing.batch(who, driver, await request.body()), media_type="application/json")

    @app.post("/v1/drivers/{driver}/poll", response_class=JSONResponse)
    async def poll(who: Who, driver: DriverId, ask: c.Poll) -> Response:
        return Response(await sharing.poll(who, driver, ask), media_type="application/json")

    @app.post("/v1/drivers/{driver}/leave")
    async def leave(who: Who, driver: DriverId, ask: c.Leave) -> c.Left:
        return await sharing.ask(lambda pools: pools.leave(who, driver, ask))

    @app.get("/v1/drivers/{driver}/tasks", response_class=JSONResponse)
    async def tasks(who: Who, driver: DriverId) -> Response:
        asker = msgspec.structs.replace(who, name="")  # as `overview` without its own
        found = await in_turns(sharing.ask, lambda pools: pools.tasks_steps(asker, driver))
        return Response(msgspec.json.encode(found), media_type="application/json")

    @app.get("/v1/ahead", response_class=JSONResponse)
    async def ahead(who: Who) -> Response:
        asker = msgspec.structs.replace(who, name="")
        found = await in_turns(sharing.ask, lambda pools: pools.ahead_steps(asker))
        return Response(msgspec.json.encode(found), media_type="application/json")

    @app.get("/v1/driver-use", response_class=JSONResponse)
    async def driver_use(who: Who, over: Over) -> Response:
        found = await in_turns(sharing.ask, lambda pools: pools.use_steps(who, over))
        return Response(msgspec.json.encode(found), media_type="application/json")
