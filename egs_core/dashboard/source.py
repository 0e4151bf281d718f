"""What the server tells those who see the same: each question asked once, whoever wants to know.

feeds ─► Source ── overview (at most once a second), outlines that have changed ──► the server
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from egs_core.client.ahead import Ahead, DriverTasksView
from egs_core.client.driver_use import DriverUse
from egs_core.client.http import Unreachable
from egs_core.client.overview import Overview
from egs_core.dashboard.asking import Asking
from egs_core.dashboard.mirror import Mirror

T = TypeVar("T")
SELDOM_S, FORGET_S, REST = 3.0, 60.0, 10.0  # of answers that are long
FRESH_S = 0.8  # so long an answer is good for others, too; less than the turn of a feed
PAUSE = 1.0  # between two parts of what has changed, as many times as the answer took


class Source:
    """For one event loop. Raises Refused and Unreachable, as `Asking`."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._locks = asyncio.Lock(), asyncio.Lock()
        self._seen: tuple[float, Overview] | None = None
        self._away_at = float("-inf")
        self._tasks: dict[str, _Seldom[DriverTasksView]] = {}
        self._ahead = _Seldom[Ahead]()
        self._uses: dict[float, _Seldom[DriverUse]] = {}
        self._mirror, self._epoch, self._number, self._asked_at = Mirror(), "", 0, float("-inf")

    async def overview(self, token: str) -> Overview:
        """What there is now, or was a moment ago."""
        async with self._locks[0]:
            if self._seen is None or time.monotonic() - self._seen[0] >= FRESH_S:
                found = await self._answered(self._asking.overview(token))
                self._seen = time.monotonic(), found
            return self._seen[1]

    async def tasks(self, token: str, driver: str) -> DriverTasksView:
        """Of a driver, as they were a few seconds ago: the more they are the less often they are asked for."""
        if driver not in self._tasks:
            self._tasks = {known: one for known, one in self._tasks.items() if not one.is_forgotten}
        return await self._tasks.setdefault(driver, _Seldom()).found(lambda: self._asking.tasks(token, driver))

    async def ahead(self, token: str) -> Ahead:
        """What was planned a few seconds ago."""
        return await self._ahead.found(lambda: self._asking.ahead(token))

    async def driver_use(self, token: str, over_s: float) -> DriverUse:
        """What tasks of drivers held, as it was a few seconds ago. over_s: of `usage.SPANS`."""
        return await self._uses.setdefault(over_s, _Seldom()).found(lambda: self._asking.driver_use(token, over_s))

    async def mirror(self, token: str) -> Mirror:
        """All runs that the server keeps, as they were a moment ago."""
        async with self._locks[1]:
            while time.monotonic() - self._asked_at >= FRESH_S:
                began = time.monotonic()
                told = await self._answered(self._asking.outlines(token, self._epoch, self._number))
                if told.epoch != self._epoch:
                    self._mirror, self._epoch = Mirror(), told.epoch
                self._mirror.take(told.runs)
                self._mirror = self._mirror.bounded()
                self._number = told.number
                if told.more:
                    await asyncio.sleep(PAUSE * (time.monotonic() - began))  # others want answers of the server, too
                else:
                    self._asked_at = time.monotonic()
            return self._mirror

    async def _answered(self, asked: Coroutine[Any, Any, T]) -> T:
        """Where the server does not answer, others who want to know hear the same for a moment: nobody asks it for each
        of them."""
        if time.monotonic() - self._away_at < FRESH_S:
            asked.close()
            raise Unreachable("the server did not answer a moment ago")
        try:
            return await asked
        except Unreachable:
            self._away_at = time.monotonic()
            raise


class _Seldom(Generic[T]):
    """An answer that is good for SELDOM_S, and for the longer the longer it took."""

    def __init__(self) -> None:
        self._lock, self._found, self._good_until = asyncio.Lock(), list[T](), 0.0

    @property
    def is_forgotten(self) -> bool:
        """Nobody has asked for it for some time."""
        return time.monotonic() - self._good_until > FORGET_S

    async def found(self, ask: Callable[[], Awaitable[T]]) -> T:
        async with self._lock:
            began = time.monotonic()
            if not self._found or began >= self._good_until:
                self._found = [await ask()]
                self._good_until = time.monotonic() + max(SELDOM_S, REST * (time.monotonic() - began))
            return self._found[0]
