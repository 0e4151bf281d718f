"""Values that do not exist yet, as Ray references: `ref = promises.new(key)`, later `promises.keep(key, value)`.

A task that gets such a reference as an argument waits for it like for any other. One small actor stands behind them;
it holds no CPU and is gone when its session lets it go.
"""

from __future__ import annotations

import asyncio
from typing import Any

import ray

MOST_WAITING = 100_000


class Board:
    """The actor: whoever waits for a key gets what is kept under it, whichever comes first."""

    def __init__(self) -> None:
        self._values: dict[str, asyncio.Future[Any]] = {}

    def _future(self, key: str) -> asyncio.Future[Any]:
        if key not in self._values:
            self._values[key] = asyncio.get_running_loop().create_future()
        return self._values[key]

    async def ready(self) -> None:
        """Answers when the actor is there."""

    async def wait(self, key: str) -> Any:
        value = await self._future(key)
        self._values.pop(key, None)
        return value

    async def keep(self, key: str, value: Any) -> None:
        future = self._future(key)
        if not future.done():
            future.set_result(value)


class Promises:
    """A session's promises."""

    def __init__(self) -> None:
        self._board = ray.remote(Board).options(num_cpus=0, max_concurrency=MOST_WAITING).remote()

    def ready(self) -> Any:
        """A reference that is ready when promises can be made."""
        return self._board.ready.remote()

    def new(self, key: str) -> Any:
        """A reference to what will be kept under the key."""
        return self._board.wait.remote(key)

    def keep(self, key: str, value: Any) -> None:
        self._board.keep.remote(key, value)
