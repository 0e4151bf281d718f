"""How tasks end early: by an operator's wish, because something before them failed, or as a branch not taken."""

from __future__ import annotations

from collections.abc import Iterable

from egs_core.engine import messages as m
from egs_core.engine.order.queue import ReadyQueue
from egs_core.engine.passes.issuer import Issuer
from egs_core.engine.passes.readiness import Readiness
from egs_core.engine.passes.warm_pool import Processes
from egs_core.engine.specs import END
from egs_core.engine.state.lifecycle import ABORTED, ENDED, FAILED, HOLDS_LEASE, PENDING


class Aborts:
    """See the module."""

    def __init__(self, issuer: Issuer, queue: ReadyQueue, processes: Processes, readiness: Readiness) -> None:
        self._issuer = issuer
        self._transitions = issuer.transitions
        self._state = issuer.state
        self._queue = queue
        self._processes = processes
        self._readiness = readiness
        self._started = issuer.started

    def request(self, event: m.AbortRequested) -> None:
        """Operator control: what runs is stopped, what waits is dropped, and with both what waits for them."""
        number = self._state.workload_numbers.get(event.target)
        if event.scope == "workload" and number is not None and not self._state.workloads[number].aborted:
            self._transitions.close_workload(number)
        reason = f"aborted by {event.actor or 'operator'}" + (f": {event.reason}" if event.reason else "")
        self.stop(self.targets(event), reason)

    def stop(self, tasks: list[int], reason: str, grace_s: float = 0.0) -> None:
        """End tasks, highest number first, with their gangs and all that waits for them."""
        for task in self.with_gangs(tasks):
            if not self.is_open(task):
                continue
            if task in self._started:
                self.stop_started(task, reason, grace_s)
            else:
                self._drop(task)
                self._abort_descendants(task)

    def targets(self, event: m.AbortRequested | m.PauseRequested) -> list[int]:
        """Tasks of a workload, a stage of it or one task, highest number first so that children go before parents."""
        state = self._state
        if event.scope == "task":
            number = int(event.target) if event.target.isdecimal() else -1
            return [number] if 0 <= number < len(state.task_ids) else []
        workload, stage = event.target, ""
        if event.scope == "stage":
            workload, _, stage = event.target.rpartition("/")
        if workload not in state.workload_numbers:
            return []
        numbers = state.workloads[state.workload_number(workload)].numbers
        return sorted((t for t in numbers if not stage or state.options_of(t).stage == stage), reverse=True)

    def with_gangs(self, tasks: list[int]) -> list[int]:
        """A gang ends as a whole."""
        state = self._state
        gangs = {state.gang_of[t] for t in tasks if t in state.gang_of} if state.gang_of else set()
        members = {member for gang in gangs for member in state.gangs[gang].members}
        return sorted(members.union(tasks), reverse=True) if members else tasks

    def is_open(self, task: int) -> bool:
        """Not ended in any way, and no stop under way."""
        return task not in self._state.stopping and self._state.status[self._state.cursor[task]] not in ENDED

    def stop_started(self, task: int, reason: str, grace_s: float = 0.0) -> None:
        """A started task: its code must be stopped, also between phases, where it holds a process."""
        state, phase = self._state, self._state.cursor[task]
        self._issuer.decide(m.Stop(state.next_decision, phase, task, state.attempt[task], reason, False, grace_s))
        self._transitions.stop(task)
        if state.status[phase] not in HOLDS_LEASE:
            self.finish(task)

    def finish(self, task: int) -> None:
        """A started task that holds nothing any more and will not go on."""
        self._issuer.mark_over(task)
        self._queue.remove(self._state.cursor[task])
        over = self._state.over_limit.get(task) if self._state.over_limit else None
        if over is not None and over.then == END:
            self._close_box(task)
            return
        self._transitions.fail(task)
        self._abort_descendants(task)
        self._end_gang(task)

    def _close_box(self, task: int) -> None:
        """What it asked for is over: it has succeeded, and what waits for it may run."""
        self._readiness.freed()
        freed = self._transitions.close_box(task)
        self._readiness.regather(task)
        for phase in freed:
            self._readiness.make_ready(phase, self._state.now)

    def _end_gang(self, task: int) -> None:
        """A member will never run, or has failed for good: the others can never start together with it again."""
        gang = self._state.gang_of.get(task)
        for member in self._state.gangs[gang].members if gang is not None else ():
            if not self.is_open(member):
                continue
            if member in self._started:
                self.stop_started(member, f"its gang has lost {self._state.task_ids[task]}")
            else:
                self._drop(member)
                self._abort_descendants(member)

    def skip(self, task: int) -> list[int]:
        """A branch not taken; returns the phases that become free to run. Nothing for one that has started."""
        if not 0 <= task < len(self._state.task_ids) or task in self._started or not self.is_open(task):
            return []
        self.leave(task)
        return self._transitions.skip(task)

    def after_growth(self, workload: str, added: range) -> None:
        """New tasks that can never run: their workload has been aborted, or something that they wait for."""
        state = self._state
        if state.workloads[state.workload_number(workload)].aborted:
            self._drop_all(added)
        first, parents = added.start, state.parents
        earlier = [p for ps in parents[first : added.stop] if ps and min(ps) < first for p in ps if p < first]
        dead = {p for p in set(earlier) if self._is_dead(p)}
        for task in sorted(dead):
            self._abort_descendants(task)

    def _is_dead(self, task: int) -> bool:
        """Ended in a way that its children can never run."""
        return any(self._state.status[p] in (FAILED, ABORTED) for p in self._state.phases_of(task))

    def _drop_all(self, tasks: Iterable[int]) -> None:
        for task in tasks:
            if self.is_open(task):  # it may have been dropped with its gang
                self._drop(task)

    def _drop(self, task: int) -> None:
        self.leave(task)
        self._transitions.abort(task)
        if self._state.gang_of:
            self._end_gang(task)

    def leave(self, task: int) -> None:
        """A task that has not started gives up its place and its process."""
        self._queue.remove(self._state.cursor[task])
        self._processes.forget(task)
        self._processes.want_plan()
        if task in self._state.parked:
            self._processes.give_up(task)

    def _abort_descendants(self, task: int) -> None:
        """Nothing that waits for this task will ever run."""
        state = self._state
        pending = list(state.children[task])
        while pending:
            child = pending.pop()
            if state.status[state.cursor[child]] == PENDING and child not in self._started:
                self._drop(child)
                pending.extend(state.children[child])
