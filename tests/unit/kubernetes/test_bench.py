"""The suite of `benchmarks.kubernetes`, which itself needs a cluster: its runs, and what is computed of them."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from benchmarks.kubernetes import FORMS, Outcome, Task, is_inverted, ranked, run_of, suite, summarise


@pytest.mark.parametrize("form", FORMS)
def test_a_run_is_a_graph_with_one_end(form: str) -> None:
    """Parents come before, all but the last task have a child, and ranks fall along every edge."""
    run = run_of(form, random.Random(3))
    assert all(parent < number for number, task in enumerate(run) for parent in task.parents)
    assert {parent for task in run for parent in task.parents} == set(range(len(run) - 1))
    for task in run:
        assert all(run[parent].rank_s >= run[parent].predicted_s + task.rank_s for parent in task.parents)
    assert sum(task.gpus for task in run) == {"chain": 3, "deep": 6, "wide": 8, "large": 21}[form]


def test_sides_of_a_round_have_the_same_runs_and_rounds_have_others() -> None:
    """Else they could not be compared."""
    assert suite(12, 0) == suite(12, 0) != suite(12, 1)
    assert len(suite(12, 0)) == 12


def test_an_inversion_is_one_that_goes_before_a_longer_path() -> None:
    """Of those that have waited; a tenth more is none."""
    run = ranked([Task((), 1, 1.0, 1.0), Task((), 1, 5.0, 5.0), Task((), 1, 1.05, 1.0)])
    assert is_inverted(run, 0, [1])
    assert not is_inverted(run, 0, [2])
    assert not is_inverted(run, 1, [0, 2])
    assert not is_inverted(run, 0, [])


def test_sides_are_compared_within_a_round() -> None:
    """A slow round counts as much as a fast one."""
    found = [
        Outcome("native", 0, [2.0, 4.0]),
        Outcome("native", 1, [20.0, 40.0]),
        Outcome("egs", 0, [1.0, 2.0], 1, 5),
        Outcome("egs", 1, [20.0, 40.0], 2, 5),
    ]
    native, egs = summarise(found)
    assert (native["native_over"], egs["native_over"]) == (1.0, 1.5)
    assert (egs["makespan_s"], egs["inversions"], egs["gpu_pods"]) == (21.0, 3, 10)
