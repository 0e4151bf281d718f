"""The demo's wiring and the bound that follows from it."""

from __future__ import annotations

import pytest

from egs_core.graph.bounds import gpu_phases
from egs_core.graph.columns import CPU, GPU
from egs_ray.demo.graph import demo_graph, ideal_bound_s


def test_graph_has_the_fixed_shape() -> None:
    """Load, preprocess, four trainings side by side, evaluate, report."""
    graph = demo_graph()
    parents = {task: [graph.ids[parent] for parent in graph.parents[i]] for i, task in enumerate(graph.ids)}
    trainings = [f"train-{number}" for number in range(4)]
    assert parents == {
        "load": [],
        "preprocess": ["load"],
        **{training: ["preprocess"] for training in trainings},
        "evaluate": ["preprocess", *trainings],
        "report": ["evaluate"],
    }


def test_phases_have_the_fixed_lengths() -> None:
    """The lengths that every figure of the demo rests on: they may not drift."""
    graph = demo_graph()
    phases = {
        name: [(graph.phase_kind[p], graph.phase_duration_s[p]) for p in graph.phases_of(i)]
        for i, name in enumerate(graph.names)
    }
    assert phases == {
        "load": [(CPU, 1.0)],
        "preprocess": [(CPU, 1.0)],
        "train": [(CPU, 1.0), (GPU, 1.5), (CPU, 0.3)],
        "evaluate": [(GPU, 0.7)],
        "report": [(CPU, 0.3)],
    }


def test_heads_and_tails_of_the_gpu_phases() -> None:
    """By hand: a fit comes 3 s after submission and is followed by write, evaluate, report; evaluate after 4.8 s."""
    head, work, tail = gpu_phases(demo_graph())
    assert head == pytest.approx([3.0] * 4 + [4.8])
    assert work == [1.5] * 4 + [0.7]
    assert tail == pytest.approx([0.3 + 0.7 + 0.3] * 4 + [0.3])


def test_bound_by_hand() -> None:
    """All 6 x (4 x 1.5 + 0.7) = 40.2 s on 2 GPUs, none before 3 s, 0.3 s of report after the last: 23.4 s."""
    assert ideal_bound_s() == pytest.approx(3.0 + 40.2 / 2 + 0.3)
