"""No more processes that wait between two phases, or are kept for later, than a node has slots for them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings

from benchmarks.engine_world import World
from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.specs import usual_process_slots
from egs_core.engine.state.nodes import Node
from egs_core.graph.columns import GIB, TaskOptions
from egs_core.graph.load import LoadedWorkload
from egs_core.sim import SimConfig, SimNode, simulate
from egs_core.testing.engine_bench import EngineBench, PhaseSpec, cpu, gpu, graph_of
from tests.unit.engine.test_properties import clusters, configs, numbers, quick

SPLIT = (cpu(), gpu())


def _bench(names: str, phases: tuple[PhaseSpec, ...], slots: int = 2) -> EngineBench:
    """Tasks of these phases on a node with 8 CPUs and a GPU."""
    bench = EngineBench()
    bench.send(m.NodeAdded("n", 8.0, 1, process_slots=slots))
    bench.submit(graph_of(dict.fromkeys(names, ()), default=phases))
    return bench


def test_a_fan_starts_as_many_as_there_are_slots() -> None:
    """Each end lets the next one start; what waits says for what."""
    bench = _bench("abcd", SPLIT)
    assert bench.granted() == ["a", "b"]
    assert bench.reason("c").kind == "process_slots"
    bench.end("b")
    bench.end("a")
    assert bench.granted() == ["a", "b", "b"]
    bench.end("b")
    assert bench.granted() == ["a", "b", "b", "c", "a"]
    for name in "acdcd":
        bench.end(name)
    assert [bench.status(name) for name in "abcd"] == ["succeeded"] * 4


@pytest.mark.parametrize("phases", [(cpu(),), (gpu(gpus=0.1),), (gpu(gpus=0.1), cpu(cpus=0.0))])
def test_tasks_that_never_wait_with_a_process_are_not_bound(phases: tuple[PhaseSpec, ...]) -> None:
    """Those of one phase, and those that need nothing after their first."""
    assert _bench("abcd", phases).granted() == list("abcd")


@pytest.mark.parametrize(
    "phases", [(gpu(gpus=0.1), cpu()), (cpu(cpus=0.1), cpu()), (gpu(gpus=0.1), cpu(cpus=0.0), gpu())]
)
def test_whatever_a_process_waits_for_it_has_a_slot(phases: tuple[PhaseSpec, ...]) -> None:
    assert _bench("abcd", phases).granted() == ["a", "b"]


def test_an_idle_process_makes_room() -> None:
    """A task without a warm key takes a slot that only an idle process has."""
    bench = EngineBench()
    bench.send(m.NodeAdded("n", 8.0, 1, process_slots=1))
    bench.submit(graph_of({"k": (), "a": ("k",)}, {"a": SPLIT}, {"k": TaskOptions(warm_key="k")}))
    bench.end("k")
    assert (bench.grant_of("a").warm, bench.state.nodes[0].idle_warm) == (None, {})


def test_one_stopped_between_its_phases_lets_another_start() -> None:
    """It holds no resources then, only its slot; nothing else would ever happen."""
    bench = _bench("ab", SPLIT, slots=1)
    bench.send(m.PauseRequested("task", str(bench.task("a"))))
    bench.end("a")
    assert bench.reason("b").kind == "process_slots"
    bench.abort("task", "a")
    assert bench.granted() == ["a", "b"]


def test_one_seen_over_between_its_phases_lets_another_start() -> None:
    bench = _bench("ab", SPLIT, slots=1)
    bench.send(m.PauseRequested("task", str(bench.task("a"))))
    bench.end("a")
    bench.send(m.TasksSeen((m.Sight(bench.task("a"), "over"),)))
    assert bench.granted() == ["a", "b"]


def test_a_gang_larger_than_the_slots_starts_where_one_is_free() -> None:
    """And what it leaves over is no more than there are slots."""
    bench = EngineBench()
    bench.send(m.NodeAdded("n", 8.0, 3, process_slots=1))
    bench.submit(graph_of({"a": ()}, default=SPLIT))
    bench.submit(
        graph_of(dict.fromkeys("xyz", ()), {}, dict.fromkeys("xyz", TaskOptions(gang="g", warm_key="k")), SPLIT), "gang"
    )
    assert (bench.granted(), bench.reason("x").kind) == (["a"], "process_slots")
    bench.end("a")
    bench.end("a")
    assert bench.granted() == [*"aaxyz"]
    for name in "xyzxyz":
        bench.end(name)
    assert bench.state.nodes[0].idle_warm == {"k": 1}


def test_processes_keep_the_memory_that_they_state() -> None:
    """Three tasks of 3 GiB on a node with 8: the third waits until another has ended, not only its first phase."""
    bench = EngineBench()
    bench.send(m.NodeAdded("n", 8.0, 1, 8 * GIB))
    bench.submit(graph_of(dict.fromkeys("abc", ()), default=(cpu(memory_bytes=3 * GIB), gpu())))
    assert bench.granted() == ["a", "b"]
    bench.end("a")
    bench.end("b")
    assert bench.granted() == ["a", "b", "a"]
    assert bench.reason("c").kind == "process_slots"
    bench.end("a")
    assert sorted(bench.granted()[-2:]) == ["b", "c"]


def test_one_task_may_state_all_of_the_memory() -> None:
    bench = EngineBench()
    bench.send(m.NodeAdded("n", 8.0, 1, 8 * GIB))
    bench.submit(graph_of(dict.fromkeys("ab", ()), default=(cpu(memory_bytes=8 * GIB), gpu())))
    for name in "aabb":
        assert bench.granted()[-1] == name
        bench.end(name)
    assert [bench.status(name) for name in "ab"] == ["succeeded"] * 2


def test_a_snapshot_of_before_counts_them() -> None:
    bench = _bench("abc", SPLIT)
    bench.state.nodes[0].started = 0  # as a snapshot once had it
    engine = Engine.restore(bench.engine.snapshot())
    engine.validate_state()
    assert engine.explain(bench.task("c")).kind == "process_slots"


def test_a_journal_of_before_may_take_a_process_that_has_made_room() -> None:
    """It then had room for one idle process, beside tasks that it did not count."""
    node = Node("n", process_slots=2, started=2, idle_warm={"k": 1})
    node.take_capacity(m.NodeAdded("n", process_slots=2))
    node.retire("k")
    assert node.processes == 2


class _Counting(EngineBench):
    """Holds the bound by a count of its own after every event."""

    def send(self, event: m.Event, at: float | None = None) -> list[m.Decision]:
        decisions, state = super().send(event, at), self.state
        for number, node in enumerate(state.nodes):
            here = {t for t, home in state.home.items() if home == number}
            having = {t for t in here if state.warm_key_of(t) or any(map(self._needs, state.phases_of(t)[1:]))}
            gangs = [len([t for t in having if state.gang_of.get(t) == g]) for g in range(len(state.gangs))]
            alive = len(having) + sum(node.idle_warm.values())
            most = node.process_slots + max([0, *(size - 1 for size in gangs)])
            assert alive <= most, f"{alive} processes, {node.process_slots} slots on {node.name}"
        return decisions

    def _needs(self, phase: int) -> bool:
        shape = self.state.shape_of(phase)
        return bool(shape.cpu_milli or shape.gpu_milli or shape.memory_bytes)


@pytest.mark.parametrize(
    ("cpus", "gpus", "memory_bytes", "slots"),
    [
        (4.0, 2, None, 8),  # four that compute, two that hold a GPU, two that are next
        (0.5, 0, None, 1),
        (0.0, 3, None, 6),
        (64.0, 8, 256 * GIB, 80),
        (64.0, 2, 16 * GIB, 32),  # what there is memory for
        (64.0, 8, 4 * GIB, 16),  # and no fewer than keep the GPUs at work
    ],
)
def test_slots_of_a_node_whose_holder_names_none(cpus: float, gpus: int, memory_bytes: int | None, slots: int) -> None:
    bench = EngineBench()
    bench.send(m.NodeAdded("n", cpus, gpus, memory_bytes))
    assert bench.state.nodes[0].process_slots == slots


@pytest.mark.parametrize(("cpu_s", "gpu_s"), [(1.0, 1.0), (2.0, 1.0), (1.0, 2.0), (0.5, 4.0)])
def test_the_usual_slots_cost_no_time(cpu_s: float, gpu_s: float) -> None:
    """A fan of split tasks ends as soon as it does without a bound."""
    ended = []
    for slots in (usual_process_slots(4.0, 2, None), 1000):
        graph = graph_of(dict.fromkeys([f"t{i}" for i in range(24)], ()), default=(cpu(cpu_s), gpu(gpu_s)))
        nodes = (SimNode("n", 4.0, 2, process_slots=slots),)
        ended.append(simulate([LoadedWorkload("w", "w", "", "", 0.0, graph)], SimConfig(nodes)).makespan_s)
    assert ended[0] == ended[1]


@settings(quick, max_examples=40)
@given(configs, clusters(), numbers)
def test_the_bound_holds_and_everything_ends(
    config: EngineConfig, nodes: list[m.NodeAdded], choices: list[int]
) -> None:
    """Whatever happens: never more than the slots, and in the end nothing waits for ever."""
    world = World(config, nodes, choices, _Counting(config=config))
    world.run()
    world.drain()


@settings(quick, max_examples=40)
@given(clusters(), numbers)
def test_one_that_waits_between_its_phases_can_end(nodes: list[m.NodeAdded], choices: list[int]) -> None:
    """The same with one slot a node: whoever has it gets its device in the end."""
    slim = [msgspec.structs.replace(node, process_slots=1) for node in nodes]
    world = World(EngineConfig(), slim, choices, _Counting())
    world.run()
    world.drain()
