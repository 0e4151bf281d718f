"""A made-up world around an engine, for property tests: whatever can happen next, happens as a list of numbers says.

What is open (granted, running or warming) is answered well or badly, work arrives and is aborted, nodes come and go.
`drain` then lets everything end well. Every event goes through `EngineBench`, so invariants hold after each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.specs import FAIL, NOTHING, REQUEUE, Amounts, FlavorSpec, Limits, QueueSpec, mig_profiles
from egs_core.engine.state.lifecycle import ENDED, GRANTED, RUNNING, WARMING
from egs_core.engine.state.metering import price_of
from egs_core.graph.columns import CPU, GIB, GPU, ON_LIMIT, Graph, Shape, TaskOptions
from egs_core.testing.engine_bench import EngineBench

DRAIN_LIMIT = 3000
_SMALL = (Shape(1000), Shape(1000, 500), Shape(0, 1000), Shape(0))
_SHAPES = (Shape(1000), Shape(2000, 0, 1 << 30), Shape(0, 1000), Shape(1000, 500), Shape(0, 2000, 0, 1 << 30), Shape(0))


class Numbers:
    """Choices from a list of numbers; afterwards always the first."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._left: Iterator[int] = iter(numbers)
        self.are_over = False

    def below(self, n: int) -> int:
        number = next(self._left, None)
        if number is None:
            self.are_over = True
            return 0
        return number % n


def _add_files(graph: Graph, known: int) -> None:
    """Every task writes a file for its children in the block; some are empty."""
    graph.file_ids = [f"{task}.out" for task in graph.ids]
    graph.file_sizes = [number % 4 * 1_000_000 for number in range(graph.n_tasks)]
    graph.outputs = {number: (number,) for number in range(graph.n_tasks)}
    inputs = {child: tuple([p - known for p in ps if p >= known]) for child, ps in enumerate(graph.parents)}
    graph.inputs = {child: files for child, files in inputs.items() if files}


class World:
    """See the module. twin: an engine restored from a snapshot, which must decide the same from then on."""

    def __init__(
        self,
        config: EngineConfig,
        nodes: Sequence[m.NodeAdded],
        numbers: Sequence[int],
        bench: EngineBench | None = None,
    ) -> None:
        self.bench = bench or EngineBench(config=config)
        self.twin: Engine | None = None
        self.nodes = {node.node: node for node in nodes}
        self.numbers = Numbers(numbers)
        self.blocks = 0
        self.spent: dict[int, tuple[float, float]] = {}  # workload -> GPU seconds and cost, counted event by event
        self.level = nodes[0].topology[0][0] if nodes[0].topology else ""
        self.home_flavor = nodes[0].flavor  # of the node that can run everything
        for node in nodes:
            self.send(node)

    def send(self, event: m.Event) -> None:
        self._count(self.bench.now - self.bench.state.now)
        decisions = self.bench.send(event)
        self._check_counts()
        self._check_together(decisions)
        if self.twin is not None:
            assert self.twin.handle(event, self.bench.now) == decisions, "the restored engine decides otherwise"
            assert self.twin.next_wakeup() == self.bench.engine.next_wakeup()

    def _count(self, passed_s: float) -> None:
        """What running phases have used since the last event, by hand."""
        state = self.bench.state
        for phase, lease in state.leases.items():
            if state.status[phase] == RUNNING:
                number = state.task_workload[state.task_of[phase]]
                gpu_s, cost = self.spent.get(number, (0.0, 0.0))
                gpus = lease.gpu_milli * len(lease.devices) / 1000
                self.spent[number] = gpu_s + gpus * passed_s, cost + price_of(state, phase) * passed_s

    def _check_counts(self) -> None:
        """The meters of the workloads say the same."""
        state = self.bench.state
        for number, meter in state.workload_meters.items():
            _, gpu_s, cost = meter.used_at(state.now)
            counted = self.spent.get(number, (0.0, 0.0))
            assert abs(gpu_s - counted[0]) < 1e-6, f"workload {number}: {gpu_s} GPU seconds, counted {counted[0]}"
            assert abs(cost - counted[1]) < 1e-6, f"workload {number}: cost {cost}, counted {counted[1]}"

    def _check_together(self, decisions: Sequence[m.Decision]) -> None:
        """Of gangs that have to be close: what starts now starts in one group."""
        state, groups = self.bench.state, dict[tuple[int, str], set[str]]()
        for grant in decisions:
            if isinstance(grant, m.Grant) and (level := state.options_of(grant.task).gang_same):
                node = next(node for node in state.nodes if node.name == grant.node)
                value = node.name if level == "node" else node.topology[level]
                groups.setdefault((state.gang_of.get(grant.task, -1 - grant.task), level), set()).add(value)
        assert all(len(values) == 1 for values in groups.values()), f"gangs were torn apart: {groups}"

    def restore_twin(self) -> None:
        """From here on a second engine, restored from a snapshot, gets the same events."""
        self.twin = Engine.restore(self.bench.engine.snapshot(), self.bench.engine.config)

    # --- what can happen ---

    def run(self) -> None:
        """Until the numbers are used up."""
        actions: list[Callable[[], None]] = [
            self._answer,
            self._answer,
            self._answer,
            self._grow,
            self._preloads,
            self._pass_time,
            self._operator,
            self._capacity,
            self._estimate,
            self._queues,
            self._uses,
            self._flavors,
        ]
        while not self.numbers.are_over:
            actions[self.numbers.below(len(actions))]()

    def _answer(self) -> None:
        """Something that holds a lease starts, ends in some way, or is refused or lost."""
        state = self.bench.state
        if not state.leases:
            return
        phase = sorted(state.leases)[self.numbers.below(len(state.leases))]
        attempt, decision = state.attempt[state.task_of[phase]], state.leases[phase].decision
        ends = [m.PhaseEnded(phase, attempt, o) for o in ("succeeded", "succeeded", "failed", "preempted", "aborted")]
        before = [m.DecisionRejected(decision), m.DecisionLost(decision), m.DecisionApplied(decision)]
        choices: list[m.Event] = [m.PhaseStarted(phase, attempt), *ends, m.TaskFinished(state.task_of[phase], attempt)]
        self.send([*choices, *before][self.numbers.below(len(choices) + len(before))])

    def _preloads(self) -> None:
        warming = sorted(self.bench.state.parked)
        if warming:
            task = warming[self.numbers.below(len(warming))]
            decision = self.bench.state.parked[task]
            choices = [m.PreloadReady(task, decision), m.PreloadFailed(task), m.DecisionRejected(decision)]
            self.send(choices[self.numbers.below(3)])

    def _grow(self) -> None:
        """One to four tasks join a new or a known workload."""
        state = self.bench.state
        workload = f"w{self.numbers.below(3)}"
        if workload not in state.workload_numbers:
            queue, limits = f"q{self.numbers.below(3)}", self._limits() if not self.numbers.below(3) else None
            deadline_s = (None, None, 8.0)[self.numbers.below(3)]
            self.send(m.WorkloadSubmitted(workload, queue=queue, deadline_s=deadline_s, limits=limits))
        known = len(state.workloads[state.workload_number(workload)].numbers)
        self.send(m.TasksAdded(workload, self._block(known)))

    def _block(self, known: int) -> Graph:
        graph = Graph()
        self.blocks += 1
        for i in range(1 + self.numbers.below(4)):
            parents = {self.numbers.below(known + i) for _ in range(self.numbers.below(3)) if known + i}
            graph.add_task(f"t{self.blocks}.{i}", tuple(sorted(parents)), self._phases(), options=self._options())
        if not self.numbers.below(3):
            self._add_gang(graph, known)
        if any(node.bandwidth_bytes_s for node in self.nodes.values()):
            _add_files(graph, known)
        return graph

    def _add_gang(self, graph: Graph, known: int) -> None:
        """Two tasks that start together; small enough for the first node, and waiting for earlier blocks only."""
        level = ("", "", "node", self.level)[self.numbers.below(4)]
        most, then = (None, None, None, 4.0)[self.numbers.below(4)], (FAIL, REQUEUE)[self.numbers.below(2)]
        gang = TaskOptions(
            gang=f"g{self.blocks}",
            retries=self.numbers.below(2),
            priority=self.numbers.below(2),
            max_runtime_s=most,
            on_limit=then,
            gang_same=level,
        )
        for i in range(2):
            parents = {self.numbers.below(known) for _ in range(self.numbers.below(3)) if known}
            shapes = [_SMALL[self.numbers.below(len(_SMALL))] for _ in range(1 + self.numbers.below(2))]
            phases = tuple((GPU if s.gpu_milli else CPU, s, (1.0, 4.0)[self.numbers.below(2)]) for s in shapes)
            graph.add_task(f"t{self.blocks}.g{i}", tuple(sorted(parents)), phases, options=gang)

    def _phases(self) -> tuple[tuple[int, Shape, float | None], ...]:
        shapes = [_SHAPES[self.numbers.below(len(_SHAPES))] for _ in range(1 + self.numbers.below(3))]
        return tuple((GPU if s.gpu_milli else CPU, s, (None, 1.0, 2.0, 5.0)[self.numbers.below(4)]) for s in shapes)

    def _options(self) -> TaskOptions | None:
        which = self.numbers.below(6)
        if which < 2:
            return None
        return TaskOptions(
            stage=("", "x")[which % 2],
            priority=self.numbers.below(2),
            max_wait_s=(None, 0.5, 3.0)[self.numbers.below(3)],
            warm_key=("", "k1", "k2", "k3")[self.numbers.below(4)],
            warmup_s=(0.0, 0.5, 2.0)[self.numbers.below(3)],
            retries=self.numbers.below(2),
            max_runtime_s=(None, None, None, None, 0.0, 3.0)[self.numbers.below(6)],
            max_gpu_s=(None, None, 1.5)[self.numbers.below(3)],
            max_cost=(None, None, 1.0)[self.numbers.below(3)],
            idle_timeout_s=(None, None, 1.5)[self.numbers.below(3)],
            on_limit=ON_LIMIT[self.numbers.below(4)],
            deadline_s=(None, None, 0.0, 6.0)[self.numbers.below(4)],
            flavors=((), (), (self.home_flavor,), (self.home_flavor, "fast"))[self.numbers.below(4)],
        )

    def _limits(self) -> Limits:
        return Limits(
            (None, 20.0)[self.numbers.below(2)], (None, 8.0)[self.numbers.below(2)], (None, 9.0)[self.numbers.below(2)]
        )

    def _uses(self) -> None:
        """Other prices, or a sign of life."""
        state, hour = self.bench.state, (0.0, 900.0, 3600.0)[self.numbers.below(3)]
        if self.numbers.below(2) and state.leases:
            task = state.task_of[sorted(state.leases)[self.numbers.below(len(state.leases))]]
            self.send(m.Activity(task, state.attempt[task]))
        else:
            self.send(m.FlavorsChanged((FlavorSpec("", hour, hour / 10), FlavorSpec("other", 1.0, 1.0))))

    def _pass_time(self) -> None:
        due = self.bench.engine.next_wakeup()
        step = (0.1, 1.0, 10.0)[self.numbers.below(3)]
        self.bench.now = max(self.bench.now, due) if due is not None and step == 10.0 else self.bench.now + step
        self.send(m.Tick())

    def _operator(self) -> None:
        state = self.bench.state
        if not state.task_ids:
            return
        task = self.numbers.below(len(state.task_ids))
        workload = state.workloads[state.task_workload[task]].id
        choices = [
            m.BranchSkipped(task),
            m.BranchSkipped(task),
            m.AbortRequested("task", str(task)),
            m.AbortRequested("stage", f"{workload}/x"),
            m.AbortRequested("workload", workload),
            m.PauseRequested("task", str(task)),
            m.PauseRequested("stage", f"{workload}/x"),
            m.PauseRequested("workload", workload),
            *[m.ResumeRequested(*key.split(":", 1)) for key in sorted(state.pauses)],
        ]
        self.send(choices[self.numbers.below(len(choices))])

    def _capacity(self) -> None:
        name = sorted(self.nodes)[self.numbers.below(len(self.nodes))]
        node = self.nodes[name]
        small = msgspec.structs.replace(node, cpus=1.0, gpus=min(node.gpus, 1), process_slots=1, preload_slots=1)
        choices = (m.NodeLost(name), node, small)
        self.send(choices[self.numbers.below(3)])

    def _queues(self) -> None:
        """Another configuration; each queue alone could run whatever a world makes."""
        cohort, limit = ("", "lab")[self.numbers.below(2)], (NOTHING, (1000, 1000, 1 << 30))[self.numbers.below(2)]
        enough: Amounts = (4000, 2000, 2 << 30)
        limits = (
            Limits(max_runtime_s=6.0, on_limit=ON_LIMIT[1 + self.numbers.below(3)])
            if not self.numbers.below(3)
            else None
        )
        due = (None, None, 15.0)[self.numbers.below(3)]
        specs = [
            QueueSpec(f"q{i}", cohort, enough, limit, limit, limits=limits, deadline_s=due)
            for i in range(self.numbers.below(4))
        ]
        self.send(m.QueuesChanged(tuple(specs)))

    def _flavors(self) -> None:
        """Other speeds and prices, a belief about a phase on one flavor, or other flavors for a task."""
        count, tasks = len(self.bench.state.kind), len(self.bench.state.task_ids)
        names = ("", "fast", "slow")
        if tasks and not self.numbers.below(4):
            allowed = ((self.home_flavor,), (self.home_flavor, "fast"))[self.numbers.below(2)]
            self.send(m.FlavorsAllowed(self.numbers.below(tasks), allowed))
            return
        if count and self.numbers.below(2):
            phase, seconds = self.numbers.below(count), float(self.numbers.below(8))
            self.send(m.FlavorEstimates(((phase, names[self.numbers.below(3)], seconds, 2 * seconds),)))
            return
        profiles = mig_profiles(8 * GIB) if self.numbers.below(3) == 0 else ()
        specs = [
            FlavorSpec(name, float(self.numbers.below(3)), 0.0, (0.5, 1.0, 4.0)[self.numbers.below(3)], profiles)
            for name in names[: self.numbers.below(4)]
        ]
        self.send(m.FlavorsChanged(tuple(specs)))

    def _estimate(self) -> None:
        count = len(self.bench.state.kind)
        if count:
            phase, seconds = self.numbers.below(count), float(self.numbers.below(8))
            self.send(m.Estimates(((phase, seconds, seconds * (1 + self.numbers.below(3))),)))

    # --- the end ---

    def drain(self) -> None:
        """All nodes are there and whatever is open ends well: then every workload must end."""
        for node in self.nodes.values():
            self.send(node)
        for key in sorted(self.bench.state.pauses):
            self.send(m.ResumeRequested(*key.split(":", 1)))
        for _ in range(DRAIN_LIMIT):
            if not self._drain_one():
                break
        else:
            raise AssertionError("no end in sight")
        state = self.bench.state
        stuck = [self.bench.engine.explain(t) for t in range(len(state.task_ids)) if not self._has_ended(t)]
        assert not stuck, f"nothing is left to happen, but {stuck}"
        assert all(workload.open_tasks == 0 for workload in state.workloads)

    def _has_ended(self, task: int) -> bool:
        return all(self.bench.state.status[p] in ENDED for p in self.bench.state.phases_of(task))

    def _drain_one(self) -> bool:
        """One good answer to the oldest open thing, or the next timer; whether there was any."""
        state = self.bench.state
        for phase in sorted(state.leases, key=lambda p: state.leases[p].decision):
            attempt = state.attempt[state.task_of[phase]]
            if state.status[phase] == GRANTED:
                self.send(m.PhaseStarted(phase, attempt))
                return True
            if state.status[phase] == RUNNING:
                self.bench.now += 0.5
                self.send(m.PhaseEnded(phase, attempt))
                return True
        for task in sorted(state.parked):
            if state.warmth[task] == WARMING:
                self.send(m.PreloadReady(task))
                return True
        due = self.bench.engine.next_wakeup()
        if due is not None:
            self.bench.now = max(self.bench.now, due)
            self.send(m.Tick())
        return due is not None
