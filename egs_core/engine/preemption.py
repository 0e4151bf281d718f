"""Who must stop so that another may start: reclaim of lent quota, and priorities that users set by hand.

    for whom                                                    whom
    a queue within its nominal quota                            queues of its cohort that have borrowed
    a task of higher priority, in the same queue (or none)      tasks of lower priority

Order among victims: those on borrowed quota, then lower priority, then with the least work lost since they started or
last saved a checkpoint; of equal ones the latest to start. A learned rank never stops anybody. What is freed is
reserved for whoever it was freed for, from now on, and a task that has been stopped often enough is left alone (no
thrash).
"""

from __future__ import annotations

from collections.abc import Sequence

from egs_core.engine import quota
from egs_core.engine.lifecycle import RUNNING
from egs_core.engine.reservation import select_gang_after
from egs_core.engine.state import State

MOST_PREEMPTIONS = 3  # of one task
RECLAIM, PRIORITY = "reclaim", "priority"


def select_victims(state: State, phases: Sequence[int], number: int) -> tuple[str, list[int]] | None:
    """The kind of preemption and the tasks to stop, fewest first, so that these phases (one, or a gang's) of queue
    `number` fit; None when that may or can not be done."""
    wanted = quota.total([state.shapes[state.shape[p]] for p in phases])
    for kind, candidates in (
        (RECLAIM, _borrowers(state, number, wanted)),
        (PRIORITY, _lower(state, phases[0], number)),
    ):
        victims = _enough_of(state, phases, number, wanted, candidates)
        if victims:
            return kind, victims
    return None


def _borrowers(state: State, number: int, wanted: quota.Amounts) -> list[int]:
    """Running tasks of other queues of the cohort, as many of each as it uses more than its nominal quota, if this
    queue would not."""
    if number == quota.NO_QUEUE or quota.borrows(state.queues[number], wanted):
        return []
    cohort = set(state.queues[number].cohort) - {number}
    borrowed = {owner: _borrowed(state, owner, wanted) for owner in cohort}
    found = []
    for task in sorted(_running(state), key=lambda t: _loss_order(state, t)):
        owner = state.queue_of(task)
        if borrowed.get(owner, 0) > 0:
            found.append(task)
            held = quota.amounts_of(state.shapes[state.shape[state.cursor[task]]])
            borrowed[owner] -= max(amount for amount, asked in zip(held, wanted, strict=True) if asked)
    return found


def _borrowed(state: State, number: int, wanted: quota.Amounts) -> int:
    """The most that the queue uses beyond nominal of a kind that is wanted."""
    queue = state.queues[number]
    kinds = zip(wanted, queue.used, queue.spec.nominal, strict=True)
    return max((used - nominal for amount, used, nominal in kinds if amount), default=0)


def _lower(state: State, phase: int, number: int) -> list[int]:
    """Running tasks of the same queue with a lower priority."""
    priority = state.options_of(state.task_of[phase]).priority
    found = [t for t in _running(state) if state.queue_of(t) == number and state.options_of(t).priority < priority]
    return sorted(found, key=lambda t: (state.options_of(t).priority, *_loss_order(state, t)))


def _running(state: State) -> list[int]:
    """Tasks that may be stopped: running, not about to end anyway, and not stopped too often before."""
    tasks = {state.task_of[p] for p in state.leases if state.status[p] == RUNNING}
    gone = state.stopping | state.recalled
    return sorted(t for t in tasks if t not in gone and state.attempt[t] <= MOST_PREEMPTIONS)


def _loss_order(state: State, task: int) -> tuple[float, float, int]:
    return state.lost_work_s(task), -state.started_at[state.cursor[task]], task


def _enough_of(
    state: State, phases: Sequence[int], number: int, wanted: quota.Amounts, candidates: Sequence[int]
) -> list[int]:
    """The first candidates whose end lets the phases start, without those that turn out not to be needed."""
    chosen: list[int] = []
    for task in candidates:
        chosen += [t for t in _with_gang(state, task) if t not in chosen]
        if _fits_without(state, phases, number, wanted, chosen):
            break
    else:
        return []
    for task in list(chosen):
        fewer = [t for t in chosen if t not in _with_gang(state, task)]
        if _fits_without(state, phases, number, wanted, fewer):
            chosen = fewer
    return chosen


def _with_gang(state: State, task: int) -> list[int]:
    """A gang is stopped as a whole."""
    gang = state.gang_of.get(task)
    if gang is None:
        return [task]
    return [t for t in state.gangs[gang].members if state.cursor[t] in state.leases]


def _fits_without(
    state: State, phases: Sequence[int], number: int, wanted: quota.Amounts, victims: Sequence[int]
) -> bool:
    ended = [state.cursor[t] for t in victims if state.cursor[t] in state.leases]
    if number != quota.NO_QUEUE and not _is_within(state, number, wanted, ended):
        return False
    return select_gang_after(state, phases, ended) is not None


def _is_within(state: State, number: int, wanted: quota.Amounts, ended: Sequence[int]) -> bool:
    queues = [quota.QueueState(q.spec, q.cohort, list(q.used)) for q in state.queues]
    for phase in ended:
        owner = state.queue_of(state.task_of[phase])
        if owner != quota.NO_QUEUE:
            queues[owner].use(quota.amounts_of(state.shapes[state.shape[phase]]), -1, 0.0)
    return quota.blocked_by(queues, number, wanted) is None
