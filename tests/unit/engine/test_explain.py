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
        "x has 1 of 2 GPUs wholly free; y has 1 of 2 GPUs wholly free; it is first in the queue; "
        "what needs fewer GPUs may start before it until about 60.000 s, then room is kept for it"
    )


def test_what_smaller_ones_may_do_before_the_first_is_said() -> None:
    """Until its `max_wait` they may start on what is not enough for it, and one does; from then on room is kept for it,
    which at first only those may use that should end before. Nothing of it where it needs no more than a GPU,
    nor of one that is not first."""
    bench = EngineBench()
    bench.send(m.NodeAdded("x", 8.0, 2))
    bench.submit(graph_of({"long": (), "short": ()}, {"long": (gpu(200.0),), "short": (gpu(9.0),)}))
    bench.start("long")
    bench.start("short")
    bench.submit(graph_of({"wide": ()}, {"wide": (gpu(9.0, 2.0),)}, {"wide": TaskOptions(max_wait_s=30.0)}), "two")
    bench.submit(graph_of({"small": ()}, default=(gpu(40.0),)), "three")
    bench.submit(graph_of({"last": ()}, default=(gpu(300.0),)), "four")
    first = "needs 2 GPUs: x has 0 of 2 GPUs wholly free; it is first in the queue; "
    assert bench.reason("wide").text == (
        f"{first}what needs fewer GPUs may start before it until 30.000 s, then room is kept for it"
    )
    assert "1 ahead of it, first wide" in bench.reason("small").text
    assert "fewer" not in bench.reason("small").text
    bench.end("short", 9.0)
    assert bench.status("small") == "granted"
    bench.start("small")
    bench.send(m.Tick(), 30.0)
    assert bench.reason("wide").text == (
        f"{first}room on x is kept for it from 200.000 s on: others start there only where that should not delay it"
    )
    bench.end("small", 49.0)
    assert bench.reason("last").kind == "reservation"
    bench.send(m.Tick(), 201.0)
    assert bench.reason("wide").text == (
        "needs 2 GPUs: x has 1 of 2 GPUs wholly free; it is first in the queue; room on x is kept for it:"
        " others start there only where that should not delay it"
    )
    bench.end("long", 202.0)
    assert bench.status("wide") == "granted"


def test_a_single_gpu_that_is_waited_for_is_passed_by_nobody() -> None:
    bench = EngineBench()
    bench.send(m.NodeAdded("x", 8.0, 1))
    bench.submit(graph_of(dict.fromkeys("abc", ()), default=(gpu(9.0),)))
    assert [bench.reason(n).text for n in "bc"] == [
        "needs 1 GPU: x has 0 of 1 GPU wholly free; it is first in the queue",
        "needs 1 GPU: x has 0 of 1 GPU wholly free; 1 ahead of it, first b",
    ]


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
