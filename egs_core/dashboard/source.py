"""What the server tells those who see the same: each question asked once, whoever wants to know.

feeds ─► Source ── overview (at most once a second), outlines that have changed ──► the server
"""

from __future__ import annotations

import asyncio
import time

from egs_core.client.overview import Overview
from egs_core.dashboard.asking import Asking
from egs_core.dashboard.mirror import Mirror

FRESH_S = 0.8  # so long an answer is good for others, too; less than the turn of a feed
PAUSE = 1.0  # between two parts of what has changed, as many times as the answer took


class Source:
    """For one event loop. Raises Refused and Unreachable, as `Asking`."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._locks = asyncio.Lock(), asyncio.Lock()
        self._seen: tuple[float, Overview] | None = None
        self._mirror, self._epoch, self._number, self._asked_at = Mirror(), "", 0, float("-inf")

    async def overview(self, token: str) -> Overview:
        """What there is now, or was a moment ago."""
        async with self._locks[0]:
            if self._seen is None or time.monotonic() - self._seen[0] >= FRESH_S:
                found = await self._asking.overview(token)
                self._seen = time.monotonic(), found
            return self._seen[1]

    async def mirror(self, token: str) -> Mirror:
        """All runs that the server keeps, as they were a moment ago."""
        async with self._locks[1]:
            while time.monotonic() - self._asked_at >= FRESH_S:
                began = time.monotonic()
                told = await self._asking.outlines(token, self._epoch, self._number)
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
