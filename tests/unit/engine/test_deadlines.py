"""Deadlines: who goes forward because of one, from when until when, and that nobody starves for it."""

from __future__ import annotations

import random

import pytest

from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.specs import QueueSpec
from egs_core.engine.state.growth import pass_up
from egs_core.graph.columns import Graph, TaskOptions
from egs_core.testing.engine_bench import EngineBench, cpu, gpu, graph_of


def busy(deadline_s: float | None = None, queue: str = "", cpus: int = 1) -> EngineBench:
    """One CPU, held by "x"; then "long" (100 s) waits in workload v, and "short" (20 s) in w with the deadline."""
    bench = EngineBench(cpus, config=EngineConfig(policy="dependents"))
    bench.submit(graph_of({"x": ()}), "u")
    bench.start("x")
    bench.submit(graph_of({"long": (), "end": ("long",)}, default=(cpu(50.0),)), "v")
    bench.send(m.WorkloadSubmitted("w", queue=queue, deadline_s=deadline_s))
    bench.submit(graph_of({"short": (), "last": ("short",)}, default=(cpu(10.0),)), "w")
    return bench


def test_slack_that_is_about_used_up_goes_first() -> None:
    """Twenty seconds (its path) before it must start it goes forward, and the decision says why."""
    bench = busy(deadline_s=60.0)
    assert bench.engine.next_wakeup() == 20.0
    assert bench.reason("short").text.endswith("must start by 40.000 s to meet its deadline at 60.000 s")
    bench.send(m.Tick(), 20.0)
    bench.end("x", 35.0)
    assert (bench.grant_of("short").reason, bench.status("long")) == ("deadline", "ready")


def test_with_slack_the_longest_path_goes_first() -> None:
    """Before that moment a deadline changes nothing."""
    bench = busy(deadline_s=60.0)
    bench.end("x", 19.0)
    assert bench.grant_of("long").reason == "remaining_path"


def test_who_is_too_late_waits_like_everybody() -> None:
    """When it cannot be in time any more it goes back, and that is said with its numbers."""
    bench = busy(deadline_s=60.0)
    bench.send(m.Tick(), 30.0)
    assert bench.engine.next_wakeup() == 40.0
    bench.send(m.Tick(), 42.0)
    assert bench.reason("short").text.endswith("cannot meet its deadline at 60.000 s any more: 2.000 s too late")
    assert bench.engine.next_wakeup() is None
    bench.end("x", 43.0)
    assert [bench.status(name) for name in ("long", "short")] == ["granted", "ready"]


@pytest.mark.parametrize(
    ("due_a", "work_a", "due_b", "work_b"), [(110.0, 40.0, 100.0, 20.0), (80.0, 20.0, 110.0, 40.0)]
)
def test_the_earliest_latest_start_goes_first(due_a: float, work_a: float, due_b: float, work_b: float) -> None:
    """Of two urgent ones it is "a", which must start first, whichever has the earlier deadline or the longer path."""
    bench = EngineBench(1)
    bench.submit(graph_of({"x": ()}), "u")
    bench.start("x")
    options = {"a": TaskOptions(deadline_s=due_a), "b": TaskOptions(deadline_s=due_b)}
    bench.submit(graph_of({"b": (), "a": ()}, {"a": (cpu(work_a),), "b": (cpu(work_b),)}, options), "w")
    bench.send(m.Tick(), 59.0)
    bench.end("x", 59.5)
    assert bench.granted()[-1] == "a"


def test_a_tasks_deadline_counts_for_what_comes_before_it() -> None:
    """Its parents must leave time for it, however long the path beside it is; those added earlier too."""
    bench = EngineBench(4)
    bench.submit(graph_of({"a": (), "b": ("a",), "far": ("a",)}, default=(cpu(10.0),)), "w")
    due = {"c": TaskOptions(deadline_s=50.0)}
    bench.submit(graph_of({"c": ("b",), "d": ("c",)}, default=(cpu(10.0),), options=due, known=("a", "b", "far")), "w")
    state = bench.state
    assert {state.task_ids[t]: s for t, s in state.latest_end_s.items()} == {"c": 50.0, "b": 40.0, "a": 30.0}


def test_latest_ends_are_the_smallest_over_all_paths() -> None:
    """On random graphs: the smallest of every stated deadline minus the work after the task."""
    rng = random.Random(5)
    for _ in range(30):
        bench, n = EngineBench(1), 14
        graph = Graph()
        for i in range(n):
            parents = tuple(sorted({rng.randrange(i) for _ in range(rng.randrange(3))})) if i else ()
            options = TaskOptions(deadline_s=float(rng.randrange(50))) if rng.random() < 0.3 else None
            graph.add_task(f"t{i}", parents, (cpu(float(rng.randrange(1, 9))),), options=options)
        bench.submit(graph)
        state = bench.state
        expected: dict[int, float] = {}
        for task in reversed(range(n)):
            ends = [expected[c] - state.estimate_s[c] for c in state.children[task] if c in expected]
            own = state.options_of(task).deadline_s
            ends += [] if own is None else [own]
            if ends:
                expected[task] = min(ends)
        assert state.latest_end_s == expected
        assert pass_up(state, range(n)) == []


def test_new_estimates_move_the_moment() -> None:
    """Longer than believed: it must start sooner; a wide spread counts too."""
    bench = busy(deadline_s=100.0)
    assert bench.engine.next_wakeup() == 60.0
    phase = bench.state.first_phase[bench.task("short")]
    bench.send(m.Estimates(((phase, 20.0, 30.0),)))
    assert bench.engine.next_wakeup() == 100.0 - 40.0 - 40.0


def test_a_queue_gives_its_workloads_a_deadline() -> None:
    """Those that state none; it stands behind their own word."""
    bench = busy(queue="q")
    assert bench.engine.next_wakeup() is None
    bench.send(m.QueuesChanged((QueueSpec("q", deadline_s=60.0),)))
    assert bench.engine.next_wakeup() == 20.0
    other = busy(deadline_s=80.0, queue="q")
    other.send(m.QueuesChanged((QueueSpec("q", deadline_s=60.0),)))
    assert other.engine.next_wakeup() == 40.0


def test_an_urgent_gpu_set_reserves() -> None:
    """A stream of small tasks does not keep a large one from its deadline."""
    bench = EngineBench(8, 2)
    bench.submit(graph_of({"s0": (), "s1": ()}, default=(gpu(40.0),)), "u")
    for name in ("s0", "s1"):
        bench.start(name)
    bench.send(m.WorkloadSubmitted("w", deadline_s=100.0))
    bench.submit(graph_of({"large": ()}, default=(gpu(40.0, gpus=2),)), "w")
    bench.submit(graph_of({f"s{i}": () for i in range(2, 8)}, default=(gpu(60.0),)), "u2")
    bench.send(m.Tick(), 40.0)
    bench.end("s0", 41.0)
    assert "kept for large" in bench.reason("s2").text
    bench.end("s1", 45.0)
    assert bench.granted()[-1] == "large"


def test_priority_and_age_go_before_deadlines() -> None:
    """A deadline is no way around what users set by hand, nor a reason to let others wait for ever."""
    bench = busy(deadline_s=60.0)
    bench.submit(graph_of({"top": ()}, options={"top": TaskOptions(priority=1)}), "p")
    bench.submit(graph_of({"old": ()}, options={"old": TaskOptions(max_wait_s=5.0)}), "q")
    bench.send(m.Tick(), 30.0)
    bench.end("x", 35.0)
    bench.end("top", 36.0)
    bench.end("old", 37.0)
    assert bench.granted()[-3:] == ["top", "old", "short"]


def test_a_restored_engine_knows_who_is_urgent() -> None:
    """A snapshot in the middle of the window: the same order and the same moments."""
    bench = busy(deadline_s=60.0)
    bench.send(m.Tick(), 35.0)
    again = Engine.restore(bench.engine.snapshot(), bench.engine.config)
    ended = m.PhaseEnded(0, 1)
    assert again.handle(ended, 36.0) == bench.send(ended, 36.0)
    assert again.next_wakeup() == bench.engine.next_wakeup()
