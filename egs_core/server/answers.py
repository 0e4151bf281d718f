"""The writer's answers on their way to the event loop: all that are there by then with one call, as they are of one
commit."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any


class Answers:
    """`told` is called on the writer's thread, everything else on the loop's, of which there is one.

    is_due: the loop has been called and has not begun to look: what is put there until then needs no other call."""

    def __init__(self) -> None:
        self._there: deque[tuple[asyncio.Future[Any], Any]] = deque()
        self._is_due = False

    def told(self, future: asyncio.Future[Any], answer: Any) -> None:
        """The answer, or the exception, for who waits for this."""
        self._there.append((future, answer))
        if not self._is_due:
            self._is_due = True
            with suppress(RuntimeError):  # the loop has ended
                future.get_loop().call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._is_due = False  # first: what comes from now on may come too late for this call
        while self._there:
            future, answer = self._there.popleft()
            if future.done():
                continue  # nobody waits any more
            if isinstance(answer, StopIteration):  # which no future takes
                wrapped = RuntimeError(f"StopIteration: {answer}")
                wrapped.__cause__ = answer
                future.set_exception(wrapped)
            elif isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)
