"""The transitions that change what the engine knows (`columns`).

Every change is one of the public methods named in `TRANSITIONS` and decides nothing, so a journal of (method,
arguments) folds to the same state without asking the engine again.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from egs_core.engine.messages import (
    Estimates,
    FlavorEstimates,
    FlavorsChanged,
    NodeAdded,
    QueuesChanged,
    TasksAdded,
    WorkloadSubmitted,
)
from egs_core.engine.specs import NO_QUEUE
from egs_core.engine.state.growth import append_block, detach, pass_up, reads_of, refresh_ranks
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
from egs_core.engine.state.metering import UsageState
from egs_core.engine.state.nodes import NOT_STARTED, Node
from egs_core.engine.state.records import Pause, Reservation, Workload, amounts_of, make_queues
from egs_core.engine.state.submissions import (
    close_submission,
    count_block,
    end_phase,
    join_submission,
    recount,
)


class State(UsageState):
    """See the module."""

    # --- transitions: structure, absorbed from events as they are ---

    def absorb_node(self, event: NodeAdded) -> None:
        """Add a node, or change a known one."""
        node = next((node for node in self.nodes if node.name == event.node), None)
        if node is None:
            node = Node(event.node)
            self.nodes.append(node)
        node.take_capacity(event)
        if self.flavors or node.profiles:
            self._split_devices()

    def absorb_queues(self, event: QueuesChanged) -> None:
        """Take the configuration over; what leases hold now is what their queues use."""
        self.queues = make_queues(event.queues, self.queues)
        self.queue_numbers = {queue.spec.name: number for number, queue in enumerate(self.queues)}
        for queue in self.queues:
            queue.used = [0, 0, 0]
        self.queues_since = self.next_decision
        for phase in self.leases:
            self._count_use(phase, 1)
        self._meter_queues()
        self.has_deadlines = self.has_deadlines or any(queue.spec.deadline_s is not None for queue in self.queues)

    def absorb_flavors(self, event: FlavorsChanged) -> None:
        """Take the flavors over; those with a speed or price that is no such thing are left out."""
        self.flavors = {spec.name: spec for spec in event.flavors if spec.is_sound}
        self._split_devices()
        if self.is_metered:
            self._charge_anew()

    def _split_devices(self) -> None:
        """Nodes have their flavors' profiles; slices that are held stay as they are."""
        for node in self.nodes:
            node.profiles = self.flavors[node.flavor].profiles if node.flavor in self.flavors else ()

    def absorb_flavor_estimates(self, event: FlavorEstimates) -> None:
        """Take them over, unless they are no durations."""
        for phase, flavor, p50, p95 in event.values:
            if 0 <= phase < len(self.kind) and isfinite(p50) and isfinite(p95) and p50 >= 0:
                self.flavor_estimates.setdefault(phase, {})[flavor] = (p50, max(p50, p95))

    def review(self, at: float | None) -> None:
        """A phase waits for a better flavor than what is free; it is to be looked at again then at the latest."""
        self.review_at = at

    def hinted(self, flavor: str, gpus: int, cpus: int, now: float) -> None:
        """What has been said last of the capacity of this flavor."""
        self.scaling[flavor] = (gpus, cpus, now)

    def scaled(self, at: float, again_at: float | None) -> None:
        """Scaling has been looked at, and should be again then at the latest."""
        self.scaled_at, self.scale_at = at, again_at

    def _count_use(self, phase: int, sign: int) -> None:
        number = self.queue_of(self.task_of[phase])
        if number != NO_QUEUE:
            self.queues[number].use(amounts_of(self.shapes[self.shape[phase]]), sign, self.now)

    def absorb_workload(self, event: WorkloadSubmitted, now: float) -> None:
        self.workload_numbers[event.workload] = len(self.workloads)
        workload = Workload(event.workload, event.name, event.tenant, event.queue, now, deadline_s=event.deadline_s)
        workload.limits = event.limits
        workload.submission = join_submission(self, event.submission, event.name, event.queue)
        self.is_metered = self.is_metered or event.limits is not None
        self.has_deadlines = self.has_deadlines or event.deadline_s is not None
        self.workloads.append(workload)

    def absorb_tasks(self, event: TasksAdded) -> list[int]:
        """Append a block in topological order; returns the earlier tasks whose rank or children changed."""
        number, first = self.workload_number(event.workload), len(self.task_ids)
        before = self.workloads[number].numbers[:1]
        jobs = list(self.workloads[number].numbers) if before and self.is_job(before[0]) else []
        known = len(self.workloads[number].numbers)
        changed = append_block(self, number, event.graph)
        count_block(self, number, first)
        if event.graph.inputs and any(node.bandwidth_bytes_s for node in self.nodes):
            self.reads.update(reads_of(event.graph, self.workloads[number].numbers, known))
        self._expect_limits(event.graph)
        if any(options.deadline_s is not None for options in event.graph.options.values()):
            self.has_deadlines = True
            changed = [*changed, *pass_up(self, range(first, len(self.task_ids)))]
        return changed if not jobs or self.is_job(before[0]) else [*changed, *jobs]

    def absorb_estimates(self, event: Estimates) -> list[int]:
        """Take new estimates over, unless they are no durations; returns the tasks whose ranks were computed."""
        tasks = set()
        for phase, p50, p95 in event.values:
            if 0 <= phase < len(self.kind) and isfinite(p50) and isfinite(p95) and p50 >= 0:
                self.estimate_s[phase], self.estimate_p95_s[phase] = p50, max(p50, p95)
                self.unknown.discard(phase)
                recount(self, phase)
                tasks.add(self.task_of[phase])
        return self.refresh_ranks(tasks)

    def refresh_ranks(self, tasks: Iterable[int]) -> list[int]:
        return refresh_ranks(self, tasks)

    def lift(self, phases: tuple[int, ...], seconds: tuple[float, ...], is_firm: bool = False) -> None:
        """A plan: what to add to the ranks of these phases; nothing to those of all others. is_firm: it gains more than
        all files cost, so nobody goes before another for files."""
        self.rank_boost_s = dict(zip(phases, seconds, strict=True))
        self.plan_is_firm = is_firm

    def set_wait(self, submission: int, wait_s: float, wait_lengths: float) -> None:
        """How long a phase of the submission waits at most for others: see `Submission`."""
        self.submissions[submission].wait_s, self.submissions[submission].wait_lengths = wait_s, wait_lengths

    def close_workload(self, number: int) -> None:
        """An operator has aborted the workload: it takes no more tasks."""
        self.workloads[number].aborted = True

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

    def detach(self, tasks: tuple[int, ...]) -> list[int]:
        """These wait for nothing any more, whatever was before them; returns the tasks whose ranks were computed."""
        return detach(self, tasks)

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
        if self.queues:
            self._count_use(phase, 1)
        if self.reservations:
            self.reservations.pop(phase, None)
        self.decisions[decision] = phase
        self.next_decision = decision + 1
        task = self.task_of[phase]
        if self.reads:
            self.written_on[task] = node
        if self.first_phase[task] == phase:
            if task in self.options:
                self._take_process(task, node, warm)
            elif self.first_phase[task + 1] - phase > 1:
                self.home[task] = node
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
        if status != SUCCEEDED:
            recount(self, phase)
            return []
        end_phase(self, phase)
        task = self.task_of[phase]
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
            waiting[child] -= 1
            if not waiting[child] and status[cursor[child]] == PENDING:
                out.append(cursor[child])
        return out

    def _release(self, phase: int) -> None:
        lease = self.leases.pop(phase, None)
        if lease is not None:
            self.nodes[lease.node].give_back(lease)
            if self.decisions:
                self.decisions.pop(lease.decision, None)
            if self.queues:
                self._count_use(phase, -1)
            if self.charges:
                self._uncharge(phase)

    def skip(self, task: int) -> list[int]:
        """A branch not taken: counts as done for its children. Returns the phases that become free to run."""
        self._drop(task, SKIPPED)
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
        hit = {self.task_of[p] for p, lease in self.leases.items() if lease.node == node}
        hit |= {t for t, n in self.home.items() if n == node and t not in self.parked}
        home.alive = False
        home.idle_warm = {}
        return sorted(hit)

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

    # --- transitions: decisions and processes ---

    def count_decision(self) -> None:
        """A decision that changes nothing by itself has been given out."""
        self.next_decision += 1

    def applied(self, decision: int) -> None:
        self.decisions.pop(decision, None)

    def planned(self, again_at: float | None) -> None:
        """The preload planner has looked, and wants to look again at this time at the latest."""
        self.plan_at = again_at


TRANSITIONS = frozenset(
    {
        "absorb_node",
        "absorb_queues",
        "absorb_flavors",
        "absorb_flavor_estimates",
        "review",
        "hinted",
        "scaled",
        "absorb_workload",
        "absorb_tasks",
        "absorb_estimates",
        "lift",
        "set_wait",
        "close_workload",
        "clock",
        "ready",
        "hold",
        "unhold",
        "hold_paused",
        "detach",
        "pause",
        "resume",
        "grant",
        "start",
        "end",
        "finish",
        "skip",
        "abort",
        "stop",
        "fail",
        "requeue",
        "lose_node",
        "recall",
        "checkpointed",
        "reserve",
        "unreserve",
        "count_decision",
        "applied",
        "planned",
        "park",
        "warmed",
        "unpark",
        "preload_failed",
        "retire",
        "active",
        "over",
        "over_workload",
        "close_box",
    }
)
