"""Why another submission goes before a waiting task's: the deciding term in words, with its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from egs_core.engine.messages import Moment
from egs_core.engine.order.queue import PROMISE, ReadyQueue
from egs_core.engine.order.submission_order import remaining_work
from egs_core.engine.specs import LEARNED, NO_QUEUE
from egs_core.engine.state.state import State

HOUR_S, MINUTE_S = 3600.0, 60.0
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
