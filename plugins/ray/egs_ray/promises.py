"""Values that do not exist yet, as Ray references: `ref = promises.new(key)`, later `promises.keep(key, value)`.

A task that gets such a reference as an argument waits for it like for any other. One small actor stands behind them;
it holds no CPU and is gone when its session lets it go. When its process dies, what waits for it fails; with `on_loss`
Ray starts it again and asks it again for what was not answered, and `on_loss` keeps again what was lost with it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import ray

from egs_ray import waiting

MOST_WAITING = 100_000


def _board_class() -> type:
    """The actor's class: whoever waits for a key gets what is kept under it, whichever comes first.

    It is made here, in a function, so that Ray sends it by value: a worker's environment may lack this package.
    """

    class EgsBoard:
        def __init__(self, patience_s: float | None) -> None:
            self._values: dict[str, asyncio.Future[Any]] = {}
            self._patience_s = patience_s
            self._heard_s = time.monotonic()
            self._watch: asyncio.Task[None] | None = None

        def _future(self, key: str) -> asyncio.Future[Any]:
            if key not in self._values:
                self._values[key] = asyncio.get_running_loop().create_future()
            return self._values[key]

        async def ready(self) -> None:
            """Answers when the actor is there."""

        async def watch(self) -> None:
            """Never answers: this call fails when the actor's process dies."""
            await asyncio.Event().wait()

        async def hear(self) -> None:
            """The driver lives."""
            self._heard_s = time.monotonic()

        async def wait(self, key: str, copies: int = 1) -> Any:
            if self._patience_s is not None and self._watch is None:
                self._watch = asyncio.get_running_loop().create_task(self._lose_patience(self._patience_s))
            value = await self._future(key)
            self._values.pop(key, None)
            return value if copies == 1 else [value] * copies

        async def _lose_patience(self, patience_s: float) -> None:
            while True:
                await asyncio.sleep(patience_s)
                if time.monotonic() - self._heard_s >= patience_s:
                    await self.keep(dict.fromkeys(self._values), is_heard=False)

        async def keep(self, values: dict[str, Any], is_heard: bool = True) -> None:
            if is_heard:
                self._heard_s = time.monotonic()
            for key, value in values.items():
                future = self._future(key)
                if not future.done():
                    future.set_result(value)

    return EgsBoard


def _make_board(patience_s: float | None, retries: int) -> Any:
    board = ray.remote(_board_class()).options(
        num_cpus=0,
        max_concurrency=MOST_WAITING,
        max_restarts=retries,
        max_task_retries=retries,
        enable_task_events=False,  # none of this is the user's
    )
    return board.remote(patience_s)


class Promises:
    """A session's promises.

    patience_s: when nothing was heard from this process for so long, what is waited for is kept as None; None: never.
    on_loss: called with the reference of a failed call when the actor's process has died; must not block.
    """

    def __init__(self, patience_s: float | None = None, on_loss: Callable[[Any], None] | None = None) -> None:
        self._patience_s, self._on_loss = patience_s, on_loss
        self._made: Any = None
        self._lock = threading.Lock()
        self._watched: Any = None

    @property
    def _board(self) -> Any:
        """The actor, made when something first needs it: a process takes its second of a core, which a pipeline that
        promises nothing shall not pay."""
        with self._lock:
            if self._made is None:
                self._made = _make_board(self._patience_s, retries=0 if self._on_loss is None else -1)
            return self._made

    @property
    def has_board(self) -> bool:
        """Whether something has needed the actor."""
        return self._made is not None

    def ready(self) -> Any:
        """A reference that is ready when promises can be made."""
        return self._board.ready.remote()

    def new(self, key: str) -> Any:
        """A reference to what will be kept under the key."""
        return self._board.wait.remote(key)

    def new_copies(self, key: str, copies: int) -> list[Any]:
        """As many references to it, for as many tasks: a driver's Ray fails a check when of several tasks that wait for
        one reference one is cancelled."""
        if copies == 1:
            return [self.new(key)]
        return list(self._board.wait.options(num_returns=copies).remote(key, copies))

    def keep(self, key: str, value: Any) -> None:
        self._board.keep.remote({key: value})

    def keep_values(self, values: dict[str, Any]) -> Any:
        """Keep each value under its key, but where one is kept already; a reference that is ready when that is done."""
        return self._board.keep.remote(values) if values else None

    def board(self) -> bytes:
        """The actor's handle, pickled: for another process that keeps something (`board.keep.remote({key: value})`)."""
        return bytes(ray.cloudpickle.dumps(self._board))

    def live(self) -> None:
        """Say that this process lives, and watch the actor; call it about once a second where patience matters. The
        first call makes the actor, if nothing has before: the next task that must wait finds it there."""
        self._board.hear.remote()
        if self._on_loss is not None and self._watched is None:
            self._watched = self._board.watch.options(max_task_retries=0).remote()
            waiting.on_ready(self._watched, self._lost)

    def _lost(self) -> None:
        """On a thread of Ray's, where nothing may block."""
        watched, self._watched = self._watched, None
        if self._on_loss is not None and watched is not None:
            self._on_loss(watched)
