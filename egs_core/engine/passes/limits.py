"""Stopping what has reached a limit: of time, GPU time or cost, or idle for too long.

The moments at which limits will be reached are in a heap. One may come later than it has there, as other phases end or
something is done meanwhile; whatever makes a meter run faster enters it again.
"""

from __future__ import annotations

from egs_core.engine.meters import MOST_REQUEUES, described
from egs_core.engine.order.timers import Timers
from egs_core.engine.passes.aborts import Aborts
from egs_core.engine.passes.issuer import Issuer
from egs_core.engine.passes.restarts import Restarts
from egs_core.engine.specs import END, FAIL, REQUEUE
from egs_core.engine.state.lifecycle import FAILED, SUCCEEDED
from egs_core.engine.state.metering import task_reaches, workload_reaches


class Limiter:
    """See the module. Subjects of the heap are tasks and, as -1 - number, workloads. preempts: whether the driver can
    run a task again, so that one may be requeued."""

    def __init__(self, issuer: Issuer, aborts: Aborts, restarts: Restarts, grace_s: float, *, preempts: bool) -> None:
        self._transitions = issuer.transitions
        self._state = issuer.state
        self._aborts = aborts
        self._restarts = restarts
        self._started = issuer.started
        self._grace_s = grace_s
        self._preempts = preempts
        self.timers = Timers(self._reached_at)

    def started(self, phase: int) -> None:
        """The phase has started: the meters of its task and workload run."""
        task = self._state.task_of[phase]
        self.timers.enter(task)
        self.timers.enter(-1 - self._state.task_workload[task])

    def grown(self, number: int) -> None:
        """The workload has more tasks: its time may have run out while it had none."""
        self.timers.enter(-1 - number)

    def rebuild(self) -> None:
        """Limits, prices or clocks have changed, or the state is a restored one."""
        self.timers.clear()
        for task in self._state.meters:
            self.timers.enter(task)
        for number in self._state.workload_meters:
            self.timers.enter(-1 - number)

    def next_due(self) -> float | None:
        """When the next limit is reached, if all goes on as it does."""
        return self.timers.next_due()

    def enforce(self, now: float) -> None:
        """Stop what has reached a limit by now."""
        while (subject := self.timers.pop(now)) is not None:
            reached = self._reaches(subject)
            if reached is not None and subject >= 0:
                self._stop_task(subject, reached[1])
            elif reached is not None:
                self._stop_workload(-1 - subject, reached[1])

    def outcome(self, task: int, status: int) -> int:
        """How the phase of a task has ended: what was stopped by a limit has failed, unless it succeeded in time."""
        over = self._state.over_limit.get(task)
        return FAILED if over is not None and over.then == FAIL and status != SUCCEEDED else status

    def _reached_at(self, subject: int) -> float | None:
        reached = self._reaches(subject)
        return None if reached is None else reached[0]

    def _reaches(self, subject: int) -> tuple[float, int] | None:
        return task_reaches(self._state, subject) if subject >= 0 else workload_reaches(self._state, -1 - subject)

    def _stop_task(self, task: int, kind: int) -> None:
        state, limits = self._state, self._state.meters[task].limits
        text, then = described(limits, kind), limits.on_limit or FAIL
        if then == REQUEUE and not (self._preempts and state.limit_requeues.get(task, 0) < MOST_REQUEUES):
            then = FAIL
        if then == REQUEUE:
            for member in self._restarts.running_gang(task):
                self._transitions.over(member, text, REQUEUE)
                self._restarts.recall(member, text, self._grace_s)
        elif then == END:
            self._transitions.over(task, text, END)
            self._aborts.stop_started(task, text, self._grace_s)
        else:
            self._fail([task], text)

    def _stop_workload(self, number: int, kind: int) -> None:
        """All that runs stops, and nothing more of it starts."""
        workload = self._state.workloads[number]
        assert workload.limits is not None
        text = "its workload is " + described(workload.limits, kind)
        self._transitions.over_workload(number, text)
        self._fail(sorted(workload.numbers, reverse=True), text)

    def _fail(self, tasks: list[int], text: str) -> None:
        """Stop tasks, highest number first, with their gangs; what waits for them never runs."""
        for task in self._aborts.with_gangs(tasks):
            if task in self._started and self._aborts.is_open(task):
                self._transitions.over(task, text if task in tasks else f"its gang is {text}", FAIL)
        self._aborts.stop(tasks, text, self._grace_s)
