"""What a framework that starts its tasks by itself says of them: the state follows, whatever was granted.

it says     the state has                it becomes
waiting     ready, granted, running      pending, with a new attempt
ready       pending                      ready, whatever stands before it
            ready                        the same, since then if that is earlier
            granted                      ready: the pass that follows decides anew
            running                      ready, with a new attempt
running     anything that has not ended  running; for its place grants go back that were not followed, last first
over        granted, running             succeeded; else skipped
"""

from __future__ import annotations

from egs_core.engine import messages as m
from egs_core.engine.order.queue import ReadyQueue
from egs_core.engine.passes.aborts import Aborts
from egs_core.engine.passes.grant import Granting
from egs_core.engine.passes.issuer import Issuer
from egs_core.engine.passes.limits import Limiter
from egs_core.engine.passes.readiness import Readiness
from egs_core.engine.passes.warm_pool import Processes
from egs_core.engine.rules.fit import Place, select_place
from egs_core.engine.state.lifecycle import ENDED, GRANTED, HELD, HOLDS_LEASE, PENDING, READY, RUNNING, SUCCEEDED
from egs_core.engine.state.nodes import NOT_STARTED

SAME_S = 1.0
"""Clocks and ways differ by so much: a wait that began so little earlier than was known is the same one."""


class Sightings:
    """See the module."""

    def __init__(
        self,
        issuer: Issuer,
        queue: ReadyQueue,
        processes: Processes,
        readiness: Readiness,
        aborts: Aborts,
        granting: Granting,
        limits: Limiter,
    ) -> None:
        self._issuer = issuer
        self._transitions = issuer.transitions
        self._state = issuer.state
        self._queue = queue
        self._processes = processes
        self._readiness = readiness
        self._aborts = aborts
        self._granting = granting
        self._limits = limits

    def take(self, event: m.TasksSeen, now: float) -> list[int]:
        """Follow what is said; returns the tasks whose ranks may have changed."""
        state = self._state
        if unknown := {one.status for one in event.tasks} - set(m.SIGHTS):
            raise ValueError(f"unknown status {min(unknown)!r}; one of {', '.join(m.SIGHTS)}")
        seen = [one for one in event.tasks if 0 <= one.task < len(state.cursor) and one.task not in state.gang_of]
        seen = [one for one in seen if state.status[state.cursor[one.task]] not in ENDED]
        seen = [one for one in seen if one.status == "over" or one.task not in state.stopping]
        for one in seen:
            if one.status == "over":
                self._end(one.task, now)
            elif one.status == "waiting":
                self._put_back(one.task)
            elif one.status == "ready" and state.status[state.cursor[one.task]] == GRANTED:
                self._withdraw(state.cursor[one.task], now)
        begun = tuple([one.task for one in seen if one.status in ("ready", "running") and state.waiting[one.task]])
        changed = self._transitions.detach(begun) if begun else []
        for one in seen:
            if one.status == "running":
                self._run(one, now)
        for one in seen:
            if one.status == "ready":
                self._make_ready(one, now)
        return changed

    def _end(self, task: int, now: float) -> None:
        state, phase = self._state, self._state.cursor[task]
        if state.status[phase] in HOLDS_LEASE:
            self._readiness.freed(state.leases[phase].node)
            is_last = phase + 1 == state.first_phase[task + 1]
            freed = self._transitions.end(phase, SUCCEEDED) if is_last else self._transitions.finish(task)
            self._issuer.mark_over(task)
        else:
            self._aborts.leave(task)
            self._issuer.mark_over(task)
            freed = self._transitions.skip(task)
        for p in freed:
            self._readiness.make_ready(p, now)

    def _put_back(self, task: int) -> None:
        """It is not to be started: pending, until it is seen as ready or running."""
        state, phase = self._state, self._state.cursor[task]
        if state.status[phase] == PENDING and task not in self._issuer.started:
            return
        if state.status[phase] in HOLDS_LEASE:
            self._readiness.freed(state.leases[phase].node)
        self._aborts.leave(task)
        self._issuer.mark_over(task)
        self._transitions.requeue(task)

    def _withdraw(self, phase: int, now: float) -> None:
        """A grant that was not followed: the phase is ready again, in no queue yet."""
        state, task = self._state, self._state.task_of[phase]
        self._readiness.freed(state.leases[phase].node)
        if state.first_phase[task] == phase:
            self._issuer.mark_over(task)
        self._transitions.hold(phase, now)
        self._transitions.unhold(phase)

    def _make_ready(self, one: m.Sight, now: float) -> None:
        state, phase, since = self._state, self._state.cursor[one.task], _before(now, one.since_s)
        has_waited_longer = state.status[phase] == READY and state.ready_at[phase] > since + SAME_S
        if state.status[phase] == RUNNING or has_waited_longer:
            self._put_back(one.task)
            phase = state.cursor[one.task]
        if state.status[phase] == PENDING:
            self._transitions.ready(phase, since)
        if state.status[phase] == READY and not self._is_queued(phase):
            self._readiness.enqueue(phase)

    def _run(self, one: m.Sight, now: float) -> None:
        state, task = self._state, one.task
        phase = state.cursor[task]
        number = next((n for n, node in enumerate(state.nodes) if node.name == one.node and node.alive), None)
        if state.status[phase] == RUNNING or number is None:
            return
        if state.status[phase] == GRANTED and state.leases[phase].node != number:
            self._withdraw(phase, now)
        if state.status[phase] == PENDING:
            self._transitions.ready(phase, _before(now, one.since_s))
        elif state.status[phase] == HELD:
            self._transitions.unhold(phase)
        if state.status[phase] == READY:
            self._queue.remove(phase)
            self._processes.forget(task)
            place = self._place(phase, number, now)
            if place is None:
                self._readiness.enqueue(phase)
                return
            self._granting.grant(phase, place, "")
            self._issuer.out.pop()  # whoever tells of it knows of it
        self._transitions.start(phase, _before(now, one.since_s))
        if state.is_metered:
            self._limits.started(phase)

    def _place(self, phase: int, number: int, now: float) -> Place | None:
        """Room for the phase on that node, if need be that of grants which were not followed."""
        state = self._state
        while (place := select_place(state, phase, numbers=(number,))) is None:
            given = [p for p in state.leased_on.get(number, ()) if state.status[p] == GRANTED]
            open_grants = [(state.leases[p].decision, p) for p in given]
            if not open_grants:
                return None
            last = max(open_grants)[1]
            self._withdraw(last, now)
            self._readiness.enqueue(last)
        return place

    def _is_queued(self, phase: int) -> bool:
        return phase in self._queue.keys or self._state.task_of[phase] in self._processes.cold_wait


def _before(now: float, since_s: float) -> float:
    """That moment, which may be before the first that the engine was told of."""
    at = now - since_s
    return at if at != NOT_STARTED else at - 0.001
