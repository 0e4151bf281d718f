"""What happens to phases and tasks: the transitions of their lives, on top of what there is (`structure`), what is used
(`metering`), and which processes are warm (`processes`).

Every change of the state is one of the public methods that `journal` names and decides nothing, so a journal of
(method, arguments) folds to the same state without asking the engine again.
"""

from __future__ import annotations

from egs_core.engine.state.lifecycle import (
    ABORTED,
    ALLOWED,
    ENDED,
    FAILED,
    GRANTED,
    HELD,
    PENDING,
    PREEMPTED,
    READY,
    RUNNING,
    SKIPPED,
    STATUS_NAMES,
    SUCCEEDED,
)
from egs_core.engine.state.nodes import ELSEWHERE, NOT_STARTED
from egs_core.engine.state.records import Pause, Reservation
from egs_core.engine.state.structure import StructureState
from egs_core.engine.state.submissions import close_submission, end_phase, recount


class State(StructureState):
    """See the module."""

    # --- transitions: the life of a phase ---

    def _move(self, phase: int, status: int) -> None:
        if status not in ALLOWED[self.status[phase]]:
            old, new = STATUS_NAMES[self.status[phase]], STATUS_NAMES[status]
            raise ValueError(f"phase {phase} of {self.task_ids[self.task_of[phase]]!r} cannot go from {old} to {new}")
        self.status[phase] = status
        if self.paused:
            self.paused.discard(phase)

    def clock(self, now: float) -> None:
        self.now = now

    def ready(self, phase: int, now: float) -> None:
        self._move(phase, READY)
        self.seq = self.order[phase] = self.seq + 1
        self.ready_at[phase] = now

    def hold(self, phase: int, until: float) -> None:
        """A rejected grant: its lease is given back, and it is ready again at `until`. A first phase may then start
        on another node; no process is counted on any more."""
        self._release(phase)
        self._move(phase, HELD)
        self.recalled.discard(self.task_of[phase])
        if self.is_first_phase(phase):
            self._leave_process(self.task_of[phase], reusable=False)
        self.rejections[phase] = self.rejections.get(phase, 0) + 1
        self.retry_at[phase] = until

    def pause(self, key: str, actor: str, reason: str, at: float) -> None:
        self.pauses[key] = Pause(actor, reason, at)
        if self.is_metered:
            self._run_clock(key, 0.0)

    def resume(self, key: str) -> None:
        del self.pauses[key]
        if self.is_metered:
            self._run_clock(key, 1.0)

    def hold_paused(self, phase: int) -> None:
        """A ready phase of something paused; `unhold` lets it go on."""
        self._move(phase, HELD)
        self.paused.add(phase)

    def unhold(self, phase: int) -> None:
        """Back to ready with the place in the order it had."""
        self.retry_at.pop(phase, None)
        self._move(phase, READY)

    def grant(self, phase: int, decision: int, node: int, devices: tuple[int, ...], warm: bool) -> int:
        """Take the phase's resources on the node; `warm` also takes its process from the node's warm ones. Returns the
        positions of its slice, 0 for none."""
        self._move(phase, GRANTED)
        home = self.nodes[node]
        lease = self.leases[phase] = home.lease(decision, node, self.shapes[self.shape[phase]], devices)
        home.take(lease)
        if node in self.leased_on:
            self.leased_on[node].add(phase)
        else:
            self.leased_on[node] = {phase}
        if self.queues:
            self._count_use(phase, 1)
        if self.reservations:
            self.reservations.pop(phase, None)
        self.decisions[decision] = phase
        self.next_decision = decision + 1
        task = self.task_of[phase]
        if self.reads:
            self.written_on[task] = node
        if self.first_phase[task] == phase and (task in self.options or self.first_phase[task + 1] - phase > 1):
            self._take_process(task, node, warm)
        return lease.positions

    def start(self, phase: int, now: float) -> None:
        self._move(phase, RUNNING)
        self.started_at[phase] = now
        self.decisions.pop(self.leases[phase].decision, None)
        if self.rejections:
            self.rejections.pop(phase, None)
        if self.is_metered:
            self._begin_use(phase, now)

    def end(self, phase: int, status: int) -> list[int]:
        """The phase is over and holds nothing. Returns the phases whose dependencies are satisfied now."""
        self._release(phase)
        self._move(phase, status)
        task = self.task_of[phase]
        if status != SUCCEEDED:
            recount(self, phase)
            if status == FAILED:
                self.failures[task] = self.failures.get(task, 0) + 1
            return []
        end_phase(self, phase)
        if phase + 1 < self.first_phase[task + 1]:
            self.cursor[task] = phase + 1
            return [phase + 1]
        if self.stopping:
            self.stopping.discard(task)
        if task in self.home:
            self._leave_process(task, reusable=True)
        return self._close(task)

    def finish(self, task: int) -> list[int]:
        """A started task is over with phases left. Returns the phases that become free to run."""
        for p in self.phases_of(task):
            self._release(p)
            self.retry_at.pop(p, None)
            self.paused.discard(p)
            self.status[p] = SUCCEEDED
            recount(self, p)
        self.cursor[task] = self.first_phase[task + 1] - 1
        self.stopping.discard(task)
        self._leave_process(task, reusable=True)
        return self._close(task)

    def close_box(self, task: int) -> list[int]:
        """A task has been stopped at the end of what it asked for: it counts as succeeded, its process is gone."""
        self._leave_process(task, reusable=False)
        return self.finish(task)

    def _close(self, task: int) -> list[int]:
        """A task is done: count it out, and return the first phases of children that wait for nothing else."""
        if self.recalled:
            self.recalled.discard(task)
        if self.checkpoint_at:
            self.checkpoint_at.pop(task, None)
        if self.failures:
            self.failures.pop(task, None)
        if self.is_metered:
            self._forget_use(task, is_done=True)
        workload = self.workloads[self.task_workload[task]]
        workload.open_tasks -= 1
        submission = self.submissions[workload.submission]
        submission.open_tasks -= 1
        if not submission.open_tasks:
            close_submission(self, submission)
        out = []
        waiting, status, cursor = self.waiting, self.status, self.cursor
        for child in self.children[task]:
            left = waiting[child] = waiting[child] - 1
            if not left and status[cursor[child]] == PENDING:
                out.append(cursor[child])
        return out

    def _release(self, phase: int) -> None:
        lease = self.leases.pop(phase, None)
        if lease is not None:
            self.nodes[lease.node].give_back(lease)
            held = self.leased_on[lease.node]
            held.discard(phase)
            if not held:
                del self.leased_on[lease.node]
            if self.decisions:
                self.decisions.pop(lease.decision, None)
            if self.queues:
                self._count_use(phase, -1)
            if self.charges:
                self._uncharge(phase)

    def skip(self, task: int) -> list[int]:
        """A branch not taken: counts as done for its children. Returns the phases that become free to run."""
        self._drop(task, SKIPPED)
        self._leave_process(task, reusable=False)  # a framework may say so between two phases
        return self._close(task)

    def abort(self, task: int) -> None:
        """A task that will never run, by an operator's wish or because something before it failed."""
        self._drop(task, ABORTED)
        self._close_failed(task)

    def _drop(self, task: int, status: int) -> None:
        self.unpark(task)
        for p in self.phases_of(task):
            if self.status[p] not in ENDED:
                self.retry_at.pop(p, None)
                self._move(p, status)
                recount(self, p)

    def _close_failed(self, task: int) -> None:
        self.failures.pop(task, None)
        workload = self.workloads[self.task_workload[task]]
        workload.open_tasks -= 1
        workload.failed = True
        submission = self.submissions[workload.submission]
        submission.open_tasks -= 1
        if not submission.open_tasks:
            close_submission(self, submission)
        if self.is_metered:
            self._forget_use(task, is_done=False)

    def stop(self, task: int) -> None:
        """An abort of a running task is under way; `end` or `fail` finishes it."""
        self.stopping.add(task)

    def fail(self, task: int) -> None:
        """The task has ended without success for good: later phases never run."""
        self._leave_process(task, reusable=False)
        self.stopping.discard(task)
        self.recalled.discard(task)
        for p in self.phases_of(task):
            if self.status[p] in (PENDING, READY, HELD, PREEMPTED):
                self.retry_at.pop(p, None)
                self._move(p, ABORTED)
                recount(self, p)
        self._close_failed(task)

    def lost_work_s(self, task: int) -> float:
        """Seconds of work that starting the task again now loses: of its phase since it started or last saved a
        checkpoint; without a checkpoint also its earlier phases, by their estimates."""
        phase, saved_at = self.cursor[task], self.checkpoint_at.get(task)
        if self.status[phase] not in (RUNNING, PREEMPTED, FAILED) or self.started_at[phase] == NOT_STARTED:
            return 0.0
        if saved_at is not None:
            return max(0.0, self.now - max(self.started_at[phase], saved_at))
        earlier = sum(self.estimate_s[self.first_phase[task] : phase])
        return max(0.0, self.now - self.started_at[phase]) + earlier

    def requeue(self, task: int) -> int:
        """Back to the start of the task with a new attempt number, which fences off the old one."""
        self.workloads[self.task_workload[task]].lost_s += self.lost_work_s(task)
        self.checkpoint_at.pop(task, None)
        for p in self.phases_of(task):
            self._release(p)
            self.retry_at.pop(p, None)
            self.paused.discard(p)
            self.status[p] = PENDING
            self.started_at[p] = NOT_STARTED
            recount(self, p)
        self._leave_process(task, reusable=False)
        self.start_cold.discard(task)
        self.recalled.discard(task)
        if self.is_metered:
            self._begin_again(task)
        self.attempt[task] += 1
        self.cursor[task] = self.first_phase[task]
        return self.cursor[task]

    def lose_node(self, node: int) -> list[int]:
        """Everything the node offered is gone; returns the started tasks that must be requeued."""
        home = self.nodes[node]
        hit = {self.task_of[p] for p in self.leased_on.get(node, ())}
        hit |= {t for t, n in self.home.items() if n == node and t not in self.parked}
        home.alive = False
        home.idle_warm = {}
        return sorted(hit)

    # --- transitions: what another engine has begun ---

    def hold_grants(self, until: float | None) -> None:
        """Nothing is granted before that moment."""
        self.held_until = until

    def attempted(self, task: int, attempt: int, failures: int) -> None:
        """A new task has been tried before."""
        self.attempt[task] = max(1, attempt)
        if 0 < failures <= self.attempt[task]:
            self.failures[task] = failures

    def take_over(self, task: int, index: int, node: int, devices: tuple[int, ...], started_at: float | None) -> None:
        """A new task has begun on the node: its first `index` phases have succeeded. The next one runs since then, and
        holds what it has whatever there is room for; None: it is still to be granted."""
        first = self.first_phase[task]
        phase = self.cursor[task] = first + index
        for earlier in range(first, phase):
            for status in (READY, GRANTED, SUCCEEDED):
                self._move(earlier, status)
            end_phase(self, earlier)
        if started_at is not None:
            self.ready(phase, started_at)
            self._move(phase, GRANTED)
            home = self.nodes[node]
            lease = self.leases[phase] = home.lease(ELSEWHERE, node, self.shape_of(phase), devices)
            home.take(lease)
            self.leased_on.setdefault(node, set()).add(phase)
            if self.queues:
                self._count_use(phase, 1)
        if self.reads:
            self.written_on[task] = node
        if task in self.options or self.first_phase[task + 1] - first > 1:
            self._take_process(task, node, warm=False)
            self.nodes[node].process_slots = max(self.nodes[node].process_slots, self.nodes[node].processes)
        if started_at is not None:
            self.start(phase, started_at)

    # --- transitions: gangs and reservations ---

    def recall(self, task: int) -> None:
        """A running task is being stopped, to be requeued when it has."""
        self.recalled.add(task)

    def checkpointed(self, task: int, now: float) -> None:
        """What the running phase has done so far will not be lost."""
        self.checkpoint_at[task] = now

    def reserve(self, owner: int, at: float, places: tuple[tuple[int, int], ...]) -> None:
        """From `at` on these places are kept for the phase, or for the gang that it leads."""
        kept = self.reservations.get(owner)
        since = self.next_decision if kept is None else kept.since
        self.reservations[owner] = Reservation(at, tuple([(phase, node) for phase, node in places]), since)

    def unreserve(self, owner: int) -> None:
        del self.reservations[owner]

    # --- transitions: decisions ---

    def count_decision(self) -> None:
        """A decision that changes nothing by itself has been given out."""
        self.next_decision += 1

    def applied(self, decision: int) -> None:
        self.decisions.pop(decision, None)

    # --- transitions: what passes note for the next time ---

    def lift(self, phases: tuple[int, ...], seconds: tuple[float, ...], is_firm: bool = False) -> None:
        """A plan: what to add to the ranks of these phases; nothing to those of all others. is_firm: it gains more than
        all files cost, so nobody goes before another for files."""
        self.rank_boost_s = dict(zip(phases, seconds, strict=True))
        self.plan_is_firm = is_firm

    def planned(self, again_at: float | None) -> None:
        """The preload planner has looked, and wants to look again at this time at the latest."""
        self.plan_at = again_at

    def review(self, at: float | None) -> None:
        """A phase waits for a better flavor than what is free; it is to be looked at again then at the latest."""
        self.review_at = at

    def hinted(self, flavor: str, gpus: int, cpus: int, now: float) -> None:
        """What has been said last of the capacity of this flavor."""
        self.scaling[flavor] = (gpus, cpus, now)

    def scaled(self, at: float, again_at: float | None) -> None:
        """Scaling has been looked at, and should be again then at the latest."""
        self.scaled_at, self.scale_at = at, again_at
