"""What `single_dags` measures beside the engine: other schedulers' plans, and the one place where plans are replayed.

A plan is a list of tasks for each machine. `replay` runs it on the trace's durations, so a peer's figure never rests on
its own word; the plan's own makespan is checked against a replay under the peer's own network.

    fetch "held"     the reader fetches its inputs one after another in its slot, as in EGS's simulator
    fetch "beside"   each input travels as soon as it is written, all at once, and holds nothing, as SAGA charges it
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import msgspec

from egs_core.graph.analysis import task_durations, topological_order, upward_rank
from egs_core.graph.columns import Graph

SAGA = {"saga-heft": "HeftScheduler", "saga-cpop": "CpopScheduler"}
PRIORITIES = ("dask-order", "b-level")
PEERS = (*SAGA, *PRIORITIES)
ENDLESS = 1e18  # bytes a second: an instant network


class PeerPlan(msgspec.Struct):
    """machines: tasks of each, in order. makespan_s: by the peer's own account."""

    machines: list[list[int]]
    makespan_s: float


class Case(msgspec.Struct):
    """One graph with its seconds and the bytes that each task reads from each parent; made once an instance."""

    graph: Graph
    seconds: list[float]
    reads: list[list[tuple[int, int]]]

    @classmethod
    def of(cls, graph: Graph) -> Case:
        reads = [[(p, graph.edge_bytes(p, task)) for p in parents] for task, parents in enumerate(graph.parents)]
        return cls(graph, task_durations(graph), reads)

    def fetch_s(self, task: int, machine: int, home: Sequence[int], bandwidth: float | None) -> float:
        """Seconds for all inputs that parents wrote on other machines, one after another."""
        if not bandwidth:
            return 0.0
        return sum(size for parent, size in self.reads[task] if home[parent] != machine) / bandwidth


def missing_peers() -> dict[str, str]:
    """Peers whose packages are not installed, and what installs them."""
    needs = dict.fromkeys(SAGA, ("saga", "peers")) | {"dask-order": ("dask", "bench")}
    missing = {peer: extra for peer, (module, extra) in needs.items() if find_spec(module) is None}
    return {peer: f"pip install 'egs-core[{extra}]'" for peer, extra in missing.items()}


def plan_of(peer: str, case: Case, machines: int, bandwidth: float | None) -> PeerPlan:
    """The peer's plan on this many machines of one slot. Raises ImportError when it is not installed."""
    if peer in SAGA:
        return saga_plan(SAGA[peer], case, machines, bandwidth)
    priority = dask_priority(case.graph) if peer == "dask-order" else [-rank for rank in upward_rank(case.graph)]
    return priority_plan(case, priority, machines, bandwidth)


def saga_plan(scheduler: str, case: Case, machines: int, bandwidth: float | None) -> PeerPlan:
    """SAGA on machines of speed 1; bytes are charged per edge."""
    saga, schedulers = import_module("saga"), import_module("saga.schedulers")
    names = [f"m{i}" for i in range(machines)]
    links = [(a, b, bandwidth or ENDLESS) for i, a in enumerate(names) for b in names[i + 1 :]]
    network = saga.Network.create([(name, 1.0) for name in names], links)
    tasks = [(f"t{task}", seconds) for task, seconds in enumerate(case.seconds)]
    edges = [(f"t{p}", f"t{task}", float(size)) for task, reads in enumerate(case.reads) for p, size in reads]
    schedule: Any = getattr(schedulers, scheduler)().schedule(network, saga.TaskGraph.create(tasks, edges))
    numbers = {name: task for task, (name, _) in enumerate(tasks)}
    step = {task: at for at, task in enumerate(topological_order(case.graph))}  # orders tasks that take no time
    plan = []
    for name in names:
        placed = [(entry.start, entry.end, numbers[entry.name]) for entry in schedule[name] if entry.name in numbers]
        plan.append([task for *_, task in sorted(placed, key=lambda place: (*place[:2], step[place[2]]))])
    return PeerPlan(plan, float(schedule.makespan))


def dask_priority(graph: Graph) -> list[float]:
    """Each task's place in `dask.order`, which minds how much is kept in memory, not how long tasks take."""
    order = import_module("dask.order").order
    task_type = import_module("dask._task_spec").Task
    reference = import_module("dask._task_spec").TaskRef
    dask_graph = {t: task_type(t, _work, *map(reference, parents)) for t, parents in enumerate(graph.parents)}
    place = order(dask_graph)
    return [float(place[task]) for task in range(graph.n_tasks)]


def _work(*_parents: Any) -> None:
    """Stands in dask's graph for a task's function; never called."""


def priority_plan(case: Case, priority: Sequence[float], machines: int, bandwidth: float | None) -> PeerPlan:
    """List scheduling: the ready task with the least number goes to the free machine with the least to fetch."""
    children, waiting = case.graph.children(), [len(parents) for parents in case.graph.parents]
    ready = [(priority[t], t) for t in range(case.graph.n_tasks) if not waiting[t]]
    heapq.heapify(ready)
    plan: list[list[int]] = [[] for _ in range(machines)]
    home, free = [0] * case.graph.n_tasks, list(range(machines))
    running: list[tuple[float, int]] = []
    now = 0.0
    while ready or running:
        while ready and free:
            task = heapq.heappop(ready)[1]
            fetch = {m: case.fetch_s(task, m, home, bandwidth) for m in free}
            machine = min(free, key=lambda m: (fetch[m], m))
            free.remove(machine)
            plan[machine].append(task)
            home[task] = machine
            heapq.heappush(running, (now + (fetch[machine] + case.seconds[task]), task))
        now, task = heapq.heappop(running)
        free.append(home[task])
        for child in children[task]:
            waiting[child] -= 1
            if not waiting[child]:
                heapq.heappush(ready, (priority[child], child))
    return PeerPlan(plan, now)


def replay(case: Case, machines: Sequence[Sequence[int]], bandwidth: float | None, fetch: str) -> float:
    """Makespan of a plan: every task as early as its machine and its parents allow. ValueError if it cannot end."""
    home = [0] * case.graph.n_tasks
    before: list[int | None] = [None] * case.graph.n_tasks
    after: list[list[int]] = case.graph.children()
    waiting = [len(parents) for parents in case.graph.parents]
    for number, tasks in enumerate(machines):
        for place, task in enumerate(tasks):
            home[task] = number
            if place:
                before[task] = tasks[place - 1]
                after[tasks[place - 1]].append(task)
                waiting[task] += 1
    ends = [0.0] * case.graph.n_tasks
    order = [t for t, n in enumerate(waiting) if not n]
    for task in order:  # grows while it is walked
        last = before[task]
        ends[task] = _end(case, task, 0.0 if last is None else ends[last], ends, home, bandwidth, fetch)
        for following in after[task]:
            waiting[following] -= 1
            if not waiting[following]:
                order.append(following)
    if len(order) != case.graph.n_tasks or sum(map(len, machines)) != case.graph.n_tasks:
        raise ValueError("the plan leaves tasks out, has them twice, or waits in a circle")
    return max(ends, default=0.0)


def _end(
    case: Case,
    task: int,
    free_at: float,
    ends: Sequence[float],
    home: Sequence[int],
    bandwidth: float | None,
    fetch: str,
) -> float:
    if fetch == "held":
        start = max([free_at, *(ends[p] for p in case.graph.parents[task])])
        return start + (case.fetch_s(task, home[task], home, bandwidth) + case.seconds[task])
    start = free_at
    for parent, size in case.reads[task]:
        travel = size / bandwidth if bandwidth and home[parent] != home[task] else 0.0
        start = max(start, ends[parent] + travel)
    return start + case.seconds[task]
