"""The pools' shell: one thread at a time, a clock, and those who wait for something to be told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, Generic, TypeVar

import msgspec

from egs_core.site import wire
from egs_core.site.pooled import SharedPools

T = TypeVar("T")
P = TypeVar("P", bound=SharedPools)
IDLE_S, TICK_S = 1.0, 0.2


class Shell(Generic[P]):
    """See the module. Its coroutines are for one event loop. lock: for whoever decides about the same quotas; without
    one the pools are asked on the loop itself, which is sooner, where nothing else needs it to be quick."""

    def __init__(self, pools: P, lock: AbstractContextManager[Any] | None = None) -> None:
        self._pools, self._has_thread = pools, lock is not None
        self._origin = time.monotonic()
        self._lock = lock or threading.Lock()
        self._waiting: dict[str, asyncio.Event] = {}
        self._news: deque[str] = deque()  # put there by threads, taken by the loop
        self._is_closing = False

    @property
    def clients(self) -> int:
        """That wait for something to be told."""
        return len(self._waiting)

    async def ask(self, question: Callable[[P], T]) -> T:
        """The answer; then who waits for what it has caused is woken."""
        try:
            return await asyncio.to_thread(self._asked, question) if self._has_thread else self._asked(question)
        finally:
            while self._news:
                if (waiting := self._waiting.get(self._news.popleft())) is not None:
                    waiting.set()

    def _asked(self, question: Callable[[P], T]) -> T:
        with self._lock:
            self._pools.at(time.monotonic() - self._origin)
            try:
                return question(self._pools)
            finally:
                self._news.extend(self._pools.take_news())

    async def fetch(self, driver: str, fetch: Callable[[P], tuple[wire.Message, ...]], wait_s: float) -> bytes:
        """What a driver is told, held back for a while where there is nothing: encoded `Messages`."""
        news = self._waiting[driver] = asyncio.Event()  # of one poll a driver: an earlier one has been given up
        found = await self.ask(fetch)
        if not found and wait_s > 0 and not self._is_closing:
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), wait_s)
            found = await self.ask(fetch)
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
