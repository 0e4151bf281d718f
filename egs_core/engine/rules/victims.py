"""Who must stop so that another may start: reclaim of lent quota, priorities that users set by hand, and age.

    for whom                                                    whom, the first kinds first
    anybody within quota                                        what has reached a usage limit
    a queue within its nominal quota                            queues of its cohort that have borrowed
    a task of higher priority, in the same queue (or none)      tasks of lower priority
    a task past its `max_wait`, in the same queue               tasks of equal priority that nothing waits for

Within a kind the lowest priority goes first, then the least work lost since it started or last saved a checkpoint; of
equal ones the latest to start. A learned rank never stops anybody: `max_wait` is the user's word. A gang is stopped
as a whole, so only when every member may be. What is freed is reserved for whoever it was freed for, from now on, and
a task that has been stopped often enough is left alone (no thrash). How few are enough is found by `minimal_victims`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from egs_core.engine.rules import quota
from egs_core.engine.rules.fit import Place
from egs_core.engine.rules.minimal_victims import Unit, minimal_victims, room_without
from egs_core.engine.specs import NO_QUEUE, Amounts
from egs_core.engine.state.lifecycle import HOLDS_LEASE, RUNNING
from egs_core.engine.state.state import State

MOST_PREEMPTIONS = 3  # of one task
LIMIT, RECLAIM, PRIORITY, AGE = "limit", "reclaim", "priority", "age"


class Victims(NamedTuple):
    """kind: the last resort among the kinds that were needed. tasks: whom to stop. places: where there is room then."""

    kind: str
    tasks: list[int]
    places: list[Place]


class RunningTasks:
    """What may be stopped, by queue; put in order when asked for, once for all that wait at one moment."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._tasks: dict[int, list[int]] | None = None  # that run, by queue
        self._ordered: dict[int, list[Unit]] = {}

    def of_queue(self, number: int) -> list[Unit]:
        """Those of a queue, in the order in which they would be stopped."""
        state = self._state
        if number not in self._ordered:
            units = {with_gang(state, task): None for task in sorted(self._running(number))}
            self._ordered[number] = sorted(units, key=lambda unit: _loss_order(state, unit))
        return [unit for unit in self._ordered[number] if may_be_stopped(state, unit)]

    def has_lower(self, number: int, priority: int) -> bool:
        """Whether something of a lower priority runs in the queue."""
        options = self._state.options
        least = [options[t].priority if t in options else 0 for t in self._running(number)]
        return bool(least) and min(least) < priority

    def _running(self, number: int) -> list[int]:
        if self._tasks is None:
            self._tasks, state = {}, self._state
            for phase in state.leases:
                task = state.task_of[phase]
                if state.status[phase] == RUNNING and state.options_of(task).may_restart:
                    self._tasks.setdefault(state.queue_of(task), []).append(task)
        return self._tasks.get(number, [])


def with_gang(state: State, task: int) -> Unit:
    """The task, or all of its gang that hold something."""
    gang = state.gang_of.get(task) if state.gang_of else None
    if gang is None:
        return (task,)
    return tuple([t for t in state.gangs[gang].members if state.status[state.cursor[t]] in HOLDS_LEASE])


def may_be_stopped(state: State, unit: Unit) -> bool:
    """Not about to end anyway, not stopped too often before, and all of it may start anew."""
    return all(
        t not in state.recalled
        and t not in state.stopping
        and state.attempt[t] <= MOST_PREEMPTIONS
        and state.options_of(t).may_restart
        for t in unit
    )


def priority_of(state: State, unit: Sequence[int]) -> int:
    """The highest of its members: one that may not be stopped keeps its gang."""
    return max([state.options_of(t).priority for t in unit])


def _loss_order(state: State, unit: Unit) -> tuple[int, float, float, int]:
    lost_s = sum([state.lost_work_s(t) for t in unit])
    return priority_of(state, unit), lost_s, -state.started_at[state.cursor[unit[0]]], unit[0]


def select_victims(
    state: State, phases: Sequence[int], number: int, running: RunningTasks, is_overdue: bool = False
) -> Victims | None:
    """The tasks to stop, fewest first, so that these phases (one, or a gang's) of queue `number` fit; None when that
    may or can not be done, or what is being stopped already is enough. is_overdue: they wait longer than `max_wait`."""
    wanted = quota.demand(state, phases)
    candidates = _candidates(state, phases, number, wanted, running, is_overdue)
    if not candidates or room_without(state, phases, number, wanted, ()) is not None:
        return None
    kinds = {unit: kind for kind, unit in reversed(candidates)}  # each by the first kind that it is
    found = minimal_victims(state, phases, number, wanted, list(dict.fromkeys([unit for _, unit in candidates])))
    if not found:
        return None
    order = (LIMIT, RECLAIM, PRIORITY, AGE)
    places = room_without(state, phases, number, wanted, found) or []
    return Victims(max([kinds[u] for u in found], key=order.index), [t for unit in found for t in unit], places)


def _candidates(
    state: State, phases: Sequence[int], number: int, wanted: Amounts, running: RunningTasks, is_overdue: bool
) -> list[tuple[str, Unit]]:
    priority = priority_of(state, [state.task_of[p] for p in phases])
    over = {with_gang(state, t): None for t in sorted(state.over_limit) if state.cursor[t] in state.leases}
    found = [(LIMIT, unit) for unit in over if may_be_stopped(state, unit)]
    found += [(RECLAIM, unit) for unit in _borrowers(state, number, wanted, running)]
    if running.has_lower(number, priority):
        found += [(PRIORITY, u) for u in running.of_queue(number) if priority_of(state, u) < priority]
    if is_overdue and number != NO_QUEUE:
        equal = [u for u in running.of_queue(number) if priority_of(state, u) == priority]
        found += [(AGE, unit) for unit in equal if not any(state.children[t] for t in unit)]
    return found


def _borrowers(state: State, number: int, wanted: Amounts, running: RunningTasks) -> list[Unit]:
    """What runs in other queues of the cohort, as much of each as it uses more than its nominal quota, if this queue
    would not."""
    if number == NO_QUEUE or quota.borrows(state.queues[number], wanted):
        return []
    found = []
    for owner in state.queues[number].cohort:
        borrowed = _borrowed(state, owner, wanted) if owner != number else 0
        for unit in running.of_queue(owner) if borrowed > 0 else ():
            if borrowed <= 0:
                break
            found.append(unit)
            held = quota.demand(state, [state.cursor[t] for t in unit])
            borrowed -= max(amount for amount, asked in zip(held, wanted, strict=True) if asked)
    return sorted(found, key=lambda unit: _loss_order(state, unit))


def _borrowed(state: State, number: int, wanted: Amounts) -> int:
    """The most that the queue uses beyond nominal of a kind that is wanted, wherever it does."""
    queue = state.queues[number]
    kinds = zip(wanted, queue.spec.nominal, strict=True)
    return max((queue.total(kind) - nominal for kind, (amount, nominal) in enumerate(kinds) if amount), default=0)
