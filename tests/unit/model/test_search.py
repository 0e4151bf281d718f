"""The search: what it gives fits, is what it says, is the best there is on small graphs, and the same each time."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egs_core.model import OBJECTIVES, Instance, Objective, evaluate, split
from egs_core.model.exact import improved
from egs_core.model.levels import coarsened, depth_first, finest, levels_of
from egs_core.model.packing import pack
from tests.unit.model.instances import best_by_trying, instance_of, instances, random_instance, slow_loss

EFFORT = 4000  # little: what is proven here does not depend on it


@settings(max_examples=60)
@given(instances(), st.sampled_from(OBJECTIVES))
def test_small_graphs_get_the_best_assignment_there_is(instance: Instance, objective: Objective) -> None:
    """Against all assignments: feasible if and only if one fits, the loss the least of all, and of the assignment that
    is given."""
    found, best = split(instance, objective, effort=EFFORT), best_by_trying(instance, objective)
    assert (found.assignment is None) == (best is None)
    if found.assignment is not None and found.loss is not None and best is not None:
        assert found.is_best
        assert found.loss.fits
        assert found.loss.loss == pytest.approx(float(best), rel=1e-9)
        slow = slow_loss(instance, found.assignment, objective)
        assert slow is not None
        assert float(slow) == pytest.approx(float(best), rel=1e-9)


@settings(max_examples=40)
@given(instances(), st.sampled_from(OBJECTIVES))
def test_branch_and_bound_is_exact_from_any_start(instance: Instance, objective: Objective) -> None:
    """Also from an assignment that nothing has searched."""
    packed = pack(instance.operators.sizes, [d.memory for d in instance.devices.devices]).assignment
    if packed is not None:
        level = finest(instance, objective)
        start = [packed[members[0]] for members in level.members]
        found, is_best = improved(level, instance, objective, start)
        assert is_best
        best = best_by_trying(instance, objective)
        assert best is not None
        assert evaluate(instance, level.finer(found), objective).loss == pytest.approx(float(best), rel=1e-9)


@settings(max_examples=200)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.lists(st.integers(1, 20), min_size=1, max_size=3))
def test_packing_finds_a_way_if_there_is_one(sizes: list[int], rooms: list[int]) -> None:
    """Against all ways."""
    instance = instance_of(sizes, [0.0] * len(sizes), [], [(room, 1.0) for room in rooms])
    found = pack(sizes, rooms).assignment
    assert (found is None) == (best_by_trying(instance, "stream") is None)
    assert found is None or evaluate(instance, found, "stream").fits


@pytest.mark.parametrize(
    ("sizes", "rooms", "reason"),
    [
        ([5, 5], [4, 5], "the operators need 10 B, the devices have 9 B together"),
        ([6], [5, 5], "one operator needs 6 B, the largest device has 5 B"),
        ([8 << 30], [6 << 30, 6 << 30], "one operator needs 8.0 GiB, the largest device has 6.0 GiB"),
        (
            [(8 << 30) + 1],
            [8 << 30, 1 << 30],
            "one operator needs 8,589,934,593 bytes, the largest device has 8,589,934,592 bytes",
        ),
        ([4, 4, 4], [6, 6], "no assignment fits each device's memory"),
    ],
)
def test_why_nothing_fits_is_said(sizes: list[int], rooms: list[int], reason: str) -> None:
    """The first of the reasons that holds, with the numbers."""
    assert pack(sizes, rooms).reason == reason


def test_a_packing_that_largest_first_misses() -> None:
    """6+4+4 fill 14, 7+5 fill 12; largest first leaves no room for the last, so the search has to find it."""
    sizes, rooms = [7, 6, 5, 4, 4], [14, 12]
    found = pack(sizes, rooms).assignment
    assert found is not None
    assert [sum(s for s, d in zip(sizes, found, strict=True) if d == k) for k in range(2)] == rooms


def test_a_packing_that_takes_too_long_says_what_is_not_shown() -> None:
    """Without steps nothing is claimed."""
    assert "is not shown" in pack([4, 4, 4], [6, 6], steps=0).reason


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("count", [30, 400, 3000])
def test_larger_graphs_fit_and_are_no_worse_than_plain_rules(count: int, objective: Objective) -> None:
    """With the coarser graphs in between: memory holds, and neither equal runs nor one after the other is better."""
    instance = random_instance(count, 4, seed=count)
    found = split(instance, objective, effort=100_000)
    assert found.assignment is not None
    assert found.loss is not None
    assert found.loss == evaluate(instance, found.assignment, objective)
    assert found.loss.fits
    runs = [min(i * 4 // count, 3) for i in range(count)]
    packed = pack(instance.operators.sizes, [d.memory for d in instance.devices.devices]).assignment
    for other in (runs, packed):
        assert other is not None
        plain = evaluate(instance, other, objective)
        assert found.loss.loss <= plain.loss or not plain.fits


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_same_seed_gives_the_same_assignment(objective: Objective) -> None:
    """Bounds are counted in work, not in time."""
    instance = random_instance(300, 3, seed=5)
    first, second = (split(instance, objective, seed=3, effort=50_000) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_units_do_not_matter(objective: Objective) -> None:
    """Bytes a thousand times larger over links a thousand times faster are the same problem: the same assignment, the
    same loss."""
    small = instance_of(
        [3, 4, 5, 6], [1.0, 2.0, 3.0, 4.0], [(0, 1, 7), (1, 2, 9), (0, 3, 5)], [(11, 1.0), (9, 2.0)], 10
    )
    edges = [(0, 1, 7000), (1, 2, 9000), (0, 3, 5000)]
    devices = [(11_000, 1.0), (9000, 2.0)]
    large = instance_of([3000, 4000, 5000, 6000], [1.0, 2.0, 3.0, 4.0], edges, devices, 10_000)
    a, b = split(small, objective), split(large, objective)
    assert a.assignment == b.assignment
    assert a.loss is not None
    assert b.loss is not None
    assert b.loss.loss == pytest.approx(a.loss.loss)
    assert b.loss.idle_bytes == 1000 * a.loss.idle_bytes


def test_one_device_that_fits_all_and_is_fast_gets_all() -> None:
    """A chain gains nothing by a second device; of two equally fast ones the one with less memory stays idle less."""
    edges = [(i, i + 1, 100) for i in range(9)]
    instance = instance_of([1] * 10, [1.0] * 10, edges, [(40, 1.0), (20, 1.0), (100, 0.5)])
    assert split(instance, "request").assignment == [1] * 10


def test_parallel_branches_go_apart_where_transfers_are_cheap() -> None:
    """Two branches of 5 s each: side by side on two devices, one after the other where the link is slow."""
    edges = [(0, 1, 10), (0, 2, 10), (1, 3, 10), (2, 3, 10)]
    devices = [(100, 1.0), (100, 1.0)]
    fast = split(instance_of([1] * 4, [0.1, 5.0, 5.0, 0.1], edges, devices, link_bytes_s=1000), "request")
    slow = split(instance_of([1] * 4, [0.1, 5.0, 5.0, 0.1], edges, devices, link_bytes_s=1), "request")
    assert fast.assignment is not None
    assert fast.assignment[1] != fast.assignment[2]
    assert slow.assignment is not None
    assert len(set(slow.assignment)) == 1


@settings(max_examples=50)
@given(instances(most_operators=12), st.sampled_from(OBJECTIVES))
def test_coarser_graphs_have_all_operators_once_and_no_cycle(instance: Instance, objective: Objective) -> None:
    """Every edge leads forwards in the numbering, sizes and seconds add up, and an assignment finds its way back."""
    fine = finest(instance, objective)
    coarse = coarsened(fine, instance, objective)
    assert sorted(i for members in coarse.members for i in members) == list(range(len(fine)))
    assert all(j < i for level in (fine, coarse) for i, inputs in enumerate(level.inputs) for j, _ in inputs)
    assert sum(coarse.sizes) == sum(fine.sizes)
    assert sum(map(Fraction, coarse.seconds)) == sum(map(Fraction, fine.seconds))
    order = depth_first(fine)
    place = {i: p for p, i in enumerate(order)}
    assert all(place[j] < place[i] for i, inputs in enumerate(fine.inputs) for j, _ in inputs)


def test_wide_and_random_graphs_become_small() -> None:
    """Neither a star nor a graph of many edges stays as it is: the coarsest is searched thoroughly."""
    star = instance_of([1] * 2000, [1.0] * 2000, [(0, i, 5) for i in range(1, 2000)], [(1100, 1.0)] * 2)
    many = [(i, j, 1) for i in range(1000) for j in range(i + 1, min(i + 4, 1000))]
    dense = instance_of([1] * 1000, [1.0] * 1000, many, [(600, 1.0)] * 2)
    for instance in (star, dense):
        assert len(levels_of(instance, "request")[-1]) <= 240


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_operators_that_take_no_time_are_placed(objective: Objective) -> None:
    """Where no device and no link has anything to do, nothing sets T, and a search has nowhere to look first."""
    instance = instance_of([4, 4, 3], [0.0, 0.0, 0.0], [(1, 2, 0)], [(8, 1.0)] * 3)
    found = split(instance, objective, effort=EFFORT)
    assert found.loss is not None
    assert (found.loss.loss, found.loss.fits) == (0.0, True)
