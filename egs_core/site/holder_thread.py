"""The thread on which a holder is called: the actions given to it run in turn, never two at once."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
CLOSED = "the site is closed"


class HolderThread:
    """See the module. is_lost: whether the site is, so that what fails is no news; lose: called on the thread with the
    fault of an action: the holder's own ends EGS too, not the pipeline."""

    def __init__(self, is_lost: Callable[[], bool], lose: Callable[[BaseException], None]) -> None:
        self._is_lost, self._lose = is_lost, lose
        self._actions: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="egs-holder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_here(self) -> bool:
        """Whether the caller is on it."""
        return threading.current_thread() is self._thread

    def do(self, action: Callable[[], None]) -> None:
        """See `Site.do`."""
        self._actions.put(action)

    def call(self, action: Callable[[], T], timeout_s: float) -> T:
        """See `Site.call`."""
        return action() if self.is_here else value_of(action, self.do, lambda: self.is_alive, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Run what was given before, then end."""
        self._actions.put(None)
        if self.is_alive and not self.is_here:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (action := self._actions.get()) is not None:
            if self._is_lost():
                with contextlib.suppress(Exception):
                    action()
                continue
            try:
                action()
            except BaseException as error:
                self._lose(error)


def value_of(
    action: Callable[[], T], do: Callable[[Callable[[], None]], None], runs: Callable[[], bool], timeout_s: float
) -> T:
    """The value of an action that `do` runs elsewhere, or what it raises. runs: whether it still does so. Raises
    TimeoutError."""
    answer: Future[T] = Future()

    def settle() -> None:
        try:
            answer.set_result(action())
        except Exception as error:
            answer.set_exception(error)

    do(settle)
    if not runs():
        raise TimeoutError(CLOSED)
    return answer.result(timeout_s)
