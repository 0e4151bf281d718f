"""The look-ahead: it never loses in its own model, repeats what it plans, and the engine runs what it found."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.passes.search import Improvement, improve
from egs_core.engine.specs import UNLIMITED, QueueSpec
from egs_core.graph.analysis import upward_rank
from egs_core.graph.columns import CPU, Graph, Shape, TaskOptions
from egs_core.graph.load import LoadedWorkload
from egs_core.sim import Durations, SimConfig, simulate
from egs_core.testing.engine_bench import EngineBench, cpu, gpu, graph_of

PACKED = {"a": 3.0, "b": 3.0, "c": 2.0, "d": 2.0, "e": 2.0}  # by rank 7 s on two slots, 6 s at best
BUDGET = 20_000


def packed(options: TaskOptions | None = None) -> Graph:
    """Five tasks that wait for nothing and that longest first packs badly."""
    given_options = {"a": options} if options else {}
    return graph_of(dict.fromkeys(PACKED, ()), {name: (cpu(s),) for name, s in PACKED.items()}, given_options)


def layered(seed: int, tasks: int, width: int = 12) -> Graph:
    """A seeded graph of whole seconds, each task with up to two parents among those shortly before it."""
    rng, graph = random.Random(seed), Graph()
    for number in range(tasks):
        nearby = range(max(0, number - width), number)
        above = sorted(set(rng.sample(nearby, min(len(nearby), rng.choice((0, 1, 1, 2))))))
        graph.add_task(f"t{number}", tuple(above), ((CPU, Shape(), float(rng.randrange(1, 20))),))
    return graph


def searched(graph: Graph, slots: int, placements: int = BUDGET, seed: int = 0) -> Improvement:
    """`improve` on a graph with one phase a task."""
    seconds = [s or 0.0 for s in graph.phase_duration_s]
    return improve(seconds, graph.parents, upward_rank(graph), slots, placements, seed)


def simulated(graph: Graph, slots: int, placements: int, policy: str = "egs") -> float:
    """Makespan of the shipped engine with this budget."""
    config = SimConfig(slots=slots, policy=policy, search_placements=placements, records=False)
    return simulate([LoadedWorkload("w", "w", "", "", 0.0, graph)], config).makespan_s


def test_the_drawing_is_true() -> None:
    """Five tasks on two slots: 7 s by rank, 6 s with lifts, which is the bound, so the search stops at once."""
    found = searched(packed(), 2)
    assert (found.before_s, found.after_s, found.bound_s) == (7.0, 6.0, 6.0)
    assert found.rank_boost_s
    assert found.placements < BUDGET / 10


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 6))
def test_never_longer_never_below_the_bound_and_within_the_budget(seed: int, tasks: int, slots: int) -> None:
    """Whatever the graph: bound <= after <= before, {} unless it gains, and a handful of passes beyond the budget."""
    found = searched(layered(seed, tasks), slots, placements=40 * tasks)
    assert found.bound_s <= found.after_s * (1 + 1e-9)
    assert found.after_s <= found.before_s
    assert bool(found.rank_boost_s) == (found.after_s < found.before_s)
    assert found.placements <= 40 * tasks + 5 * tasks


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 40), st.integers(1, 6))
def test_the_engine_runs_exactly_what_was_found(seed: int, tasks: int, slots: int) -> None:
    """The simulated engine takes before_s without the search and after_s with it, to the bit."""
    graph = layered(seed, tasks)
    found = searched(graph, slots, placements=200 * tasks)
    assert simulated(graph, slots, 0) == found.before_s
    assert simulated(graph, slots, 200 * tasks) == found.after_s


def test_it_gains_on_graphs_in_general() -> None:
    """On thirty seeded graphs of 80 tasks on 6 slots it closes at least 40 % of the gap between rank and bound."""
    found = [searched(layered(seed, 80), 6, 100_000) for seed in range(30)]
    gap = sum(f.before_s / f.bound_s - 1 for f in found)
    assert gap > 0.1, "these graphs are too easy to say anything"
    assert sum(f.after_s / f.bound_s - 1 for f in found) <= 0.6 * gap


def test_the_seed_decides() -> None:
    """The same seed finds the same lifts."""
    graph = layered(3, 80)
    assert searched(graph, 6, seed=1) == searched(graph, 6, seed=1)


def test_lifts_are_few() -> None:
    """Only what must overtake is lifted: less than half of the tasks."""
    graph = layered(5, 80)
    found = searched(graph, 6)
    assert 0 < len(found.rank_boost_s) < 40
    assert all(seconds >= 0 for seconds in found.rank_boost_s.values())


# --- in the engine ---


def lifted(bench: EngineBench) -> dict[int, float]:
    return bench.state.rank_boost_s


def test_lifts_survive_a_snapshot_and_a_fold() -> None:
    """A restored engine has the same lifts, and the bench folds the transitions to the same state."""
    bench = EngineBench(2)
    bench.submit(packed())
    assert lifted(bench)
    assert Engine.restore(bench.engine.snapshot()).state.rank_boost_s == lifted(bench)


def test_a_snapshot_without_lifts_is_read() -> None:
    """The field is new: what was written before it exists has none."""
    state = Engine().snapshot().replace(b'"lift_s":{},', b"")
    assert b"lift_s" not in state
    assert Engine.restore(state).state.rank_boost_s == {}


def test_off_for_other_policies_and_without_a_budget() -> None:
    """heft is the plain order by rank, and 0 placements switch the search off."""
    assert simulated(packed(), 2, BUDGET, policy="heft") == 7.0
    assert simulated(packed(), 2, 0) == 7.0
    assert simulated(packed(), 2, BUDGET) == 6.0


def test_unknown_durations_are_not_searched() -> None:
    """What is not known is believed to take one second each: durations that are all alike leave nothing to plan."""
    bench = EngineBench(2)
    bench.submit(graph_of(dict.fromkeys(PACKED, ()), default=(cpu(None),)))
    assert not lifted(bench)


def test_what_the_model_does_not_hold_is_not_searched() -> None:
    """Priorities, warm keys, gangs, phases of different shapes, tasks that something else runs beside."""
    for options in (TaskOptions(priority=1), TaskOptions(warm_key="k"), TaskOptions(max_wait_s=1.0)):
        bench = EngineBench(2)
        bench.submit(packed(options))
        assert not lifted(bench), options
    mixed = EngineBench(2, 1)
    mixed.submit(graph_of(dict.fromkeys(PACKED, ()), {n: (cpu(s), gpu(s)) for n, s in PACKED.items()}))
    assert not lifted(mixed)
    busy = EngineBench(2)
    busy.submit(graph_of({"x": ()}), "other")
    busy.submit(packed())
    assert not lifted(busy)


def test_more_work_ends_the_plan() -> None:
    """Lifts were for this graph alone: when it grows, or another workload comes, the order is by rank again."""
    bench = EngineBench(2)
    bench.submit(packed())
    assert lifted(bench)
    bench.submit(graph_of({"late": ()}), "other")
    assert not lifted(bench)


def test_capacity_that_comes_last_is_planned_for() -> None:
    """Tasks, then what they take, then the node to run them on: the plan is made when all of it is known."""
    bench = EngineBench(0)
    bench.submit(graph_of(dict.fromkeys(PACKED, ()), default=(cpu(None),)))
    bench.send(m.Estimates(tuple((bench.task(name), s, 1.2 * s) for name, s in PACKED.items())))
    assert not lifted(bench)
    bench.send(m.NodeAdded("n0", 2.0))
    assert lifted(bench)
    assert sorted(PACKED[name] for name in bench.granted()) == [2.0, 3.0]


def test_several_phases_of_one_shape_are_a_chain() -> None:
    """Three phases a task on the same slots: the engine runs what the search promises, and that is less."""
    rng, graph = random.Random(4), Graph()
    for number in range(20):
        graph.add_task(f"t{number}", (), tuple((CPU, Shape(), float(rng.randrange(1, 12))) for _ in range(3)))
    seconds = [s or 0.0 for s in graph.phase_duration_s]
    parents = [(p - 1,) if p % 3 else () for p in range(60)]
    ranks = [sum(seconds[p : p - p % 3 + 3]) for p in range(60)]
    found = improve(seconds, parents, ranks, 7, BUDGET)
    assert found.after_s < found.before_s
    assert (simulated(graph, 7, 0), simulated(graph, 7, BUDGET)) == (found.before_s, found.after_s)


@pytest.mark.parametrize(("spread", "planned"), [(1.2, True), (4.0, False)])
def test_only_predictions_that_are_sure_are_planned_by(spread: float, planned: bool) -> None:
    """Exact medians of a small spread are planned by; of a large one the two longest start first."""
    bench = EngineBench(0)
    bench.submit(graph_of(dict.fromkeys(PACKED, ()), default=(cpu(None),)))
    bench.send(m.Estimates(tuple((bench.task(name), s, spread * s) for name, s in PACKED.items())))
    bench.send(m.NodeAdded("n0", 2.0))
    assert bool(lifted(bench)) == planned
    assert sorted(PACKED[name] for name in bench.granted()) == ([2.0, 3.0] if planned else [3.0, 3.0])


def test_a_plan_ends_when_its_durations_turn_out_unsure() -> None:
    """Medians come first and are planned by; the spread that follows takes the plan back, a small one does not."""
    for spread, stays in ((1.2, True), (4.0, False)):
        bench = EngineBench(2)
        bench.submit(packed())
        assert lifted(bench)
        bench.send(m.Estimates(tuple((bench.task(name), s, spread * s) for name, s in PACKED.items())))
        assert bool(lifted(bench)) == stays


def test_predictions_are_searched_too() -> None:
    """Estimates that are exact and nearly sure give what exact durations give."""
    workload = LoadedWorkload("w", "w", "", "", 0.0, packed())
    config = SimConfig(slots=2, durations=Durations.PREDICTED, search_placements=BUDGET, records=False)
    seconds = [s or 0.0 for s in packed().phase_duration_s]
    assert simulate([workload], config, lambda _, p: (seconds[p], 1.2 * seconds[p])).makespan_s == 6.0


def test_config_states_a_default() -> None:
    """On by default, with a budget that small graphs end well within."""
    assert EngineConfig().search_placements > 0


def test_with_quotas_nothing_is_planned() -> None:
    """A quota may hold back what the model would run."""
    bench = EngineBench(2)
    bench.send(m.QueuesChanged((QueueSpec("q", nominal=(1000, 0, UNLIMITED)),)))
    bench.send(m.WorkloadSubmitted("w", queue="q"))
    bench.submit(packed())
    assert not lifted(bench)


def test_one_command_more_costs_no_look_at_all_that_ever_were() -> None:
    """Workloads of one phase each have nothing to order; one of several is still planned where it is the only one."""

    class Counted(list[Any]):
        looks = 0

        def __iter__(self) -> Iterator[Any]:
            self.looks += 1
            return super().__iter__()

    bench = EngineBench(2)
    bench.submit(graph_of({"x": ()}), "first")
    bench.start("x")
    bench.end("x")
    workloads = bench.state.workloads = Counted(bench.state.workloads)

    def told(*events: m.Event) -> None:
        for event in events:
            bench.engine.handle(event, bench.state.now)

    told(m.WorkloadSubmitted("second", "second"), m.TasksAdded("second", graph_of({"y": ()})))
    assert workloads.looks == 0
    phase = bench.state.cursor[bench.state.task_ids.index("y")]
    told(m.PhaseStarted(phase, 1), m.PhaseEnded(phase, 1))
    told(m.WorkloadSubmitted("third", "third"), m.TasksAdded("third", packed()))
    assert (workloads.looks, bool(lifted(bench))) == (1, True)
