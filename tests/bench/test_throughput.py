"""The arithmetic of the throughput benchmark, and that its worlds run to their end."""

from __future__ import annotations

import pytest

from benchmarks.throughput import CONFIG, Options, memory, sizes_of
from benchmarks.throughput_cluster import cluster, drive, mixed_graphs, steady_rate
from egs_core.errors import InputError


def test_the_steady_rate_leaves_out_both_ends() -> None:
    """100 phases: slow for ten, ten a second for eighty, slow again."""
    marks = [(10, 50.0), (50, 54.0), (90, 58.0), (100, 99.0)]
    assert steady_rate(marks, 100) == pytest.approx(10.0)


def test_all_phases_of_a_cluster_are_counted() -> None:
    """Every phase of every workload ends once."""
    graphs = mixed_graphs(3, 100, 7)
    assert [g.n_tasks for g in graphs] == [34, 33, 33]
    found = drive(cluster(6), graphs, CONFIG)
    assert found.phases == sum(g.n_phases for g in graphs)
    assert found.run_s > 0
    assert found.marks[-1][0] == found.phases


def test_memory_is_counted_without_the_graphs() -> None:
    """More tasks, more bytes; and less for each than a kilobyte."""
    small, large = (memory(Options(tasks=tasks, workloads=5)) for tasks in (500, 1000))
    assert small["bytes"] < large["bytes"]
    assert 100 < large["bytes_a_phase"] < large["bytes_a_task"] < 1024


@pytest.mark.parametrize("wrong", ["", "1000,x", "0", "-5"])
def test_sizes_are_whole_numbers(wrong: str) -> None:
    """One line that names the option."""
    with pytest.raises(InputError, match="--sizes"):
        sizes_of(wrong)
