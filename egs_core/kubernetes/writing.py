"""Writes that wait for the API server side by side: begun in order, a few at a time, each over its own connection.

One after another a gate waits for the answers to all that were decided with it. Begun in order and never more than a
few at once, none overtakes more than those few.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from egs_core.kubernetes.cluster import ApiError

AT_ONCE = 4
"""More are answered hardly faster by an API server that is near, and are further out of order."""
Item = TypeVar("Item")


class Writers(Generic[Item]):
    """See the module. `each` and `beside` belong to one thread."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="egs-write")
        self._beside: threading.Thread | None = None

    def each(
        self,
        items: Iterable[Item],
        write: Callable[[Item], Any],
        may_go_on: Callable[[], bool],
        *,
        in_line: bool = False,
    ) -> Iterator[tuple[Item, Any]]:
        """Each item with what its write has given, or with its ApiError, in this order. may_go_on: asked before each
        write is begun; what has begun is waited for. in_line: one after another, so none overtakes any."""
        under_way: deque[tuple[Item, Future[Any]]] = deque()
        for item in items:
            if not may_go_on():
                break
            under_way.append((item, self._pool.submit(write, item)))
            if in_line or len(under_way) == self._at_once:
                yield _ended(*under_way.popleft())
        while under_way:
            yield _ended(*under_way.popleft())

    @property
    def is_free(self) -> bool:
        """Whether something may be done beside."""
        return self._beside is None or not self._beside.is_alive()

    def beside(self, act: Callable[[], None]) -> None:
        """Do this in a thread of its own, where `is_free`: nobody waits for it."""
        self._beside = threading.Thread(target=act, name="egs-beside", daemon=True)
        self._beside.start()

    def close(self) -> None:
        """What has begun is waited for."""
        self._pool.shutdown()
        if self._beside is not None:
            self._beside.join()


def _ended(item: Item, future: Future[Any]) -> tuple[Item, Any]:
    try:
        return item, future.result()
    except ApiError as error:
        return item, error
