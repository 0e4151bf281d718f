"""What waits for nothing but quota: whoever divides quotas among several engines asks for it."""

from __future__ import annotations

from egs_core.engine.order.fronts import Front
from egs_core.engine.order.queue import ReadyQueue
from egs_core.engine.rules import quota
from egs_core.engine.rules.reservation import select_gang
from egs_core.engine.specs import NO_QUEUE, Amounts


def waiting_for_quota(queue: ReadyQueue) -> dict[str, Amounts]:
    """Of each queue, by name, what the first of those needs for which there is room and quota is not."""
    state = queue.state
    found: dict[int, tuple[Front, Amounts]] = {}
    for phase_class, front in queue.fronts.of.items():
        number = phase_class.queue
        if number == NO_QUEUE or (number in found and found[number][0] < front):
            continue
        phases = queue.members(front[1])
        wanted = quota.demand(state, phases)
        if quota.blocked_by(state.queues, number, wanted) is None or quota.never_fits(state.queues, number, wanted):
            continue
        if select_gang(state, phases) is not None:
            found[number] = front, wanted
    return {state.queues[number].spec.name: wanted for number, (_, wanted) in found.items()}
