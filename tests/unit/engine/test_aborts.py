"""Abort of a workload, a stage or a task in every state, and what becomes of those that wait for it."""

from __future__ import annotations

import pytest

from egs_core.engine import messages as m
from egs_core.graph.columns import TaskOptions
from egs_core.testing.engine_bench import EngineBench, cpu, gpu, graph_of

WARM = TaskOptions(warm_key="k", warmup_s=1.0)


def stops(bench: EngineBench) -> list[str]:
    return [bench.state.task_ids[d.task] for d in bench.decisions if isinstance(d, m.Stop)]


def test_a_waiting_task_ends_at_once() -> None:
    """Ready and pending tasks are aborted without a decision, with all that waits for them."""
    bench = EngineBench(1)
    bench.submit(graph_of({"busy": (), "a": (), "b": ("a",), "c": ("b",), "d": ()}, {"busy": (cpu(99.0),)}))
    bench.abort("task", "a")
    assert [bench.status(n) for n in ("busy", "a", "b", "c", "d")] == ["granted", *["aborted"] * 3, "ready"]
    assert stops(bench) == []
    assert bench.state.workloads[0].failed
    bench.end("busy")
    assert bench.status("d") == "granted"


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("outcome", ["aborted", "failed", "preempted", "succeeded"])
def test_a_task_at_work_is_stopped_and_seen_to_end(started: bool, outcome: str) -> None:
    """A Stop names actor and reason; only its end frees what it holds. One that had succeeded by then has."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": (), "b": ("a",)}, options={"a": TaskOptions(retries=3)}))
    if started:
        bench.start("a")
    (stop,) = bench.abort("task", "a", "ann", "wrong data")
    assert isinstance(stop, m.Stop)
    assert (stop.phase, stop.attempt, stop.reason) == (0, 1, "aborted by ann: wrong data")
    assert bench.reason("a").kind == "abort"
    assert bench.state.nodes[0].free_cpu == 0
    assert bench.abort("task", "a") == []  # asked twice, stopped once
    bench.end("a", outcome=outcome)
    done = outcome == "succeeded"
    assert bench.status("b") == ("granted" if done else "aborted")
    assert bench.state.nodes[0].free_cpu == (0 if done else 1000)


def test_a_task_between_phases() -> None:
    """Its process is stopped, and it ends at once: nothing of it holds a lease."""
    bench = EngineBench(2, 1)
    bench.submit(graph_of({"holder": (), "a": (), "b": ("a",)}, {"holder": (gpu(),), "a": (cpu(), gpu())}))
    bench.end("a")
    assert bench.status("a") == "ready"
    bench.abort("task", "a")
    assert (stops(bench), bench.status("a"), bench.status("b")) == (["a"], "aborted", "aborted")
    bench.end("holder")
    assert sorted(bench.granted()) == ["a", "holder"]


def test_a_task_ends_between_phases_while_being_stopped() -> None:
    """The phase in which it was stopped ends well, but it was not the last: the task is over."""
    bench = EngineBench(1, 1)
    bench.submit(graph_of({"a": (), "b": ("a",)}, {"a": (cpu(), gpu())}))
    bench.start("a")
    bench.abort("task", "a")
    bench.end("a")
    assert [bench.status(n) for n in "ab"] == ["aborted", "aborted"]
    assert bench.granted() == ["a"]


@pytest.mark.parametrize("answer", [m.DecisionRejected, m.DecisionLost])
def test_a_grant_that_was_never_carried_out(answer: type[m.DecisionRejected] | type[m.DecisionLost]) -> None:
    """Stopped before it started, then rejected or lost: it is over, not tried again."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": (), "b": ("a",)}))
    bench.abort("task", "a")
    bench.send(answer(bench.grant_of("a").id))
    assert [bench.status(n) for n in "ab"] == ["aborted", "aborted"]
    assert bench.engine.next_wakeup() is None


def test_a_held_task() -> None:
    """One that waits to be tried again is aborted like any waiting one."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": ()}))
    bench.send(m.DecisionRejected(bench.grant_of("a").id))
    bench.abort("task", "a")
    assert (bench.status("a"), stops(bench), bench.engine.next_wakeup()) == ("aborted", [], None)


def test_a_stopping_task_on_a_lost_node() -> None:
    """The node takes the process with it: the abort is done."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": (), "b": ("a",)}))
    bench.abort("task", "a")
    bench.send(m.NodeLost("n0"))
    assert [bench.status(n) for n in "ab"] == ["aborted", "aborted"]


def test_a_preload_goes_with_its_task() -> None:
    """A process that was being loaded is dropped; a warm one stays for the next task with its key."""
    bench = EngineBench(2, 1)
    other = TaskOptions(warm_key="other", warmup_s=9.0)
    bench.submit(
        graph_of({"busy": (), "a": (), "b": ()}, {n: (gpu(),) for n in ("busy", "a", "b")}, {"a": WARM, "b": other})
    )
    assert bench.preloaded() == ["a", "b"]
    bench.send(m.PreloadReady(bench.task("a")))
    drop = bench.abort("task", "a")[0]
    assert isinstance(drop, m.DropPreload)
    assert drop.task == bench.task("a")
    assert bench.state.nodes[0].idle_warm == {"k": 1}
    bench.abort("task", "b")
    assert bench.state.parked == {}
    assert bench.state.nodes[0].idle_warm == {"k": 1}  # b's was not warm yet


def test_a_stage_and_its_descendants() -> None:
    """Tasks of the stage end in whatever state; tasks of other stages only where they wait for one of those."""
    x = TaskOptions(stage="x")
    bench = EngineBench(1)
    bench.submit(
        graph_of(
            {"a": (), "b": (), "c": ("b",), "d": ("a",), "e": ()}, options={"a": x, "b": x, "e": TaskOptions(stage="y")}
        )
    )
    bench.abort("stage", "w/x")
    assert stops(bench) == ["a"]
    assert [bench.status(n) for n in "bcde"] == ["aborted", "aborted", "pending", "ready"]
    bench.end("a", outcome="aborted")
    assert [bench.status(n) for n in "abcde"] == ["aborted"] * 4 + ["granted"]


def test_a_workload_takes_no_more_tasks() -> None:
    """What a running program adds to an aborted workload is aborted at once; other workloads go on."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": (), "b": ()}))
    bench.submit(graph_of({"z": ()}), "other")
    bench.abort("workload", "w", "bob")
    bench.submit(graph_of({"c": (), "d": ("a",)}, known=["a", "b"]))
    assert [bench.status(n) for n in "bcd"] == ["aborted"] * 3
    bench.end("a", outcome="aborted")
    assert bench.state.workloads[0].open_tasks == 0
    assert bench.status("z") == "granted"


def test_a_stage_name_may_follow_a_workload_name_with_a_slash() -> None:
    """The last slash parts workload and stage."""
    bench = EngineBench(0)
    bench.submit(graph_of({"a": (), "b": ()}, options={"a": TaskOptions(stage="x")}), "team/nightly")
    bench.abort("stage", "team/nightly/x")
    assert (bench.status("a"), bench.status("b")) == ("aborted", "ready")
