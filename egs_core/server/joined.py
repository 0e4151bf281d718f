"""The agent of a joined host as a process: its locks, its Unix socket, and uvicorn until a signal or a refusal."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from fastapi import FastAPI, Request, Response

from egs_core.client import messages as c
from egs_core.client.gpu_users import users_of
from egs_core.client.places import Address
from egs_core.client.sockets import leave_socket
from egs_core.errors import EgsError
from egs_core.server.access import PEER, user_name
from egs_core.server.agent import Agent, Upstream, follow
from egs_core.server.bounds import BodyBound
from egs_core.server.devices import DeviceLocks
from egs_core.server.runs import Offer
from egs_core.server.serving import allow_connections, config_of, local_socket, nothing

MOST_WAITING = 1024  # requests under way: each heartbeat of a run here is one for most of the time


class Ready(msgspec.Struct, frozen=True):
    """url: of the server; socket: for the users of this host."""

    url: str
    host: str
    socket: str
    devices: tuple[str, ...]
    emulated: bool


def serve_host(
    folder: Path,
    addresses: Sequence[Address],
    offer: Offer,
    told: Callable[[Ready], None],
    chosen: Path | None = None,
) -> None:
    """Be this host's agent until SIGINT or SIGTERM. folder: for its socket where there is no other place, unless one is
    chosen. told: called when users can connect. Raises EgsError, also when the server does not know it any more."""
    allow_connections()
    locks = DeviceLocks()
    locks.take([device for device in offer.devices if device.label != "emulated"])
    looks = users_of if offer.is_watched and offer.devices else None
    agent = Agent(Upstream(addresses), offer, looks)
    agent.join_first()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path, local = local_socket(folder, chosen=chosen)
    place = path.stat()
    try:
        ids = tuple([device.id for device in offer.devices])
        is_emulated = any(device.label == "emulated" for device in offer.devices)
        ready = Ready(agent.upstream.url, offer.host, str(path), ids, is_emulated)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, nothing)
        server = _Server(agent, lambda: told(ready))
        server.run(sockets=[local])
        if server.problem is not None:
            raise server.problem
    finally:
        local.close()
        leave_socket(path, place)


class _Server(uvicorn.Server):
    """problem: why it has ended by itself."""

    def __init__(self, agent: Agent, told: Callable[[], None]) -> None:
        self._pool = ThreadPoolExecutor(MOST_WAITING, "egs-forward")
        super().__init__(config_of(make_agent_app(agent, self._follow, self._pool)))
        self._agent, self._told = agent, told
        self.problem: EgsError | None = None

    async def _follow(self) -> None:
        self.problem = await follow(self._agent)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._told()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        await super().shutdown(sockets)


def make_agent_app(agent: Agent, beside: Callable[[], Any], pool: ThreadPoolExecutor) -> FastAPI:
    """One route: what users ask is passed on. beside: runs as long as it serves."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> Any:
        task = asyncio.create_task(beside())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    app = FastAPI(title="EGS agent", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(BodyBound)

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def pass_on(request: Request) -> Response:
        protocol = request.headers.get(c.PROTOCOL_HEADER, str(c.PROTOCOL))
        host = str((request.scope.get("client") or ("", 0))[0])
        if not host.startswith(PEER) or protocol != str(c.PROTOCOL):
            problem = f"protocol {protocol[:20]!r} is unknown: this agent has version {c.PROTOCOL}"
            return Response(msgspec.json.encode({"detail": problem}), 400, media_type="application/json")
        uid = int(host.removeprefix(PEER))
        raw, query = request.scope["raw_path"].decode("latin-1"), request.scope["query_string"].decode("latin-1")
        target, body = f"{raw}?{query}" if query else raw, await request.body()
        asked = (request.method, target, body, f"{uid} {user_name(uid)}")
        status, content = await asyncio.get_running_loop().run_in_executor(pool, agent.passed_on, *asked)
        headers = {"Retry-After": "1"} if status in (429, 503) else None
        return Response(content, status, headers, "application/json")

    return app
