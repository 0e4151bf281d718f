"""When deadlines, and promises at risk, change the place of queued phases."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from egs_core.engine.order.timers import Timers
from egs_core.engine.rules.deadlines import NO_DEADLINE, Window, window_of
from egs_core.engine.rules.promises import PROMISED, windows_of
from egs_core.engine.state.columns import Columns


class Urgency:
    """See the module. keys: the queued phases; members: which start together with one. heeds_promises: of a policy that
    bounds by itself how long others wait for what goes first."""

    def __init__(
        self,
        state: Columns,
        keys: dict[int, tuple[float, ...]],
        members: Callable[[int], Sequence[int]],
        *,
        heeds_promises: bool,
    ) -> None:
        self._heeds_promises = heeds_promises
        self._state = state
        self._keys = keys
        self._members = members
        self.timers = Timers(self._next_change)

    def term(self, phase: int) -> float:
        """The deadline term of a queued phase, now: what has a deadline goes before what has a promise."""
        now, members = self._state.now, self._members(phase)
        window = window_of(self._state, members)
        if window is not None and window.is_open(now):
            return window.term(now)
        return PROMISED if any(one.is_open(now) for one in self.promised(members)) else NO_DEADLINE

    def promised(self, phases: Sequence[int]) -> Sequence[Window]:
        """When phases that start together go first for a promise."""
        return windows_of(self._state, phases) if self._heeds_promises else ()

    def changed(self, now: float) -> list[int]:
        """The queued phases whose moment has come."""
        found = [phase for phase in self.timers.take(now) if phase in self._keys]
        for phase in found:
            self.timers.enter(phase)
        return found

    def _next_change(self, phase: int) -> float | None:
        if phase not in self._keys:
            return None
        now, members = self._state.now, self._members(phase)
        window = window_of(self._state, members)
        windows = [*self.promised(members), *([] if window is None else [window])]
        changes = [change for one in windows if (change := one.next_change(now)) is not None]
        return min(changes, default=None)
