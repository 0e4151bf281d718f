"""Packing: fragmentation by hand, what each packing chooses, and that engine and benchmark choose alike."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.engine_world import World
from benchmarks.fragmentation import UP_TO, run_arrays, run_engine
from benchmarks.openb import arrivals, synthetic_problem
from benchmarks.packings import PACKINGS, fragmentation, phases_that_fit, stranded_gpu
from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.rules.fit import devices_of
from egs_core.engine.rules.packer import make_packer, milestone
from egs_core.engine.rules.packing import (
    FILL_SHARE,
    MOST_TYPICAL,
    UNLIMITED,
    Free,
    TypicalWorkload,
    after,
    fragmentation_ahead,
    typical_workload,
    usable_devices,
)
from egs_core.engine.specs import SHIPPED
from egs_core.engine.state.nodes import WHOLE_DEVICE
from egs_core.graph.columns import Shape
from egs_core.testing.engine_bench import EngineBench, cpu, gpu, graph_of

quick = settings(
    derandomize=True, database=None, deadline=None, max_examples=60, suppress_health_check=list(HealthCheck)
)
HALF, WHOLE = Shape(2000, 500), Shape(8000, 1000)
DRAWN = Free(4000, UNLIMITED, (500, 250, 1000))  # the drawing at the top of the module


def leftover_gpu(free: Free, shape: Shape) -> int:
    """Thousandths of a GPU that stay free here when the node is filled up with phases of this shape."""
    return sum(free.devices) - phases_that_fit(free, shape) * shape.gpu_milli


# --- fragmentation, worked out by hand ---


@pytest.mark.parametrize(
    ("shape", "stranded"),
    [
        (HALF, 250),  # the quarter on the second device is too small
        (WHOLE, 1750),  # 8 CPUs of 4: nothing here is of use
        (Shape(1000, 1000), 750),  # what is free on partly used devices
        (Shape(1000, 2000), 1750),  # two whole devices of one
        (Shape(1000, 200), 0),
        (Shape(1000), 1750),  # no GPU asked for: none of it is of use
    ],
)
def test_stranded_gpu_follows_the_papers_definition(shape: Shape, stranded: int) -> None:
    """F_n(m): all that is free when the phase does not fit, else what is free on devices with less than its share."""
    assert stranded_gpu(DRAWN, shape) == stranded


def test_memory_strands_gpu_as_cpus_do() -> None:
    """Too little memory on the node strands everything; too little on a device strands that device."""
    assert stranded_gpu(Free(4000, 4, (1000, 500)), Shape(1000, 500, 5)) == 1500
    assert stranded_gpu(Free(4000, 5, (1000, 500)), Shape(1000, 500, 5)) == 0
    assert stranded_gpu(Free(4000, UNLIMITED, (1000, 800), (10, 2)), Shape(1000, 500, 0, 5)) == 800


def test_fragmentation_weighs_by_how_often_a_kind_comes() -> None:
    """F_n(M) of the drawing: 3 x 0.25 + 1 x 1.75 GPUs; a full node has none."""
    assert fragmentation(DRAWN, ((HALF, 3), (WHOLE, 1))) == 3 * 250 + 1750
    assert fragmentation(Free(0, UNLIMITED, (0, 0)), ((HALF, 3),)) == 0


@pytest.mark.parametrize(
    ("free", "shape", "phases", "left"),
    [
        (Free(4000, UNLIMITED, (1000, 1000)), HALF, 2, 1000),  # CPUs for two, devices for four
        (Free(9000, UNLIMITED, (1000, 700)), HALF, 3, 200),
        (Free(9000, UNLIMITED, (1000, 700)), Shape(0, 1000), 1, 700),
        (Free(9000, UNLIMITED, (1000,) * 5), Shape(0, 2000), 2, 1000),
        (Free(9000, 7, (1000,) * 5), Shape(0, 1000, 3), 2, 3000),
        (Free(9000, UNLIMITED, (1000, 1000), (8, 3)), Shape(0, 250, 0, 4), 2, 1500),
        (Free(-1000, UNLIMITED, (1000,)), HALF, 0, 1000),  # a shrunk node
        (DRAWN, Shape(1000), 0, 1750),
    ],
)
def test_leftover_of_a_node_filled_with_one_kind(free: Free, shape: Shape, phases: int, left: int) -> None:
    """As many phases of the kind as CPUs, memory and devices allow; the rest of the GPU stays over."""
    assert (phases_that_fit(free, shape), leftover_gpu(free, shape)) == (phases, left)
    kinds = ((shape, 2),)
    assert fragmentation_ahead(free, kinds) == FILL_SHARE * fragmentation(free, kinds) + 2 * left


def test_the_typical_workload_is_the_most_frequent_of_gpu_phases() -> None:
    """95 % of the GPU phases, the most frequent first, no CPU phases, and never more kinds than the limit."""
    counts = [(Shape(1, 1000), 5), (Shape(9000), 500), (Shape(2, 500), 90), (Shape(3, 500), 5)]
    assert typical_workload(counts) == ((Shape(2, 500), 90), (Shape(1, 1000), 5))
    assert typical_workload(reversed(counts)) == typical_workload(counts)
    assert len(typical_workload([(Shape(i, 500), 1) for i in range(500)])) == MOST_TYPICAL
    assert typical_workload([]) == ()


def test_what_is_typical_is_looked_at_again_in_steps() -> None:
    """The first phases one by one, later about every tenth part more; a step never goes back."""
    steps = [milestone(n) for n in range(20_000)]
    assert steps[:17] == list(range(17))
    assert steps == sorted(steps)
    assert all(0 <= n - step <= n / 8 for n, step in enumerate(steps))


# --- what is chosen ---


@pytest.mark.parametrize(
    ("packing", "device"), [("best_fit", 1), ("first_fit", 0), ("weighted_best_fit", 1), ("dot_product", 1), ("fgd", 2)]
)
def test_which_device_a_share_takes(packing: str, device: int) -> None:
    """Where mostly halves come, 0.3 on the fullest device would strand 0.2; the one with 0.8 leaves a half."""
    free = Free(9000, UNLIMITED, (1000, 500, 800))
    typical = ((Shape(1000, 500), 9), (Shape(1000, 1000), 1))
    assert PACKINGS[packing].choose(free, Shape(1000, 300), typical).devices == (device,)


@pytest.mark.parametrize(("packing", "node"), [("best_fit", "x"), ("first_fit", "x"), ("fgd", "y"), ("fgd_fill", "y")])
def test_a_cpu_phase_leaves_a_gpu_the_cpus_it_needs(packing: str, node: str) -> None:
    """Best fit takes the CPUs without which x's GPU is of no use to the GPU phases that come; the descents do not."""
    bench = EngineBench(config=EngineConfig(packing=packing))
    bench.send(m.NodeAdded("x", 4.0, 1))
    bench.send(m.NodeAdded("y", 8.0, 1))
    phases = {"c": (cpu(9.0, cpus=2.0),), "g": (gpu(cpus=4.0),), "h": (gpu(cpus=4.0),)}
    bench.submit(graph_of({"c": (), "g": ("c",), "h": ("c",)}, phases))
    assert bench.grant_of("c").node == node


@pytest.mark.parametrize("packing", PACKINGS)
def test_cpu_work_keeps_away_from_gpu_nodes_by_any_packing(packing: str) -> None:
    """A node without GPUs comes first for a CPU phase, whatever the score."""
    bench = EngineBench(config=EngineConfig(packing=packing))
    bench.send(m.NodeAdded("gpu", 2.0, 2))
    bench.send(m.NodeAdded("cpu", 64.0))
    bench.submit(graph_of({"g": (), "c": ()}, {"g": (gpu(),)}))
    assert (bench.grant_of("g").node, bench.grant_of("c").node) == ("gpu", "cpu")


def test_the_engine_packs_as_shipped_unless_told_otherwise() -> None:
    """With no option set, a CPU phase leaves a GPU the CPUs it needs; best fit would have taken them."""
    bench = EngineBench()
    bench.send(m.NodeAdded("x", 4.0, 1))
    bench.send(m.NodeAdded("y", 8.0, 1))
    bench.submit(graph_of({"c": (), "g": ("c",), "h": ("c",)}, {"c": (cpu(9.0, cpus=2.0),)}, default=(gpu(cpus=4.0),)))
    assert (bench.engine.config.packing, bench.grant_of("c").node) == (SHIPPED, "y")
    bench.end("c")
    assert {bench.grant_of("g").node, bench.grant_of("h").node} == {"x", "y"}


def test_without_gpu_phases_it_is_best_fit() -> None:
    """Nothing to fragment: the packer stands aside, and is there again once a GPU phase is known."""
    packer = make_packer(SHIPPED)
    assert packer is not None
    shapes = [Shape(1000), Shape(2000, 500)]
    assert packer.learn(shapes, [0, 0, 0]) is None
    assert packer.learn(shapes, [0, 0, 0, 1]) is packer
    assert packer.typical == ((Shape(2000, 500), 1),)


def test_room_kept_for_others_is_counted_on_the_devices_that_are_then_taken() -> None:
    """While an overdue phase keeps two whole devices, a share goes beside the other share, though first fit would
    break one of the two."""
    bench = EngineBench(config=EngineConfig(packing="first_fit", default_max_wait_s=1.0))
    bench.send(m.NodeAdded("n", 4.0, 3))
    bench.submit(graph_of({"cpu": ()}, {"cpu": (cpu(9.0),)}))
    bench.submit(graph_of({"one": ()}, default=(gpu(1.0),)))
    bench.submit(graph_of({"half": ()}, default=(gpu(9.0, 0.5),)))
    bench.submit(graph_of({"two": ()}, default=(gpu(1.0, 2.0, cpus=4.0),)))
    bench.end("one")
    bench.send(m.Tick(), at=2.0)
    bench.submit(graph_of({"third": ()}, default=(gpu(9.0, 0.3),)))
    assert bench.grant_of("third").devices == bench.grant_of("half").devices == (1,)
    bench.end("cpu")
    assert bench.grant_of("two").devices == (0, 2)


def test_best_fit_needs_no_packer_and_an_unknown_packing_is_refused() -> None:
    """Best fit is what placement does anyway; a wrong name is an error at once."""
    assert make_packer("best_fit") is None
    with pytest.raises(KeyError):
        make_packer("tetris")


# --- whatever comes ---

frees = st.builds(
    Free,
    st.integers(0, 16_000),
    st.sampled_from([UNLIMITED, 64]),
    st.lists(st.sampled_from([0, 100, 250, 500, 750, 1000]), max_size=5).map(tuple),
)
shapes = st.builds(Shape, st.integers(0, 4000), st.sampled_from([0, 100, 300, 500, 1000, 2000]), st.integers(0, 32))
kinds = st.lists(st.tuples(shapes, st.integers(1, 50)), max_size=5).map(typical_workload)


@pytest.mark.parametrize("packing", PACKINGS)
@quick
@given(free=frees, shape=shapes, typical=kinds)
def test_a_choice_fits_and_is_the_same_again(packing: str, free: Free, shape: Shape, typical: TypicalWorkload) -> None:
    """The devices chosen have the share, no device is oversubscribed, and the same question has the same answer."""
    enough = len(usable_devices(free, shape)) >= devices_of(shape)
    if not enough or shape.cpu_milli > free.cpu_milli or shape.memory_bytes > free.memory_bytes:
        return
    choose = PACKINGS[packing].choose
    score, devices = choose(free, shape, typical)
    assert len(set(devices)) == len(devices) == devices_of(shape)
    assert set(devices) <= set(usable_devices(free, shape))
    left = after(free, shape, devices)
    assert all(0 <= device <= WHOLE_DEVICE for device in left.devices)
    assert sum(free.devices) - sum(left.devices) == shape.gpu_milli
    assert choose(free, shape, typical) == (score, devices)


@quick
@given(frees, st.lists(shapes, min_size=1, max_size=4), kinds)
def test_a_descent_that_remembers_chooses_the_same(free: Free, asked: list[Shape], typical: TypicalWorkload) -> None:
    """The shipped packing keeps what devices offer to the typical phases; it says what the plain descent says."""
    shipped = PACKINGS[SHIPPED]
    assert shipped.remembering is not None
    remembering = shipped.remembering()
    for shape in asked:
        fits = len(usable_devices(free, shape)) >= devices_of(shape)
        if fits and shape.cpu_milli <= free.cpu_milli and shape.memory_bytes <= free.memory_bytes:
            assert remembering(free, shape, typical) == shipped.choose(free, shape, typical)


@quick
@given(frees, kinds)
def test_looking_ahead_is_fragmentation_and_what_stays_over(free: Free, typical: TypicalWorkload) -> None:
    """The quick form is the sum that it stands for."""
    left = sum(count * leftover_gpu(free, shape) for shape, count in typical)
    assert fragmentation_ahead(free, typical) == FILL_SHARE * fragmentation(free, typical) + left


@pytest.mark.parametrize("packing", ["first_fit", SHIPPED])
@settings(quick, max_examples=25)
@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_any_history_holds_every_invariant_and_restores(packing: str, before: int, later: int) -> None:
    """With fractions, warm processes, failures and lost nodes: no device over capacity; a restored engine agrees."""
    nodes = [m.NodeAdded("big", 4.0, 2, 4 << 30, 4 << 30, 2, 4), m.NodeAdded("cpu", 3.0), m.NodeAdded("gpu", 2.0, 2)]
    world = World(EngineConfig(packing=packing), nodes, random.Random(before).choices(range(2**16), k=200))
    world.run()
    world.restore_twin()
    world.numbers = type(world.numbers)(random.Random(later).choices(range(2**16), k=200))
    world.run()
    world.drain()


@pytest.mark.parametrize("packing", PACKINGS)
def test_engine_and_benchmark_place_alike(packing: str) -> None:
    """The engine, one pod at a time, and the benchmark's arrays put every pod on the same node and devices."""
    nodes, pods = synthetic_problem()
    nodes = [*nodes[:8], m.NodeAdded("cpu", 64.0, 0, 256 << 30), m.NodeAdded("small", 9.0, 0, 256 << 30)]
    order = [Shape(8000), *arrivals(pods, sum(node.gpus for node in nodes), UP_TO, random.Random(3))]
    engine, arrays = run_engine(nodes, order, packing), run_arrays(nodes, order, packing)
    assert engine.places == arrays.places
    assert None in engine.places  # the cluster was full
    assert engine.unallocated == arrays.unallocated
