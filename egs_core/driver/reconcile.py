"""After a recovery: what to ask the workers about, and what their answers mean to the engine.

A recovered engine believes its journal. Meanwhile work went on: what was granted may have started, ended, or never
have arrived. So a driver computes its `open_questions` once, before it handles anything else, asks each node what it
runs, and hands the engine the `events_of` the answer. No adapter asks yet; the site server will.

    the engine believes              the node says                       event
    granted or running               it runs                             PhaseStarted
                                     it ended so                         PhaseEnded
                                     the task waits for that phase       DecisionRejected: given out again
                                     nothing known of it                 DecisionLost, or preempted when it was applied
    started, between two phases      its process is gone                 PhaseEnded: preempted
    a process is kept for it         warm / gone                         PreloadReady / PreloadFailed

"Nothing known" must stay true. Decision numbers are the fencing token: with the question goes the engine's
`next_decision`, and a node that has answered refuses every decision below it that it did not know by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from egs_core.engine import messages as m
from egs_core.engine.state.state import State

RUNNING = "running"


class Question(msgspec.Struct, frozen=True):
    """What the engine believes of one task on a node: phase is its current one. decision: of its grant or, with
    is_preload, of its preload; 0 between two phases. must_stop: it is being stopped, and the Stop may be lost."""

    node: str
    task: int
    attempt: int
    phase: int
    decision: int = 0
    is_preload: bool = False
    must_stop: bool = False


class Found(msgspec.Struct, frozen=True):
    """One attempt of a task, as the node knows it. phase: the last one given to it; status: running, or how that phase
    ended; is_alive: its process is there, at work or waiting for the next phase; is_finished: the task took no more."""

    task: int
    attempt: int
    phase: int
    status: str
    is_alive: bool
    is_finished: bool = False


def open_questions(state: State) -> list[Question]:
    """All that the state takes for granted of the world outside, in the order of the tasks."""
    stopping = state.stopping | state.recalled
    current = {state.task_of[phase]: (phase, lease.node, lease.decision) for phase, lease in state.leases.items()}
    for task, node in state.home.items():
        if task not in state.parked:
            current.setdefault(task, (state.cursor[task], node, 0))
    asked = [
        Question(state.nodes[node].name, task, state.attempt[task], phase, decision, must_stop=task in stopping)
        for task, (phase, node, decision) in sorted(current.items())
    ]
    kept = [
        Question(state.nodes[state.home[task]].name, task, state.attempt[task], state.cursor[task], decision, True)
        for task, decision in sorted(state.parked.items())
    ]
    return asked + kept


def events_of(
    state: State, questions: Sequence[Question], found: Sequence[Found], warm: Mapping[int, bool]
) -> list[m.Event]:
    """What a node's answer means for the questions about it; nothing where the engine has learned better meanwhile.

    warm: by Preload number whether that process is warm by now; a process that is not there is not named.
    """
    known = {(f.task, f.attempt): f for f in found}
    events: list[m.Event] = []
    for question in questions:
        if not _is_open(state, question):
            continue
        if question.is_preload:
            events += _of_preload(question, warm)
        elif question.decision:
            events += _of_lease(state, question, known.get((question.task, question.attempt)))
        else:
            events += _between(question, known.get((question.task, question.attempt)))
    return events


def strays(state: State, node: str, found: Sequence[Found]) -> list[Found]:
    """Attempts that live on the node and that the engine has given up: they must be stopped."""
    return [f for f in found if f.is_alive and not _is_wanted(state, node, f)]


def _is_open(state: State, question: Question) -> bool:
    task = question.task
    if question.is_preload:
        return state.parked.get(task) == question.decision
    if state.attempt[task] != question.attempt or state.cursor[task] != question.phase:
        return False
    lease = state.leases.get(question.phase)
    if not question.decision:
        return lease is None and task in state.home
    return lease is not None and lease.decision == question.decision


def _of_preload(question: Question, warm: Mapping[int, bool]) -> list[m.Event]:
    if question.decision not in warm:
        return [m.PreloadFailed(question.task, question.decision)]
    return [m.PreloadReady(question.task, question.decision)] if warm[question.decision] else []


def _of_lease(state: State, question: Question, found: Found | None) -> list[m.Event]:
    phase, attempt, decision = question.phase, question.attempt, question.decision
    if found is not None and found.phase == phase:
        if found.status == RUNNING:
            return [m.PhaseStarted(phase, attempt)]
        return [m.PhaseEnded(phase, attempt, found.status), *_finished(found)]
    if found is not None and found.is_finished:
        return _finished(found)
    if decision not in state.decisions:
        return [m.PhaseEnded(phase, attempt, "preempted")]
    if found is not None and found.is_alive:
        return [m.DecisionRejected(decision, "it did not arrive")]
    return [m.DecisionLost(decision)]


def _between(question: Question, found: Found | None) -> list[m.Event]:
    if found is not None and (found.is_alive or found.is_finished):
        return _finished(found)
    return [m.PhaseEnded(question.phase, question.attempt, "preempted")]


def _finished(found: Found) -> list[m.Event]:
    return [m.TaskFinished(found.task, found.attempt)] if found.is_finished else []


def _is_wanted(state: State, node: str, found: Found) -> bool:
    """The engine's current attempt of the task is on this node."""
    task = found.task
    if task >= len(state.attempt) or state.attempt[task] != found.attempt or task in state.parked:
        return False
    lease = state.leases.get(state.cursor[task])
    home = state.home.get(task) if lease is None else lease.node
    return home is not None and state.nodes[home].name == node
