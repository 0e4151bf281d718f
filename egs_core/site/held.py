"""Which GPUs the tasks of a pool hold, from when to when: told of each when it has them no longer.

    grant ─────── start ──────────── end        held: grant to end; used: from the start of its phase on
      └ held ───────┴─ held and used ─┘

Follows an engine event by event, at a few steps each; what it cannot follow it sees by the number of leases, and looks
at all. It touches no clock, thread or network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from egs_core.engine import messages as m
from egs_core.engine.state.lifecycle import RUNNING
from egs_core.engine.state.nodes import NOT_STARTED
from egs_core.engine.state.state import State
from egs_core.site.spanning import on_node

MILLI = 1000


class Owner(Protocol):
    """A driver."""

    @property
    def user(self) -> str: ...

    @property
    def team(self) -> str: ...

    @property
    def framework(self) -> str: ...


class Held(msgspec.Struct):
    """Moments are of the engine's clock. task: workload and task, as its driver has them; place: NODE, or NODE/FLAVOR
    where the flavor has a name of its own; used_since: None while its phase has not started; until: None while it is
    held."""

    owner: Owner
    task: tuple[str, str]
    decision: int
    place: str
    gpus: float
    since: float
    used_since: float | None = None
    until: float | None = None


class Counter(Protocol):
    """Whoever adds it up."""

    def has_held(self, part: Held) -> None:
        """It is over."""

    def counted_until(self, part: Held) -> float:
        """Until when the same task was counted, of a driver that was there before; minus infinity for not."""


class Holdings:
    """See the module. owner_of: of a task, None for nobody's, which is left out."""

    def __init__(self, state: State, owner_of: Callable[[int], Owner | None], counter: Counter) -> None:
        self._state, self._owner_of, self._counter = state, owner_of, counter
        self._known: dict[int, Held | None] = {}  # by phase; None for what holds no GPU

    def after(self, event: m.Event, decisions: Iterable[m.Decision], now: float) -> None:
        """The engine has handled this event, and decided that."""
        for one in decisions:
            if isinstance(one, m.Grant):
                self._look(one.phase, now)
        if isinstance(event, (m.PhaseStarted, m.PhaseEnded)):
            self._look(event.phase, now)
        if len(self._known) != len(self._state.leases):
            for phase in {*self._known, *self._state.leases}:
                self._look(phase, now)

    def open(self) -> list[Held]:
        """What is held."""
        return [one for one in self._known.values() if one is not None]

    def close(self, now: float) -> None:
        """The pool is no more."""
        for phase in list(self._known):
            self._end(phase, now)

    def _look(self, phase: int, now: float) -> None:
        lease, known = self._state.leases.get(phase), self._known.get(phase)
        if phase in self._known and (lease is None or (known is not None and known.decision != lease.decision)):
            self._end(phase, now)
        if lease is None:
            return
        is_running = self._state.status[phase] == RUNNING
        if phase not in self._known:
            known = self._known[phase] = self._begun(phase, now, is_running=is_running)
        if known is not None and known.used_since is None and is_running:
            known.used_since = max(known.since, self._state.started_at[phase])

    def _begun(self, phase: int, now: float, *, is_running: bool) -> Held | None:
        """What has begun elsewhere, and was told of when it ran, is held since then."""
        state = self._state
        lease, owner = state.leases[phase], self._owner_of(state.task_of[phase])
        milli = lease.gpu_milli * len(lease.devices)
        if not milli or owner is None:
            return None
        started_at = state.started_at[phase]
        place = next(on_node(state.nodes[lease.node], lease.devices, milli))[0]
        task = state.task_of[phase]
        named = state.workloads[state.task_workload[task]].name, state.task_ids[task]
        found = Held(owner, named, lease.decision, place, milli / MILLI, now)
        if is_running and started_at != NOT_STARTED and started_at < now:
            found.since = min(now, max(started_at, self._counter.counted_until(found)))
        return found

    def _end(self, phase: int, now: float) -> None:
        known = self._known.pop(phase)
        if known is not None:
            known.until = now
            self._counter.has_held(known)
