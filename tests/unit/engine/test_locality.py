"""Data locality: what lies where, what it costs in seconds to start elsewhere, and who goes first for it."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.engine_world import World
from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.order.queue import ReadyQueue
from egs_core.engine.rules.locality import fetch_s
from egs_core.graph.columns import Graph, TaskOptions
from egs_core.graph.load import LoadedWorkload
from egs_core.sim import SimConfig, SimNode, simulate
from egs_core.sim.simulator import Simulation
from egs_core.sim.trace import Trace
from egs_core.testing.engine_bench import EngineBench, cpu, graph_of

MB = 1_000_000


def cluster(*nodes: str, policy: str = "egs", bandwidth: float | None = 10.0 * MB) -> EngineBench:
    """Nodes of one CPU each."""
    bench = EngineBench(config=EngineConfig(policy, preload=False, search_placements=0))
    for node in nodes:
        bench.send(m.NodeAdded(node, 1.0, bandwidth_bytes_s=bandwidth))
    return bench


def with_files(graph: Graph, sizes: dict[str, int]) -> Graph:
    """Each of these tasks writes one file of so many bytes, and all of its children read it."""
    numbers = {task: number for number, task in enumerate(graph.ids)}
    graph.file_ids, graph.file_sizes = list(sizes), list(sizes.values())
    files = {numbers[task]: file for file, task in enumerate(sizes)}
    graph.outputs = {task: (file,) for task, file in files.items()}
    reads = {t: tuple([files[p] for p in parents if p in files]) for t, parents in enumerate(graph.parents)}
    graph.inputs = {task: read for task, read in reads.items() if read}
    return graph


@pytest.mark.parametrize(("bandwidth", "expected"), [(None, "n0"), (10.0 * MB, "n1")])
def test_of_two_free_nodes_the_one_that_holds_the_input(bandwidth: float | None, expected: str) -> None:
    """Where files cost nothing the first node is taken, else the one on which the parent wrote."""
    bench = cluster("n0", "n1", bandwidth=bandwidth)
    bench.submit(with_files(graph_of({"long": (), "a": (), "x": ("a",)}, {"long": (cpu(9.0),)}), {"a": 50 * MB}))
    bench.end("long", 1.0)
    bench.end("a", 1.0)
    assert (bench.grant_of("a").node, bench.grant_of("x").node) == ("n1", expected)
    assert bool(bench.state.reads) == bool(bench.state.written_on) == (bandwidth is not None)


def first_reader(policy: str, y_bytes: int) -> tuple[str, str, str]:
    """x (3 s) has its input on n0, y (4 s) reads so many bytes from n1. Which of them takes n0, where, and why."""
    bench = cluster("n0", "n1", policy=policy)
    tasks = {"a": (), "b": (), "p": (), "q": (), "x": ("a",), "y": ("b",)}
    seconds = {"a": 22.0, "b": 20.0, "p": 9.0, "q": 9.0, "x": 3.0, "y": 4.0}
    phases = {task: (cpu(s),) for task, s in seconds.items()}
    bench.submit(with_files(graph_of(tasks, phases), {"a": 50 * MB, "b": y_bytes}))
    bench.end("b", 20.0)
    bench.end("a", 22.0)
    assert [bench.grant_of(name).node for name in "abpq"] == ["n0", "n1", "n1", "n0"]
    bench.end("q", 31.0)
    grant = next(d for d in bench.decisions if isinstance(d, m.Grant) and bench.state.task_ids[d.task] in "xy")
    return bench.state.task_ids[grant.task], grant.node, grant.reason


def test_seconds_of_files_weigh_against_seconds_of_path() -> None:
    """y's path is 1 s longer: it goes first while it would fetch for 0.5 s, and behind x when for 2 s."""
    assert first_reader("egs", 5 * MB) == ("y", "n0", "remaining_path")
    assert first_reader("egs", 20 * MB) == ("x", "n0", "transfer")


def test_other_policies_keep_their_order() -> None:
    """Files choose the node under every policy, and the task only under egs."""
    assert first_reader("fifo", 20 * MB)[0] == "y"
    assert first_reader("heft", 20 * MB)[0] == "y"


@pytest.mark.parametrize(("size", "expected"), [(10 * MB, "n0"), (50 * MB, "n1")])
def test_files_weigh_against_a_warm_process(size: int, expected: str) -> None:
    """A warm process on n0 saves 2 s; 1 s of files does not outweigh it, 5 s do."""
    bench = cluster("n0", "n1")
    warm = TaskOptions(warm_key="k", warmup_s=2.0)
    tasks = {"first": (), "a": (), "x": ("a",)}
    graph = graph_of(tasks, {"first": (cpu(9.0),)}, {"first": warm, "x": warm})
    bench.submit(with_files(graph, {"a": size}))
    bench.end("first", 1.0)
    assert bench.state.nodes[0].idle_warm == {"k": 1}
    bench.end("a", 2.0)
    assert (bench.grant_of("a").node, bench.grant_of("x").node) == ("n1", expected)


def test_files_of_a_lost_node_lie_elsewhere() -> None:
    """They still have to come from somewhere: every node that is left pays for them."""
    bench = cluster("n0", "n1")
    bench.submit(with_files(graph_of({"long": (), "a": (), "x": ("a",)}, {"long": (cpu(9.0),)}), {"a": 50 * MB}))
    bench.end("a", 1.0)
    bench.send(m.NodeLost("n1"))
    assert fetch_s(bench.state, bench.task("x"), 0) == 5.0


def random_workload(rng: random.Random) -> LoadedWorkload:
    """Forty tasks that read of up to three others."""
    tasks: dict[str, tuple[str, ...]] = {}
    for number in range(40):
        tasks[f"t{number}"] = tuple(rng.sample(list(tasks), min(number, rng.randrange(4))))
    phases = {task: (cpu(rng.uniform(1, 9)),) for task in tasks}
    graph = with_files(graph_of(tasks, phases), {task: rng.randrange(1, 30) * MB for task in tasks})
    return LoadedWorkload("w", "w", "", "", 0.0, graph)


@pytest.mark.parametrize("policy", ["egs", "fifo"])
def test_the_engine_believes_what_the_simulator_charges(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every start of a seeded run, under every policy: the same seconds of files."""
    told: list[tuple[float, float]] = []
    charged = Trace.transfer_s

    def transfer_s(trace: Trace, task: int, node: str) -> float:
        seconds = charged(trace, task, node)
        told.append((seconds, fetch_s(simulation.state, task, int(node[1:]))))
        return seconds

    monkeypatch.setattr(Trace, "transfer_s", transfer_s)
    for seed in range(5):
        nodes = tuple(SimNode(f"n{i}", 1.0) for i in range(4))
        config = SimConfig(nodes=nodes, policy=policy, bandwidth_bytes_per_s=10.0 * MB, records=False)
        simulation = Simulation([random_workload(random.Random(seed))], config, observer=lambda e: e.validate_state())
        simulation.run()
    assert len(told) == 200
    assert all(a == pytest.approx(b) for a, b in told)
    assert any(a for a, _ in told)


def test_weighing_files_ends_sooner() -> None:
    """Sum of makespans over twenty seeded graphs whose files take as long as their tasks."""
    nodes = tuple(SimNode(f"n{i}", 1.0) for i in range(4))
    config = SimConfig(nodes=nodes, bandwidth_bytes_per_s=5.0 * MB, records=False, search_placements=0)
    made = {
        policy: sum(
            simulate([random_workload(random.Random(seed))], msgspec.structs.replace(config, policy=policy)).makespan_s
            for seed in range(20)
        )
        for policy in ("egs", "heft")
    }
    assert made["egs"] < 0.99 * made["heft"]


def test_the_first_of_a_class_are_found_without_sorting_it() -> None:
    """In the order in which they would be taken, whatever was taken or moved before."""
    rng = random.Random(3)
    bench = EngineBench(1.0)
    tasks = {f"t{n}": () for n in range(60)}
    bench.submit(graph_of(tasks, {task: (cpu(rng.uniform(1, 9)),) for task in tasks}))
    moved = [(phase, rng.uniform(1, 9), 20.0) for phase in rng.sample(range(60), 20)]
    bench.send(m.Estimates(tuple(moved)))
    queue: ReadyQueue = bench.engine._queue
    phase_class = queue.classes.of(next(iter(queue.keys)))
    queue.take_later(queue.first_of(phase_class, 5)[3][1])
    expected = sorted((queue.keys[p], p) for p in queue.keys)
    assert len(expected) == 58
    assert queue.first_of(phase_class, 16) == expected[:16]
    assert queue.first_of(phase_class, 100) == expected


@settings(max_examples=30, deadline=None)
@given(st.booleans(), st.lists(st.integers(0, 2**16), max_size=200), st.lists(st.integers(0, 2**16), max_size=100))
def test_any_history_with_files_keeps_every_invariant(preempt: bool, before: list[int], after: list[int]) -> None:
    """Transitions fold to the state, a restored engine decides the same, and every workload ends."""
    nodes = [
        m.NodeAdded("big", 4.0, 2, None, None, 2, 4, bandwidth_bytes_s=1e6),
        m.NodeAdded("cpu", 3.0, 0, None, None, 1, 2, bandwidth_bytes_s=1e6),
    ]
    world = World(EngineConfig(preempt=preempt), nodes, before)
    world.run()
    world.restore_twin()
    world.numbers = type(world.numbers)(after)
    world.run()
    world.drain()
