"""Quotas of queues: tiny functions on amounts, each with its rule above it.

    nominal   |==========|                  what a queue may always use
    lendable       |=====|                  the part that others may use while it is idle (`lending_limit`)
    own       |====|                        the rest: never lent
    borrowed             |======|           beyond nominal, out of what others of the cohort leave idle

A kind of resource that no queue of a cohort names is not limited there. Usage is what the leases of a queue's phases
hold, and what is said to be used elsewhere (`Elsewhere`), so a workload in its CPU phase uses no GPU quota. The
arithmetic is Kueue's (cohorts, borrowing and lending limits); fair share is dominant resource fairness (Ghodsi et al.,
NSDI 2011) on usage that decays with a half-life.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from egs_core.engine.specs import KINDS, NO_LIMIT, NO_QUEUE, NOTHING, UNLIMITED, Amounts, QueueSpec
from egs_core.engine.state.columns import Columns
from egs_core.engine.state.records import QueueState, smoothed_at


class Blocked(msgspec.Struct, frozen=True):
    """What keeps a phase out: the kind of resource, and the numbers. elsewhere: what of `used` other pools hold."""

    kind: str
    wanted: int
    available: int
    nominal: int
    used: int
    borrows: bool
    elsewhere: int


def demand(state: Columns, phases: Iterable[int]) -> Amounts:
    """What these phases count together."""
    shapes = [state.shape_of(phase) for phase in phases]
    return sum(s.cpu_milli for s in shapes), sum(s.gpu_milli for s in shapes), sum(s.memory_bytes for s in shapes)


def own_part(spec: QueueSpec, kind: int) -> int:
    """Nominal quota that is never lent."""
    return max(0, spec.nominal[kind] - spec.lending_limit[kind])


def pool_free(queues: Sequence[QueueState], cohort: Sequence[int], kind: int) -> int:
    """What the cohort's lendable quotas leave unused by all of its queues."""
    free = 0
    for number in cohort:
        spec, used = queues[number].spec, queues[number].total(kind)
        own = own_part(spec, kind)
        free += spec.nominal[kind] - own - max(0, used - own)
    return free


def available(queues: Sequence[QueueState], number: int, kind: int) -> int:
    """How much more of this kind the queue may use here now: what its quota leaves, when others do not have a turn.
    Negative when capacity it counted on has been taken away."""
    queue = queues[number]
    left = left_of_quota(queues, number, kind)
    return left if queue.most[kind] >= UNLIMITED else min(left, queue.most[kind] - queue.used[kind])


def left_of_quota(queues: Sequence[QueueState], number: int, kind: int) -> int:
    """What is left of the queue's own part, and of the pool up to its borrowing limit."""
    queue = queues[number]
    spec, used = queue.spec, queue.total(kind)
    if spec.nominal[kind] >= UNLIMITED:
        return UNLIMITED
    if len(queue.cohort) < 2:
        return spec.nominal[kind] - used
    own = own_part(spec, kind)
    in_pool = max(0, used - own)
    free = min(pool_free(queues, queue.cohort, kind), _with_limit(spec, kind, own) - in_pool)
    return max(0, own - used) + free


def _with_limit(spec: QueueSpec, kind: int, own: int) -> int:
    limit = spec.borrowing_limit[kind]
    return UNLIMITED if limit >= UNLIMITED else spec.nominal[kind] - own + limit


def blocked_by(queues: Sequence[QueueState], number: int, wanted: Amounts) -> Blocked | None:
    """The first kind of which the queue may not use as much now; None when nothing stands in the way."""
    if number == NO_QUEUE:
        return None
    for kind, amount in enumerate(wanted):
        if amount and amount > (free := available(queues, number, kind)):
            queue = queues[number]
            nominal, used = queue.spec.nominal[kind], queue.total(kind)
            return Blocked(KINDS[kind], amount, free, nominal, used, used + amount > nominal, queue.elsewhere[kind])
    return None


def beside_each_other(state: Columns, phases: Iterable[int]) -> list[int]:
    """Of these, in order, those that the quotas let run beside each other now: the others take nothing from anybody."""
    found, counted = list[int](), dict[int, Amounts]()
    for phase in phases:
        number = state.queue_of(state.task_of[phase])
        before, own = counted.get(number, NOTHING), demand(state, (phase,))
        together = before[0] + own[0], before[1] + own[1], before[2] + own[2]
        if blocked_by(state.queues, number, together) is None:
            counted[number] = together
            found.append(phase)
    return found


def without_turns(queues: Sequence[QueueState]) -> Sequence[QueueState]:
    """The same queues, as if no other pool took turns with this one."""
    return [queue if queue.most == NO_LIMIT else msgspec.structs.replace(queue, most=NO_LIMIT) for queue in queues]


def never_fits(queues: Sequence[QueueState], number: int, wanted: Amounts) -> Blocked | None:
    """Like `blocked_by` on empty queues: what no waiting will ever bring."""
    if number == NO_QUEUE:
        return None
    empty = [QueueState(queue.spec, queue.cohort) for queue in queues]
    return blocked_by(empty, number, wanted)


def borrows(queue: QueueState, wanted: Amounts) -> bool:
    """Whether the queue would use more than its nominal quota with this."""
    return any(amount and queue.total(kind) + amount > queue.spec.nominal[kind] for kind, amount in enumerate(wanted))


def fair_share(queue: QueueState, wanted: Amounts, capacity: Amounts, now: float) -> float:
    """The queue's dominant share of the capacity by weight, with this added: the smallest goes first.

    The mean of what it uses now and what it used lately: instantly fair between queues that start together, and a
    queue that has used a lot lately lets others go first for a while.
    """
    past = smoothed_at(queue, now)
    shares = [
        (0.5 * (past[kind] + queue.total(kind)) + wanted[kind]) / capacity[kind]
        for kind in range(len(KINDS))
        if capacity[kind] > 0
    ]
    return max(shares, default=0.0) / max(queue.spec.weight, 1e-9)
