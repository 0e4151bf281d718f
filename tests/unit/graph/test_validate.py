"""Checks of columnar graphs, of whole workloads and of blocks that grow one."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egs_core.errors import InputError
from egs_core.graph.columns import CPU, GPU, Graph, Shape, TaskOptions
from egs_core.graph.validate import validate


def make(*parents: tuple[int, ...]) -> Graph:
    """One second of one CPU for each task."""
    graph = Graph()
    for number, above in enumerate(parents):
        graph.add_task(f"t{number}", above, ((CPU, Shape(), 1.0),))
    return graph


def one(kind: int = CPU, shape: Shape | None = None, seconds: float | None = 1.0) -> Graph:
    """A second task `b` with this phase, so that places are not trivially the first."""
    graph = make(())
    graph.add_task("b", (0,), ((CPU, Shape(), 1.0), (kind, shape or Shape(), seconds)))
    return graph


def test_a_good_graph_passes() -> None:
    """Unknown durations, shares of a GPU, several GPUs and forward references are all fine."""
    graph = make((1,), ())
    graph.add_task("g", (0,), ((GPU, Shape(0, 250), None), (GPU, Shape(1000, 4000), 2.0)))
    validate(graph)


@pytest.mark.parametrize(
    ("graph", "problem"),
    [
        (Graph(), "empty"),
        (make((), (1,)), "task 't1' .*depends on itself"),
        (make((), (7,)), "parent number outside"),
        (make((), (-1,)), "parent number outside"),
        (make((), (0, 0)), "names a parent twice"),
        (one(seconds=-1.0), r"task 'b' \(tasks\[1\]\) phase 1: duration -1.0 s is negative"),
        (one(seconds=float("nan")), "phase 1: duration nan s is not finite"),
        (one(seconds=float("inf")), "phase 1: duration inf s is not finite"),
        (one(seconds=1e300), "absurdly long"),
        (one(shape=Shape(0)), "phase 1: a phase that holds nothing"),
        (one(shape=Shape(-1)), "less than nothing"),
        (one(shape=Shape(2 * 10**9)), "absurd resources"),
        (one(GPU, Shape(0, 2 * 10**9)), "absurd resources"),
        (one(shape=Shape(1000, 0, 2 * 10**15)), "absurd memory"),
        (one(GPU, Shape(1000, 1000, 0, 2 * 10**15)), "absurd memory"),
        (one(GPU), "a gpu phase without gpus"),
        (one(CPU, Shape(1000, 1000)), "a cpu phase holds gpus"),
        (one(GPU, Shape(0, 1500)), "1.5 gpus"),
    ],
)
def test_each_defect_is_named_with_its_place(graph: Graph, problem: str) -> None:
    """One error for each kind of defect, naming task and phase."""
    with pytest.raises(InputError, match=problem) as caught:
        validate(graph, "pipe.json")
    assert caught.value.place.startswith("pipe.json")


def test_duplicate_and_empty_ids() -> None:
    """Both places of a duplicate are named; an empty id is one too."""
    graph = make((), (), ())
    graph.ids[2] = "t0"
    with pytest.raises(InputError, match=r"tasks\[2\]: duplicate id 't0', also the id of tasks\[0\]"):
        validate(graph)
    graph.ids[2] = ""
    with pytest.raises(InputError, match=r"tasks\[2\]: has an empty id"):
        validate(graph)


def test_options_and_files_are_checked() -> None:
    """A NaN limit, negative retries and an impossible file size are found."""
    graph = make(())
    graph.options[0] = TaskOptions(max_wait_s=float("nan"))
    with pytest.raises(InputError, match="limit"):
        validate(graph)
    graph.options[0] = TaskOptions(retries=-1)
    with pytest.raises(InputError, match="retries"):
        validate(graph)
    graph.options.clear()
    graph.file_ids, graph.file_sizes = ["f"], [-1]
    with pytest.raises(InputError, match="file 'f' has an impossible size"):
        validate(graph)


def test_columns_that_do_not_fit_are_named() -> None:
    """A graph put together wrongly by code fails here, not deep in the engine."""
    graph = make((), ())
    graph.phase_duration_s.pop()
    with pytest.raises(InputError, match="phase_duration_s: has 1 entries for 2"):
        validate(graph)
    graph = make((), ())
    graph.phase_shape[1] = 5
    with pytest.raises(InputError, match="phase_shape"):
        validate(graph)
    graph = make(())
    graph.add_task("x", phases=())
    with pytest.raises(InputError, match=r"'x' .*has no phase"):
        validate(graph)


def test_a_cycle_names_the_tasks_on_it_in_running_order() -> None:
    """Tasks before and behind the cycle are not part of what is reported."""
    graph = make((), (0, 3), (1,), (2,), (3,))
    with pytest.raises(InputError, match=r"is on a cycle: t1 → t2 → t3 → t1"):
        validate(graph)


def test_a_long_cycle_is_shortened_and_needs_no_recursion() -> None:
    """A cycle of 50,000 tasks is found and told in one line."""
    size = 50_000
    with pytest.raises(InputError, match=r"t0 → t1 → .*… 49992 more → t0"):
        validate(make(*[((t - 1) % size,) for t in range(size)]))


def test_a_block_may_point_at_earlier_tasks_only_by_number() -> None:
    """Growth: with `first` the block's own tasks start there, earlier ids stay taken, and cycles are still found."""
    block = make((2,), (3, 0))  # tasks 3 and 4 of the workload
    validate(block, first=3)
    with pytest.raises(InputError, match="duplicate id 't1'"):
        validate(block, first=3, earlier_ids={"t1"})
    with pytest.raises(InputError, match="cycle: t0 → t1 → t0"):
        validate(make((4,), (3,)), first=3)
    with pytest.raises(InputError, match="depends on itself"):
        validate(make((3,)), first=3)
    with pytest.raises(InputError, match="outside 0 to 4"):
        validate(make((5,), ()), first=3)


@given(st.integers(2, 30), st.integers(0, 1000), st.booleans())
def test_random_graphs_pass_unless_an_edge_closes_a_cycle(size: int, seed: int, close: bool) -> None:
    """A shuffled random DAG passes; with one edge from a descendant back to an ancestor the cycle is found."""
    rng = random.Random(seed)
    new = rng.sample(range(size), size)
    parents: list[tuple[int, ...]] = [()] * size
    for task in range(1, size):
        parents[new[task]] = (new[rng.randrange(task)],)
    if not close:
        validate(make(*parents))
        return
    leaf = new[-1]
    root = leaf
    while parents[root]:
        root = parents[root][0]
    parents[root] = (leaf,)
    with pytest.raises(InputError, match="is on a cycle"):
        validate(make(*parents))
