"""What has been refused the only room that there is for it, because that room is kept for others, while nothing can
have changed it: most of what ends, ends elsewhere, and then nobody need ask again.

    node n0   |#####a#####|=======|      kept for b from the end of a on
    c         would fit beside a, and run longer than a: refused, and so it is until a ends or outlives its estimate

A refusal holds until something starts or ends on a node where room is kept, a reservation comes or goes, or anything is
told but starts and ends. It follows from the state; decisions are the same without it (a test).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from egs_core.engine.state.lifecycle import RUNNING
from egs_core.engine.state.state import State


class Refusals:
    """See the module. kept: the nodes where room is kept. owners: those for whom it is that are bound to their node and
    do not fit there yet."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.kept: frozenset[int] = frozenset()
        self.owners: set[int] = set()
        self._kept_bits = 0  # `kept`, with a bit for each node
        self._phases: set[int] = set()
        self._until = -inf  # so long what holds leases on these nodes is known to run as believed

    def reservations_changed(self, kept: Iterable[int]) -> None:
        """Room is kept on these nodes, or for others."""
        self.kept = frozenset(kept)
        self._kept_bits = sum(1 << number for number in self.kept)
        self.forget()

    def forget(self) -> None:
        """Anything may be given a place."""
        self.owners.clear()
        self._phases.clear()

    def add(self, phase: int, with_room: int) -> None:
        """A task of one phase without wishes has been refused. with_room: nodes where it would fit, as bits."""
        if with_room & ~self._kept_bits:
            return
        if not self._phases:
            self._until = self._steady_until()
        if self._state.now < self._until:
            self._phases.add(phase)

    def holds(self, phase: int, with_room: int) -> bool:
        """Whether the phase would be refused again. with_room: as in `add`."""
        return phase in self._phases and not with_room & ~self._kept_bits and self._state.now < self._until

    def _steady_until(self) -> float:
        """When the first on these nodes has outlived its 95th percentile, and then is taken to end later; at once while
        one has not started, or is being stopped: its end moves."""
        state, until = self._state, inf
        for phase in [phase for number in self.kept for phase in state.leased_on.get(number, ())]:
            if state.status[phase] != RUNNING or state.task_of[phase] in state.recalled:
                return -inf
            until = min(until, state.started_at[phase] + state.estimate_p95_s[phase])
        return until
