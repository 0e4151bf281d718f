"""How far the tasks of a driver are that tell it, and which devices they have: the latest of each, until it ends or
starts again. Pure."""

from __future__ import annotations

from typing import NamedTuple

from egs_core.engine.state.lifecycle import ENDED
from egs_core.engine.state.state import State
from egs_core.site.messages import Placed, Where

LEAST_KEPT = 1000  # so many may have ended before it is looked which have


class Told(NamedTuple):
    """at: when its code told it, by the pool's clock; attempt: in which."""

    where: Where
    attempt: int
    at: float


class Has(NamedTuple):
    """devices: by their UUIDs; phase: in which it holds them."""

    devices: tuple[str, ...]
    attempt: int
    phase: int


class Whereabouts:
    """See the module. state: of the pool's engine."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._told: dict[int, Told] = {}  # who told last is last
        self._has: dict[int, Has] = {}
        self._most = LEAST_KEPT

    def note(self, where: Where, now: float) -> None:
        """A task of the driver's has told."""
        task = where.task
        if not self._has_ended(task):
            self._told.pop(task, None)
            self._told[task] = Told(where, self._state.attempt[task], now - where.ago_s)
            self._prune()

    def place(self, placed: Placed) -> None:
        """A task of the driver's has devices."""
        task = placed.task
        if not self._has_ended(task):
            self._has[task] = Has(placed.devices, self._state.attempt[task], self._state.cursor[task])
            self._prune()

    def of(self, task: int) -> Told | None:
        """What it has told in this attempt; None: nothing."""
        told = self._told.get(task)
        return told if told is not None and self._is_current(task, told) else None

    def devices_of(self, task: int) -> tuple[str, ...]:
        """Those that it has in its present phase; () where nobody has said."""
        has = self._has.get(task)
        is_known = has is not None and self._is_current(task, has) and has.phase == self._state.cursor[task]
        return has.devices if has is not None and is_known else ()

    def latest(self, most: int) -> list[tuple[int, Told]]:
        """The tasks that have told last, the last one first."""
        found = list[tuple[int, Told]]()
        for task in list(reversed(self._told)):
            if len(found) == most:
                break
            told = self._told[task]
            if self._is_current(task, told):
                found.append((task, told))
            else:
                del self._told[task]
        return found

    def _prune(self) -> None:
        if max(len(self._told), len(self._has)) > self._most:
            self._told = {task: told for task, told in self._told.items() if self._is_current(task, told)}
            self._has = {task: has for task, has in self._has.items() if self._is_current(task, has)}
            self._most = max(LEAST_KEPT, 2 * max(len(self._told), len(self._has)))

    def _is_current(self, task: int, known: Told | Has) -> bool:
        return known.attempt == self._state.attempt[task] and not self._has_ended(task)

    def _has_ended(self, task: int) -> bool:
        return self._state.status[self._state.cursor[task]] in ENDED
