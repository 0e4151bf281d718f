"""What was put aside (`egs run --suspend`) goes on only on the GPUs that it was on, so it waits for these. Pure.

    runs on GPU 3 for 600 s ─► put aside ─► waits for GPU 3 alone, 600 s at most ─► waits for any, to begin anew there

By then the wait has cost as much as beginning anew does, so it never costs more than twice that (decision 176).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from egs_core.engine import Engine
from egs_core.engine import messages as m
from egs_core.server.runs import NOT_ADMITTED, Aside, Run
from egs_core.server.views import Views

Place = tuple[str, tuple[int, ...]]


class Asides:
    """Of a site's runs. runs: those that are open. waiting: those that may still have their own GPUs only."""

    def __init__(self, engine: Engine, views: Views, runs: Iterable[Run]) -> None:
        self._engine, self._views = engine, views
        self._waiting = {run.id: run for run in runs if run.aside is not None and run.lease is None}

    def left(self, run: Run, now: float, *, is_aside: bool) -> None:
        """It has left the GPUs of its lease. is_aside: it can go on there."""
        before, run.aside = run.aside, None
        self._waiting.pop(run.id, None)
        if is_aside and run.lease is not None and run.lease.devices and run.started_at is not None:
            of_host = self._views.devices_of(run.host)
            ids = tuple([of_host[number].id for number in run.lease.devices])
            ran_s = now - run.started_at
            if before is not None and set(before.devices) == set(ids):  # it had gone on where it was
                ran_s += before.ran_s
            run.aside = Aside(ids, ran_s, now + ran_s)
            self._waiting[run.id] = run

    def over(self, run: Run) -> None:
        """It has ended."""
        self._waiting.pop(run.id, None)

    def place(self, run: Run, now: float) -> Place | None:
        """The engine's name of its host and the numbers of its GPUs there, the only ones that it may have now; None for
        any: also where one of them is there no more, or is drained."""
        aside, node = run.aside, self._views.node_of(run.host)
        if aside is None or node is None or now >= aside.until:
            return None
        ids = [device.id for device in self._views.devices_of(run.host)]
        numbers = tuple([ids.index(one) for one in aside.devices if one in ids])
        is_there = len(numbers) == len(aside.devices) and not set(numbers) & set(node.drained)
        return (node.name, numbers) if is_there else None

    def changed(self, run: Run, now: float) -> m.DevicesAllowed | None:
        """What the engine, which knows the run, is to be told of that."""
        place = self.place(run, now)
        if place == self._engine.state.options_of(run.task).only_on:
            return None
        return m.DevicesAllowed(run.task, *(place or ()))

    def tell(self, runs: Iterable[Run], now: float, handle: Callable[[m.Event], None]) -> None:
        """The engine is told of those that it knows what it does not know yet."""
        for run in runs:
            event = self.changed(run, now) if run.is_open and run.task != NOT_ADMITTED else None
            if event is not None:
                handle(event)

    def waiting(self) -> list[Run]:
        return list(self._waiting.values())

    def due(self, now: float) -> list[Run]:
        """Those that may have any from now on; each is told once."""
        due = [run for run in self._waiting.values() if run.aside is None or run.aside.until <= now]
        for run in due:
            del self._waiting[run.id]
        return due

    def next_due(self) -> float | None:
        """When `due` has to be asked next."""
        return min((run.aside.until for run in self._waiting.values() if run.aside is not None), default=None)
