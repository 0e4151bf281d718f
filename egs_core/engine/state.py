"""What the engine knows, as columns, and the transitions that change it.

Every change is one of the public methods below and decides nothing, so a journal of (method, arguments) folds to the
same state without asking the engine again. Tasks and phases carry the engine's own numbers, given in topological
order: a parent's number is always below its child's.

    task t     phases first_phase[t] … first_phase[t + 1] - 1, `cursor[t]` is the current one
    phase p    status, ready_at …, rank[p] = seconds of the longest path from p's start to an exit
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec

from egs_core.engine.lifecycle import (
    ABORTED,
    ALLOWED,
    COLD,
    ENDED,
    GRANTED,
    HELD,
    PENDING,
    READY,
    RUNNING,
    SKIPPED,
    STATUS_NAMES,
    SUCCEEDED,
    WARM,
    WARMING,
)
from egs_core.engine.messages import Estimates, NodeAdded, TasksAdded, WorkloadSubmitted
from egs_core.graph.columns import DEFAULT_OPTIONS, Shape, TaskOptions

STATE_VERSION = 1
UNTRACKED = -1
WHOLE_DEVICE = 1000
PRIOR_S = 1.0  # what a phase is believed to take until an estimate says otherwise


class Node(msgspec.Struct):
    """One machine: capacity, what is free, its devices (free thousandths each) and its warm processes.

    Of the processes that tasks with a warm key run in, `working` belong to a started task, `parked` wait for a certain
    task (`warming` of them are still loading), and idle_warm counts those without a task, by warm key.
    """

    name: str
    cpu_milli: int
    free_cpu: int
    memory_bytes: int
    free_memory: int
    gpu_memory_bytes: int
    devices: list[int]
    device_memory: list[int]
    preload_slots: int = 2
    process_slots: int = 8
    alive: bool = True
    idle_warm: dict[str, int] = {}
    working: int = 0
    parked: int = 0
    warming: int = 0

    @property
    def processes(self) -> int:
        return self.working + self.parked + sum(self.idle_warm.values())


class Lease(msgspec.Struct, frozen=True):
    """What a granted or running phase holds. gpu_milli and gpu_memory_bytes are per device."""

    decision: int
    node: int
    cpu_milli: int
    memory_bytes: int
    gpu_milli: int
    gpu_memory_bytes: int
    devices: tuple[int, ...]


class Workload(msgspec.Struct):
    id: str
    name: str = ""
    tenant: str = ""
    queue: str = ""
    submitted_at: float = 0.0
    open_tasks: int = 0
    failed: bool = False
    numbers: list[int] = []  # task index within the workload -> engine's task number


class State(msgspec.Struct):
    """See the module. Lists are indexed by task number (first group) or phase number (second group)."""

    version: int = STATE_VERSION
    now: float = 0.0
    seq: int = 0  # order in which phases became ready
    next_decision: int = 1
    nodes: list[Node] = []
    workloads: list[Workload] = []
    shapes: list[Shape] = []
    options: dict[int, TaskOptions] = {}

    task_ids: list[str] = []
    task_names: list[str] = []
    task_workload: list[int] = []
    parents: list[tuple[int, ...]] = []
    children: list[list[int]] = []
    waiting: list[int] = []  # parents not yet done
    first_phase: list[int] = msgspec.field(default_factory=lambda: [0])
    cursor: list[int] = []
    attempt: list[int] = []
    warmth: list[int] = []
    home: dict[int, int] = {}  # task -> node of its process, running or parked; later phases stay there
    parked: set[int] = set()  # tasks with a process that waits for them, warm or warming; the rest of `home` has started
    start_cold: set[int] = set()  # tasks whose preload failed: they may start without a warm process
    stopping: set[int] = set()  # tasks with an abort under way

    kind: list[int] = []
    shape: list[int] = []
    task_of: list[int] = []
    estimate_s: list[float] = []
    estimate_p95_s: list[float] = []
    rank_s: list[float] = []
    status: list[int] = []
    ready_at: list[float] = []
    started_at: list[float] = []
    order: list[int] = []  # `seq` at the moment it became ready
    retry_at: dict[int, float] = {}  # phase -> when a held one is tried again
    rejections: dict[int, int] = {}
    leases: dict[int, Lease] = {}
    decisions: dict[int, int] = {}  # open decision -> phase (grants) or -1 - task (preloads)

    # --- structure: absorbed from events as they are ---

    def absorb_node(self, event: NodeAdded) -> None:
        """Add a node, or change a known one: what is free moves by the difference, never what is held."""
        cpu = round(event.cpus * 1000)
        memory = UNTRACKED if event.memory_bytes is None else event.memory_bytes
        gpu_memory = UNTRACKED if event.gpu_memory_bytes is None else event.gpu_memory_bytes
        for node in self.nodes:
            if node.name == event.node:
                self._resize(node, cpu, memory, event.gpus)
                return
        per_device = max(gpu_memory, 0)
        self.nodes.append(
            Node(
                event.node,
                cpu,
                cpu,
                memory,
                max(memory, 0),
                gpu_memory,
                [WHOLE_DEVICE] * event.gpus,
                [per_device] * event.gpus,
                event.preload_slots,
                event.process_slots,
            )
        )

    def _resize(self, node: Node, cpu: int, memory: int, gpus: int) -> None:
        """Capacity below what is held leaves a negative free amount: nothing new starts until it is paid back."""
        node.alive = True
        node.free_cpu += cpu - node.cpu_milli
        node.cpu_milli = cpu
        if memory != UNTRACKED and node.memory_bytes != UNTRACKED:
            node.free_memory += memory - node.memory_bytes
            node.memory_bytes = memory
        while len(node.devices) < gpus:
            node.devices.append(WHOLE_DEVICE)
            node.device_memory.append(max(node.gpu_memory_bytes, 0))
        while len(node.devices) > gpus and node.devices[-1] == WHOLE_DEVICE:
            node.devices.pop()
            node.device_memory.pop()

    def absorb_workload(self, event: WorkloadSubmitted, now: float) -> None:
        self.workloads.append(Workload(event.workload, event.name, event.tenant, event.queue, now))

    def workload_number(self, workload_id: str) -> int:
        for number in range(len(self.workloads) - 1, -1, -1):
            if self.workloads[number].id == workload_id:
                return number
        raise KeyError(f"unknown workload {workload_id!r}")

    def absorb_tasks(self, event: TasksAdded) -> range:
        """Append a block in topological order and return its task numbers."""
        graph, w = event.graph, self.workload_number(event.workload)
        workload = self.workloads[w]
        known = len(workload.numbers)
        order = _topological(graph.parents, known)
        start = len(self.task_ids)
        numbers = workload.numbers + [0] * len(order)
        for offset, local in enumerate(order):
            numbers[known + local] = start + offset
        workload.numbers = numbers
        workload.open_tasks += len(order)
        shape_of = [self._shape_number(shape) for shape in graph.shapes]
        for local in order:
            self._append_task(graph.ids[local], graph.names[local], w, tuple(numbers[p] for p in graph.parents[local]))
            task = len(self.task_ids) - 1
            options = graph.options.get(local)
            if options is not None:
                self.options[task] = options
            for p in graph.phases_of(local):
                seconds = graph.phase_duration_s[p]
                self._append_phase(task, graph.phase_kind[p], shape_of[graph.phase_shape[p]], seconds)
            self.first_phase.append(len(self.kind))
        self.refresh_ranks(range(start, len(self.task_ids)))
        return range(start, len(self.task_ids))

    def _append_task(self, task_id: str, name: str, workload: int, parents: tuple[int, ...]) -> None:
        task = len(self.task_ids)
        self.task_ids.append(task_id)
        self.task_names.append(name)
        self.task_workload.append(workload)
        self.parents.append(parents)
        self.children.append([])
        waiting = 0
        for parent in parents:
            self.children[parent].append(task)
            waiting += not self.is_done(parent)
        self.waiting.append(waiting)
        self.cursor.append(self.first_phase[task])
        self.attempt.append(1)
        self.warmth.append(COLD)

    def _append_phase(self, task: int, kind: int, shape: int, seconds: float | None) -> None:
        estimate = PRIOR_S if seconds is None else seconds
        self.kind.append(kind)
        self.shape.append(shape)
        self.task_of.append(task)
        self.estimate_s.append(estimate)
        self.estimate_p95_s.append(estimate)
        self.rank_s.append(0.0)
        self.status.append(PENDING)
        self.ready_at.append(0.0)
        self.started_at.append(0.0)
        self.order.append(0)

    def _shape_number(self, shape: Shape) -> int:
        if shape in self.shapes:
            return self.shapes.index(shape)
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def absorb_estimates(self, event: Estimates) -> list[int]:
        """Take new estimates over; returns the tasks whose rank changed."""
        tasks = set()
        for phase, p50, p95 in event.values:
            self.estimate_s[phase], self.estimate_p95_s[phase] = p50, max(p50, p95)
            tasks.add(self.task_of[phase])
        return self.refresh_ranks(tasks)

    def refresh_ranks(self, tasks: Iterable[int]) -> list[int]:
        """Recompute the ranks of these tasks and of every ancestor they change; returns the tasks that changed.

        Highest number first: a parent's number is below its children's, so each task is computed once.
        """
        pending = [-task for task in tasks]
        heapq.heapify(pending)
        changed, last = [], None
        while pending:
            task = -heapq.heappop(pending)
            if task == last:
                continue
            last = task
            first, end = self.first_phase[task], self.first_phase[task + 1]
            before = self.rank_s[first]
            rank = max((self.rank_s[self.first_phase[c]] for c in self.children[task]), default=0.0)
            for p in range(end - 1, first - 1, -1):
                rank += self.estimate_s[p]
                self.rank_s[p] = rank
            changed.append(task)
            if rank != before:
                for parent in self.parents[task]:
                    heapq.heappush(pending, -parent)
        return changed

    # --- questions ---

    def is_done(self, task: int) -> bool:
        """Finished in a way that lets its children run."""
        status = self.status
        return all(status[p] in (SUCCEEDED, SKIPPED) for p in self.phases_of(task)) and task not in self.stopping

    def phases_of(self, task: int) -> range:
        return range(self.first_phase[task], self.first_phase[task + 1])

    def options_of(self, task: int) -> TaskOptions:
        return self.options.get(task, DEFAULT_OPTIONS)

    def is_first_phase(self, phase: int) -> bool:
        return self.first_phase[self.task_of[phase]] == phase

    # --- transitions ---

    def _move(self, phase: int, status: int) -> None:
        if status not in ALLOWED[self.status[phase]]:
            old, new = STATUS_NAMES[self.status[phase]], STATUS_NAMES[status]
            raise ValueError(f"phase {phase} of {self.task_ids[self.task_of[phase]]!r} cannot go from {old} to {new}")
        self.status[phase] = status

    def clock(self, now: float) -> None:
        self.now = now

    def ready(self, phase: int, now: float) -> None:
        self._move(phase, READY)
        self.retry_at.pop(phase, None)
        self.seq += 1
        self.order[phase] = self.seq
        self.ready_at[phase] = now

    def hold(self, phase: int, until: float) -> None:
        """A rejected grant: its lease is given back, and it is ready again at `until`."""
        self._release(phase)
        self._move(phase, HELD)
        self.rejections[phase] = self.rejections.get(phase, 0) + 1
        self.retry_at[phase] = until

    def unhold(self, phase: int) -> None:
        """Back to ready with the place in the order it had."""
        self.retry_at.pop(phase, None)
        self._move(phase, READY)

    def grant(self, phase: int, decision: int, node: int, devices: tuple[int, ...], warm: bool) -> None:
        """Take the phase's resources on the node; `warm` also takes its process from the node's warm ones."""
        self._move(phase, GRANTED)
        task = self.task_of[phase]
        shape, home = self.shapes[self.shape[phase]], self.nodes[node]
        per_device = shape.gpu_milli // len(devices) if devices else 0
        self.leases[phase] = Lease(
            decision, node, shape.cpu_milli, shape.memory_bytes, per_device, shape.gpu_memory_bytes, devices
        )
        home.free_cpu -= shape.cpu_milli
        home.free_memory -= shape.memory_bytes
        for device in devices:
            home.devices[device] -= per_device
            home.device_memory[device] -= shape.gpu_memory_bytes
        self.decisions[decision] = phase
        self.next_decision = decision + 1
        if self.first_phase[task] == phase:
            if task in self.options:
                self._take_process(task, node, warm)
            elif self.first_phase[task + 1] - phase > 1:
                self.home[task] = node

    def _take_process(self, task: int, node: int, warm: bool) -> None:
        key = self.options[task].warm_key
        if key:
            if task in self.parked:
                self.unpark(task)
            elif warm:
                self.nodes[node].idle_warm[key] -= 1
            self.nodes[node].working += 1
            self.warmth[task] = WARM
        self.home[task] = node

    def count_decision(self) -> None:
        """A decision that changes nothing by itself has been given out."""
        self.next_decision += 1

    def applied(self, decision: int) -> None:
        self.decisions.pop(decision, None)

    def start(self, phase: int, now: float) -> None:
        self._move(phase, RUNNING)
        self.started_at[phase] = now
        self.decisions.pop(self.leases[phase].decision, None)
        self.rejections.pop(phase, None)

    def end(self, phase: int, status: int) -> list[int]:
        """The phase is over and holds nothing. Returns the phases that nothing keeps from being ready now."""
        self._release(phase)
        self._move(phase, status)
        if status != SUCCEEDED:
            return []
        task = self.task_of[phase]
        if phase + 1 < self.first_phase[task + 1]:
            self.cursor[task] = phase + 1
            return [phase + 1]
        self.stopping.discard(task)
        if task in self.home:
            self._leave_process(task, reusable=True)
        return self._close(task)

    def finish(self, task: int) -> list[int]:
        """A started task is over with phases left. Returns the phases that become free to run."""
        for p in self.phases_of(task):
            self._release(p)
            self.retry_at.pop(p, None)
            self.status[p] = SUCCEEDED
        self.cursor[task] = self.first_phase[task + 1] - 1
        self._leave_process(task, reusable=True)
        return self._close(task)

    def _close(self, task: int) -> list[int]:
        """A task is done: count it out, and return the first phases of children that wait for nothing else."""
        self.workloads[self.task_workload[task]].open_tasks -= 1
        out = []
        waiting, status, cursor = self.waiting, self.status, self.cursor
        for child in self.children[task]:
            waiting[child] -= 1
            if not waiting[child] and status[cursor[child]] == PENDING:
                out.append(cursor[child])
        return out

    def _release(self, phase: int) -> None:
        lease = self.leases.pop(phase, None)
        if lease is None:
            return
        node = self.nodes[lease.node]
        node.free_cpu += lease.cpu_milli
        node.free_memory += lease.memory_bytes
        for device in lease.devices:
            node.devices[device] += lease.gpu_milli
            node.device_memory[device] += lease.gpu_memory_bytes
        self.decisions.pop(lease.decision, None)

    def _leave_process(self, task: int, *, reusable: bool) -> None:
        """A started task is over; its process, if still good, is warm and idle."""
        if task not in self.home or task in self.parked:
            return
        node, key = self.nodes[self.home.pop(task)], self.options_of(task).warm_key
        if key:
            node.working -= 1
            if reusable and node.alive:
                node.idle_warm[key] = node.idle_warm.get(key, 0) + 1
        self.warmth[task] = COLD

    def skip(self, task: int) -> list[int]:
        """A branch not taken: counts as done for its children. Returns the phases that become free to run."""
        self._drop(task, SKIPPED)
        return self._close(task)

    def abort(self, task: int) -> None:
        """A task that will never run, by an operator's wish or because something before it failed."""
        self._drop(task, ABORTED)
        workload = self.workloads[self.task_workload[task]]
        workload.open_tasks -= 1
        workload.failed = True

    def _drop(self, task: int, status: int) -> None:
        self.unpark(task)
        self.stopping.discard(task)
        for p in self.phases_of(task):
            if self.status[p] not in ENDED:
                self.retry_at.pop(p, None)
                self._move(p, status)

    def stop(self, task: int) -> None:
        """An abort of a running task is under way; `end` or `skip` finishes it."""
        self.stopping.add(task)

    def fail(self, task: int) -> None:
        """The task has ended without success for good: later phases never run."""
        self._leave_process(task, reusable=False)
        self.stopping.discard(task)
        for p in self.phases_of(task):
            if self.status[p] in (PENDING, READY, HELD):
                self._move(p, ABORTED)
        workload = self.workloads[self.task_workload[task]]
        workload.open_tasks -= 1
        workload.failed = True

    def requeue(self, task: int) -> int:
        """Back to the start of the task with a new attempt number, which fences off the old one."""
        for p in self.phases_of(task):
            self._release(p)
            self.retry_at.pop(p, None)
            if self.status[p] != PENDING:
                self.status[p] = PENDING
        self._leave_process(task, reusable=False)
        self.attempt[task] += 1
        self.cursor[task] = self.first_phase[task]
        return self.cursor[task]

    def park(self, task: int, node: int, decision: int, reuse: bool) -> None:
        """A process on the node gets warm for this task; with reuse it is an idle one that already is."""
        home = self.nodes[node]
        if reuse:
            home.idle_warm[self.options[task].warm_key] -= 1
        self.parked.add(task)
        home.parked += 1
        home.warming += not reuse
        self.warmth[task] = WARM if reuse else WARMING
        self.home[task] = node
        self.decisions[decision] = -1 - task
        self.next_decision = decision + 1

    def warmed(self, task: int) -> None:
        if self.warmth[task] == WARMING:
            self.warmth[task] = WARM
            self.nodes[self.home[task]].warming -= 1

    def unpark(self, task: int, keep: bool = False) -> None:
        """No process is kept waiting for this task any more; keep: it is warm and stays idle for another task."""
        if task not in self.parked:
            return
        self.parked.discard(task)
        node = self.nodes[self.home.pop(task)]
        node.parked -= 1
        node.warming -= self.warmth[task] == WARMING
        if keep and self.warmth[task] == WARM and node.alive:
            key = self.options[task].warm_key
            node.idle_warm[key] = node.idle_warm.get(key, 0) + 1
        self.warmth[task] = COLD

    def preload_failed(self, task: int) -> None:
        self.unpark(task)
        self.start_cold.add(task)

    def retire(self, node: int, key: str) -> None:
        """An idle warm process ends."""
        self.nodes[node].idle_warm[key] -= 1

    def lose_node(self, node: int) -> list[int]:
        """Everything the node offered is gone; returns the tasks that must be requeued."""
        home = self.nodes[node]
        hit = {self.task_of[p] for p, lease in self.leases.items() if lease.node == node}
        hit |= {t for t, n in self.home.items() if n == node and t not in self.parked}
        for task in [t for t in self.parked if self.home[t] == node]:
            self.unpark(task)
        home.alive = False
        home.idle_warm = {}
        return sorted(hit)


def _topological(parents: list[tuple[int, ...]], known: int) -> list[int]:
    """Indices of a block in an order that puts parents first; parents below `known` belong to earlier blocks."""
    n = len(parents)
    if all(p < known + i for i, ps in enumerate(parents) for p in ps):
        return list(range(n))
    children: list[list[int]] = [[] for _ in range(n)]
    missing = [0] * n
    for i, ps in enumerate(parents):
        for p in ps:
            if p >= known:
                children[p - known].append(i)
                missing[i] += 1
    order = [i for i in range(n) if not missing[i]]
    for i in order:
        for child in children[i]:
            missing[child] -= 1
            if not missing[child]:
                order.append(child)
    if len(order) != n:
        raise ValueError("the block has a cycle")
    return order
