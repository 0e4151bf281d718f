"""The loop: the next event in virtual time goes to the engine, its decisions become later events.

Ties in time are broken by the order in which events were scheduled, so a run is repeatable to the bit.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable, Sequence

import msgspec

from egs_core.driver.run_records import RunRecords
from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.explain import explain
from egs_core.engine.lifecycle import PENDING, READY
from egs_core.errors import InputError
from egs_core.graph.columns import CPU, Graph, Shape
from egs_core.graph.load import LoadedWorkload
from egs_core.runlog import records as r
from egs_core.sim.config import Durations, SimConfig, SimNode

Estimator = Callable[[LoadedWorkload, int], tuple[float, float]]
"""(workload, phase number in its graph) -> believed median and 95th percentile in seconds."""


class SimResult(msgspec.Struct):
    """makespan_s: first submission to last end. jct_s: by workload, in the order given. wall_s: real seconds that the
    engine and the loop took from the first event to the last. phases: phases that ended."""

    makespan_s: float
    jct_s: list[float]
    phases: int
    wall_s: float
    records: list[r.Record]
    failed: list[str]

    @property
    def phases_per_s(self) -> float:
        return self.phases / self.wall_s if self.wall_s else 0.0


def simulate(
    workloads: Sequence[LoadedWorkload],
    config: SimConfig,
    estimator: Estimator | None = None,
    observer: Callable[[Engine], None] | None = None,
) -> SimResult:
    """Run the workloads to their end. Raises InputError when a duration is unknown or nothing can ever run a task.

    estimator is needed for `predicted` durations. observer is called after every event (tests validate the state).
    """
    return _Simulation(workloads, config, estimator, observer).run()


def merge_phases(graph: Graph) -> Graph:
    """The same graph with one phase a task, holding the largest of every resource for the whole time."""
    merged = msgspec.structs.replace(graph, phase_offsets=[0], phase_kind=[], phase_shape=[], phase_duration_s=[], shapes=[])
    for task in range(graph.n_tasks):
        phases = graph.phases_of(task)
        shapes = [graph.shapes[graph.phase_shape[p]] for p in phases]
        whole = Shape(*(max(getattr(s, f) for s in shapes) for f in Shape.__struct_fields__))
        seconds = [graph.phase_duration_s[p] for p in phases]
        known = None if None in seconds else sum(s for s in seconds if s is not None)
        merged.phase_kind.append(max((graph.phase_kind[p] for p in phases), default=CPU))
        merged.phase_shape.append(merged.intern_shape(whole))
        merged.phase_duration_s.append(known)
        merged.phase_offsets.append(len(merged.phase_kind))
    return merged


class _Simulation:
    def __init__(
        self,
        workloads: Sequence[LoadedWorkload],
        config: SimConfig,
        estimator: Estimator | None,
        observer: Callable[[Engine], None] | None,
    ) -> None:
        self.config = config
        self.workloads = [self._prepared(w) for w in workloads]
        self.estimator = estimator
        self.observer = observer
        self.engine = Engine(
            EngineConfig(config.policy, config.preload, config.default_max_wait_s, config.seed, record=False)
        )
        self.state = self.engine.state
        self.records: list[r.Record] = []
        self.log = RunRecords(self.state, self.records.append) if config.records else None
        self.random = random.Random(config.seed)
        self.events: list[tuple[float, int, m.Event]] = []
        self.sequence = 0
        self.truth: list[float] = []  # engine phase -> seconds it really takes
        self.grants: dict[int, m.Grant] = {}  # phase -> the grant it runs under
        self.warming_until: dict[int, float] = {}
        self.bytes_in: dict[int, list[tuple[int, int]]] = {}  # task -> (parent, bytes)
        self.ran_on: dict[int, str] = {}
        self.was_parked: set[int] = set()
        self.ended_at: dict[int, float] = {}
        self.phases = 0
        self.wakeup: float | None = None

    def _prepared(self, workload: LoadedWorkload) -> LoadedWorkload:
        graph = workload.graph
        for p, seconds in enumerate(graph.phase_duration_s):
            if seconds is None:
                task = next(t for t in range(graph.n_tasks) if p in graph.phases_of(t))
                raise InputError(
                    f"{workload.id}: task {graph.ids[task]!r}", "its duration is unknown", "a simulation needs durations"
                )
        if not self.config.split:
            graph = merge_phases(graph)
        if self.config.slots:
            graph = msgspec.structs.replace(graph, shapes=[Shape()], phase_shape=[0] * graph.n_phases)
        return msgspec.structs.replace(workload, graph=graph)

    # --- the loop ---

    def run(self) -> SimResult:
        nodes = (SimNode("slots", self.config.slots, process_slots=2**30),) if self.config.slots else self.config.nodes
        if self.log:
            header = r.Header(driver="sim", policy=self.config.policy, mode="on", emulated_gpus=True, run_id="sim")
            self.records.append(header)
        for node in nodes:
            fields = (node.name, node.cpus, node.gpus, node.memory_bytes, node.gpu_memory_bytes)
            self._send(m.NodeAdded(*fields, node.preload_slots, node.process_slots), 0.0)
        for number, workload in enumerate(self.workloads):
            self._schedule(workload.arrival_s, m.WorkloadSubmitted(str(number)))
        started = time.perf_counter()
        now = self._loop()
        wall = time.perf_counter() - started
        self._require_all_ended()
        first = min((w.arrival_s for w in self.workloads), default=0.0)
        jct = [self.ended_at[i] - w.arrival_s for i, w in enumerate(self.workloads)]
        failed = [w.id for w in self.state.workloads if w.failed]
        return SimResult(now - first, jct, self.phases, wall, self.records, failed)

    def _loop(self) -> float:
        last_end = 0.0
        events = self.events
        while events:
            now, _, event = heapq.heappop(events)
            kind = type(event)
            if kind is m.PhaseEnded:
                self._phase_ended(event, now)  # type: ignore[arg-type]  # the check above is exact and quick
                last_end = now
            elif kind is m.WorkloadSubmitted:
                self._submit(int(event.workload), now)  # type: ignore[attr-defined]
            elif kind is m.PreloadReady:
                self._preload_ready(event, now)  # type: ignore[arg-type]
            else:
                self.wakeup = None
                if self._needs_tick(now):
                    self._send(event, now)
                self._schedule_wakeup()
        return last_end

    def _needs_tick(self, now: float) -> bool:
        due = self.engine.next_wakeup()
        return due is not None and due <= now

    def _schedule(self, at: float, event: m.Event) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (at, self.sequence, event))

    def _schedule_wakeup(self) -> None:
        due = self.engine.next_wakeup()
        if due is not None and (self.wakeup is None or due < self.wakeup):
            self.wakeup = due
            self._schedule(due, m.Tick())

    def _send(self, event: m.Event, now: float) -> None:
        decisions = self.engine.handle(event, now)
        if self.observer:
            self.observer(self.engine)
        if self.log and isinstance(event, m.NodeAdded):
            self.log.node(event, now)
        for decision in decisions:
            self._perform(decision, now)
        self._schedule_wakeup()

    # --- events ---

    def _submit(self, number: int, now: float) -> None:
        workload = self.workloads[number]
        event = m.WorkloadSubmitted(f"{workload.id}#{number}", workload.name, workload.tenant, workload.queue)
        self._send(event, now)
        graph = workload.graph
        believed = [None] * graph.n_phases if self.config.durations is not Durations.EXACT else graph.phase_duration_s
        block = msgspec.structs.replace(graph, phase_duration_s=believed, options=self._warmups(graph))
        tasks = m.TasksAdded(event.workload, block)
        if self.log:
            self.log.workload(event, now)
        first = len(self.state.task_ids)
        known = len(self.state.kind)
        decisions = self.engine.handle(tasks, now) if self.estimator is None else self._submit_believed(tasks, now)
        self.truth.extend([0.0] * (len(self.state.kind) - known))
        self._learn_truth(workload, self.state.workload_number(event.workload), first)
        if self.log:
            self.log.tasks(tasks, now)
        if self.observer:
            self.observer(self.engine)
        for decision in decisions:
            self._perform(decision, now)
        self._schedule_wakeup()

    def _submit_believed(self, tasks: m.TasksAdded, now: float) -> list[m.Decision]:
        """Estimates come before the first decision: they ride in the block as its durations."""
        assert self.estimator is not None
        workload = self.workloads[int(tasks.workload.rpartition("#")[2])]
        pairs = [self.estimator(workload, p) for p in range(tasks.graph.n_phases)]
        block = msgspec.structs.replace(tasks.graph, phase_duration_s=[p50 for p50, _ in pairs])
        decisions = self.engine.handle(m.TasksAdded(tasks.workload, block), now)
        numbers = self.state.workloads[self.state.workload_number(tasks.workload)].numbers
        values = []
        for local, task in enumerate(numbers):
            offset = self.state.first_phase[task] - block.phase_offsets[local]
            values += [(p + offset, *pairs[p]) for p in block.phases_of(local)]
        return decisions + self.engine.handle(m.Estimates(tuple(values)), now)

    def _warmups(self, graph: Graph) -> dict[int, object]:
        factor = self.config.warmup_factor
        return {t: msgspec.structs.replace(o, warmup_s=o.warmup_s * factor) for t, o in graph.options.items()}

    def _learn_truth(self, workload: LoadedWorkload, number: int, first: int) -> None:
        graph, numbers = workload.graph, self.state.workloads[number].numbers
        for local in range(graph.n_tasks):
            task = numbers[local]
            start = self.state.first_phase[task]
            for i, p in enumerate(graph.phases_of(local)):
                self.truth[start + i] = graph.phase_duration_s[p] or 0.0
            if self.config.bandwidth_bytes_per_s and graph.inputs:
                sizes = [(numbers[parent], graph.edge_bytes(parent, local)) for parent in graph.parents[local]]
                self.bytes_in[task] = [(parent, size) for parent, size in sizes if size]

    def _phase_ended(self, event: m.PhaseEnded, now: float) -> None:
        phase = event.phase
        self.phases += 1
        if self.log:
            self.log.ended(phase, event.attempt, event.outcome, now)
        workload = self.state.task_workload[self.state.task_of[phase]]
        decisions = self.engine.handle(event, now)
        if self.observer:
            self.observer(self.engine)
        if not self.state.workloads[workload].open_tasks:
            self.ended_at[workload] = now
            if self.log:
                self.log.workload_ended(workload, now)
        for decision in decisions:
            self._perform(decision, now)
        self._schedule_wakeup()

    def _preload_ready(self, event: m.PreloadReady, now: float) -> None:
        if self.warming_until.pop(event.task, None) is None:
            return
        if self.log:
            self.log.preload_ended(event.task, "warm", now)
        self._send(event, now)

    # --- decisions ---

    def _perform(self, decision: m.Decision, now: float) -> None:
        kind = type(decision)
        if kind is m.Grant:
            self._start(decision, now)  # type: ignore[arg-type]  # the check above is exact and quick
        elif kind is m.Preload:
            self._preload(decision, now)  # type: ignore[arg-type]
        elif kind is m.DropPreload:
            self.warming_until.pop(decision.task, None)  # type: ignore[attr-defined]
            if self.log:
                self.log.preload_ended(decision.task, "unused", now)  # type: ignore[attr-defined]

    def _start(self, grant: m.Grant, now: float) -> None:
        phase, task = grant.phase, grant.task
        first = self.state.first_phase[task] == phase
        loading = self._cold_start_s(grant, now) if first and grant.warm is not None else 0.0
        fetching = self._transfer_s(task, grant.node) if first and task in self.bytes_in else 0.0
        if first:
            self.ran_on[task] = grant.node
        self._record_start(grant, now, loading, first)
        self.engine.handle(m.PhaseStarted(phase, grant.attempt), now)
        if self.observer:
            self.observer(self.engine)
        seconds, outcome = self.truth[phase], "succeeded"
        if self.config.failure_rate and self.random.random() < self.config.failure_rate:
            seconds, outcome = seconds * self.random.random(), "failed"
        self._schedule(now + loading + fetching + seconds, m.PhaseEnded(phase, grant.attempt, outcome))

    def _record_start(self, grant: m.Grant, now: float, loading: float, first: bool) -> None:
        if not self.log:
            return
        self.log.grant(grant, now)
        self.log.started(grant, now, grant.warm)
        if loading:
            self.log.cold_start(grant, now, now + loading)
        if first and grant.warm is not None and grant.task in self.was_parked:
            self.log.preload_ended(grant.task, "used", now)
            self.was_parked.discard(grant.task)

    def _cold_start_s(self, grant: m.Grant, now: float) -> float:
        """A warm process costs nothing; one that is being loaded what is left of it; else the whole warm-up."""
        until = self.warming_until.pop(grant.task, None)
        if until is not None:
            return until - now
        return 0.0 if grant.warm else self.state.options_of(grant.task).warmup_s

    def _transfer_s(self, task: int, node: str) -> float:
        bandwidth = self.config.bandwidth_bytes_per_s or float("inf")
        return sum(size for parent, size in self.bytes_in[task] if self.ran_on.get(parent) != node) / bandwidth

    def _preload(self, decision: m.Preload, now: float) -> None:
        self.was_parked.add(decision.task)
        if self.log:
            self.log.preload_started(decision, now)
        if decision.reuse:
            return
        until = now + self.state.options_of(decision.task).warmup_s
        self.warming_until[decision.task] = until
        self._schedule(until, m.PreloadReady(decision.task))

    # --- the end ---

    def _require_all_ended(self) -> None:
        for task in range(len(self.state.task_ids)):
            status = self.state.status[self.state.cursor[task]]
            if status in (PENDING, READY):
                stuck = next((t for t in range(len(self.state.task_ids)) if self._is_ready(t)), task)
                reason = explain(self.state, stuck, ())
                raise InputError(f"task {reason.task!r}", f"can never run here: {reason.text}", "give more resources")

    def _is_ready(self, task: int) -> bool:
        return self.state.status[self.state.cursor[task]] == READY
