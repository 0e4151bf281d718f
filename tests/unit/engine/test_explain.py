"""`explain`: for every state what blocks the task, with the numbers."""

from __future__ import annotations

from egs_core.engine import messages as m
from egs_core.graph.columns import TaskOptions
from egs_core.testing.engine_bench import EngineBench, cpu, gpu, graph_of

GIB = 1 << 30


def test_pending_names_its_open_parents() -> None:
    """The first five, and how many more."""
    bench = EngineBench(0)
    parents = [f"p{i}" for i in range(7)]
    bench.submit(graph_of({**dict.fromkeys(parents, ()), "a": parents}))
    reason = bench.reason("a")
    assert (reason.task, reason.status, reason.kind) == ("a", "pending", "dependency")
    assert reason.text == "waits for p0, p1, p2, p3, p4 and 2 more"
    assert reason.waiting_for == ("p0", "p1", "p2", "p3", "p4")


def test_ready_names_what_lacks_and_who_is_ahead() -> None:
    """What it needs, what each node has free, and the queue before it."""
    bench = EngineBench()
    bench.send(m.NodeAdded("x", 4.0, 0, 8 * GIB))
    bench.send(m.NodeAdded("y", 2.0, 1))
    bench.submit(graph_of({"bx": (), "by": ()}, {"bx": (cpu(9.0, 4.0),), "by": (cpu(9.0, 2.0),)}))
    bench.submit(graph_of({"a": (), "b": ()}, {"a": (cpu(3.0, 2.0, GIB),), "b": (cpu(2.0, 2.0, GIB),)}), "more")
    reason = bench.reason("b")
    assert (reason.status, reason.kind, reason.waiting_for) == ("ready", "capacity", ("a",))
    assert reason.text == (
        "needs 2 CPUs, 1 GiB: x has 0 of 4 CPUs free; y has 0 of 2 CPUs free; 1 ahead of it, first a"
    )
    assert bench.reason("a").text.endswith("; it is first in the queue")


def test_a_node_that_is_a_long_id_is_called_by_its_beginning() -> None:
    """As Ray calls nodes: 56 digits would hide the rest. A name is left whole."""
    bench = EngineBench()
    bench.send(m.NodeAdded("9d3c" * 14, 4.0, 0))
    bench.send(m.NodeAdded("gpu-node-01.example.org", 4.0, 0))
    bench.submit(graph_of(dict.fromkeys("abc", ()), default=(cpu(9.0, 4.0),)))
    assert bench.reason("c").text.startswith(
        "needs 4 CPUs: 9d3c9d3c has 0 of 4 CPUs free; gpu-node-01.example.org has 0 of 4 CPUs free"
    )
    assert {bench.reason("a").text, bench.reason("b").text} == {
        "cpu phase on 9d3c9d3c",
        "cpu phase on gpu-node-01.example.org",
    }


def test_what_is_free_but_scattered_is_a_fragment() -> None:
    """Enough in all, not enough on any one node: with the numbers of both."""
    bench = EngineBench()
    bench.send(m.NodeAdded("x", 4.0, 2))
    bench.send(m.NodeAdded("y", 4.0, 2))
    bench.submit(graph_of(dict.fromkeys("abcd", ()), default=(gpu(9.0),)))
    bench.submit(graph_of({"wide": ()}, default=(gpu(9.0, 2.0),)), "more")
    assert bench.reason("wide").kind == "capacity"
    for node in ("x", "y"):
        bench.end(next(name for name in "abcd" if bench.grant_of(name).node == node))
    reason = bench.reason("wide")
    assert (reason.status, reason.kind) == ("ready", "fragment")
    assert reason.text == (
        "needs 2 GPUs: 2 GPUs are free on 2 nodes together, on none of them enough: "
        "x has 1 of 2 GPUs wholly free; y has 1 of 2 GPUs wholly free; it is first in the queue"
    )


def test_granted_and_running_say_where() -> None:
    """Kind, node and devices."""
    bench = EngineBench(1, 2)
    bench.submit(graph_of({"a": ()}, {"a": (cpu(), gpu(1.0, 2.0))}))
    assert (bench.reason("a").status, bench.reason("a").text) == ("granted", "cpu phase on n0")
    bench.end("a")
    bench.start("a")
    assert (bench.reason("a").status, bench.reason("a").text) == ("running", "gpu phase on n0, devices [0, 1]")


def test_ended_says_how() -> None:
    """Succeeded, failed, aborted and skipped."""
    bench = EngineBench(3)
    bench.submit(graph_of({"a": (), "b": (), "c": ("b",), "d": ("a",)}))
    bench.send(m.BranchSkipped(bench.task("d")))
    bench.end("a")
    bench.end("b", outcome="failed")
    assert [bench.reason(n).text for n in "abcd"] == [
        "ended: succeeded",
        "ended: failed",
        "ended: aborted",
        "ended: skipped",
    ]


def test_a_task_without_a_process_says_so() -> None:
    """Cold, and no slot free for a process."""
    bench = EngineBench()
    bench.send(m.NodeAdded("n", 4.0, 2, preload_slots=1, process_slots=1))
    options = {n: TaskOptions(warm_key=n, warmup_s=1.0) for n in "ab"}
    bench.submit(graph_of({"a": (), "b": ()}, {n: (gpu(),) for n in "ab"}, options))
    assert bench.reason("b").kind == "warming"
    assert bench.reason("b").text.startswith("no process is warm for it yet")
    assert bench.reason("b").text.endswith("nothing is held for that")
