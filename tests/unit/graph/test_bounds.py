"""LB2: by hand, against all schedules of small graphs, and thinned."""

from __future__ import annotations

import heapq
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from egs_core.errors import InputError
from egs_core.graph.analysis import critical_path, heads, ranked_plan, tails, task_durations, upward_rank, work_s
from egs_core.graph.bounds import compute_bound, lower_bound, lower_bound_of, makespan_bound, pigeonhole_bound
from egs_core.graph.columns import CPU, Graph, Shape


def make(durations: list[float], parents: list[tuple[int, ...]]) -> Graph:
    """One CPU phase a task."""
    graph = Graph()
    for number, (seconds, above) in enumerate(zip(durations, parents, strict=True)):
        graph.add_task(f"t{number}", above, ((CPU, Shape(), seconds),))
    return graph


@st.composite
def graphs(draw: st.DrawFn, largest: int = 30) -> Graph:
    """A random DAG in topological order with whole seconds, so that sums are exact."""
    size = draw(st.integers(1, largest))
    durations = draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
    above = [draw(st.sets(st.integers(0, t - 1), max_size=3)) if t else set[int]() for t in range(size)]
    return make([float(d) for d in durations], [tuple(sorted(a)) for a in above])


def list_schedule(graph: Graph, slots: int) -> float:
    """Makespan of the list schedule by upward rank: a schedule that exists, so no bound may exceed it."""
    seconds, children = task_durations(graph), graph.children()
    rank = {task: place for place, task in enumerate(ranked_plan(upward_rank(graph)))}
    waiting = [len(parents) for parents in graph.parents]
    ready = [(rank[t], t) for t in range(graph.n_tasks) if not waiting[t]]
    heapq.heapify(ready)
    running: list[tuple[float, int]] = []
    now = 0.0
    while ready or running:
        while ready and len(running) < slots:
            _, task = heapq.heappop(ready)
            heapq.heappush(running, (now + seconds[task], task))
        now, ended = heapq.heappop(running)
        for child in children[ended]:
            waiting[child] -= 1
            if not waiting[child]:
                heapq.heappush(ready, (rank[child], child))
    return now


def best_makespan(graph: Graph, slots: int) -> float:
    """The least makespan: every order of the tasks, each placed as early as its parents and a slot allow."""
    seconds, best = task_durations(graph), float("inf")

    def place(done: dict[int, float], free: tuple[float, ...]) -> None:
        nonlocal best
        if len(done) == graph.n_tasks:
            best = min(best, max(done.values()))
            return
        for task in range(graph.n_tasks):
            if task not in done and all(p in done for p in graph.parents[task]):
                start = max([free[0], *(done[p] for p in graph.parents[task])])
                end = start + seconds[task]
                place(done | {task: end}, tuple(sorted((*free[1:], end))))

    place({}, (0.0,) * slots)
    return best


def naive_bound(heads_s: list[float], tails_s: list[float], work: list[float], slots: int) -> float:
    """LB2 straight from its definition."""
    items = list(zip(heads_s, tails_s, work, strict=True))
    cuts = [
        a + sum(w for h, t, w in items if h >= a and t >= b) / slots + b
        for a in set(heads_s)
        for b in set(tails_s)
        if any(h >= a and t >= b for h, t, _ in items)
    ]
    return max([*cuts, sum(work) / slots, *(h + w + t for h, t, w in items)])


def test_a_fork_and_join_by_hand() -> None:
    """1 s, then five tasks of 2 s, then 3 s, on two slots: 1 + 10 / 2 + 3 = 9, above path (6) and area (7)."""
    graph = make([1, 2, 2, 2, 2, 2, 3], [(), *[(0,)] * 5, (1, 2, 3, 4, 5)])
    bound = compute_bound(heads(graph), tails(graph), task_durations(graph), 2)
    assert (bound.seconds, bound.critical_path_s, bound.work_per_slot_s) == (9.0, 6.0, 7.0)
    assert (bound.head_cut_s, bound.tail_cut_s, bound.exact) == (1.0, 3.0, True)
    assert lower_bound(graph, 2) == 9.0
    assert lower_bound(graph, 5) == 6.0
    assert lower_bound(graph, 1) == 14.0


def test_gpu_phases_of_two_workloads_with_arrival_times_by_hand() -> None:
    """Two pipelines (2 s CPU, 3 s GPU, 1 s CPU), the second 1 s later, on one GPU: 2 + 6 + 1 = 9."""
    assert lower_bound_of([2.0, 3.0], [1.0, 1.0], [3.0, 3.0], 1) == 9.0
    assert lower_bound_of([2.0, 3.0], [1.0, 1.0], [3.0, 3.0], 2) == 7.0
    assert lower_bound_of([2.0, 30.0], [1.0, 1.0], [3.0, 3.0], 1) == 34.0


def test_items_that_hold_several_slots_have_a_duration_of_their_own() -> None:
    """Work is slot seconds: two items of 2 s on three slots each need four seconds on three slots."""
    assert compute_bound([0, 0], [0, 0], [6, 6], 3, durations_s=[2, 2]).seconds == 4.0


def test_nothing_to_do_takes_no_time_and_no_slots_is_an_error() -> None:
    """The edges of the definition."""
    assert lower_bound_of([], [], [], 3) == 0.0
    with pytest.raises(InputError, match="slots"):
        lower_bound_of([0.0], [0.0], [1.0], 0)


def test_an_empty_cut_does_not_count() -> None:
    """Two branches: a late head and a long tail that no task has together must not be added up."""
    graph = make([10, 1, 1, 10], [(), (0,), (), (2,)])
    assert lower_bound(graph, 4) == 11.0


@given(graphs(), st.integers(1, 5))
@example(make([0.0], [()]), 1)
def test_the_bound_lies_between_path_or_area_and_a_real_schedule(graph: Graph, slots: int) -> None:
    """Critical path and work / M at least, the makespan of a schedule that exists at most."""
    bound = lower_bound(graph, slots)
    assert bound >= critical_path(graph)[0]
    assert bound >= work_s(graph) / slots
    assert bound <= list_schedule(graph, slots) + 1e-9


@given(graphs(largest=6), st.integers(1, 3))
def test_the_bound_never_exceeds_the_best_schedule(graph: Graph, slots: int) -> None:
    """On graphs small enough to try every schedule."""
    assert lower_bound(graph, slots) <= best_makespan(graph, slots) + 1e-9


@given(graphs(), st.integers(1, 4))
def test_the_grid_equals_the_definition(graph: Graph, slots: int) -> None:
    """The two-dimensional sums give the same as trying every pair by hand."""
    head, tail, work = heads(graph), tails(graph), task_durations(graph)
    assert lower_bound(graph, slots) == pytest.approx(naive_bound(head, tail, work, slots))


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(4, 12))
def test_a_thinned_bound_is_valid_and_says_so(seed: int, slots: int, cuts: int) -> None:
    """With fewer cuts than values the bound is at most the exact one, at least path and area, and not called exact."""
    rng = random.Random(seed)
    head, tail, work = ([rng.random() * 9 for _ in range(60)] for _ in range(3))
    exact, thin = compute_bound(head, tail, work, slots), compute_bound(head, tail, work, slots, max_cuts=cuts)
    assert exact.exact
    assert not thin.exact
    assert max(thin.critical_path_s, thin.work_per_slot_s) <= thin.seconds <= exact.seconds + 1e-9


def test_thinning_loses_little() -> None:
    """On 2,000 random items 64 cuts come within one percent of all cuts."""
    rng = random.Random(3)
    head, tail, work = ([rng.random() * 100 for _ in range(2000)] for _ in range(3))
    exact = compute_bound(head, tail, work, 400, max_cuts=2000)
    assert exact.exact
    assert compute_bound(head, tail, work, 400, max_cuts=64).seconds >= 0.99 * exact.seconds


# --- the pigeonhole bound ---


def naive_pigeonhole(graph: Graph, slots: int) -> float:
    """Straight from its definition: every head, every tail, every k."""
    items = list(zip(heads(graph), tails(graph), task_durations(graph), strict=True))
    best = 0.0
    for a in {h for h, _, _ in items}:
        for b in {t for _, t, _ in items}:
            falling = sorted((s for h, t, s in items if h >= a and t >= b), reverse=True)
            for k in range(-(-len(falling) // slots)):
                best = max(best, a + sum(falling[k * slots - k : k * slots + 1]) + b)
    return best


def test_nine_equal_tasks_on_eight_slots_take_two_rounds() -> None:
    """20 s, where LB2 says 11.25 s; with 1 s before and 3 s after them 24 s."""
    nine = make([10.0] * 9, [()] * 9)
    assert (lower_bound(nine, 8), makespan_bound(nine, 8)) == (11.25, 20.0)
    between = make([1.0, *[10.0] * 9, 3.0], [(), *[(0,)] * 9, tuple(range(1, 10))])
    assert (lower_bound(between, 8), makespan_bound(between, 8)) == (15.25, 24.0)


def test_the_longest_need_not_be_the_ones_that_bind() -> None:
    """3, 3, 2, 2, 2 s on two slots: one takes three of them, the three least, 6 s; of the longest three alone 5 s."""
    assert pigeonhole_bound([0] * 5, [0] * 5, [2, 3, 2, 3, 2], 2) == 6.0
    assert pigeonhole_bound([0] * 3, [0] * 3, [2, 3, 3], 2) == 5.0


def test_the_pigeonhole_bound_at_its_edges() -> None:
    """Nothing takes no time, one task takes its own, no slots are an error, LB2 still counts where it is better."""
    assert pigeonhole_bound([], [], [], 3) == 0.0
    assert pigeonhole_bound([2.0], [3.0], [4.0], 3) == 9.0
    with pytest.raises(InputError, match="slots"):
        pigeonhole_bound([0.0], [0.0], [1.0], 0)
    uneven = make([7.0, 1.0, 1.0, 1.0, 1.0, 1.0], [()] * 6)
    assert makespan_bound(uneven, 1) == lower_bound(uneven, 1) == 12.0


@given(graphs(largest=6), st.integers(1, 3))
def test_no_bound_exceeds_the_best_schedule(graph: Graph, slots: int) -> None:
    """On graphs small enough to try every schedule; and it is never below LB2."""
    assert lower_bound(graph, slots) <= makespan_bound(graph, slots) <= best_makespan(graph, slots) + 1e-9


@given(graphs(), st.integers(1, 5))
def test_the_pigeonhole_bound_equals_its_definition(graph: Graph, slots: int) -> None:
    """With few enough heads and tails every pair is tried."""
    seconds = task_durations(graph)
    assert pigeonhole_bound(heads(graph), tails(graph), seconds, slots) == pytest.approx(naive_pigeonhole(graph, slots))


@given(graphs(), st.integers(1, 5), st.integers(4, 8))
def test_a_thinned_pigeonhole_bound_is_valid(graph: Graph, slots: int, cuts: int) -> None:
    """Fewer cuts never give more, and a real schedule is never shorter."""
    head, tail, seconds = heads(graph), tails(graph), task_durations(graph)
    thin = pigeonhole_bound(head, tail, seconds, slots, cuts)
    assert thin <= pigeonhole_bound(head, tail, seconds, slots) + 1e-9
    assert thin <= list_schedule(graph, slots) + 1e-9
