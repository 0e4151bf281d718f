"""New places in the order when work has come or gone: by the ranks of tasks, and by what workloads have left."""

from __future__ import annotations

from collections.abc import Sequence

from egs_core.engine import messages as m
from egs_core.engine.order.queue import ReadyQueue
from egs_core.engine.order.submission_order import backlog_wait
from egs_core.engine.passes.issuer import Issuer
from egs_core.engine.passes.warm_pool import Processes

CHANGES_NO_WORK = frozenset(
    {
        m.PhaseStarted,
        m.DecisionApplied,
        m.NodeAdded,
        m.WorkloadSubmitted,
        m.Checkpointed,
        m.Activity,
        m.FlavorsAllowed,
        m.DevicesAllowed,
        m.PreloadReady,
        m.PreloadFailed,
        m.PauseRequested,
        m.ResumeRequested,
    }
)  # unless something is metered: a limit may end tasks at any time


class Reordering:
    """See the module."""

    def __init__(self, issuer: Issuer, queue: ReadyQueue, processes: Processes) -> None:
        self._transitions = issuer.transitions
        self._state = issuer.state
        self._queue = queue
        self._processes = processes
        self._policy = queue.policy
        self._submissions = queue.lines.order  # where the policy tells them apart

    def after(self, event: m.Event) -> None:
        """An event has been taken in: what is left of workloads has changed, and with it perhaps their places."""
        if self._policy.work_left is not None:
            self.recount_workloads(event)
        submissions, state = self._submissions, self._state
        if submissions is None:
            return
        is_metered = state.is_metered
        if type(event) is m.PhaseEnded and not is_metered:
            if not 0 <= event.phase < len(state.task_of):
                return
            workload = state.workloads[state.task_workload[state.task_of[event.phase]]]
            changed = submissions.recount(workload.submission)
        elif type(event) in CHANGES_NO_WORK and not is_metered:
            return
        else:
            is_told = isinstance(event, m.TasksAdded | m.Estimates) and not is_metered
            changed = [] if is_told else submissions.recount_all()
            for number in self._submissions_in(event):
                changed = [*changed, *submissions.recount(number)]
        if changed:
            self._queue.submissions_moved(changed)
            self._processes.want_plan()

    def ranks_changed(self, tasks: Sequence[int]) -> None:
        """The ranks of these tasks have moved, or what follows them."""
        cursor = self._state.cursor
        if self._policy.whole_graph:
            self._queue.rekey(list(self._queue.keys))
        else:
            self._queue.rekey([cursor[t] for t in tasks])
        self._processes.rekey(tasks)
        self._processes.want_plan()

    def recount_workloads(self, event: m.Event | None) -> None:
        """Some workloads are so much nearer to their end, or farther from it, that they change places. None: anything
        may have changed."""
        counted = self._policy.work_left
        for workload in counted.after(self._state, event) if counted is not None else ():
            self.ranks_changed(self._state.workloads[workload].numbers)

    def _submissions_in(self, event: m.Event) -> set[int]:
        """The submissions of which an event tells."""
        state = self._state
        if isinstance(event, m.TasksAdded):
            return {state.workloads[state.workload_number(event.workload)].submission}
        if not isinstance(event, m.Estimates):
            return set()
        told = [phase for phase, _, _ in event.values if 0 <= phase < len(state.task_of)]
        return {state.submission_of(state.task_of[phase]) for phase in told}

    def set_wait(self, workload: int) -> None:
        """Tasks have joined a workload: how long its submission waits for others, by the queue's load now."""
        if self._submissions is not None:
            number = self._state.workloads[workload].submission
            self._submissions.joined(number)
            submission = self._state.submissions[number]
            wait = backlog_wait(self._state, submission, self._queue.capacity())
            if wait != (submission.wait_s, submission.wait_lengths):
                self._transitions.set_wait(number, *wait)
                self._queue.wait_changed(number)
