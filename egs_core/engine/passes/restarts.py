"""How started tasks stop and start again: lost, failed with retries left, preempted, or a member of such a gang."""

from __future__ import annotations

from collections.abc import Sequence

from egs_core.engine import messages as m
from egs_core.engine.order.queue import ReadyQueue
from egs_core.engine.passes.aborts import Aborts
from egs_core.engine.passes.grant import Blocked
from egs_core.engine.passes.issuer import Issuer
from egs_core.engine.passes.readiness import Readiness
from egs_core.engine.rules.overruns import next_overrun_s, select_overruns
from egs_core.engine.rules.reservation import find_reservation
from egs_core.engine.rules.victims import RECLAIM, RunningTasks, select_victims
from egs_core.engine.state.lifecycle import ABORTED, FAILED, HOLDS_LEASE, PREEMPTED

RETRY_FIRST_S, RETRY_MAX_S = 0.5, 30.0


class Restarts:
    """See the module."""

    def __init__(self, issuer: Issuer, queue: ReadyQueue, readiness: Readiness, aborts: Aborts) -> None:
        self._issuer = issuer
        self._transitions = issuer.transitions
        self._state = issuer.state
        self._queue = queue
        self._readiness = readiness
        self._aborts = aborts
        self._started = issuer.started

    def after_failure(self, task: int, status: int, now: float) -> None:
        """Preempted or lost: again. Failed: again while it has retries. Else it is over, and what waits for it too."""
        state = self._state
        is_left = status == FAILED and state.failures.get(task, 0) <= state.options_of(task).retries
        if (status == PREEMPTED or is_left) and task not in state.stopping:
            self.requeue_with_gang(task, now)
        else:
            self._aborts.finish(task)

    def lost_between(self, task: int, now: float) -> None:
        """The process of a started task died while its next phase waited: back to the first."""
        if task not in self._state.stopping:
            self._readiness.freed()
            self._queue.remove(self._state.cursor[task])
            self.requeue_with_gang(task, now)

    def rejected(self, phase: int, now: float) -> None:
        """The driver could not start the phase: it is held for a while, longer each time."""
        state, task = self._state, self._state.task_of[phase]
        if task in state.gang_of and not state.is_first_phase(phase) and task not in state.stopping:
            self._restart(task, now, "a later phase of its gang was refused")
            self._recall_gang(task, now)
            return
        if task in state.recalled:  # the Stop may still arrive, and must not end the attempt that follows
            self.requeue_with_gang(task, now)
            return
        wait = min(RETRY_MAX_S, RETRY_FIRST_S * 2.0 ** min(state.rejections.get(phase, 0), 10))
        self._transitions.hold(phase, now + wait)
        if task in state.stopping:
            self._aborts.finish(task)
        else:
            if state.is_first_phase(phase):
                self._issuer.mark_over(task)
            self._recall_gang(task, now)

    def lost(self, task: int, now: float) -> None:
        """Nobody knows what became of the task, or what it ran on is gone."""
        state, phase = self._state, self._state.cursor[task]
        if task not in state.stopping:
            self.requeue_with_gang(task, now)
            return
        if state.status[phase] in HOLDS_LEASE:
            self._transitions.end(phase, ABORTED)
        self._aborts.finish(task)

    def next_due(self) -> float | None:
        """When something next outlives its estimate in the way of a reservation."""
        return next_overrun_s(self._state) if self._state.reservations else None

    def preempt(self, blocked: Sequence[Blocked], grace_s: float, min_gain_s: float, now: float) -> None:
        """Make room for those that have a right to it; what is freed is kept for them."""
        state, running = self._state, RunningTasks(self._state)
        for owner in list(state.reservations):
            for task in select_overruns(state, owner):
                name = state.task_ids[state.task_of[owner]]
                self.recall(task, f"preempted for {name}: overrun", grace_s)
        for phase, phases, number in blocked:
            kept = state.reservations.get(phase)
            if kept is not None and now < kept.at <= now + min_gain_s:
                continue  # it starts soon
            is_overdue = self._queue.is_overdue(self._queue.keys[phase])
            found = select_victims(state, phases, number, running, is_overdue)
            if found is None:
                continue
            kind, victims, places = found
            soon = find_reservation(state, phases, now)
            if soon is not None and soon[0] <= now + min_gain_s and kind != RECLAIM:
                continue
            name = state.task_ids[state.task_of[phase]]
            for task in victims:
                self.recall(task, f"preempted for {name}: {kind}", grace_s)
            self._transitions.reserve(phase, now, tuple((p, node) for p, (node, _) in zip(phases, places, strict=True)))

    def requeue_with_gang(self, task: int, now: float) -> None:
        self._requeue(task, now)
        self._recall_gang(task, now)

    def _recall_gang(self, task: int, now: float) -> None:
        """A member of a gang starts again: the others that have started do so too, once they have stopped."""
        state = self._state
        gang = state.gang_of.get(task) if state.gang_of else None
        for member in state.gangs[gang].members if gang is not None else ():
            phase = state.cursor[member]
            if member == task or member not in self._started or member in state.recalled or member in state.stopping:
                continue
            reason = f"its gang starts again: {state.task_ids[task]} was lost"
            if state.status[phase] in HOLDS_LEASE:
                self.recall(member, reason, 0.0)
            else:
                self._restart(member, now, reason)

    def running_gang(self, task: int) -> list[int]:
        """The task, and what runs of its gang, as far as it may still be stopped."""
        state = self._state
        gang = state.gang_of.get(task) if state.gang_of else None
        members = [task] if gang is None else state.gangs[gang].members
        gone = state.recalled | state.stopping
        return [t for t in members if t not in gone and state.status[state.cursor[t]] in HOLDS_LEASE]

    def recall(self, task: int, reason: str, grace_s: float) -> None:
        """Stop a running task, to start it again."""
        state = self._state
        phase, attempt = state.cursor[task], state.attempt[task]
        self._issuer.decide(m.Stop(state.next_decision, phase, task, attempt, reason, True, grace_s))
        self._transitions.recall(task)

    def _restart(self, task: int, now: float, reason: str) -> None:
        """A started task that runs nothing now: end its process, and start it again from its first phase."""
        state, phase = self._state, self._state.cursor[task]
        self._issuer.decide(m.Stop(state.next_decision, phase, task, state.attempt[task], reason, True))
        self._readiness.freed()
        self._queue.remove(phase)
        self._requeue(task, now)

    def _requeue(self, task: int, now: float) -> None:
        self._issuer.mark_over(task)
        self._readiness.make_ready(self._transitions.requeue(task), now)
