"""Warm processes: which task gets one, how many there may be on a node, and who gives one up for whom."""

from __future__ import annotations

import pytest

from egs_core.engine import messages as m
from egs_core.graph.columns import TaskOptions
from egs_core.testing.engine_bench import EngineBench, PhaseSpec, cpu, gpu, graph_of
from tests.unit.engine.warming import K1, K2, warm


def test_a_process_that_is_left_over_is_used_instead() -> None:
    """B can take A's process over when A ends in time: nothing is loaded for it."""
    bench = EngineBench(2, 1)
    tasks = {"a": (), "b": ("a",), "c": ("b",)}
    bench.submit(graph_of(tasks, {n: (gpu(5.0),) for n in tasks}, dict.fromkeys(tasks, K1)))
    warm(bench, "a", 2.0)
    bench.start("a", 2.0)
    for name, at in (("a", 7.0), ("b", 12.0), ("c", 17.0)):
        assert bench.preloaded()[0] == "a"
        bench.end(name, at)
        bench.send(m.Tick(), at)
    preloads = [d for d in bench.decisions if isinstance(d, m.Preload)]
    assert [p.reuse for p in preloads] == [False, True, True]
    assert [bench.grant_of(n).warm for n in "abc"] == [True, True, True]
    assert bench.state.nodes[0].processes == 1


def test_another_key_needs_another_process() -> None:
    """A process with other things loaded is no help."""
    bench = EngineBench(2, 1)
    bench.submit(graph_of({"a": (), "b": ("a",)}, {n: (gpu(5.0),) for n in "ab"}, {"a": K1, "b": K2}))
    warm(bench, "a", 2.0)
    bench.start("a", 2.0)
    due = bench.engine.next_wakeup()
    assert due == pytest.approx(7.0 - 2.5)
    bench.send(m.Tick(), due)
    assert bench.preloaded() == ["a", "b"]


def test_no_more_warm_at_once_than_preload_slots() -> None:
    """The next process is started when one is warm."""
    bench = EngineBench()
    bench.send(m.NodeAdded("n", 8.0, 4, preload_slots=2, process_slots=4))
    names = [f"g{i}" for i in range(4)]
    bench.submit(graph_of(dict.fromkeys(names, ()), {n: (gpu(9.0),) for n in names}, dict.fromkeys(names, K1)))
    assert bench.preloaded() == names[:2]
    warm(bench, "g1", 1.0)
    assert bench.preloaded() == names[:3]


def test_no_more_processes_than_process_slots() -> None:
    """With one slot tasks of different keys take turns: an idle process makes room, and nothing deadlocks."""
    bench = EngineBench()
    bench.send(m.NodeAdded("n", 8.0, 4, preload_slots=2, process_slots=1))
    bench.submit(graph_of({"a": (), "b": ()}, {n: (gpu(),) for n in "ab"}, {"a": K1, "b": K2}))
    assert bench.preloaded() == ["a"]
    assert "every process slot is taken" in bench.reason("b").text
    warm(bench, "a", 2.0)
    bench.end("a", 3.0)
    assert bench.preloaded() == ["a", "b"]
    assert bench.state.nodes[0].idle_warm == {}
    warm(bench, "b", 5.0)
    assert bench.granted() == ["a", "b"]


def test_a_process_kept_for_later_gives_way_to_who_is_ready() -> None:
    """One loaded ahead for a pending task is dropped for a task that starts now; it is not lost on a ready one."""
    bench = EngineBench()
    bench.send(m.NodeAdded("n", 4.0, 1, preload_slots=1, process_slots=1))
    bench.submit(graph_of({"a": (), "later": ("a",)}, {"a": (cpu(2.5),), "later": (gpu(),)}, {"later": K1}))
    bench.start("a", 0.0)
    bench.send(m.Tick(), 0.05)
    assert bench.preloaded() == ["later"]
    bench.submit(graph_of({"now": ()}, {"now": (cpu(5.0), gpu())}, {"now": K2}), "other", at=1.0)
    assert isinstance(bench.decisions[-2], m.DropPreload)
    assert bench.granted()[-1] == "now"
    bench.end("a", 2.5)
    assert bench.reason("later").kind == "warming"
    bench.end("now", 6.0)
    bench.end("now", 7.0)
    assert bench.preloaded() == ["later", "later"]


def test_a_process_kept_for_a_ready_task_stays_its_own() -> None:
    """A CPU-first task may not take the only process slot from a GPU task that merely waits for its GPU."""
    bench = EngineBench()
    bench.send(m.NodeAdded("n", 4.0, 1, preload_slots=1, process_slots=1))
    bench.submit(graph_of({"holder": ()}, {"holder": (gpu(9.0),)}), "h")
    bench.start("holder", 0.0)
    bench.submit(graph_of({"g": ()}, {"g": (gpu(),)}, {"g": K1}), "w")
    bench.send(m.Tick(), 6.6)
    warm(bench, "g", 8.6)
    bench.submit(graph_of({"c": ()}, {"c": (cpu(),)}, {"c": K2}), "other", at=8.7)
    assert bench.reason("c").kind == "process_slots"
    bench.end("holder", 9.0)
    assert bench.grant_of("g").warm is True
    bench.end("g", 10.0)
    assert bench.granted()[-1] == "c"


def test_on_several_nodes_it_starts_where_its_process_is() -> None:
    """A warm GPU task waits for its own node's GPU rather than hold another one cold."""
    bench = EngineBench()
    for name in "xy":
        bench.send(m.NodeAdded(name, 2.0, 1))
    bench.submit(graph_of({"hx": (), "hy": ()}, {n: (gpu(9.0),) for n in ("hx", "hy")}), "holders")
    for name in ("hx", "hy"):
        bench.start(name, 0.0)
    bench.submit(graph_of({"g": ()}, {"g": (gpu(),)}, {"g": K1}))
    bench.send(m.Tick(), 6.6)
    node = bench.preload_of("g").node
    warm(bench, "g", 8.6)
    mine, other = ("hx", "hy") if bench.grant_of("hx").node == node else ("hy", "hx")
    bench.end(other, 8.7)
    assert bench.status("g") == "ready"
    bench.end(mine, 8.8)
    assert (bench.grant_of("g").node, bench.grant_of("g").warm) == (node, True)


def test_a_node_that_can_load_nothing_does_not_keep_tasks_waiting() -> None:
    """Without preload slots on any node that could run it, a GPU task starts cold; with one, it waits again."""
    bench = EngineBench()
    bench.send(m.NodeAdded("gpu", 2.0, 1, preload_slots=0))
    bench.send(m.NodeAdded("cpu", 8.0, 0, preload_slots=4))
    bench.submit(graph_of({"g": (), "h": ()}, {n: (gpu(9.0),) for n in "gh"}, {"g": K1, "h": K2}))
    assert bench.grant_of("g").warm is False
    assert bench.status("h") == "ready"
    bench.start("g", 0.0)
    bench.send(m.NodeAdded("gpu", 2.0, 1, preload_slots=1))
    bench.send(m.Tick(), 6.6)
    assert bench.preloaded() == ["h"]
    bench.end("g", 7.0)
    assert bench.status("h") == "ready"
    warm(bench, "h", 8.6)
    assert bench.grant_of("h").warm is True


def test_a_lost_node_takes_its_processes_along() -> None:
    """Tasks that had a process there, warm or not, are warmed anew on another node; late news is ignored."""
    bench = EngineBench()
    bench.send(m.NodeAdded("x", 4.0, 1))
    bench.submit(graph_of({"holder": ()}, {"holder": (gpu(9.0),)}), "h")
    bench.start("holder", 0.0)
    bench.submit(graph_of({"g": (), "h": ()}, {n: (gpu(),) for n in "gh"}, {"g": K1, "h": K2}))
    bench.send(m.Tick(), 7.6)
    warm(bench, "g", 8.6)
    old = bench.preload_of("h")
    bench.send(m.NodeAdded("y", 4.0, 3))
    bench.send(m.NodeLost("x"))
    assert (bench.preload_of("g").node, bench.preload_of("h").node) == ("y", "y")
    bench.send(m.PreloadReady(old.task, old.id))
    assert bench.status("h") == "ready"
    warm(bench, "h", 9.6)
    assert bench.status("h") == "granted"


def test_idle_processes_of_other_tasks_do_not_stop_preloads() -> None:
    """Two slots, four stages with keys of their own: each is warmed ahead, in the place of an idle one."""
    stages = ["s0", "s1", "s2", "s3"]
    tasks = {name: tuple(stages[i - 1 : i]) for i, name in enumerate(stages)}
    options = {name: TaskOptions(warm_key=name, warmup_s=1.0, warm_cpu_milli=0) for name in stages}
    bench = EngineBench()
    bench.send(m.NodeAdded("n", cpus=1, preload_slots=1, process_slots=2))
    bench.submit(graph_of(tasks, {name: (cpu(5.0),) for name in stages}, options))
    for i, name in enumerate(stages):
        bench.start(name, at=5.0 * i)
        bench.send(m.Tick(), at=5.0 * i + 4.0)
        for task in bench.preloaded():
            bench.send(m.PreloadReady(bench.task(task)), at=5.0 * i + 4.5)
        bench.end(name, at=5.0 * i + 5.0)
    assert bench.preloaded() == stages[1:]
    assert all(bench.grant_of(name).warm for name in stages[1:])


def paused_between_phases(*phases: PhaseSpec, key: TaskOptions) -> EngineBench:
    """One GPU, free, and a task that is paused behind the first of its phases, which take 1 s each."""
    bench = EngineBench(2, 1)
    bench.submit(graph_of({"paused": ()}, {"paused": phases}, {"paused": key}), "first")
    bench.start("paused", 0.0)
    bench.send(m.PauseRequested("workload", "first"), 0.5)
    bench.end("paused", 1.0)
    assert bench.status("paused") == "held"
    return bench


def test_no_task_waits_for_a_device_behind_one_that_is_paused() -> None:
    """The paused task will want the GPU, nobody knows when: the process for the ready one is loaded at once."""
    bench = paused_between_phases(cpu(), gpu(60.0), key=TaskOptions())
    bench.submit(graph_of({"g": ()}, {"g": (gpu(),)}, {"g": K1}))
    assert bench.preloaded() == ["g"]


def test_no_task_waits_for_the_process_of_one_that_is_paused() -> None:
    """It would soon be left over if it went on; it does not, so the ready task gets a process of its own."""
    bench = paused_between_phases(cpu(), cpu(), key=K1)
    bench.submit(graph_of({"g": ()}, {"g": (gpu(),)}, {"g": K1}))
    assert bench.preloaded() == ["g"]


def test_a_kept_process_is_given_up_only_where_no_node_has_room() -> None:
    """A CPU-first task starts beside the node on which the only process slot is kept for a pending task."""
    bench = EngineBench()
    bench.send(m.NodeAdded("x", 4.0, 1, preload_slots=1, process_slots=1))
    bench.submit(graph_of({"a": (), "later": ("a",)}, {"a": (cpu(2.5),), "later": (gpu(),)}, {"later": K1}))
    bench.start("a", 0.0)
    bench.send(m.Tick(), 0.05)
    assert bench.preload_of("later").node == "x"
    bench.send(m.NodeAdded("y", 4.0, 1, preload_slots=1, process_slots=1))
    bench.submit(graph_of({"now": ()}, {"now": (cpu(5.0), gpu())}, {"now": K2}), "other", at=1.0)
    assert bench.grant_of("now").node == "y"
    assert not any(isinstance(d, m.DropPreload) for d in bench.decisions)


def test_tasks_that_never_want_a_device_keep_off_nodes_with_gpus() -> None:
    """Spreading is for those that will: one with CPU phases only joins the other on the node without GPUs."""
    bench = EngineBench()
    bench.send(m.NodeAdded("gpu", 8.0, 1))
    bench.send(m.NodeAdded("cpu", 8.0, 0))
    phases = {"a": (cpu(),), "b": (cpu(),), "uses": (cpu(), gpu())}
    bench.submit(graph_of(dict.fromkeys(phases, ()), phases, dict.fromkeys("ab", K1)))
    assert [bench.grant_of(name).node for name in phases] == ["cpu", "cpu", "gpu"]


def test_a_process_kept_for_a_paused_task_gives_way_too() -> None:
    """Paused when its parent ends, it is neither pending nor ready: who starts there gets the only process slot."""
    bench = EngineBench()
    bench.send(m.NodeAdded("n", 4.0, 1, preload_slots=1, process_slots=1))
    bench.submit(graph_of({"a": (), "later": ("a",)}, {"a": (cpu(2.5),), "later": (gpu(),)}, {"later": K1}))
    bench.start("a", 0.0)
    bench.send(m.Tick(), 0.05)
    bench.send(m.PauseRequested("task", str(bench.task("later"))), 0.5)
    bench.end("a", 2.5)
    assert (bench.status("later"), bench.state.nodes[0].parked) == ("held", 1)
    bench.submit(graph_of({"now": ()}, {"now": (cpu(5.0),)}, {"now": K2}), "other", at=3.0)
    assert bench.granted() == ["a", "now"]
    bench.send(m.ResumeRequested("task", str(bench.task("later"))), 4.0)
    bench.end("now", 8.0)
    assert bench.preloaded() == ["later", "later"]
