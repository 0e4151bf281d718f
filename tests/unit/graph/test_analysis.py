"""Orders, ranks and times: by hand on a small graph, against naive recursion on random ones."""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egs_core.errors import InputError
from egs_core.graph import analysis
from egs_core.graph.columns import CPU, GPU, Graph, Shape


def make(durations: list[float], parents: list[tuple[int, ...]]) -> Graph:
    """One CPU phase a task."""
    graph = Graph()
    for number, (seconds, above) in enumerate(zip(durations, parents, strict=True)):
        graph.add_task(f"t{number}", above, ((CPU, Shape(), seconds),))
    return graph


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A random DAG of up to twelve tasks whose numbers are not in topological order."""
    size = draw(st.integers(1, 12))
    durations = draw(st.lists(st.integers(0, 20), min_size=size, max_size=size))
    chosen = [draw(st.sets(st.integers(0, max(0, t - 1)), max_size=3)) if t else set[int]() for t in range(size)]
    new = list(range(size))
    random.Random(draw(st.integers(0, 99))).shuffle(new)
    parents: list[tuple[int, ...]] = [()] * size
    for task, above in enumerate(chosen):
        parents[new[task]] = tuple(sorted(new[p] for p in above))
    return make([float(d) for d in durations], parents)


def diamond() -> Graph:
    """0 (1 s) before 1 (2 s) and 2 (5 s), both before 3 (1 s)."""
    return make([1, 2, 5, 1], [(), (0,), (0,), (1, 2)])


def test_a_diamond_by_hand() -> None:
    """Heads, tails, ranks, slack, critical path, work, depth and width of four tasks, counted on paper."""
    graph = diamond()
    assert analysis.heads(graph) == [0, 1, 1, 6]
    assert analysis.tails(graph) == [6, 1, 1, 0]
    assert analysis.upward_rank(graph) == [7, 3, 6, 1]
    assert analysis.slack(graph) == [0, 3, 0, 0]
    assert analysis.critical_path(graph) == (7.0, [0, 2, 3])
    assert analysis.work_s(graph) == 9.0
    assert analysis.depth_and_width(graph) == analysis.Levels(depth=3, width=2)
    assert analysis.ranked_plan(analysis.upward_rank(graph)) == [0, 2, 1, 3]


def test_phases_of_a_task_add_up_and_unknown_ones_count_zero() -> None:
    """A task of three phases, one of unknown length, has the seconds of the other two."""
    graph = Graph()
    graph.add_task("a", (), ((CPU, Shape(), 1.0), (GPU, Shape(gpu_milli=1000), None), (CPU, Shape(), 0.5)))
    graph.add_task("b", (0,), ((CPU, Shape(), 2.0),))
    assert analysis.task_durations(graph) == [1.5, 2.0]
    assert analysis.critical_path(graph) == (3.5, [0, 1])


def test_given_durations_replace_those_of_the_graph() -> None:
    """Ranks and the critical path follow the durations that are passed in."""
    graph = diamond()
    assert analysis.upward_rank(graph, [1, 9, 1, 1]) == [11, 10, 2, 1]
    assert analysis.critical_path(graph, [1, 9, 1, 1]) == (11.0, [0, 1, 3])


def test_an_ordered_graph_keeps_its_order() -> None:
    """Where parents already come first, the topological order is the order of the file."""
    assert analysis.topological_order(diamond()) == [0, 1, 2, 3]


def test_a_cycle_is_an_input_error() -> None:
    """An order that cannot exist is refused."""
    with pytest.raises(InputError, match="cycle"):
        analysis.topological_order(make([1, 1], [(1,), (0,)]))


def test_a_long_chain_needs_no_recursion() -> None:
    """A chain far beyond Python's recursion limit, numbered backwards, is ranked."""
    length = 20_000
    graph = make([1.0] * length, [(t + 1,) if t + 1 < length else () for t in range(length)])
    assert analysis.upward_rank(graph)[length - 1] == length
    assert analysis.critical_path(graph)[0] == length


def test_edge_bytes_count_only_what_a_parent_writes_and_its_child_reads() -> None:
    """A file read by two children counts twice, one from outside not at all."""
    graph = diamond()
    graph.file_ids, graph.file_sizes = ["out", "outside"], [10, 1000]
    graph.outputs, graph.inputs = {0: (0,)}, {1: (0, 1), 2: (0,), 3: (0,)}
    assert analysis.edges_bytes(graph) == 20
    assert analysis.edges_bytes(graph) == sum(
        graph.edge_bytes(p, t) for t, parents in enumerate(graph.parents) for p in parents
    )


@given(graphs())
def test_a_topological_order_has_every_parent_first(graph: Graph) -> None:
    """Each task appears once, after all its parents."""
    order = analysis.topological_order(graph)
    place = {task: index for index, task in enumerate(order)}
    assert sorted(order) == list(range(graph.n_tasks))
    assert all(place[p] < place[t] for t, parents in enumerate(graph.parents) for p in parents)


@given(graphs())
def test_ranks_agree_with_naive_recursion(graph: Graph) -> None:
    """Upward rank, head and slack equal the textbook recursion over children and parents."""
    seconds, children = analysis.task_durations(graph), graph.children()

    @cache
    def rank(task: int) -> float:
        return seconds[task] + max((rank(c) for c in children[task]), default=0.0)

    @cache
    def head(task: int) -> float:
        return max((head(p) + seconds[p] for p in graph.parents[task]), default=0.0)

    tasks = range(graph.n_tasks)
    longest = max(head(t) + rank(t) for t in tasks)
    assert analysis.upward_rank(graph) == [rank(t) for t in tasks]
    assert analysis.heads(graph) == [head(t) for t in tasks]
    assert analysis.slack(graph) == [longest - head(t) - rank(t) for t in tasks]


@given(graphs())
def test_the_critical_path_is_a_path_of_its_length(graph: Graph) -> None:
    """Its tasks follow each other by edges, their seconds add up, and no rank is longer."""
    seconds = analysis.task_durations(graph)
    length, path = analysis.critical_path(graph)
    assert all(a in graph.parents[b] for a, b in pairwise(path))
    assert sum(seconds[t] for t in path) == length == max(analysis.upward_rank(graph))
