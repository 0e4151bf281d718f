"""Gangs that wait: ready members are gathered until none is missing; then the gang is queued as one phase."""

from __future__ import annotations

from egs_core.engine.rules.gangs import index_of, missing_members
from egs_core.engine.state.state import State


class Gathering:
    """See the module. arrived: gang -> ready phases of its members; leaders: gang -> the phase under which it is
    queued."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.arrived: dict[int, set[int]] = {}
        self.leaders: dict[int, int] = {}

    def clear(self) -> None:
        self.arrived.clear()
        self.leaders.clear()

    def gang_of(self, phase: int) -> int | None:
        """The gang of the phase's task."""
        state = self._state
        return state.gang_of.get(state.task_of[phase]) if state.gang_of else None

    def arrive(self, gang: int, phase: int) -> None:
        """A member is ready."""
        self.arrived.setdefault(gang, set()).add(phase)

    def leave(self, gang: int, phase: int) -> bool:
        """A member waits no more; whether it did."""
        arrived = self.arrived.get(gang, set())
        was_there = phase in arrived
        arrived.discard(phase)
        return was_there

    def settle(self, gang: int) -> tuple[int | None, int | None]:
        """A member has arrived, left or ended: the phase under which the gang is queued no more, and the one under
        which it is from now on."""
        arrived, leader = self.arrived.get(gang, set()), None
        if arrived:
            index = min(index_of(self._state, p) for p in arrived)
            if not missing_members(self._state, gang, index, arrived):
                leader = min(p for p in arrived if index_of(self._state, p) == index)
        before = self.leaders.get(gang)
        if before == leader:
            return None, None
        if leader is None:
            del self.leaders[gang]
        else:
            self.leaders[gang] = leader
        return before, leader

    def start(self, gang: int, leader: int) -> None:
        """What has waited behind the leader starts."""
        del self.leaders[gang]
        index = index_of(self._state, leader)
        self.arrived[gang] = {p for p in self.arrived[gang] if index_of(self._state, p) != index}

    def members(self, phase: int) -> tuple[int, ...]:
        """The phases that start together with this one: itself, or those of the gang that it leads."""
        gang = self.gang_of(phase)
        if gang is None or self.leaders.get(gang) != phase:
            return (phase,)
        index = index_of(self._state, phase)
        return tuple(sorted(p for p in self.arrived[gang] if index_of(self._state, p) == index))

    def leader_of(self, phase: int) -> int:
        """The phase under which this one is queued: itself, or its gang's leader."""
        gang = self.gang_of(phase)
        return phase if gang is None else self.leaders.get(gang, phase)
