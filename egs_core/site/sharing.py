"""The pools' shell: one thread at a time, a clock, and those who wait for something to be told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

import msgspec

from egs_core.site import wire
from egs_core.site.pooled import SharedPools

T = TypeVar("T")
P = TypeVar("P", bound=SharedPools)
IDLE_S, TICK_S = 1.0, 0.2


class Shell(Generic[P]):
    """See the module. Its coroutines are for one event loop. lock: for whoever decides about the same quotas; without
    one the pools are asked on the loop itself, which is sooner, where nothing else needs it to be quick."""

    def __init__(self, pools: P, lock: threading.Lock | None = None) -> None:
        self._pools, self._has_thread = pools, lock is not None
        self._origin = time.monotonic()
        self._lock = lock or threading.Lock()
        self._waiting: dict[str, set[asyncio.Event]] = {}  # by driver: of all polls that wait; anybody may ask
        self._news: deque[str] = deque()  # put there by threads, taken by the loop
        self._is_closing = False

    @property
    def clients(self) -> int:
        """That wait for something to be told."""
        return sum(map(len, self._waiting.values()))

    async def ask(self, question: Callable[[P], T], *, is_short: bool = False) -> T:
        """The answer; then who waits for what it has caused is woken. is_short: it takes a few milliseconds at most, so
        the loop finds it itself, which is sooner than a thread would, if nobody else is being answered."""
        try:
            if (is_short or not self._has_thread) and self._lock.acquire(blocking=False):
                return self._asked(question)
            return await asyncio.to_thread(self._waited, question)
        finally:
            while self._news:
                for waiting in self._waiting.get(self._news.popleft(), ()):
                    waiting.set()

    def _waited(self, question: Callable[[P], T]) -> T:
        self._lock.acquire()
        return self._asked(question)

    def _asked(self, question: Callable[[P], T]) -> T:
        """With the lock, which it gives back."""
        try:
            self._pools.at(time.monotonic() - self._origin)
            try:
                return question(self._pools)
            finally:
                self._news.extend(self._pools.take_news())
        finally:
            self._lock.release()

    async def fetch(self, driver: str, fetch: Callable[[P], tuple[wire.Message, ...]], wait_s: float) -> bytes:
        """What a driver is told, held back for a while where there is nothing: encoded `Messages`."""
        news = asyncio.Event()
        polls = self._waiting.setdefault(driver, set())
        polls.add(news)
        try:
            found = await self.ask(fetch, is_short=True)
            if not found and wait_s > 0 and not self._is_closing:
                with suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), wait_s)
                found = await self.ask(fetch, is_short=True)
        finally:
            polls.discard(news)
            if not polls:
                self._waiting.pop(driver, None)
        return msgspec.json.encode(wire.Messages(found))

    async def tick(self) -> None:
        """Again and again: what is due by time, also where nobody asks."""
        while True:
            is_busy = await self.ask(lambda pools: pools.next_wakeup() is not None)
            await asyncio.sleep(TICK_S if is_busy else IDLE_S)

    def wake_all(self) -> None:
        """Answer all that wait: the server ends."""
        self._is_closing = True
        for polls in self._waiting.values():
            for event in polls:
                event.set()
