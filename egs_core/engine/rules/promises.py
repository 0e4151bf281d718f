"""Promises at risk in the order: while a queue is about to break one, those of its tasks that would break it next go
before their equals.

    turn              half of what is promised            promised
    --- ordinary ---------|------- goes first --------------|-- broken: ordinary --> now

A promise of waiting counts from the moment at which a task became ready, one of ends from its workload's submission, as
a deadline does. All that go first are equal in this, so that among them the usual order decides: where not all can be
in time, less work first keeps more promises than the earliest moment first.

What is promised to 95 of 100 may fail for five. Those are the ones with the most work, by what the queue has seen:
bringing one of them forward makes many others wait. They stay where they are, as does what has broken its promise.
What has waited too long for others (`submission_order`) goes before all of them, so that nobody starves. A queue that
states another order than the default has that order alone, as nothing bounds its waiting.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from egs_core.engine.rules.deadlines import Window, window_before
from egs_core.engine.specs import NO_QUEUE, ORDERS
from egs_core.engine.state.columns import Columns
from egs_core.engine.state.histories import SLOT_MILLI
from egs_core.engine.state.records import QueueState

PROMISED = sys.float_info.max  # in place of a latest start: behind every deadline, before what has none
WAITED = 0.5  # of what is promised: from then on


def windows_of(state: Columns, phases: Sequence[int]) -> list[Window]:
    """When phases that start together go first for a promise."""
    number = state.queue_of(state.task_of[phases[0]]) if state.queues else NO_QUEUE
    queue = state.queues[number] if number != NO_QUEUE else None
    if queue is None or not queue.at_risk or queue.order != ORDERS[0] or _is_much(state, phases, queue):
        return []
    return [window for phase in phases for window in _windows(state, phase, queue)]


def _windows(state: Columns, phase: int, queue: QueueState) -> list[Window]:
    risk, task, found = queue.at_risk, state.task_of[phase], list[Window]()
    if state.is_first_phase(phase):
        turn = state.ready_at[phase]
        found += [Window(turn + s, turn + WAITED * s, turn + s, turn + s) for s in risk.waits_s]
    submitted_at, path_s = state.workloads[state.task_workload[task]].submitted_at, state.rank_s[phase]
    return [*found, *[window_before(state, phase, submitted_at + s, path_s) for s in risk.ends_s]]


def _is_much(state: Columns, phases: Iterable[int], queue: QueueState) -> bool:
    """Whether they have more work than what is promised to those with less."""
    slot = device = 0
    for phase in phases:
        for p in range(phase, state.first_phase[state.task_of[phase] + 1]):
            shape, ms = state.shape_of(p), round(1000 * state.estimate_s[p])
            slot += (shape.cpu_milli or SLOT_MILLI) * ms
            device += shape.gpu_milli * ms
    return device > queue.at_risk_most[1] if device else slot > queue.at_risk_most[0]
