"""The site of all drivers of one Ray, in a named actor without CPU that belongs to no job: `EGS_GATE=cluster`.

    driver ── join, batch, poll, leave: actor calls of bytes ─► EgsSite ─► Shell ─► TrustingPools ─► engine

It keeps no journal: Ray's books say what runs. When it dies, drivers go on without it, and the next one to come starts
another. It ends itself when there has been no driver for a while. A driver that is killed is known by the reference to
its `live`, which gets a value then; one that stands still, by its silence.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable
from typing import Any

import msgspec
import ray

from egs_core.described import describe
from egs_core.engine.specs import QueueSpec
from egs_core.site import wire
from egs_core.site.pooled import About
from egs_core.site.refusal import Refusal
from egs_core.site.sharing import Shell
from egs_core.site.trusting import TrustingPools

NAME, NAMESPACE = "egs-site", "egs"
VERSION = 1
"""Of what is told to the actor and answered. No driver joins one of another version."""
IDLE_S = 60.0
"""It ends itself after so long without a driver."""
LOOK_S = 0.5
CALLS_AT_ONCE = 1000

describe(tuple[QueueSpec, ...], About)

Answer = tuple[str, bytes]
"""Why there is no value, or "" and the value."""


class EgsSite:
    """See the module. queues: encoded `QueueSpec`s."""

    def __init__(self, queues: bytes, idle_s: float) -> None:
        specs = msgspec.json.decode(queues, type=tuple[QueueSpec, ...])
        self._shell = Shell(TrustingPools(specs, secrets.token_hex(8)))
        self._queues, self._idle_s = queues, idle_s
        self._used_s = time.monotonic()
        self._lives: dict[str, list[Any]] = {}  # driver -> the reference that tells of its end
        self._leaving: dict[str, asyncio.Event] = {}  # key of a driver -> set when it has left
        # Ray makes such an actor on its loop, which keeps no task alive that nobody holds.
        self._tasks = [asyncio.ensure_future(one) for one in (self._shell.tick(), self._look_after())]

    # --- for drivers ---

    async def live(self, key: str) -> None:
        """A driver's sign of life: answers when that has left. The driver owns the reference to the answer."""
        await self._leaving.setdefault(key, asyncio.Event()).wait()

    async def join(self, version: int, about: bytes, life: list[Any]) -> Answer:
        """Encoded `Joined`; life: the reference to the driver's `live`. This call stays as it is in every version."""
        self._used_s = time.monotonic()
        if version != VERSION:
            return f"the site on this Ray is of version {VERSION}, not {version}", b""
        asked = msgspec.json.decode(about, type=About)
        problem, found = await _answer(self._shell.ask(lambda pools: msgspec.json.encode(pools.join(asked))))
        if problem:
            self._end_life(asked.key)
        else:
            self._lives[msgspec.json.decode(found, type=wire.Joined).id] = [asked.key, *life]
        return problem, found

    async def queues(self) -> bytes:
        """Those that the first driver has given."""
        return self._queues

    async def batch(self, driver: str, body: bytes) -> Answer:
        """Encoded `Answers` to an encoded `Batch`."""
        return await _answer(self._shell.ask(lambda pools: pools.batch(driver, body)))

    async def poll(self, driver: str, epoch: str, ack: int, wait_s: float) -> Answer:
        """Encoded `Messages`, as soon as there are some."""
        return await _answer(self._shell.fetch(driver, lambda pools: pools.poll(driver, epoch, ack), wait_s))

    async def leave(self, driver: str) -> None:
        """The driver has gone, or needs the site no more."""
        key, *_ = self._lives.pop(driver, [""])
        self._end_life(key)
        await self._shell.ask(lambda pools: pools.leave(driver))

    def _end_life(self, key: str) -> None:
        if (leaving := self._leaving.pop(key, None)) is not None:
            leaving.set()

    # --- now and then ---

    async def _look_after(self) -> None:
        """Forget drivers that are dead; end without any. Between the last look and the end no driver can join."""
        while time.monotonic() - self._used_s < self._idle_s:
            await asyncio.sleep(min(LOOK_S, self._idle_s))
            for driver, (_, *life) in list(self._lives.items()):
                if await asyncio.to_thread(_has_value, life):
                    await self.leave(driver)
            if not await self._shell.ask(lambda pools: pools.is_empty):
                self._used_s = time.monotonic()
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


async def _answer(found: Awaitable[bytes]) -> Answer:
    try:
        return "", await found
    except Refusal as refusal:
        return str(refusal), b""


def _has_value(refs: list[Any]) -> bool:
    return len(ray.wait(refs, timeout=0, fetch_local=False)[0]) > 0


def get_or_make(queues: bytes, idle_s: float = IDLE_S) -> Any:
    """The cluster's site; made, with these queues, when there is none. Does not wait for it."""
    options: dict[str, Any] = {"name": NAME, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    made = ray.remote(EgsSite).options(
        num_cpus=0, max_restarts=0, max_concurrency=CALLS_AT_ONCE, enable_task_events=False, **options
    )
    return made.remote(queues, idle_s)
