"""When deadlines change the place of queued phases."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from egs_core.engine.order.timers import Timers
from egs_core.engine.rules.deadlines import NO_DEADLINE, window_of
from egs_core.engine.state.columns import Columns


class Urgency:
    """See the module. keys: the queued phases; members: which start together with one."""

    def __init__(self, state: Columns, keys: dict[int, tuple[float, ...]], members: Callable[[int], Sequence[int]]):
        self._state = state
        self._keys = keys
        self._members = members
        self.timers = Timers(self._next_change)

    def term(self, phase: int) -> float:
        """The deadline term of a queued phase, now."""
        window = window_of(self._state, self._members(phase))
        return NO_DEADLINE if window is None else window.term(self._state.now)

    def changed(self, now: float) -> list[int]:
        """The queued phases whose moment has come."""
        found = [phase for phase in self.timers.take(now) if phase in self._keys]
        for phase in found:
            self.timers.enter(phase)
        return found

    def _next_change(self, phase: int) -> float | None:
        window = window_of(self._state, self._members(phase)) if phase in self._keys else None
        return None if window is None else window.next_change(self._state.now)
