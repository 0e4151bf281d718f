"""Which workload is nearest to its end: a term that puts the one with the least believed work left first.

    w1  |##########........|  8 s left      within a workload the longest path still goes first
    w2  |######|              0 s left
    w3  |......|              6 s left      goes before w1 although it came later: its user waits least by it

Least remaining processing time minimises the mean completion time on one machine (Schrage, Operations Research 16(3),
1968). Work counts in steps of a factor of 1.4, so that a workload's queued phases change places a few times in its life
and not at every end; within a step the longest remaining path decides across workloads too.

What is left is counted in whole milliseconds of tasks that have not ended, so counting again after a restore gives the
same. A workload of one task, or one gang, has its expected time left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from egs_core.engine import messages as m
from egs_core.engine.state.lifecycle import ENDED
from egs_core.engine.state.state import State

EMPTY = 0


class WorkLeft:
    """A term, and the counts behind it. mean_s: expected seconds of the phases from one number to another."""

    __name__ = "work_left"

    def __init__(self, mean_s: Callable[[State, int, int], float]) -> None:
        self._mean_s = mean_s
        self._own_ms: list[int] = []  # by task: what it has left
        self._left_ms: list[int] = []  # by workload
        self._step: list[int] = []

    def __call__(self, state: State, phase: int) -> float:
        task = state.task_of[phase]
        if state.is_job(task):
            return step_of(round(1000 * self._mean_s(state, phase, state.first_phase[task + 1])))
        workload = state.task_workload[task]
        return self._step[workload] if workload < len(self._step) else EMPTY

    def after(self, state: State, event: m.Event | None = None) -> list[int]:
        """Count again what the event, or None for anything, may have changed; the workloads that change places."""
        touched = {self._count(state, task) for task in touched_by(state, event, len(self._own_ms))}
        moved = []
        for workload in sorted(touched):
            step = step_of(self._left_ms[workload])
            if step != self._step[workload]:
                self._step[workload] = step
                moved.append(workload)
        return moved

    def _count(self, state: State, task: int) -> int:
        """Bring a task's share of its workload up to date; the workload's number."""
        grown = len(state.task_ids) - len(self._own_ms)
        if grown:
            self._own_ms += [0] * grown
        while len(self._left_ms) < len(state.workloads):
            self._left_ms.append(0)
            self._step.append(EMPTY)
        phases, workload = state.phases_of(task), state.task_workload[task]
        is_over = all(state.status[p] in ENDED for p in phases)
        left = 0 if is_over else sum([round(1000 * state.estimate_s[p]) for p in phases])
        self._left_ms[workload] += left - self._own_ms[task]
        self._own_ms[task] = left
        return workload


def step_of(left_ms: int) -> int:
    """Twice the binary logarithm, without a rounding error."""
    return (left_ms * left_ms).bit_length()


def touched_by(state: State, event: m.Event | None, known: int) -> Iterable[int]:
    """Tasks whose work left the event may have changed, `known` of all having been counted before."""
    if isinstance(event, (m.PhaseStarted, m.DecisionApplied, m.Tick, m.PreloadReady, m.WorkloadSubmitted)):
        return ()
    if isinstance(event, m.TasksAdded):
        return range(known, len(state.task_ids))
    if isinstance(event, m.Estimates):
        return {state.task_of[phase] for phase, _, _ in event.values if 0 <= phase < len(state.task_of)}
    if isinstance(event, m.PhaseEnded) and 0 <= event.phase < len(state.task_of):
        task = state.task_of[event.phase]
        return (task,) if event.outcome == "succeeded" else state.workloads[state.task_workload[task]].numbers
    return range(len(state.task_ids))
