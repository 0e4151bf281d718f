"""A site's reservations, over what its runs hold now: whether a run may have what it wants, or has been granted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from egs_core.calendar import Reservation, Window
from egs_core.engine import Engine
from egs_core.server.hosts import OWN
from egs_core.server.keeping import Calendar, Held, Wish, ends_at, keeps_out
from egs_core.server.runs import Run
from egs_core.server.views import Views


class Reserve:
    """Of the server's own host. by_task: the runs that the engine knows; look_at: when those that are kept out are to
    be looked at again."""

    def __init__(self, engine: Engine, views: Views, by_task: Mapping[int, Run], epoch: float) -> None:
        self._engine, self._views, self._by_task, self._epoch = engine, views, by_task, epoch
        self.calendar, self.look_at = Calendar(), 0.0

    def set(self, reservations: tuple[Reservation, ...]) -> None:
        self.calendar = Calendar(reservations)

    @property
    def wall(self) -> float:
        """Now, in seconds since 1970."""
        return self._epoch + self._views.clock()

    @property
    def usable(self) -> int:
        """How many devices anybody may have."""
        node = self._views.node_of(OWN)
        return len(self._views.devices) - len({*(node.drained if node else ()), *self._views.occupied})

    def holding(self) -> list[Run]:
        """The runs that have devices."""
        state = self._engine.state
        found = [self._by_task[state.task_of[phase]] for phase in state.leases]
        return [run for run in found if run.host == OWN and run.lease is not None and run.lease.devices]

    def held_of(self, run: Run) -> Held:
        devices = run.lease.devices if run.lease else ()
        return Held(run.queue, devices, self.wall if run.stop else self._epoch + ends_at(run, self._views.clock()))

    def keeps_out(self, runs: Sequence[Run]) -> Window | None:
        """What is kept for others so that these, of one queue, may not start together now, or have what they have."""
        near = self.calendar.near(self.wall)
        own = [run for run in runs if run.host == OWN and run.gpus] if near else []
        if not own:
            return None
        more = sum(ceil(run.gpus) for run in own if run.lease is None)
        until = self._epoch + max(ends_at(run, self._views.clock()) for run in own)
        held = [self.held_of(run) for run in self.holding()]
        return keeps_out(near, held, self.usable, Wish(own[0].queue, more, until), self.wall)

    def next_change(self) -> float | None:
        """When something begins or ends to be kept, of the site's clock; None where that is not soon."""
        at = self.calendar.next_change(self.wall)
        return None if at is None else at - self._epoch
