"""The engine's decisions for a whole Airflow, from what it looks like now. Pure: no clock, no request.

    pool gpu, 3 slots        taken by DAGs that EGS does not order: not offered
    |##| train  runs         told to the engine as running since its start
    |--| fit    scheduled    ready since then, waits
    |··| test   not ready    its parents are open

    then the open slots are offered: what is granted may start now, for what is reserved slots are kept, and the rest
    follows in the order in which it would be granted

Airflow starts tasks by itself, also others than the engine would: so the engine is told the state, and not the steps
that led to it. An agent that takes over needs nothing of the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from graphlib import TopologicalSorter

from egs_airflow.agent.instances import Instance
from egs_airflow.order.published import Order, Turn
from egs_airflow.order.weights import guess_s, weights
from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.graph.columns import CPU, GPU, Graph, Shape, TaskOptions

ACTIVE = ("queued", "running", "restarting")
"""States in which an instance has its slots; in some pools it keeps them while it is deferred."""
READY = "scheduled"
NO_LIMIT = 100_000
MOST_EXPLAINED = 100
SLOT = 1000
RUNNING_ONLY = " running"
"""What is told of first may go only where nothing else may: nobody else is granted what it has."""
NOWHERE = TaskOptions(flavors=(" nowhere",))
NO_TIME = ((CPU, Shape(), 0.0),)


@dataclass(frozen=True)
class Pool:
    """slots: as configured, -1 for no limit; taken: by whatever is not among the runs below; is_gpu: a slot is a GPU;
    keeps_deferred: a deferred task keeps its slots."""

    name: str
    slots: int
    taken: int = 0
    is_gpu: bool = False
    keeps_deferred: bool = False


@dataclass(frozen=True)
class Run:
    """A DAG run that EGS orders: its open task instances, and who comes after whom. known_s: learned durations."""

    dag_id: str
    run_id: str
    started_s: float
    downstream: Mapping[str, Collection[str]]
    instances: Sequence[Instance]
    known_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def workload(self) -> str:
        """Its id in the engine, and that of its submission."""
        return f"{self.dag_id}/{self.run_id}"


@dataclass(frozen=True)
class Site:
    """All that the engine is told. usual_s: what a task counts in a DAG of which nothing is known; reserve_after_s: so
    long a task of several slots waits before it goes first, and slots are kept for it."""

    pools: Sequence[Pool]
    runs: Sequence[Run]
    usual_s: float
    reserve_after_s: float


def decide(site: Site, now_s: float) -> Order:
    """Who of those that wait goes first, who may start now, and for whom slots are kept; and why."""
    told = _Told(site, now_s)
    engine = told.engine
    granted = {one.id: f"would start now, by {reason}" for one, reason in told.offer()}
    state, instances = engine.state, told.instance_of
    kept_for = {instances[state.task_of[phase]].id for phase in state.reservations}
    queued = [task for phase in engine.ready_order() if (task := state.task_of[phase]) in instances]
    why = {instances[task].id: _in_words(engine.explain(task)) for task in queued[:MOST_EXPLAINED]}
    by_id = {one.id: one for one in instances.values()}
    waiting = [by_id[name] for name in granted] + [instances[task] for task in queued]
    dealt = sorted(told.base_weights(waiting), reverse=True)
    return Order(
        tuple(
            Turn(one.id, weight, one.id in granted, one.id in kept_for, granted.get(one.id) or why.get(one.id, ""))
            for one, weight in zip(waiting, dealt, strict=True)
        )
    )


def _in_words(reason: m.Reason) -> str:
    """Why it waits. Without moments: those change with each look, and what is published is not to."""
    if reason.kind == "reservation" and reason.waiting_for:
        return f"slots are kept for {reason.waiting_for[0]}"
    return reason.text.replace("CPUs", "slots")


class _Told:
    """An engine that has been told of a site, but for the open slots."""

    def __init__(self, site: Site, now_s: float) -> None:
        self.engine = Engine(EngineConfig(preload=False, search_placements=0))
        self.instance_of: dict[int, Instance] = {}
        self._site, self._now_s = site, now_s
        self._pools = {pool.name: pool for pool in site.pools}
        runs = [_Members(run) for run in sorted(site.runs, key=lambda run: (run.started_s, run.workload))]
        self._grants: dict[str, m.Grant] = {}
        for pool in site.pools:
            self._node(pool, self._held(pool), f"{pool.name}{RUNNING_ONLY}", 0.0)
        steps: list[tuple[float, str, Callable[[float], object]]] = []
        for of in runs:
            self._begin(of)
            begun = [(one, self._start) for one in of.run.instances if one.id in self._grants]
            ready = [(one, partial(self._tell_ready, of)) for one in of.run.instances if self._waits(one)]
            steps += [(one.started_s or one.ready_s, one.id, partial(act, one)) for one, act in begun]
            steps += [(one.ready_s or now_s, one.id, partial(act, one)) for one, act in ready]
        for at_s, _, act in sorted(steps, key=lambda step: step[:2]):
            act(at_s)
        for of in runs:
            self._tell_later(of)

    def offer(self) -> list[tuple[Instance, str]]:
        """Offer the pools' open slots: what is granted then, first first, each with the term that decided."""
        granted = []
        for pool in self._site.pools:
            most = max(pool.slots - pool.taken, self._held(pool)) if pool.slots >= 0 else NO_LIMIT
            for decision in self._node(pool, most, pool.name, self._now_s):
                if isinstance(decision, m.Grant):
                    granted.append((self.instance_of[decision.task], decision.reason))
        return granted

    def base_weights(self, waiting: Sequence[Instance]) -> list[int]:
        """The weights that these were given when they were made. They are dealt out anew, so tasks of other DAGs stand
        among them as they did."""
        found: dict[tuple[str, str], Mapping[str, int]] = {}
        for run in self._site.runs:
            found[run.dag_id, run.run_id] = weights(run.downstream, run.known_s, self._site.usual_s)
        return [found[one.dag_id, one.run_id].get(one.task_id, 1) for one in waiting]

    def _instances(self, pool: Pool) -> list[Instance]:
        return [one for run in self._site.runs for one in run.instances if one.pool == pool.name]

    def _held(self, pool: Pool) -> int:
        return sum(one.slots for one in self._instances(pool) if self._has_slots(one))

    def _has_slots(self, one: Instance) -> bool:
        pool = self._pools.get(one.pool)
        return pool is not None and (one.state in ACTIVE or (one.state == "deferred" and pool.keeps_deferred))

    def _node(self, pool: Pool, slots: int, flavor: str, at_s: float) -> list[m.Decision]:
        cpus, gpus = (0, slots) if self._is_gpu(pool) else (slots, 0)
        node = m.NodeAdded(pool.name, float(cpus), gpus, process_slots=NO_LIMIT, flavor=flavor)
        return self.engine.handle(node, at_s)

    def _is_gpu(self, pool: Pool) -> bool:
        return pool.is_gpu and pool.slots >= 0

    def _begin(self, of: _Members) -> None:
        """Tell of a run, and of what has slots in it. All runs come first: nothing that waits may have these slots."""
        run = of.run
        self.engine.handle(m.WorkloadSubmitted(run.workload, run.dag_id, submission=run.workload), 0.0)
        graph = Graph()
        for one in run.instances:
            if self._has_slots(one):
                self._add(of, graph, one, (), RUNNING_ONLY)
        for decision in self.engine.handle(m.TasksAdded(run.workload, graph), 0.0) if graph.n_tasks else ():
            if isinstance(decision, m.Grant):
                self._grants[self.instance_of[decision.task].id] = decision

    def _start(self, one: Instance, at_s: float) -> None:
        grant = self._grants[one.id]
        self.engine.handle(m.PhaseStarted(grant.phase, grant.attempt), at_s)

    def _waits(self, one: Instance) -> bool:
        return one.state == READY and one.pool in self._pools

    def _tell_ready(self, of: _Members, one: Instance, at_s: float) -> None:
        graph = Graph()
        self._add(of, graph, one, (), "")
        self.engine.handle(m.TasksAdded(of.run.workload, graph), at_s)

    def _tell_later(self, of: _Members) -> None:
        """Tell of what is not ready: it is work that is left, and may be the longest path of what waits. Where Airflow
        has yet to see that nothing stands before it, it is held back here too."""
        graph, run = Graph(), of.run
        later: dict[str, list[Instance]] = {}
        for one in run.instances:
            if one.state != READY and not self._has_slots(one) and one.pool in self._pools:
                later.setdefault(one.task_id, []).append(one)
        blocker: int | None = None
        for task in TopologicalSorter(of.above).static_order() if later else ():
            parents = [of.end_of(graph, parent) for parent in sorted(of.above[task]) if parent in of.numbers]
            if task in later and not parents:
                blocker = of.add(graph, "", (), NO_TIME, NOWHERE) if blocker is None else blocker
                parents = [blocker]
            for one in later.get(task, ()):
                self._add(of, graph, one, tuple(parents), "")
        if graph.n_tasks:
            self.engine.handle(m.TasksAdded(run.workload, graph), self._now_s)

    def _add(self, of: _Members, graph: Graph, one: Instance, parents: tuple[int, ...], where: str) -> None:
        pool, seconds = self._pools[one.pool], of.run.known_s.get(one.task_id)
        seconds = guess_s(of.run.downstream, of.run.known_s, self._site.usual_s) if seconds is None else seconds
        shape = Shape(0, SLOT * one.slots) if self._is_gpu(pool) else Shape(SLOT * one.slots)
        max_wait_s = self._site.reserve_after_s if one.slots > 1 else None
        options = TaskOptions(stage=one.task_id, flavors=(f"{pool.name}{where}",), max_wait_s=max_wait_s)
        phase = (GPU if self._is_gpu(pool) else CPU, shape, seconds)
        self.instance_of[len(self.engine.state.task_ids) + graph.n_tasks] = one
        of.numbers.setdefault(one.task_id, []).append(
            of.add(graph, f"{one.dag_id}.{one.name}", parents, (phase,), options)
        )


class _Members:
    """The tasks of a run as the engine numbers them. above: by task, whom it directly waits for; numbers: by task, of
    its instances that the engine was told of."""

    def __init__(self, run: Run) -> None:
        self.run, self.numbers, self._count = run, dict[str, list[int]](), 0
        self.above: dict[str, set[str]] = {task: set() for task in run.downstream}
        for task, after in run.downstream.items():
            for child in after:
                self.above.setdefault(child, set()).add(task)

    def add(
        self,
        graph: Graph,
        name: str,
        parents: tuple[int, ...],
        phases: tuple[tuple[int, Shape, float | None], ...],
        options: TaskOptions,
    ) -> int:
        """Add a task to a block; its number in the workload. One without a name stands for no instance."""
        self._count += 1
        graph.add_task(name or f" {self._count}", parents, phases, options=options)
        return self._count - 1

    def end_of(self, graph: Graph, task: str) -> int:
        """What has ended when all instances of a task have: one of them, or a join, so that edges stay few."""
        numbers = self.numbers[task]
        if len(numbers) > 1:
            self.numbers[task] = numbers = [self.add(graph, "", tuple(numbers), NO_TIME, NOWHERE)]
        return numbers[0]
