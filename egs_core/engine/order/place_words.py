"""Why another submission goes before a waiting task's: the deciding term in words, with its numbers. And what may start
before a task that is first."""

from __future__ import annotations

from collections.abc import Sequence

from egs_core.engine.messages import Moment
from egs_core.engine.order.queue import PROMISE, ReadyQueue
from egs_core.engine.order.submission_order import remaining_work
from egs_core.engine.specs import LEARNED, NO_QUEUE
from egs_core.engine.state.nodes import WHOLE_DEVICE
from egs_core.engine.state.state import State
from egs_core.errors import listed, node_words

HOUR_S, MINUTE_S = 3600.0, 60.0
MOST_NODES = 5
NEVER = float("inf")
WORK_UNITS = 1_000_000  # thousandths times milliseconds of a second


def why_another_goes_first(state: State, queue: ReadyQueue, phase: int, first: int) -> str:
    """Of two queued phases of different submissions the second goes first: why, "" where neither submissions nor a
    promise decide."""
    term = queue.place_term(first, phase)
    own, other = (state.workloads[state.task_workload[state.task_of[p]]] for p in (phase, first))
    mine, theirs = f"workload {own.id!r}", f"workload {other.id!r}"
    order = queue.lines.order
    if not term or order is None:
        return ""
    if term == "remaining_work":
        left = f"{_work(state, own.submission)} left, that of the first {_work(state, other.submission)}"
        return f"; {mine} has about {left}: less work goes first"
    if term == PROMISE:
        return "; that one would be the next to break a promise of its queue"
    if term == "dependents":
        return f"; tasks wait for what is next in {theirs}, nothing waits for what is next in {mine}"
    if term == "workload_wait":
        return (
            f"; {theirs} has waited for others longer than the {order.wait_limit(other.submission):.0f} s that it may"
        )
    return f"; {theirs} came first, and has about as much work left"


def passed_by(state: State, queue: ReadyQueue, phases: Sequence[int], moment: Moment) -> str:
    """What may start before phases that start together and are first, on what is free and not enough for them; "" where
    that is nothing."""
    if kept := next((state.reservations[p] for p in phases if p in state.reservations), None):
        where = listed(sorted({node_words(state.nodes[number].name) for _, number in kept.places}), MOST_NODES)
        since = f" from {moment(kept.at)} on" if kept.at > state.now else ""
        return f"; room on {where} is kept for it{since}: others start there only where that should not delay it"
    if sum(state.shape_of(p).gpu_milli for p in phases) <= WHOLE_DEVICE:
        return ""
    key = queue.full_key(queue.leader_of(phases[0]))
    if queue.is_late(key) or queue.is_overdue(key):
        is_next = not queue.lines.are_several()
        return "; what comes after it starts only where that should not delay it" if is_next else ""
    stated, learned = _late_at(state, queue, phases)
    until = min(stated, learned)
    about = "about " if learned < stated else ""
    kept_then = f" until {about}{moment(until)}, then room is kept for it" if until < NEVER else ""
    return f"; what needs fewer GPUs may start before it{kept_then}"


def _late_at(state: State, queue: ReadyQueue, phases: Sequence[int]) -> tuple[float, float]:
    """When one of the phases will have waited too long: by its `max_wait`, and by what is known of its queue's work."""
    order = queue.lines.order
    stated = [queue.ages.overdue_at(p) for p in phases] if queue.policy.ages else []
    numbers = {state.workloads[state.task_workload[state.task_of[p]]].submission for p in phases}
    learned = [order.late_at(number) for number in numbers] if order is not None else []
    first, second = [min((at for at in found if at is not None), default=NEVER) for found in (stated, learned)]
    return first, second


def chosen_order(state: State, number: int, moment: Moment) -> str:
    """How the queue of that number orders its workloads, and why, where that is learned; else ""."""
    if number == NO_QUEUE or state.queues[number].spec.order != LEARNED:
        return ""
    queue = state.queues[number]
    since = f" since {moment(queue.chosen_at)}" if queue.chosen else ""
    why = f": {queue.chosen_why}" if queue.chosen_why else ""
    return f"; queue {queue.spec.name!r} learns its order, which is {queue.order}{since}{why}"


def promise(state: State, ready: ReadyQueue, phases: Sequence[int], moment: Moment) -> str:
    """That phases that start together go first, or from when on, for a promise of their queue; else ""."""
    if not (windows := [one for one in ready.urgency.promised(phases) if state.now < one.too_late_at]):
        return ""
    queue = state.queues[state.queue_of(state.task_of[phases[0]])]
    window = min(windows, key=lambda one: (one.urgent_at > state.now, one.too_late_at))
    when = "" if window.is_open(state.now) else f" from {moment(window.urgent_at)} on"
    why = queue.at_risk.why or "of its queue"
    return f"; it goes first in its queue{when}: its promise {why} is at risk since {moment(queue.at_risk_since)}"


def _work(state: State, number: int) -> str:
    """What is left of a submission, in device time or slot time."""
    submission = state.submissions[number]
    seconds, kind = remaining_work(state, submission) / WORK_UNITS, "GPU" if submission.needs_devices else "slot"
    if seconds >= HOUR_S:
        return f"{seconds / HOUR_S:.1f} {kind} hours"
    return f"{seconds / MINUTE_S:.1f} {kind} minutes" if seconds >= MINUTE_S else f"{seconds:.0f} {kind} seconds"
