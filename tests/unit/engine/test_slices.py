"""Slices of a device: which profile a share gets, where on the device, and what then still fits."""

from __future__ import annotations

import random

import pytest

from egs_core.engine import messages as m
from egs_core.engine.specs import FlavorSpec, mig_profiles
from egs_core.engine.state.slices import best_mask, smallest
from egs_core.graph.columns import GIB, Shape
from egs_core.testing.engine_bench import EngineBench, gpu, graph_of

PROFILES = mig_profiles(40 * GIB)
BY_NAME = {profile.name: profile for profile in PROFILES}


def split_devices(count: int = 1) -> EngineBench:
    """A node with so many devices that are split."""
    bench = EngineBench()
    bench.send(m.NodeAdded("n", 64.0, count, None, 40 * GIB, flavor="a100"))
    bench.send(m.FlavorsChanged((FlavorSpec("a100", profiles=PROFILES),)))
    return bench


def run(bench: EngineBench, name: str, share: float, memory_gib: float = 0.0) -> str:
    """Submit one GPU task; its status."""
    phases = (gpu(10.0, share, gpu_memory_bytes=round(memory_gib * GIB)),)
    bench.submit(graph_of({name: ()}, default=phases), name)
    return bench.status(name)


def test_the_profiles_of_an_a100() -> None:
    """Names and memory of the 40 GB card, in NVIDIA's words."""
    assert [profile.name for profile in PROFILES] == ["1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]
    assert [profile.memory_bytes // GIB for profile in PROFILES] == [5, 10, 10, 20, 20, 40]
    assert [profile.name for profile in mig_profiles(80 * GIB)][:2] == ["1g.10gb", "1g.20gb"]


@pytest.mark.parametrize(
    ("milli", "memory_gib", "name"),
    [
        (143, 5, "1g.5gb"),
        (100, 0, "1g.5gb"),
        (100, 6, "1g.10gb"),
        (150, 5, "2g.10gb"),
        (286, 11, "3g.20gb"),
        (500, 20, "4g.20gb"),
        (600, 0, "7g.40gb"),
        (100, 30, "7g.40gb"),
        (100, 41, None),
    ],
)
def test_a_share_gets_the_smallest_profile_that_covers_it(milli: int, memory_gib: int, name: str | None) -> None:
    """By compute and by memory, whichever asks for more."""
    found = smallest(PROFILES, Shape(0, milli, 0, memory_gib * GIB))
    assert (found.name if found else None) == name


def test_a_small_slice_keeps_room_for_large_ones() -> None:
    """The first 1g goes to position 6, where it costs neither the 4g nor a 2g a place; two of them leave the 4g."""
    first = best_mask(PROFILES, BY_NAME["1g.5gb"], 0)
    assert first == 1 << 6
    second = best_mask(PROFILES, BY_NAME["1g.5gb"], first)
    assert second is not None
    assert best_mask(PROFILES, BY_NAME["4g.20gb"], first | second) == 0b1111


def test_positions_decide_not_sums() -> None:
    """Two 1g at positions 1 and 5 leave five sevenths, and neither a 3g nor a 4g has a place."""
    taken = 1 << 1 | 1 << 5
    assert best_mask(PROFILES, BY_NAME["3g.20gb"], taken) is None
    assert best_mask(PROFILES, BY_NAME["4g.20gb"], taken) is None
    assert best_mask(PROFILES, BY_NAME["2g.10gb"], taken) == 0b1100


def test_seven_small_ones_fill_a_device_and_the_eighth_waits() -> None:
    """Each has its own positions in its grant; what ends gives its own back."""
    bench = split_devices()
    assert [run(bench, f"t{i}", 1 / 7) for i in range(8)] == ["granted"] * 7 + ["ready"]
    positions = [bench.grant_of(f"t{i}").positions for i in range(7)]
    assert sorted(positions) == [1 << i for i in range(7)]
    bench.end("t3")
    assert bench.grant_of("t7").positions == positions[3]


def test_a_device_is_split_or_whole() -> None:
    """While a slice is held, the device is not given out whole, and the other way round."""
    bench = split_devices()
    assert run(bench, "slice", 0.14) == "granted"
    assert run(bench, "whole", 1.0) == "ready"
    bench.end("slice")
    assert bench.status("whole") == "granted"
    assert run(bench, "again", 0.14) == "ready"


def test_the_slice_is_charged_not_the_share() -> None:
    """A tenth of a device takes a seventh, with an eighth of the memory."""
    bench = split_devices()
    run(bench, "a", 0.1)
    lease = bench.state.leases[bench.state.cursor[bench.task("a")]]
    assert (lease.gpu_milli, lease.gpu_memory_bytes) == (142, 5 * GIB)


def test_slices_go_to_the_fullest_device() -> None:
    """The second one joins the first, so that the other device stays whole."""
    bench = split_devices(2)
    run(bench, "a", 0.14)
    run(bench, "b", 0.28)
    assert bench.grant_of("a").devices == bench.grant_of("b").devices
    assert run(bench, "whole", 1.0) == "granted"


def test_more_than_any_profile_offers_never_fits() -> None:
    """41 GiB of device memory: no profile, no node, and the reason says so."""
    bench = split_devices()
    assert run(bench, "a", 0.2, 41.0) == "ready"
    assert bench.reason("a").kind == "infeasible"


def test_whatever_comes_and_goes_slices_never_overlap() -> None:
    """Random shares that start and end: the invariants hold after every event, among them that slices are disjoint."""
    draw, bench = random.Random(3), split_devices(2)
    for i in range(60):
        run(bench, f"t{i}", draw.choice((0.1, 0.14, 0.25, 0.4, 0.5, 1.0)), draw.choice((0.0, 4.0, 9.0)))
        running = [name for name in bench.granted() if bench.status(name) == "granted"]
        if running and draw.random() < 0.6:
            bench.end(draw.choice(running))
    for _ in range(60):
        running = [name for name in bench.granted() if bench.status(name) == "granted"]
        if running:
            bench.end(running[0])
    assert all(bench.status(f"t{i}") == "succeeded" for i in range(60))


def test_restored_from_a_snapshot_slices_stay() -> None:
    """Positions are part of the state."""
    bench = split_devices()
    run(bench, "a", 0.14)
    restored = type(bench.engine).restore(bench.engine.snapshot(), bench.engine.config)
    assert restored.state.nodes[0].positions == bench.state.nodes[0].positions != {}
