"""A dynamic program: blocks join a running workload, branches are skipped, ranks follow."""

from __future__ import annotations

from egs_core.engine import messages as m
from egs_core.graph.columns import TaskOptions
from egs_core.testing.engine_bench import EngineBench, cpu, gpu, graph_of


def test_children_of_ended_and_of_running_tasks() -> None:
    """A new task whose parents are done is ready at once; one of a running parent follows it."""
    bench = EngineBench(2)
    bench.submit(graph_of({"a": (), "b": ()}))
    bench.end("a")
    bench.submit(graph_of({"c": ("a",), "d": ("a", "b"), "e": ("d",)}, known=["a", "b"]))
    assert [bench.status(n) for n in "cde"] == ["granted", "pending", "pending"]
    assert bench.reason("d").text == "waits for b"
    bench.end("b")
    assert bench.status("d") == "granted"


def test_children_of_dead_tasks_are_aborted() -> None:
    """A parent that has failed can never be waited for; other tasks of the block run."""
    bench = EngineBench(2)
    bench.submit(graph_of({"a": (), "b": ("a",)}))
    bench.end("a", outcome="failed")
    bench.submit(graph_of({"c": ("a",), "d": ("c",), "e": ("b",), "f": ()}, known=["a", "b"]))
    assert [bench.status(n) for n in "cdef"] == ["aborted", "aborted", "aborted", "granted"]


def test_children_of_a_task_preempted_for_good() -> None:
    """Preempted while an abort was under way: it counts as dead for later blocks too."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": ()}))
    bench.abort("task", "a")
    bench.end("a", outcome="preempted")
    bench.submit(graph_of({"b": ("a",)}, known=["a"]))
    assert [bench.status(n) for n in "ab"] == ["aborted", "aborted"]


def test_children_of_a_task_that_is_being_stopped() -> None:
    """They wait for how it ends."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": ()}))
    bench.abort("task", "a")
    bench.submit(graph_of({"b": ("a",)}, known=["a"]))
    assert bench.status("b") == "pending"
    bench.end("a", outcome="aborted")
    assert bench.status("b") == "aborted"


def test_a_block_in_any_order() -> None:
    """Parents may come after their children in the block; numbers follow the topology, names the list."""
    bench = EngineBench(4)
    graph = graph_of({"c": ("b",), "b": ("a",), "a": ()})
    bench.submit(graph)
    assert bench.granted() == ["a"]
    assert [bench.engine.task_number("w", i) for i in range(3)] == [bench.task(n) for n in "cba"]
    bench.submit(graph_of({"e": ("d",), "d": ("c", "a")}, known=["c", "b", "a"]))
    for name in "abcd":
        bench.end(name)
    assert bench.granted() == ["a", "b", "c", "d", "e"]


def test_ranks_reach_every_ancestor() -> None:
    """New work at the end lengthens all paths to it, and moves what is queued."""
    bench = EngineBench(1)
    bench.submit(graph_of({"busy": ()}), "other")
    bench.submit(graph_of({"x": (), "a": (), "b": ("a",)}, {"x": (cpu(9.0),)}))
    bench.submit(graph_of({"c": ("b",)}, {"c": (cpu(20.0), gpu(5.0))}, known=["x", "a", "b"]))
    ranks = {n: bench.state.rank_s[bench.state.first_phase[bench.task(n)]] for n in "xabc"}
    assert ranks == {"x": 9.0, "a": 27.0, "b": 26.0, "c": 25.0}
    bench.end("busy")
    assert bench.granted()[-1] == "a"


def test_a_queued_leaf_becomes_a_parent() -> None:
    """A child that takes no time leaves the rank, but the task now has dependents."""
    bench = EngineBench(1)
    bench.submit(graph_of({"busy": (), "a": (), "b": ()}))
    bench.submit(graph_of({"c": ("b",)}, {"c": (cpu(0.0),)}, known=["busy", "a", "b"]))
    bench.end("busy")
    assert bench.granted()[-1] == "b"


def test_skipping_a_task_that_is_ready_held_or_warming() -> None:
    """Whatever it waited for is given up, a process that was kept for it as well."""
    bench = EngineBench(1, 1)
    options = {"g": TaskOptions(warm_key="k", warmup_s=1.0)}
    bench.submit(graph_of({"a": (), "b": (), "g": (), "z": ("a", "b", "g")}, {"g": (gpu(),)}, options))
    bench.send(m.DecisionRejected(bench.grant_of("a").id))
    assert [bench.status(n) for n in "abg"] == ["held", "granted", "ready"]
    for name in "ag":
        bench.send(m.BranchSkipped(bench.task(name)))
    assert isinstance(bench.decisions[-1], m.DropPreload)
    assert bench.state.parked == {}
    bench.end("b")
    assert bench.status("z") == "granted"


def test_a_skipped_child_of_a_running_parent() -> None:
    """It counts as done before its parent has ended; the parent's end does not wake it."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": (), "b": ("a",), "c": ("b",)}))
    bench.send(m.BranchSkipped(bench.task("b")))
    assert bench.status("c") == "ready"
    bench.end("a")
    assert [bench.status(n) for n in "bc"] == ["skipped", "granted"]
    bench.end("c")
    assert bench.state.workloads[0].open_tasks == 0
