"""Digests of every decision that the engine takes on a spread of workloads: a test compares them with stated ones.

    python -m benchmarks.decision_digests                     what differs from the stated digests; exit code 1 if any
    python -m benchmarks.decision_digests --write             state the digests of now
    python -m benchmarks.decision_digests --data DIR          digests of the workflows in DIR (as EGS_DATA), printed

A digest is the sha256 of all decisions of one case, in order, each with its time and all of its fields; floats with
nine digits. A change that is to decide nothing new leaves them all as they are; one that decides otherwise states new
ones in a commit of its own that names the cause.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import fragmentation, gpu_jobs, heterogeneous, limits, openb, overlay, throughput_cluster
from benchmarks.engine_world import World
from benchmarks.rate import random_graph
from benchmarks.single_dags_instances import load_instances
from egs_core.engine import POLICIES, Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.graph.columns import CPU, GPU, Graph, Shape, TaskOptions
from egs_core.graph.load import LoadedWorkload
from egs_core.sim import Durations, SimConfig, SimNode, simulate
from egs_core.testing.engine_bench import EngineBench

STATED = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "decision_digests.json"
MB, GIB = 1_000_000, 1 << 30
PLACEMENTS = 2_000  # of a look-ahead
NO_LOOK_AHEAD = 0
WORLD_POLICIES = ("egs", "fifo", "sjf", "heft", "airflow-downstream", "random", "least-work", "egs", "egs", "egs")
Case = Callable[[], object]


class Digest:
    """Of the decisions taken so far."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()
        self.decisions = 0

    def add(self, decisions: Sequence[m.Decision], now: float) -> None:
        for decision in decisions:
            self._sha.update(f"{now:.9g} {_text(decision)}\n".encode())
        self.decisions += len(decisions)

    def value(self) -> str:
        return f"{self.decisions} {self._sha.hexdigest()[:32]}"


def _text(value: object) -> str:
    """A message or one of its fields, the same on every platform."""
    if isinstance(value, msgspec.Struct):
        fields = [f"{name}={_text(getattr(value, name))}" for name in value.__struct_fields__]
        return f"{type(value).__name__}({', '.join(fields)})"
    return f"{value:.9g}" if isinstance(value, float) else repr(value)


@contextmanager
def listening() -> Iterator[Digest]:
    """The digest of what all engines decide meanwhile."""
    digest, handle = Digest(), Engine.handle

    def heard(self: Engine, event: m.Event, now: float) -> list[m.Decision]:
        decisions = handle(self, event, now)
        digest.add(decisions, now)
        return decisions

    Engine.handle = heard  # type: ignore[method-assign]  # to hear what it decides
    try:
        yield digest
    finally:
        Engine.handle = handle  # type: ignore[method-assign]  # as it was


def digest_of(case: Case) -> str:
    """How many decisions the case takes, and their digest."""
    with listening() as digest:
        case()
    return digest.value()


# --- cases ---


def _graphs(count: int, tasks: int) -> list[tuple[str, Graph]]:
    return [(f"app{seed}", random_graph(tasks, seed)) for seed in range(count)]


def _equal_slots(policy: str) -> object:
    """One large DAG alone; `max_wait` for all, so that phases age."""
    workload = LoadedWorkload("w", "w", "", "", 0.0, random_graph(600))
    config = SimConfig(slots=12, policy=policy, records=False, search_placements=PLACEMENTS, default_max_wait_s=40.0)
    return simulate([workload], config)


def _stream(policy: str, durations: Durations) -> object:
    """DAGs that arrive one after the other, most of them with a deadline; some phases fail."""
    given = limits.stream(3, 1.1, 25)
    config = SimConfig(
        slots=8,
        policy=policy,
        durations=durations,
        records=False,
        failure_rate=0.01,
        default_max_wait_s=120.0 if policy != "least-work" else None,
        search_placements=PLACEMENTS,
    )
    return simulate(given, config, lambda _, phase: (5.0, 9.0 + phase % 7))


def _phases_and_preloads(policy: str, durations: Durations, preload: bool = True) -> object:
    """CPU and GPU phases, processes that are made warm ahead, on two nodes of GPUs and a small one."""
    templates = overlay.make_templates(_graphs(4, 14), 1)
    stream = overlay.make_stream(templates, 8, 5, 1.2, 2)
    beliefs = overlay.Beliefs(overlay.make_stream(templates, 6, 5, 1.2, 9))
    nodes = (SimNode("a", 12.0, 2, process_slots=5), SimNode("b", 12.0, 2, process_slots=5), SimNode("c", 4.0, 1))
    config = SimConfig(
        nodes, policy=policy, durations=durations, preload=preload, records=False, search_placements=NO_LOOK_AHEAD
    )
    return simulate(stream, config, beliefs)


def _jobs(case: str, policy: str, durations: Durations) -> object:
    """GPU jobs of teams, gangs among them; quotas in one cohort, and what was lent is taken back."""
    jobs = [msgspec.structs.replace(job, arrival_s=job.arrival_s / 40) for job in gpu_jobs.load_jobs(None, 130)]
    config = SimConfig(
        tuple([SimNode(f"n{i}", 1024.0, 8) for i in range(6)]),
        policy=policy,
        durations=durations,
        queues=gpu_jobs.quotas_of(jobs, 48, 1) if case != "plain" else (),
        preempt=case == "preempt",
        checkpoint_s=600.0,
        restart_s=30.0,
        default_max_wait_s=86_400.0,
        records=False,
    )
    return simulate(
        [gpu_jobs.workload_of(job) for job in jobs], config, lambda _, phase: (600.0, 6000.0 + 300.0 * phase)
    )


def _flavors(policy: str, objective: str, sizes: bool) -> object:
    """Jobs that run at other speeds on other GPUs, each with a deadline."""
    jobs = heterogeneous.draw_jobs(heterogeneous.load_speeds(None), 70, 40.0, 1, sizes)
    nodes = tuple(
        [SimNode(f"{flavor}-{i}", 64.0, 4, flavor=flavor) for i in range(2) for flavor in heterogeneous.NAMES]
    )
    config = SimConfig(nodes, policy=policy, flavors=heterogeneous.FLAVORS, objective=objective, records=False)
    return simulate([heterogeneous.workload_of(job) for job in jobs], config)


def _much_queued(policy: str) -> object:
    """Tasks of mixed shapes and priorities, all there at once."""
    graphs = throughput_cluster.mixed_graphs(8, 480, 1)
    return throughput_cluster.drive(throughput_cluster.cluster(2), graphs, EngineConfig(policy))


def _packed(packing: str) -> object:
    """A cluster that fills up with shares and sets of GPUs."""
    nodes, pods = openb.synthetic_problem()
    few = nodes[::10]
    wanted = openb.arrivals(pods, sum(node.gpus for node in few), 1.2, random.Random(0))
    return fragmentation.run_engine(few, wanted, packing)


def _with_files(policy: str) -> object:
    """Tasks that read what others have written, on nodes between which files take their time."""
    rng, graph = random.Random(5), Graph()
    for task in range(110):
        parents = sorted(rng.sample(range(max(0, task - 30), task), min(task, rng.randrange(4))))
        phase = (CPU, Shape(), rng.uniform(1, 9))
        graph.add_task(f"t{task}", tuple(parents), (phase,))
    graph.file_ids = [f"{task}.out" for task in range(110)]
    graph.file_sizes = [rng.randrange(1, 40) * MB for _ in range(110)]
    graph.outputs = {task: (task,) for task in range(110)}
    graph.inputs = {task: parents for task, parents in enumerate(graph.parents) if parents}
    nodes = tuple([SimNode(f"n{i}", 1.0) for i in range(4)])
    config = SimConfig(nodes, policy=policy, bandwidth_bytes_per_s=10.0 * MB, records=False, search_placements=800)
    return simulate([LoadedWorkload("w", "w", "", "", 0.0, graph)], config)


def _with_limits() -> object:
    """Limits of tasks and of a workload, that end, fail and requeue."""
    rng, workloads = random.Random(6), []
    for number in range(6):
        graph = Graph()
        for task in range(16):
            then = ("", "fail", "requeue", "end")[rng.randrange(4)]
            options = TaskOptions(
                max_runtime_s=rng.choice((None, 4.0)), max_gpu_s=rng.choice((None, 6.0)), on_limit=then
            )
            phases = ((CPU, Shape(2000), rng.uniform(1, 4)), (GPU, Shape(1000, 500), rng.uniform(1, 8)))
            graph.add_task(f"t{task}", (task // 2,) if task > 2 else (), phases, options=options)
        most = (None, 60.0)[number % 2]
        workloads.append(LoadedWorkload(f"w{number}", "w", "", "", 5.0 * number, graph, max_runtime_s=most))
    return simulate(workloads, SimConfig((SimNode("n", 8.0, 2),), checkpoint_s=1.0, preempt=True, records=False))


class _UncheckedBench(EngineBench):
    """Hands events over and holds nothing: the property tests do."""

    def send(self, event: m.Event, at: float | None = None) -> list[m.Decision]:
        self.now = max(self.now, self.now if at is None else at)
        return self.engine.handle(event, self.now)


def _world(seed: int) -> object:
    """Whatever can happen, in a seeded order: aborts, pauses, lost nodes and answers, other queues, slices, gangs."""
    rng = random.Random(f"world {seed}")
    config = EngineConfig(
        WORLD_POLICIES[seed % len(WORLD_POLICIES)],
        preload=seed % 4 != 3,
        default_max_wait_s=rng.choice((None, 0.0, 2.0)),
        seed=seed,
        preempt=seed % 3 != 0,
        min_gain_s=rng.choice((0.0, 5.0)),
        scaling_hints=seed % 5 == 0,
        scaling_horizon_s=rng.choice((15.0, 600.0)),
        objective=rng.choice(("finish", "finish", "cost", "greedy", "blind")),
        search_placements=500,
    )
    world = World(config, _world_nodes(rng), rng.choices(range(2**16), k=2000), _UncheckedBench(config=config))
    world.run()
    world.drain()
    return world


def _world_nodes(rng: random.Random) -> list[m.NodeAdded]:
    memory, flavors = rng.choice((None, 4 * GIB)), rng.choice((("", "", ""), ("slow", "", "fast")))
    racks = rng.choice((("r1", "r1", "r1"), ("r1", "r2", "r1")))
    pace = rng.choice((None, 1.0 * MB))
    sizes = (4.0, 2, memory, rng.choice((1, 2, 4))), (3.0, 0, None, 2), (1.0, 1, None, 3)
    return [
        m.NodeAdded(name, cpus, gpus, most, most, 1 + (gpus > 1), slots, pace, flavor, (("rack", rack),))
        for name, (cpus, gpus, most, slots), flavor, rack in zip(
            ("big", "cpu", "gpu"), sizes, flavors, racks, strict=True
        )
    ]


def cases() -> dict[str, Case]:
    """By name; those of one group share what is before the slash."""
    exact, predicted, blind = Durations.EXACT, Durations.PREDICTED, Durations.BLIND
    found: dict[str, Case] = {"limits/": _with_limits}
    for policy in POLICIES:
        found[f"slots/{policy}"] = partial(_equal_slots, policy)
        found[f"stream/{policy}"] = partial(_stream, policy, exact)
        found[f"files/{policy}"] = partial(_with_files, policy)
        found[f"queued/{policy}"] = partial(_much_queued, policy)
    for policy, known in (("egs", exact), ("egs", predicted), ("egs", blind), ("sjf", exact), ("least-work", exact)):
        found[f"stream/{policy} {known}"] = partial(_stream, policy, known)
        found[f"preload/{policy} {known}"] = partial(_phases_and_preloads, policy, known)
        for case in ("plain", "quotas", "preempt"):
            found[f"jobs/{case} {policy} {known}"] = partial(_jobs, case, policy, known)
    found["preload/none"] = partial(_phases_and_preloads, "egs", exact, preload=False)
    for objective in ("finish", "cost", "soonest", "greedy", "blind"):
        found[f"flavors/{objective}"] = partial(_flavors, "egs", objective, sizes=False)
    found["flavors/sets"] = lambda: _flavors("egs", "finish", sizes=True)
    found["flavors/shortest"] = lambda: _flavors("sjf", "finish", sizes=True)
    for packing in ("first_fit", "best_fit", "fgd", "fgd_fill"):
        found[f"packing/{packing}"] = partial(_packed, packing)
    for seed in range(100):
        found[f"world/{seed}"] = partial(_world, seed)
    return found


def stated() -> dict[str, str]:
    """The digests that are committed."""
    found: dict[str, str] = json.loads(STATED.read_text())
    return found


# --- the command ---


def _of_data(folder: str, largest: int) -> dict[str, str]:
    """A digest for each workflow in the folder, on 16 slots."""
    config = SimConfig(slots=16, records=False, search_placements=PLACEMENTS)
    return {i.name: digest_of(partial(simulate, [i.workload], config)) for i in load_instances(folder, largest)}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.decision_digests", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--write", action="store_true", help="state the digests of now")
    parser.add_argument("--data", metavar="DIR", help="print the digests of the workflows in this folder instead")
    parser.add_argument("--largest", type=int, default=1000, help="of --data: leave out workflows with more tasks")
    parser.add_argument("--json", action="store_true", help="print the digests of now as one JSON object")
    arguments = parser.parse_args()
    if arguments.data:
        print(json.dumps(_of_data(arguments.data, arguments.largest), indent=1))
        return 0
    found = {name: digest_of(case) for name, case in cases().items()}
    return _answer(found, arguments)


def _answer(found: dict[str, str], arguments: Any) -> int:
    if arguments.json:
        print(json.dumps(found, indent=1))
        return 0
    if arguments.write:
        STATED.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    known = stated()
    differing = [name for name in sorted({*found, *known}) if found.get(name) != known.get(name)]
    print("\n".join([f"differs: {name}" for name in differing] or [f"{len(found)} digests as stated"]))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
