"""What a holder has open: enough to tell all of it to another site. Touches no clock, thread or network.

    submit, grow, report ─┐
                          ├─► books ─► per workload: its open tasks as one block, and how far each of them is
    Grant, Stop, Dropped ─┘

It follows what the holder says and is told, as the engine does: what has ended is forgotten, what was stopped to start
again waits in a new attempt. A task that was granted counts as running: it is on its way, and cannot be called back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from egs_core.engine import messages as m
from egs_core.engine.specs import END
from egs_core.graph.columns import DEFAULT_OPTIONS, Graph
from egs_core.site import messages as s

WAITS, GRANTED, RUNS = range(3)


class Task(msgspec.Struct):
    """One that has not ended. index: of its present phase; since: when that was granted, or has started; is_dropped: it
    is to be ended, whatever it does now."""

    number: int
    first_phase: int
    workload: str
    place: int  # in its workload
    graph: Graph
    local: int  # in that block
    parents: tuple[int, ...]  # by number
    attempt: int = 1
    failures: int = 0
    status: int = WAITS
    index: int = 0
    node: str = ""
    devices: tuple[int, ...] = ()
    since: float = 0.0
    decision: int = 0
    is_recalled: bool = False
    is_dropped: bool = False
    counts_as_done: bool = False  # it has had what it asked for: its stop is a success
    told: tuple[s.Where, float] | None = None  # how far it is, in this attempt, and when it told
    has: tuple[str, ...] = ()  # the devices that it holds, by their UUIDs, where that is known
    flavors: tuple[str, ...] = ()  # that alone it may have since it was tried on others

    @property
    def phases(self) -> range:
        offsets = self.graph.phase_offsets
        return range(self.first_phase, self.first_phase + offsets[self.local + 1] - offsets[self.local])


class Work(msgspec.Struct):
    """A workload. numbers: of all of its tasks, by place; settled: nothing is open, and the holder knows."""

    event: m.WorkloadSubmitted
    at: float
    numbers: list[int] = []
    firsts: list[int] = []  # their first phases
    settled: bool = False
    failed: bool = False


class Books:
    """See the module."""

    def __init__(self) -> None:
        self.works: dict[str, Work] = {}
        self.tasks: dict[int, Task] = {}
        self.nodes: dict[str, m.NodeAdded] = {}
        self.pauses: dict[tuple[str, str], m.PauseRequested] = {}
        self.estimates: dict[int, tuple[float, float]] = {}
        self._by_phase: dict[int, Task] = {}
        self._grants: dict[int, Task] = {}
        self._failed: set[int] = set()  # tasks of which nothing that waits for them may run
        self._next_task = self._next_phase = 0

    # --- what the holder says ---

    def next_numbers(self) -> s.Grown:
        """Of the next task and its first phase."""
        return s.Grown(self._next_task, self._next_phase)

    def forget(self, workload: str, tasks: list[Task]) -> None:
        """Tasks that have just joined have not: their block was none."""
        work = self.works[workload]
        for task in tasks:
            del self.tasks[task.number]
            for phase in task.phases:
                del self._by_phase[phase]
        count = len(work.numbers) - len(tasks)
        del work.numbers[count:], work.firsts[count:]

    def grown(self, workload: str, graph: Graph) -> list[Task]:
        """Tasks have joined a workload; they have the next numbers."""
        work, found = self.works[workload], list[Task]()
        first = self._next_task
        numbers = [*work.numbers, *range(first, first + graph.n_tasks)]
        for local in range(graph.n_tasks):
            parents = tuple([numbers[parent] for parent in graph.parents[local]])
            task = Task(first + local, self._next_phase, workload, len(work.numbers) + local, graph, local, parents)
            task.is_dropped = any(parent in self._failed for parent in parents)
            self.tasks[task.number] = task
            for phase in task.phases:
                self._by_phase[phase] = task
            self._next_phase += len(task.phases)
            work.firsts.append(task.first_phase)
            found.append(task)
        work.numbers, work.settled = numbers, False
        self._next_task += graph.n_tasks
        return found

    def hear(self, event: m.Event, now: float) -> None:
        """What the holder reports."""
        if isinstance(event, m.WorkloadSubmitted):
            self.works.setdefault(event.workload, Work(event, now))
        elif isinstance(event, m.NodeAdded):
            self.nodes[event.node] = event
        elif isinstance(event, m.NodeLost):
            self._node_lost(event.node)
        elif isinstance(event, m.PhaseStarted):
            self._started(event, now)
        elif isinstance(event, m.PhaseEnded):
            self._ended(event)
        elif isinstance(event, m.TasksSeen):
            for sight in event.tasks:
                if sight.status == "over":
                    self._close(self.tasks.get(sight.task))
        elif isinstance(event, m.BranchSkipped | m.TaskFinished):
            self._close(self.tasks.get(event.task))
        elif isinstance(event, m.Estimates):
            known = [value for value in event.values if value[0] in self._by_phase]
            self.estimates.update((phase, (p50, p95)) for phase, p50, p95 in known)
        elif isinstance(event, m.FlavorsAllowed):
            if (found := self.tasks.get(event.task)) is not None:
                found.flavors = event.flavors
        elif isinstance(event, m.DecisionRejected | m.DecisionLost):
            self._undone(event)
        elif isinstance(event, m.PauseRequested):
            self.pauses[event.scope, event.target] = event
        elif isinstance(event, m.ResumeRequested):
            self.pauses.pop((event.scope, event.target), None)
        elif isinstance(event, m.AbortRequested):
            for task in list(self._meant(event)):
                task.is_dropped = True

    def progressed(self, where: s.Where, now: float) -> None:
        """The code of a task tells how far it is."""
        if (task := self.tasks.get(where.task)) is not None:
            task.told = where, now

    def has_devices(self, number: int, devices: tuple[str, ...]) -> None:
        """A task holds these."""
        if (task := self.tasks.get(number)) is not None:
            task.has = devices

    def _started(self, event: m.PhaseStarted, now: float) -> None:
        task = self._current(event.phase, event.attempt)
        if task is not None and task.status == GRANTED:
            task.status, task.since = RUNS, now

    def _ended(self, event: m.PhaseEnded) -> None:
        task = self._current(event.phase, event.attempt)
        if task is None:
            return
        is_last = event.phase == task.phases[-1]
        if event.outcome == "succeeded" and is_last:
            self._close(task)
        elif task.is_recalled or event.outcome == "preempted":
            self._again(task)
        elif task.is_dropped or event.outcome == "aborted":
            self._close(task, failed=not task.counts_as_done)
        elif event.outcome == "succeeded":
            task.status, task.index = WAITS, task.index + 1
        else:
            task.failures += 1
            retries = task.graph.options.get(task.local, DEFAULT_OPTIONS).retries
            if task.failures <= retries:
                self._again(task)
            else:
                self._close(task, failed=True)

    def _undone(self, event: m.DecisionRejected | m.DecisionLost) -> None:
        task = self._grants.get(event.decision)
        if task is None or task.status != GRANTED:
            return
        if isinstance(event, m.DecisionLost):
            self._again(task)
        else:
            task.status = WAITS
            task.node = task.node if task.index else ""

    def _node_lost(self, name: str) -> None:
        self.nodes.pop(name, None)
        for task in [task for task in self.tasks.values() if task.node == name]:
            self._again(task)

    def _meant(self, event: m.AbortRequested) -> Iterator[Task]:
        workload, _, stage = event.target.partition("/") if event.scope == "stage" else (event.target, "", "")
        for task in self.tasks.values():
            options = task.graph.options.get(task.local, DEFAULT_OPTIONS)
            is_named = event.scope == "task" and event.target == str(task.number)
            in_scope = event.scope != "task" and task.workload == workload
            if is_named or (in_scope and (event.scope == "workload" or options.stage == stage)):
                yield task

    # --- what it is told ---

    def told(self, told: s.AnyTold, now: float) -> None:
        """What the site has decided, in the holder's numbers."""
        if isinstance(told, s.Grant):
            task = self._by_phase.get(told.phase)
            if task is not None and task.number in self.tasks:
                task.status, task.attempt, task.since, task.decision = GRANTED, told.attempt, now, told.id
                task.index, task.node, task.devices = told.index, told.node, told.devices
                self._grants[told.id] = task
        elif isinstance(told, s.Stop):
            self._stopped(told)
        elif isinstance(told, s.Dropped):
            for number in told.tasks:
                self._close(self.tasks.get(number), failed=True)
        elif isinstance(told, s.Settled) and told.workload in self.works:
            self.works[told.workload].settled = True

    def _stopped(self, told: s.Stop) -> None:
        task = self.tasks.get(told.task)
        if task is None or task.attempt != told.attempt:
            return
        then = task.graph.options.get(task.local, DEFAULT_OPTIONS).on_limit
        task.counts_as_done = told.at_limit and then == END
        if told.requeue and told.is_over:
            self._again(task)
        elif told.is_over:
            self._close(task, failed=not task.counts_as_done)
        elif told.requeue:
            task.is_recalled = True
        else:
            task.is_dropped = True

    # --- what becomes of a task ---

    def _current(self, phase: int, attempt: int) -> Task | None:
        task = self._by_phase.get(phase)
        is_it = task is not None and task.attempt == attempt and phase == task.first_phase + task.index
        return task if is_it and task is not None and task.status != WAITS else None

    def _again(self, task: Task) -> None:
        """Back to its first phase, in a new attempt."""
        task.attempt += 1
        task.status, task.index, task.node, task.is_recalled, task.told, task.has = WAITS, 0, "", False, None, ()

    def _close(self, task: Task | None, *, failed: bool = False) -> None:
        """It is over. failed: so that nothing that waits for it may ever run."""
        if task is None or self.tasks.pop(task.number, None) is None:
            return
        for phase in task.phases:
            del self._by_phase[phase]
            self.estimates.pop(phase, None)
        self._grants.pop(task.decision, None)
        if failed:
            self.works[task.workload].failed = True
            self._failed.add(task.number)
            for child in self.tasks.values():
                child.is_dropped = child.is_dropped or task.number in child.parents

    # --- for another site ---

    def block(self, workload: str, now: float) -> tuple[list[Task], Graph, tuple[m.Begun, ...]]:
        """The workload's open tasks, the same as a block, and how far they are."""
        open_ = [self.tasks[number] for number in self.works[workload].numbers if number in self.tasks]
        places = {task.number: place for place, task in enumerate(open_)}
        graph, begun = Graph(), list[m.Begun]()
        for place, task in enumerate(open_):
            old, local = task.graph, task.local
            parents = tuple([places[parent] for parent in task.parents if parent in places])
            phases = [
                (old.phase_kind[p], old.shapes[old.phase_shape[p]], old.phase_duration_s[p])
                for p in old.phases_of(local)
            ]
            options = old.options.get(local)
            if task.flavors:
                options = msgspec.structs.replace(options or DEFAULT_OPTIONS, flavors=task.flavors)
            graph.add_task(old.ids[local], parents, tuple(phases), old.names[local], options=options)
            since_s = None if task.status == WAITS else max(0.0, now - task.since)
            if since_s is not None or task.attempt > 1 or task.index:
                one = m.Begun(place, task.attempt, task.failures, task.node, task.index, since_s, task.devices)
                begun.append(one)
        return open_, graph, tuple(begun)

    def told_of(self, now: float) -> list[s.Where]:
        """How far tasks are that have told it."""
        told = [task.told for task in self.tasks.values() if task.told is not None]
        return [msgspec.structs.replace(where, ago_s=where.ago_s + now - at) for where, at in told]

    def known_devices(self) -> list[tuple[int, tuple[str, ...]]]:
        """The devices of tasks of which they are known."""
        return [(task.number, task.has) for task in self.tasks.values() if task.has]

    def dropped(self) -> Iterable[Task]:
        """Those that are to be ended."""
        return [task for task in self.tasks.values() if task.is_dropped]
