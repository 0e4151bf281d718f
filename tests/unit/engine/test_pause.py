"""Pause and resume: what is held, what goes on, and that it is said who did it."""

from __future__ import annotations

from egs_core.engine import messages as m
from egs_core.graph.columns import TaskOptions
from egs_core.testing.engine_bench import EngineBench, cpu, gpu, graph_of


def test_a_paused_workload_starts_nothing_more() -> None:
    """What runs goes on to the end of its phase; its GPU phase then holds nothing, and others get the GPU."""
    bench = EngineBench(2, 1)
    bench.submit(graph_of({"a": (), "b": ("a",)}, {"a": (cpu(), gpu())}), "w")
    bench.start("a")
    bench.send(m.PauseRequested("workload", "w", "ada", "the data is wrong"))
    assert bench.status("a") == "running"
    bench.end("a", 1.0)
    assert bench.status("a") == "held"
    bench.submit(graph_of({"other": ()}, {"other": (gpu(),)}), "v", 1.0)
    assert bench.status("other") == "granted"
    reason = bench.reason("a")
    assert (reason.kind, reason.text) == ("paused", "paused by ada at 0.000 s: the data is wrong")
    bench.send(m.ResumeRequested("workload", "w"))
    bench.end("other", 2.0)
    assert bench.status("a") == "granted"
    bench.end("a", 3.0)
    bench.end("b", 4.0)
    assert bench.status("b") == "succeeded"


def test_each_scope_has_its_own_pause() -> None:
    """A task that is paused by its stage and by itself goes on when both have been resumed."""
    bench = EngineBench(4)
    options = {"a": TaskOptions(stage="s"), "b": TaskOptions(stage="s")}
    bench.submit(graph_of({"x": (), "a": ("x",), "b": ("x",), "c": ("x",)}, options=options), "w")
    bench.send(m.PauseRequested("stage", "w/s"))
    bench.send(m.PauseRequested("task", str(bench.task("a"))))
    bench.end("x", 1.0)
    assert [bench.status(n) for n in "abc"] == ["held", "held", "granted"]
    bench.send(m.ResumeRequested("stage", "w/s"))
    assert [bench.status(n) for n in "ab"] == ["held", "granted"]
    bench.send(m.ResumeRequested("task", str(bench.task("a"))))
    assert bench.status("a") == "granted"


def test_what_is_paused_can_be_aborted_and_lost() -> None:
    """An abort ends a held task; one whose process dies while it is held starts again after the resume."""
    bench = EngineBench(2, 1)
    bench.submit(graph_of({"a": (), "b": ()}, {"a": (cpu(), gpu())}), "w")
    bench.start("a")
    bench.send(m.PauseRequested("workload", "w"))
    bench.end("b", 0.5)
    bench.end("a", 1.0)
    bench.send(m.PhaseEnded(bench.state.cursor[bench.task("a")], 1, "preempted"))
    assert bench.state.cursor[bench.task("a")] == bench.state.first_phase[bench.task("a")]
    assert bench.status("a") == "held"
    bench.submit(graph_of({"late": ()}, known=("a", "b")), "w", 2.0)
    assert bench.status("late") == "held"
    bench.send(m.AbortRequested("task", str(bench.task("late"))))
    assert bench.status("late") == "aborted"
    bench.send(m.ResumeRequested("workload", "w"))
    assert bench.status("a") == "granted"


def test_unknown_targets_change_nothing() -> None:
    """A pause of nothing is forgotten, and so is a resume of what was never paused."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": ()}), "w")
    bench.send(m.PauseRequested("workload", "nobody"))
    bench.send(m.ResumeRequested("workload", "w"))
    assert bench.state.pauses == {}
    assert bench.status("a") == "granted"


def test_a_paused_member_holds_up_its_gang() -> None:
    """The others wait for it, and start with it."""
    bench = EngineBench(2)
    options = dict.fromkeys("ab", TaskOptions(gang="g"))
    bench.submit(graph_of({"x": (), "a": ("x",), "b": ("x",)}, options=options), "w")
    bench.send(m.PauseRequested("task", str(bench.task("b"))))
    bench.end("x", 1.0)
    assert [bench.status(n) for n in "ab"] == ["ready", "held"]
    bench.send(m.ResumeRequested("task", str(bench.task("b"))))
    assert [bench.status(n) for n in "ab"] == ["granted", "granted"]
