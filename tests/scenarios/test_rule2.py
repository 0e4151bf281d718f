"""Rule 2: of equally important tasks the one that others wait for goes first, until another's `max_wait` is over."""

from __future__ import annotations

import pytest

from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.specs import QueueSpec
from egs_core.graph.columns import CPU, Graph, Shape, TaskOptions
from egs_core.graph.load import LoadedWorkload
from egs_core.runlog import records as r
from egs_core.sim import SimConfig, simulate
from egs_core.testing.engine_bench import EngineBench, cpu, graph_of


@pytest.mark.parametrize("leaf_first", [True, False])
def test_the_one_that_others_wait_for_starts_first(leaf_first: bool) -> None:
    """Two tasks of equal length on one slot, of workloads that have about as much to do: the parent starts first, also
    when it became ready last."""
    bench = EngineBench(1)
    bench.submit(graph_of({"busy": ()}), "other")
    blocks = [graph_of({"leaf": ()}), graph_of({"parent": (), "child": ("parent",)})]
    for number, block in enumerate(blocks if leaf_first else blocks[::-1]):
        bench.submit(block, f"w{number}")
    assert (bench.status("leaf"), bench.status("parent")) == ("ready", "ready")
    bench.end("busy", 1.0)
    assert (bench.status("leaf"), bench.status("parent")) == ("ready", "granted")
    assert bench.grant_of("parent").reason == "dependents"


def test_a_small_workload_goes_before_what_others_wait_for_in_a_large_one() -> None:
    """A leaf of 20 s, and a parent of which 500 s are left: the leaf's user waits least by its going first."""
    bench = EngineBench(1)
    bench.submit(graph_of({"busy": ()}), "other")
    bench.submit(graph_of({"parent": (), "child": ("parent",)}, {"child": (cpu(499.0),)}), "large")
    bench.submit(graph_of({"leaf": ()}, {"leaf": (cpu(20.0),)}), "small")
    bench.end("busy", 1.0)
    assert (bench.status("leaf"), bench.status("parent")) == ("granted", "ready")
    assert bench.grant_of("leaf").reason == "remaining_work"


def test_a_queue_may_ask_for_the_rule_across_workloads() -> None:
    """The same two in a queue with `order: dependents`: the parent goes first, by the longer path."""
    bench = EngineBench(1)
    bench.send(m.QueuesChanged((QueueSpec("q", order="dependents"),)))
    for workload, graph in (
        ("other", graph_of({"busy": ()})),
        ("large", graph_of({"parent": (), "child": ("parent",)}, {"child": (cpu(499.0),)})),
        ("small", graph_of({"leaf": ()}, {"leaf": (cpu(20.0),)})),
    ):
        bench.send(m.WorkloadSubmitted(workload, queue="q"))
        bench.submit(graph, workload)
    bench.end("busy", 1.0)
    assert bench.grant_of("parent").reason == "remaining_path"


def test_among_equal_paths_the_one_with_dependents_starts_first() -> None:
    """A child that takes no time leaves the paths equal: still the parent goes before the leaf."""
    bench = EngineBench(1)
    bench.submit(graph_of({"busy": (), "leaf": ()}), "other")
    bench.submit(graph_of({"parent": (), "child": ("parent",)}, {"child": (cpu(0.0),)}))
    bench.end("busy", 1.0)
    assert bench.granted() == ["busy", "parent"]
    assert bench.grant_of("parent").reason == "dependents"


def test_fifo_does_it_the_other_way_round() -> None:
    """The rule is the policy's doing: under fifo the leaf, ready first, starts first."""
    bench = EngineBench(1, config=EngineConfig(policy="fifo"))
    bench.submit(graph_of({"busy": (), "leaf": (), "parent": (), "child": ("parent",)}))
    bench.end("busy", 1.0)
    assert bench.granted() == ["busy", "leaf"]


def test_what_the_user_set_by_hand_goes_before_the_rule() -> None:
    """A leaf of higher priority starts before a parent."""
    bench = EngineBench(1)
    tasks = {"busy": (), "parent": (), "child": ("parent",), "leaf": ()}
    bench.submit(graph_of({"busy": ()}), "first")
    bench.submit(graph_of({k: v for k, v in tasks.items() if k != "busy"}, options={"leaf": TaskOptions(priority=1)}))
    bench.end("busy", 1.0)
    assert bench.granted() == ["busy", "leaf"]
    assert bench.grant_of("leaf").reason == "priority"


def _stream(count: int, every_s: float) -> list[LoadedWorkload]:
    """Parent-child pairs of one second each, arriving one after the other."""
    workloads = []
    for number in range(count):
        graph = Graph()
        graph.add_task("parent", (), ((CPU, Shape(), 1.0),))
        graph.add_task("child", (0,), ((CPU, Shape(), 1.0),))
        workloads.append(LoadedWorkload(f"s{number}", "stream", "", "", number * every_s, graph))
    return workloads


def _leaf(max_wait_s: float | None, arrival_s: float = 0.5) -> LoadedWorkload:
    graph = Graph()
    options = TaskOptions(max_wait_s=max_wait_s) if max_wait_s is not None else None
    graph.add_task("leaf", (), ((CPU, Shape(), 1.0),), options=options)
    return LoadedWorkload("leaf", "leaf", "", "", arrival_s, graph)


def _start_of(records: list[r.Record], task: str) -> float:
    return next(x.t for x in records if isinstance(x, r.Started) and x.task == task)


@pytest.mark.parametrize(("max_wait_s", "starts_s"), [(3.0, 4.0), (3.5, 4.0), (6.2, 7.0)])
def test_a_stream_of_parents_cannot_starve_a_leaf_past_its_max_wait(max_wait_s: float, starts_s: float) -> None:
    """On one slot that frees every second, the leaf starts at the first end after its 0.5 s + max_wait."""
    result = simulate([*_stream(40, 1.0), _leaf(max_wait_s)], SimConfig(slots=1), observer=_validate)
    assert _start_of(result.records, "leaf") == pytest.approx(starts_s)


def test_without_max_wait_the_stream_starves_it() -> None:
    """The same stream without a limit keeps the leaf waiting to its end: the test above is not trivial."""
    result = simulate([*_stream(40, 1.0), _leaf(None)], SimConfig(slots=1), observer=_validate)
    assert _start_of(result.records, "leaf") >= 40.0


def test_the_default_limit_counts_for_tasks_that_state_none() -> None:
    """default_max_wait_s of the engine stands in for a task's own."""
    config = SimConfig(slots=1, default_max_wait_s=5.0)
    result = simulate([*_stream(40, 1.0), _leaf(None)], config, observer=_validate)
    assert _start_of(result.records, "leaf") == pytest.approx(6.0)


def test_overdue_tasks_go_oldest_first_and_say_so() -> None:
    """Past their limit the rule no longer orders tasks: who became ready first starts first."""
    bench = EngineBench(1, config=EngineConfig(default_max_wait_s=2.0))
    bench.submit(graph_of({"busy": ()}), "other")
    bench.submit(graph_of({"old": ()}), "a", at=1.0)
    bench.submit(graph_of({"parent": (), "child": ("parent",)}), "b", at=1.5)
    bench.submit(graph_of({"late": (), "later": ("late",), "last": ("later",)}), "c", at=3.9)
    assert bench.engine.next_wakeup() == 5.9  # the others are overdue already
    bench.end("busy", 4.0)
    bench.end("old", 5.0)
    bench.end("parent", 5.0)
    assert bench.granted() == ["busy", "old", "parent", "late"]
    assert bench.grant_of("parent").reason == "overdue"


def _validate(engine: Engine) -> None:
    engine.validate_state()


def test_a_large_overdue_task_is_not_starved_by_small_ones() -> None:
    """It needs all 4 CPUs of a node on which small tasks come and go; once overdue, what it lacks is kept for it."""
    bench = EngineBench(4)
    bench.submit(graph_of({f"s{i}": () for i in range(4)}, default=(cpu(10.0),)), "small")
    bench.submit(graph_of({"big": ()}, {"big": (cpu(1.0, cpus=4.0),)}, {"big": TaskOptions(max_wait_s=5.0)}), "big")
    bench.submit(graph_of({f"t{i}": () for i in range(4)}, default=(cpu(10.0),)), "more")
    bench.end("s0", 4.0)
    assert bench.granted()[-1] == "t0"  # not overdue: small ones pass it by
    assert bench.engine.next_wakeup() == 5.0
    bench.send(m.Tick(), 5.0)
    bench.end("s1", 6.0)
    bench.end("s2", 7.0)
    assert bench.granted()[-1] == "t0"
    assert bench.reason("t1").kind == "reservation"
    assert bench.state.nodes[0].free_cpu == 2000
    bench.end("s3", 8.0)
    bench.end("t0", 9.0)
    assert bench.granted()[-1] == "big"


def test_the_reservation_leaves_what_the_large_task_does_not_need() -> None:
    """An overdue task that waits for both GPUs and one CPU keeps one CPU free; the others may be taken, and even that
    one by what ends before the GPUs are free."""
    bench = EngineBench(4, 2)
    bench.submit(graph_of({"holder": ()}, {"holder": ((1, Shape(0, 1000), 50.0),)}), "h")
    big = graph_of({"big": ()}, {"big": ((1, Shape(1000, 2000), 1.0),)}, {"big": TaskOptions(max_wait_s=1.0)})
    bench.submit(big, "big")
    bench.send(m.Tick(), 1.0)
    bench.submit(graph_of({f"c{i}": () for i in range(4)}, default=(cpu(100.0),)), "cpus", at=2.0)
    bench.submit(graph_of({"gpu": ()}, {"gpu": ((1, Shape(0, 500), 100.0),)}), "gpu", at=2.0)
    assert bench.granted() == ["holder", "c0", "c1", "c2"]
    bench.end("holder", 3.0)
    assert bench.granted()[-2:] == ["c2", "big"]
