"""What `egs split-model` is held against: the peers give what they say, and the drawn graphs are what they claim."""

from __future__ import annotations

import pytest

from benchmarks.model_split import summarised
from benchmarks.model_split_instances import GPUS, SHAPES, cases, devices_for
from benchmarks.model_split_peers import chain, even_layers, loss_of, solve
from egs_core.model import OBJECTIVES, Objective, evaluate, split
from tests.unit.model.instances import instance_of, random_instance


@pytest.mark.parametrize("shape", SHAPES)
def test_graphs_have_about_the_size_that_is_asked_for(shape: str) -> None:
    """One output at the end, inputs before it; each seed draws other times; every device can hold every operator."""
    drawing = SHAPES[shape](100, 1)
    assert 80 <= len(drawing.nodes) <= 110
    assert [node.seconds for node in drawing.nodes] != [node.seconds for node in SHAPES[shape](100, 2).nodes]
    for kind in GPUS:
        devices = devices_for(drawing, kind, 1.15, 10**9)
        assert drawing.over(devices).operators.order == tuple(range(len(drawing.nodes)))
        assert min(device.memory for device in devices.devices) > max(node.bytes for node in drawing.nodes)


def test_even_layers() -> None:
    """As many on each; a device that is full ends its share early; what does not fit is None."""
    assert even_layers(instance_of([1] * 6, [1.0] * 6, [], [(9, 1.0)] * 3), "request") == [0, 0, 1, 1, 2, 2]
    assert even_layers(instance_of([1] * 6, [1.0] * 6, [], [(1, 1.0), (9, 1.0), (9, 1.0)], 1), "request") == [
        *(0, 1, 1),
        *(1, 2, 2),
    ]
    assert even_layers(instance_of([5, 5], [1.0] * 2, [], [(5, 1.0), (4, 1.0)]), "request") is None


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_program_over_a_chain_finds_the_best_cut(objective: Objective) -> None:
    """Of all cuts that fit onto two equal devices; not cutting does not fit."""
    edges = [(i, i + 1, size) for i, size in enumerate([500, 3000, 100, 700])]
    instance = instance_of([2, 3, 2, 3, 2], [1.0, 2.0, 1.5, 1.0, 2.0], edges, [(8, 1.0), (8, 1.0)])
    found = chain(instance, objective)
    assert found is not None
    every = [evaluate(instance, [0] * cut + [1] * (5 - cut), objective) for cut in range(6)]
    best = min(loss.latency_s for loss in every if loss.fits)
    assert evaluate(instance, found, objective).latency_s == pytest.approx(best)


def test_the_program_leaves_a_slow_device_out() -> None:
    """One that would only make a request longer is not used."""
    instance = instance_of([1] * 4, [1.0] * 4, [(i, i + 1, 10) for i in range(3)], [(2, 1.0), (9, 0.1), (2, 1.0)])
    assert chain(instance, "request") == [0, 0, 2, 2]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_solver_and_the_search_agree(objective: Objective) -> None:
    """Its proven best is ours, and what it says is the least is not above it. Needs OR-tools."""
    pytest.importorskip("ortools", reason="CP-SAT is not installed")
    instance = random_instance(10, 3, seed=1)
    ours = split(instance, objective)
    assert ours.assignment is not None
    assert ours.loss is not None
    reference = solve(instance, objective, [0] * 10, 60.0, 1)
    assert reference is not None
    assert reference.is_best
    assert loss_of(instance, reference.assignment, objective) == pytest.approx(ours.loss.loss, rel=1e-4)
    assert reference.bound <= ours.loss.loss


def test_the_figures_add_up() -> None:
    """One row a peer and objective; an instance on which a peer does not fit is counted, not compared."""
    rows = [
        {"objective": "request", "seconds": 1.0, "even layers": 1.5},
        {"objective": "request", "seconds": 3.0, "even layers": None},
    ]
    found = {row["what"]: row for row in summarised({"peers": rows})}
    assert found["even layers"]["mean"] == 1.5
    assert (found["even layers"]["n"], found["even layers"]["of"]) == (1, 2)
    assert found["seconds"]["most"] == 3.0


def test_instances_are_the_same_each_time() -> None:
    """The figures can be made again."""
    first, second = (list(cases([20], 1, 100)) for _ in range(2))
    assert [case.name for case in first] == [case.name for case in second]
    assert [case.instance for case in first] == [case.instance for case in second]
