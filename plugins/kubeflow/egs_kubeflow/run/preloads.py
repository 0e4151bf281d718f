"""Processes that load what a task will need, before it is the task's turn.

    Preload ─► a thread: park a process ─► it has loaded: PreloadReady, or PreloadFailed
    Grant ───► the task runs in it; where it still loads, the task's thread waits for that
    DropPreload, or the task will never run ─► it ends

Each task has a process of its own, as in a cluster: one that has run a task serves no other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from egs_core import site as s
from egs_core.engine import messages as m
from egs_core.notices import warn_once
from egs_kubeflow.run.forked import Parked, Starter
from egs_kubeflow.run.loads import Loads

LOADS_WITHIN_S = 120.0
"""A process that has not loaded by then is given up, and its task starts without."""


class Ahead:
    """The process of one task, from any thread; `take` or `drop` it once."""

    def __init__(self, starter: Starter, loads: Loads, tell: Callable[[Ahead], None]) -> None:
        self._starter, self._loads, self._tell = starter, loads, tell
        self._found: Future[Parked | None] = Future()
        self._loading: Parked | None = None
        self._is_given_up = False
        self.seconds = 0.0
        threading.Thread(target=self._load, name="egs-preload", daemon=True).start()

    @property
    def is_over(self) -> bool:
        """Whether it has loaded, or failed."""
        return self._found.done()

    @property
    def is_warm(self) -> bool:
        """Whether it has loaded."""
        return self._found.done() and self._found.result() is not None

    def take(self) -> Parked | None:
        """The process, when it has loaded; None where there is none."""
        return self._found.result()

    def give_up(self) -> None:
        """Wait for it no longer, if it still loads."""
        self._is_given_up = True
        if self._loading is not None and not self._found.done():
            self._loading.kill()

    def drop(self) -> None:
        """It is not needed."""
        self.give_up()
        self._found.add_done_callback(_drop)

    def _load(self) -> None:
        parked, seconds = None, None
        try:
            loads = self._loads
            parked = self._loading = self._starter.park(loads.modules, loads.files, loads.recorder)
            if parked is not None and self._is_given_up:
                parked.kill()
            seconds = parked.wait(LOADS_WITHIN_S) if parked is not None else None
            if parked is not None and seconds is None:
                parked.drop()
                parked = None
        except (OSError, ValueError) as error:
            warn_once(f"nothing is preloaded: {error}")
        self.seconds = seconds or 0.0
        for place in parked.lacks if parked is not None else ():
            warn_once(f"preload: {(*self._loads.modules, *self._loads.files)[place]} could not be loaded")
        self._found.set_result(parked)
        self._tell(self)


def _drop(found: Future[Parked | None]) -> None:
    if (parked := found.result()) is not None:
        parked.drop()


class Preloads:
    """Those of a run; on the site's thread for its holder. learned: is told of a task's kind and how long it took."""

    def __init__(self, site: s.Site, starter: Starter, learned: Callable[[str, float], None]) -> None:
        self._site, self._starter, self._learned = site, starter, learned
        self._ahead: dict[int, Ahead] = {}  # by the task's number

    def begin(self, decision: m.Preload, kind: str, loads: Loads) -> None:
        """Make a process for a task; one that is there from before serves it."""
        number = decision.task
        self._site.note(s.PreloadBegun(decision))
        if (there := self._ahead.get(number)) is not None:
            if there.is_over:
                self._over(number, kind, there)
            return

        def tell(ahead: Ahead) -> None:
            self._site.do(lambda: self._over(number, kind, ahead))

        self._ahead[number] = Ahead(self._starter, loads, tell)

    def take(self, number: int) -> Ahead | None:
        """The process of a task that starts."""
        ahead = self._ahead.pop(number, None)
        if ahead is not None:
            self._site.note(s.PreloadOver(number, "used"))
        return ahead

    def drop(self, number: int) -> None:
        """The task's process is not needed."""
        ahead = self._ahead.pop(number, None)
        if ahead is not None:
            self._site.note(s.PreloadOver(number, "unused"))
            ahead.drop()

    def drop_all(self) -> None:
        """Nothing more starts."""
        for number in list(self._ahead):
            self.drop(number)

    def _over(self, number: int, kind: str, ahead: Ahead) -> None:
        if self._ahead.get(number) is not ahead:
            return  # its task has begun, or is over
        if ahead.is_warm:
            self._learned(kind, ahead.seconds)
            self._site.note(s.PreloadOver(number, "warm"))
            self._site.report(m.PreloadReady(number))
        else:
            del self._ahead[number]
            self._site.note(s.PreloadOver(number, "failed"))
            self._site.report(m.PreloadFailed(number))
