"""The pools' shell: one thread at a time, a clock, and those who wait for something to be told."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

import msgspec

from egs_core.client import messages as c
from egs_core.engine.specs import QueueSpec
from egs_core.server.pools import Pools
from egs_core.server.principals import Principal
from egs_core.site import wire

T = TypeVar("T")
IDLE_S, TICK_S = 1.0, 0.2


class Sharing:
    """See the module. Its coroutines are for one event loop."""

    def __init__(self, queues: tuple[QueueSpec, ...] = (), team_of_queue: Mapping[str, str] | None = None) -> None:
        self._pools = Pools(queues, secrets.token_hex(8), time.time(), team_of_queue)
        self._origin = time.monotonic()
        self._lock = threading.Lock()
        self._waiting: dict[str, asyncio.Event] = {}
        self._news: set[str] = set()
        self._is_closing = False

    async def ask(self, question: Callable[[Pools], T]) -> T:
        """The answer, on another thread; then who waits for what it has caused is woken."""
        try:
            return await asyncio.to_thread(self._asked, question)
        finally:
            news, self._news = self._news, set()
            for driver in news & self._waiting.keys():
                self._waiting[driver].set()

    def _asked(self, question: Callable[[Pools], T]) -> T:
        with self._lock:
            self._pools.at(time.monotonic() - self._origin)
            try:
                return question(self._pools)
            finally:
                self._news = self._news | set(self._pools.take_news())

    async def poll(self, who: Principal, driver: str, ask: c.Poll) -> bytes:
        """What a driver is told, held back for a while where there is nothing: encoded `Messages`."""
        news = self._waiting[driver] = asyncio.Event()  # of one poll a driver: an earlier one has been given up
        found = await self.ask(lambda pools: pools.poll(who, driver, ask))
        if not found and ask.wait_s > 0 and not self._is_closing:
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), ask.wait_s)
            found = await self.ask(lambda pools: pools.poll(who, driver, ask))
        if self._waiting.get(driver) is news:
            del self._waiting[driver]
        return msgspec.json.encode(wire.Messages(found))

    async def tick(self) -> None:
        """Again and again: what is due by time, also where nobody asks."""
        while True:
            is_busy = await self.ask(lambda pools: pools.next_wakeup() is not None)
            await asyncio.sleep(TICK_S if is_busy else IDLE_S)

    def wake_all(self) -> None:
        """Answer all that wait: the server ends."""
        self._is_closing = True
        for event in self._waiting.values():
            event.set()
