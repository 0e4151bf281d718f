"""A reservation is firm: what was let past it and stays longer than was believed is stopped when it is due.

    made          at
     :  |====P95:-----------          backfilled after it was made, and outlived its estimate: stopped
     |==========:=======P95           there when it was made: waited for
     :  |==P95--:------               the same as the first, but the gang fits without: left alone

Only under `EngineConfig.preempt`, and only when that lets the owner start.
"""

from __future__ import annotations

from collections.abc import Iterator

from egs_core.engine.rules import quota
from egs_core.engine.rules.minimal_victims import Unit, minimal_victims, room_without
from egs_core.engine.rules.victims import may_be_stopped, priority_of, with_gang
from egs_core.engine.state.lifecycle import READY, RUNNING
from egs_core.engine.state.state import State


def select_overruns(state: State, owner: int) -> list[int]:
    """The tasks to stop so that the owner of a reservation that is due can start; none when that is not enough, or
    when what is being stopped already is."""
    kept = state.reservations[owner]
    phases = [phase for phase, _ in kept.places]
    if kept.at > state.now or any(state.status[p] != READY for p in phases):
        return []
    priority = priority_of(state, [state.task_of[p] for p in phases])
    units: dict[Unit, None] = {}
    for phase, end_s in sorted(_let_past(state, owner)):
        unit = with_gang(state, state.task_of[phase])
        if end_s <= state.now and may_be_stopped(state, unit) and priority_of(state, unit) <= priority:
            units[unit] = None
    number = state.queue_of(state.task_of[owner])
    wanted = quota.demand(state, phases)
    if not units or room_without(state, phases, number, wanted, ()) is not None:
        return []
    in_order = sorted(units, key=lambda unit: (sum([state.lost_work_s(t) for t in unit]), unit))
    return [task for unit in minimal_victims(state, phases, number, wanted, in_order) for task in unit]


def next_overrun_s(state: State) -> float | None:
    """When to look again: the next moment at which something outlives its estimate in the way of a reservation."""
    times = [
        max(kept.at, end_s)
        for owner, kept in state.reservations.items()
        for _, end_s in _let_past(state, owner)
        if max(kept.at, end_s) > state.now
    ]
    return min(times, default=None)


def _let_past(state: State, owner: int) -> Iterator[tuple[int, float]]:
    """Running first phases that started after the reservation was made, where it is kept, with the latest time at
    which they were believed to end."""
    kept = state.reservations[owner]
    nodes = {node for _, node in kept.places}
    for phase in (p for node in nodes for p in state.leased_on.get(node, ())):
        if state.leases[phase].decision >= kept.since and state.status[phase] == RUNNING:
            task = state.task_of[phase]
            if state.first_phase[task] == phase:
                longest_s = state.estimate_p95_s[phase] + state.options_of(task).warmup_s
                yield phase, state.started_at[phase] + longest_s
