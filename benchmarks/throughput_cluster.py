"""The worlds of `throughput`: a seeded cluster, workloads of mixed shapes, and the loop that drives the engine alone.

The loop is what a driver at least does: it tells the engine that each granted phase has started, and in virtual time
that it has ended. No run log, no journal, no network; every event goes through `Engine.handle` on its own.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Sequence

import msgspec

from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.graph.columns import CPU, GIB, GPU, Graph, Shape, TaskOptions

NODE_GPUS, NODE_CPUS, NODE_MEMORY_BYTES = 8, 96.0, 512 * GIB
CPU_SHAPES = tuple([Shape(1000 * cpus, 0, gib * GIB) for cpus in (1, 2, 4) for gib in (2, 4, 8)])
GPU_SHAPES = tuple(
    [Shape(1000 * cpus, 1000 * gpus, 16 * gpus * GIB) for cpus, gpus in ((1, 1), (4, 1), (4, 2), (8, 4))]
)
SHARES = (Shape(1000, 250, 4 * GIB), Shape(1000, 500, 8 * GIB))
WINDOW = 40  # parents come from so many tasks before
STEADY_FROM, STEADY_TO = 0.1, 0.9  # of all phases: the part that is called steady

PhaseSpec = tuple[int, Shape, float | None]


class Progress(msgspec.Struct):
    """CPU seconds of this process. submit_s: until all workloads were taken in and what fits was granted; run_s: from
    then to the last end; wall_s: of both, by the clock. marks: (phases ended, seconds since the submission) now and
    then."""

    phases: int
    submit_s: float
    run_s: float
    wall_s: float
    marks: list[tuple[int, float]]

    @property
    def steady_per_s(self) -> float:
        """Phases per second between the tenth and the ninth tenth of them."""
        return steady_rate(self.marks, self.phases)


def steady_rate(marks: Sequence[tuple[int, float]], phases: int) -> float:
    """Phases per second in the middle: without the first and the last tenth, where much is idle."""
    inside = [mark for mark in marks if STEADY_FROM * phases <= mark[0] <= STEADY_TO * phases]
    (first, began), (last, ended) = inside[0], inside[-1]
    return (last - first) / (ended - began)


def cluster(nodes: int) -> list[m.NodeAdded]:
    """Equal nodes of 8 GPUs, 96 CPUs and 512 GiB."""
    return [m.NodeAdded(f"n{i}", NODE_CPUS, NODE_GPUS, NODE_MEMORY_BYTES) for i in range(nodes)]


def mixed_graph(tasks: int, rng: random.Random) -> Graph:
    """A DAG of CPU tasks, tasks on shares, on one and on several GPUs, and mixed tasks; one in ten has options."""
    graph = Graph()
    for number in range(tasks):
        wanted = rng.choice((0, 1, 1, 2, 3)) if number else 0
        parents = sorted({rng.randrange(max(0, number - WINDOW), number) for _ in range(wanted)})
        graph.add_task(f"t{number}", tuple(parents), _phases(rng), name=f"kind{number % 7}", options=_options(rng))
    return graph


def _phases(rng: random.Random) -> tuple[PhaseSpec, ...]:
    which = rng.random()
    before, after = (CPU, rng.choice(CPU_SHAPES), rng.uniform(1, 10)), (CPU, rng.choice(CPU_SHAPES), rng.uniform(1, 10))
    on_gpu = (GPU, rng.choice(GPU_SHAPES), rng.uniform(5, 60))
    if which < 0.45:
        return (before,)
    if which < 0.70:
        return (on_gpu,)
    if which < 0.85:
        return before, on_gpu, after
    return ((GPU, rng.choice(SHARES), rng.uniform(5, 60)),)


def _options(rng: random.Random) -> TaskOptions | None:
    if rng.random() >= 0.1:
        return None
    return TaskOptions(stage=rng.choice(("", "prepare", "train")), priority=rng.choice((0, 0, 1)), retries=1)


def mixed_graphs(workloads: int, tasks: int, seed: int) -> list[Graph]:
    """So many DAGs, all tasks together `tasks`."""
    rng = random.Random(seed)
    sizes = [tasks // workloads + (i < tasks % workloads) for i in range(workloads)]
    return [mixed_graph(size, rng) for size in sizes]


def queued_engine(graphs: Sequence[Graph], config: EngineConfig) -> Engine:
    """An engine that has taken all workloads in and has no node, so everything waits."""
    engine = Engine(config)
    for number, graph in enumerate(graphs):
        engine.handle(m.WorkloadSubmitted(f"w{number}"), 0.0)
        engine.handle(m.TasksAdded(f"w{number}", graph), 0.0)
    return engine


def drive(nodes: Sequence[m.NodeAdded], graphs: Sequence[Graph], config: EngineConfig, most: int = 0) -> Progress:
    """All workloads at once, to their end, or until `most` phases have ended. RuntimeError when something is left."""
    clock, began = time.perf_counter(), time.process_time()
    engine = Engine(config)
    granted: list[m.Decision] = []
    for node in nodes:
        engine.handle(node, 0.0)
    for number, graph in enumerate(graphs):
        engine.handle(m.WorkloadSubmitted(f"w{number}"), 0.0)
        granted += engine.handle(m.TasksAdded(f"w{number}", graph), 0.0)
    submitted = time.process_time()
    ended, marks = _run_to_end(engine, granted, most, submitted)
    run_s, wall_s = time.process_time() - submitted, time.perf_counter() - clock
    if not most and any(workload.open_tasks for workload in engine.state.workloads):
        raise RuntimeError("the engine granted nothing more, and tasks are left")
    return Progress(ended, submitted - began, run_s, wall_s, marks)


def _run_to_end(
    engine: Engine, granted: list[m.Decision], most: int, began: float
) -> tuple[int, list[tuple[int, float]]]:
    state, handle, push, pop = engine.state, engine.handle, heapq.heappush, heapq.heappop
    running: list[tuple[float, int, int, int]] = []
    now, sequence, ended, marks = 0.0, 0, 0, []
    every = max(1, len(state.status) // 200)
    while granted or running:
        for grant in granted:  # grows while it is walked
            if isinstance(grant, m.Grant):
                sequence += 1
                granted += handle(m.PhaseStarted(grant.phase, grant.attempt), now)
                push(running, (now + state.estimate_s[grant.phase], sequence, grant.phase, grant.attempt))
        now, _, phase, attempt = pop(running)
        granted = handle(m.PhaseEnded(phase, attempt), now)
        ended += 1
        if not ended % every:
            marks.append((ended, time.process_time() - began))
        if ended == most:
            break
    return ended, marks
