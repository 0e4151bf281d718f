"""The assignments that the search begins from."""

from __future__ import annotations

from itertools import combinations

import pytest

from egs_core.model import OBJECTIVES, Objective, evaluate
from egs_core.model.cuts import contiguous, cut_seconds
from egs_core.model.instance import Device
from egs_core.model.levels import finest
from egs_core.model.starts import listed, starts
from tests.unit.model.instances import instance_of, random_instance


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_cuts_of_a_chain_are_the_best_there_are(objective: Objective) -> None:
    """On a chain the program's model is exact: all cuts onto two unequal devices, in both orders, tried out."""
    sizes, seconds = [4, 1, 3, 2, 5, 1, 2, 4], [3.0, 1.0, 2.0, 5.0, 1.0, 1.0, 2.0, 1.0]
    edges = [(i, i + 1, size) for i, size in enumerate([500, 3000, 100, 700, 2000, 50, 900])]
    instance = instance_of(sizes, seconds, edges, [(14, 1.0), (13, 2.0), (9, 1.0)])
    level, devices = finest(instance, objective), instance.devices.devices
    idle_s = instance.lambda_s / instance.devices.total_memory
    best = min(
        loss.loss
        for order in ([0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0])
        for a, b in combinations(range(len(sizes) + 1), 2)
        if (loss := evaluate(instance, [order[(i >= a) + (i >= b)] for i in range(len(sizes))], objective)).fits
    )
    found = contiguous(level, list(range(len(level))), devices, objective, idle_s)
    assert min(evaluate(instance, one, objective).loss for one in found) == pytest.approx(best)


def test_what_a_cut_costs() -> None:
    """All that crosses it in a stream, the longest of it in a request."""
    instance = instance_of([1] * 4, [1.0] * 4, [(0, 3, 5000), (0, 1, 1000), (2, 3, 2000)], [(9, 1.0)] * 2)
    everything, longest = (cut_seconds(finest(instance, o), range(4), o) for o in ("stream", "request"))
    assert everything == pytest.approx([0, 6, 5, 7, 0])
    assert longest == pytest.approx([0, 5, 5, 5, 0])


@pytest.mark.parametrize("width", [1, 2, 5, 40])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_start_fits(objective: Objective, width: int) -> None:
    """Also with more devices of more kinds than the program has states for, and with one."""
    instance = random_instance(300, width, seed=width)
    kinds = [
        Device(name=f"g{d}", memory=m.memory + d, speed=1.0 + d / 10) for d, m in enumerate(instance.devices.devices)
    ]
    found = 0
    for devices in (instance.devices.devices, tuple(kinds)):
        for start in starts(finest(instance, objective), devices, objective, 1e-6):
            used = [0] * width
            for size, d in zip(finest(instance, objective).sizes, start, strict=True):
                used[d] += size
            assert all(u <= device.memory for u, device in zip(used, devices, strict=True))
            found += 1
    assert found >= 2


def test_a_list_that_runs_out_of_memory_is_none() -> None:
    """The rule takes the device that ends first, not the one with room for what comes later."""
    instance = instance_of([3, 3, 5], [1.0, 1.0, 1.0], [], [(6, 1.0), (6, 1.0)])
    assert listed(finest(instance, "request"), instance.devices.devices, [0, 1]) is None


def test_cuts_of_a_long_chain_are_refined_to_the_operator() -> None:
    """There are more places than are tried at first; a fast device is filled to its last byte all the same."""
    edges = [(i, i + 1, 1) for i in range(1999)]
    instance = instance_of([1] * 2000, [1.0] * 2000, edges, [(777, 2.0), (2000, 1.0)])
    level, idle_s = finest(instance, "request"), instance.lambda_s / instance.devices.total_memory
    found = contiguous(level, list(range(2000)), instance.devices.devices, "request", idle_s)
    assert max(one.count(0) for one in found) == 777
