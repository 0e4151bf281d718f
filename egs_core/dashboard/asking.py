"""Questions to the server over its Unix socket, each with the token of whoever wants to know.

The process at the other end of that socket is the server's own user, an admin. So each request says that this counts
for nothing, and the token alone does: `BY_TOKEN_HEADER`.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import TypeVar

import msgspec

from egs_core.client import messages as c
from egs_core.client.ahead import Ahead, DriverTasksView
from egs_core.client.driver_use import DriverUse, path_of
from egs_core.client.http import SiteClient, Unreachable
from egs_core.client.outlines import Outlines
from egs_core.client.overview import BY_TOKEN_HEADER, Me, Overview
from egs_core.client.places import Address
from egs_core.described import describe

T = TypeVar("T")
TOKEN = re.compile(r"[\x21-\x7e]{1,8192}")  # a provider's is long
RUN = re.compile(r"[A-Za-z0-9]{1,32}")
VERBS = ("abort", "pause", "resume")
PRIORITY = "priority"
ANSWER_S = 10.0
describe(Outlines, DriverTasksView, Ahead, DriverUse)  # decoded on threads


class Asking:
    """For one event loop; each question is asked on another thread. site: the server's socket."""

    def __init__(self, site: Path) -> None:
        self._address = Address(f"unix://{site}", site)
        self._idle: list[SiteClient] = []  # a client speaks for one thread at a time

    async def me(self, token: str) -> Me:
        """Whose token it is. Raises Refused (401 for nobody's) and Unreachable, as do all."""
        return Me.model_validate_json(await self._ask("GET", "/v1/me", token))

    async def overview(self, token: str) -> Overview:
        """What all see who are of the same teams."""
        return Overview.model_validate_json(await self._ask("GET", "/v1/overview?own=false", token))

    async def outlines(self, token: str, epoch: str, since: int) -> Outlines:
        """What has changed of the runs that all see who are of the same teams; see `client.outlines`."""
        return await self._decoded(f"/v1/outlines?epoch={epoch}&since={since}", token, Outlines)

    async def tasks(self, token: str, driver: str) -> DriverTasksView:
        """Of a driver."""
        return await self._decoded(f"/v1/drivers/{driver}/tasks", token, DriverTasksView)

    async def ahead(self, token: str) -> Ahead:
        """What is planned for the tasks of drivers."""
        return await self._decoded("/v1/ahead", token, Ahead)

    async def driver_use(self, token: str, over_s: float) -> DriverUse:
        """What tasks of drivers held in the last so many seconds."""
        return await self._decoded(path_of(over_s), token, DriverUse)

    async def _decoded(self, path: str, token: str, kind: type[T]) -> T:
        found = await self._ask("GET", path, token)
        try:
            return await asyncio.to_thread(msgspec.json.decode, found, type=kind)
        except msgspec.MsgspecError as error:
            raise Unreachable(f"{self._address.url}: no answer from an EGS server ({error})") from None

    async def control(self, token: str, run: str, verb: str, ask: c.Control) -> c.RunView:
        body = ask.model_dump_json().encode()
        return c.RunView.model_validate_json(await self._ask("POST", f"/v1/runs/{run}/{verb}", token, body))

    async def change(self, token: str, run: str, ask: c.Change) -> c.RunView:
        body = ask.model_dump_json(exclude_none=True).encode()
        return c.RunView.model_validate_json(await self._ask("POST", f"/v1/runs/{run}/update", token, body))

    async def _ask(self, method: str, path: str, token: str, body: bytes | None = None) -> bytes:
        if not TOKEN.fullmatch(token):
            raise ValueError("no token")
        client = self._idle.pop() if self._idle else SiteClient(self._address, frozenset({os.getuid()}))
        headers = {BY_TOKEN_HEADER: "1", "Authorization": f"Bearer {token}"}
        try:
            return await asyncio.to_thread(client.send, method, path, body, ANSWER_S, headers)
        finally:
            self._idle.append(client)
