"""The index of what fits where changes no decision: the same as looking at every node for every class."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.engine_world import World
from benchmarks.packings import PACKINGS
from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.order import free_index
from egs_core.engine.order.classes import ANY, PhaseClass
from egs_core.engine.order.free_index import FreeIndex
from egs_core.engine.order.fronts import MEMORY, ClassFronts
from egs_core.graph.columns import CPU, GPU, Graph, Shape
from egs_core.testing.engine_bench import EngineBench, cpu, gpu, graph_of

Replay = Callable[[Engine], list[m.Decision]]
SEEDS = [0, *[pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2)]]  # of many histories
SHAPES = (Shape(1000), Shape(3000), Shape(0, 500), Shape(1000, 1000), Shape(1000, 250), Shape(2000, 2000))


def scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every class is asked for again, and every node is looked at."""
    monkeypatch.setattr(FreeIndex, "where", lambda *_, **__: (None, None))
    monkeypatch.setattr(FreeIndex, "found_none", lambda *_, **__: None)


def random_cluster(draw: random.Random) -> list[m.NodeAdded]:
    memory = draw.choice([None, 4 << 30])
    nodes = [m.NodeAdded("big", draw.choice([2.0, 4.0]), 2, memory, memory, 1, 2)]
    for i in range(draw.randrange(9)):
        nodes.append(m.NodeAdded(f"n{i}", float(draw.randint(1, 4)), draw.choice([0, 0, 1, 2]), process_slots=2))
    return nodes


@settings(derandomize=True, database=None, deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_decisions_are_those_of_the_scan(seed: int) -> None:
    """Random worlds with nodes that come and go, gangs, quotas, processes and preemption, also without best fit."""
    draw = random.Random(seed)
    config = EngineConfig(
        default_max_wait_s=draw.choice([None, None, 2.0]),
        preempt=draw.random() < 0.2,
        packing=PACKINGS[draw.choice(["fgd_fill", "fgd_fill", "fgd", "best_fit", "dot_product"])].name,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(free_index, "FEW_NODES", 0)
        world = World(config, random_cluster(draw), draw.choices(range(2**16), k=draw.randrange(50, 500)))
        world.run()
        world.drain()
    with pytest.MonkeyPatch.context() as patch:
        scan(patch)
        again = Engine(config)
        assert [d for event, now, _ in world.bench.log for d in again.handle(event, now)] == world.bench.decisions


def _run_wide(
    nodes: int, seed: int, step_s: float = 0.0, slots: int | None = None
) -> tuple[list[m.Decision], set[int]]:
    """All that is decided for many mixed tasks on equal nodes, and for which phases something was reserved; what runs
    ends in a random order, one task every `step_s` seconds."""
    draw, engine, now = random.Random(seed), Engine(), 0.0
    out: list[m.Decision] = []
    for i in range(nodes):
        engine.handle(m.NodeAdded(f"n{i}", 6.0, 4, process_slots=slots), now)
    for w in range(4):
        graph = Graph()
        for t in range(60):
            shapes = [draw.choice(SHAPES) for _ in range(draw.choice((1, 1, 1, 3)))]
            phases = tuple([(GPU if s.gpu_milli else CPU, s, draw.uniform(1, 9)) for s in shapes])
            graph.add_task(f"t{t}", tuple({draw.randrange(t) for _ in range(draw.randrange(3)) if t}), phases)
        engine.handle(m.WorkloadSubmitted(f"w{w}"), now)
        out += engine.handle(m.TasksAdded(f"w{w}", graph), now)
    running = [d for d in out if isinstance(d, m.Grant)]
    owners = set[int]()
    while running:
        now += step_s
        ended = running.pop(draw.randrange(len(running)))
        fresh = engine.handle(m.PhaseStarted(ended.phase, ended.attempt), now)
        fresh += engine.handle(m.PhaseEnded(ended.phase, ended.attempt), now)
        engine.validate_state()
        owners.update(engine.state.reservations)
        out += fresh
        running += [d for d in fresh if isinstance(d, m.Grant)]
    assert not any(w.open_tasks for w in engine.state.workloads)
    return out, owners


@pytest.mark.slow  # many histories
@pytest.mark.parametrize("nodes", [2, 7, 20])
def test_decisions_on_a_cluster_are_those_of_the_scan(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From too few to too many nodes for 240 tasks of six shapes, so that each way of looking is taken."""
    found = _run_wide(nodes, nodes)
    scan(monkeypatch)
    assert _run_wide(nodes, nodes) == found


@pytest.mark.parametrize("seed", SEEDS)
def test_decisions_where_processes_have_few_slots_are_those_of_the_scan(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third of the tasks keep a process between phases, and each of six nodes has one slot for one."""
    found = _run_wide(6, seed, slots=1)
    scan(monkeypatch)
    assert _run_wide(6, seed, slots=1) == found


@pytest.mark.parametrize("seed", SEEDS)
def test_late_ones_pass_over_reservations_as_in_the_scan(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where workloads have waited too long and room is kept for one of them after the other: best fit by the index,
    and late ones that are not asked again while nothing fits, decide what looking at everything decides."""
    found, owners = _run_wide(6, seed, step_s=4.0)
    assert len(owners) > 5
    scan(monkeypatch)
    assert _run_wide(6, seed, step_s=4.0) == (found, owners)


def test_a_closed_room_opens_where_something_fits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape that fits nowhere is not asked for until something ends on a node on which it then fits."""
    monkeypatch.setattr(free_index, "FEW_NODES", 0)
    bench = EngineBench()
    for node in (m.NodeAdded("small", 1.0), m.NodeAdded("large", 4.0)):
        bench.send(node)
    names = {"a": (), "large1": (), "large2": (), "b": ()}
    bench.submit(graph_of(names, {n: (cpu(9.0, cpus=4.0),) for n in names if "large" in n}))
    assert bench.granted() == ["large1", "a"]
    assert bench.engine._queue.fronts.closed  # a look inside: it shows in speed only
    bench.end("a")
    assert bench.granted()[-1] == "b"
    bench.end("large1")
    assert bench.granted()[-1] == "large2"


def test_a_slot_that_comes_free_opens_the_room_of_all_that_wait_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """While every slot is taken, tasks that need one are not asked for, whatever their phases; the end of a task that
    has one lets the first of them start, the end of another task none."""
    monkeypatch.setattr(free_index, "FEW_NODES", 0)
    bench = EngineBench()
    for name in "xy":
        bench.send(m.NodeAdded(name, 4.0, 1, process_slots=1))
    bench.submit(graph_of({"plain": ()}))
    split = {f"s{n}": (cpu(0.1 * n, cpus=0.1 * n), gpu(gpus=0.1)) for n in range(1, 6)}
    bench.submit(graph_of(dict.fromkeys(split, ()), split), "second")
    first = [name for name in split if bench.status(name) == "granted"]
    assert len(first) == 2
    fronts = bench.engine._queue.fronts  # a look inside: it shows in speed only
    assert any(len(key) > MEMORY for key in fronts.closed_keys())
    assert not fronts.open
    bench.end("plain")
    assert not fronts.open
    bench.end(first[0])
    bench.end(first[0])
    assert sum(bench.status(name) == "granted" for name in split if name not in first) == 1
    assert any(len(key) > MEMORY for key in fronts.closed_keys())
    assert not fronts.open


def test_a_gpu_that_comes_free_opens_the_room_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks wait on their own nodes for a GPU each: the one starts on whose node one comes free."""
    monkeypatch.setattr(free_index, "FEW_NODES", 0)
    bench = EngineBench()
    for name in "xy":
        bench.send(m.NodeAdded(name, 1.0, 1))
    bench.submit(graph_of({"hold0": (), "hold1": ()}, default=(gpu(9.0),)), "first")
    bench.submit(graph_of({"mixed0": (), "mixed1": ()}, default=(cpu(), gpu())), "second")
    node_of = {name: bench.grant_of(name).node for name in ("hold0", "hold1", "mixed0", "mixed1")}
    assert node_of["mixed0"] != node_of["mixed1"]
    bench.end("mixed0")
    bench.end("mixed1")
    assert bench.status("mixed0") == bench.status("mixed1") == "ready"
    bench.end(next(hold for hold in ("hold0", "hold1") if node_of[hold] == node_of["mixed1"]))
    assert (bench.status("mixed0"), bench.status("mixed1")) == ("ready", "granted")


def test_a_node_whose_held_device_is_drained_still_takes_tasks_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is held and drained has less than nothing free; what asks for none starts beside it."""
    monkeypatch.setattr(free_index, "FEW_NODES", 0)
    bench = EngineBench()
    bench.send(m.NodeAdded("x", 2.0, 1))
    bench.submit(graph_of({"hold": ()}, default=(gpu(),)), "first")
    bench.send(m.NodeAdded("x", 2.0, 1, drained=(0,)))
    bench.submit(graph_of(dict.fromkeys("abcd", ()), default=(cpu(),)), "second")
    ran = bench.granted()[1:]
    assert 0 < len(ran) < 4
    assert bench.engine._queue.fronts.closed  # a look inside: it shows in speed only
    bench.end(ran[0])
    assert len(bench.granted()) == 1 + len(ran) + 1


def test_of_many_shapes_that_came_only_those_that_wait_have_bits() -> None:
    """Numbers with a bit for each key stay as short as what waits is various."""
    fronts = ClassFronts(lambda *front: front[2].resources)
    for shape in range(1000):
        phase_class = PhaseClass(shape, ANY)
        fronts.put(phase_class, (float(shape),), shape)
        fronts.drop(phase_class)
    fronts.put(PhaseClass(7, ANY), (0.0,), 0)
    assert fronts.bits == {(7, -1): 1}


@settings(derandomize=True, database=None, deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40), st.booleans()), max_size=60))
def test_heads_are_what_sorting_says(steps: list[tuple[int, int, bool]]) -> None:
    """Fronts put, replaced and dropped at random, keys closed and opened: first and next as in a sorted list."""
    fronts = ClassFronts(lambda *front: front[2].resources)
    classes = [PhaseClass(which // 2, ANY, (which,)) for which in range(6)]
    model: dict[PhaseClass, tuple[tuple[float, ...], int]] = {}
    closed = set()
    for number, (which, value, flag) in enumerate(steps):
        phase_class = classes[which]
        if value < 20:
            model[phase_class] = (float(value), float(number)), number
            fronts.put(phase_class, *model[phase_class])
        elif flag:
            fronts.drop(phase_class)
            model.pop(phase_class, None)
        elif value < 30:
            fronts.close(phase_class.resources)
            closed.add(phase_class.resources)
        else:
            fronts.reopen(phase_class.resources)
            closed.discard(phase_class.resources)
        ordered = sorted([(*entry, known) for known, entry in model.items()], key=lambda front: front[:2])
        assert fronts.order == [key for key, *_ in ordered]
        able = [front for front in ordered if front[2].resources not in closed]
        assert fronts.first(set(), set()) == (able[0] if able else None)
        assert fronts.first({able[0][2]} if able else set(), set()) == (able[1] if len(able) > 1 else None)
        for front in ordered:
            later = [other for other in ordered if other[0] > front[0]]
            assert fronts.following(front[0]) == (later[0][0] if later else None)
