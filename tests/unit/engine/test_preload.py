"""Warm processes: when one is loaded, who gets it, who gives it up; a GPU is never held for loading."""

from __future__ import annotations

import pytest

from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.passes.device_forecast import DeviceForecast
from egs_core.engine.passes.outlook import FAR, Outlook
from egs_core.engine.passes.preload import EARLY, LEAD_FACTOR, LEAD_S, task_end
from egs_core.graph.columns import Graph, TaskOptions
from egs_core.testing.engine_bench import EngineBench, PhaseSpec, cpu, gpu, graph_of

K1 = TaskOptions(warm_key="k1", warmup_s=2.0)
K2 = TaskOptions(warm_key="k2", warmup_s=2.0)


def warm(bench: EngineBench, name: str, at: float | None = None) -> list[m.Decision]:
    preload = bench.preload_of(name)
    return bench.send(m.PreloadReady(preload.task, preload.id), at)


def test_a_gpu_task_waits_for_its_process_and_holds_nothing() -> None:
    """Ready with an idle GPU, it is warmed first; the grant comes with the warm process."""
    bench = EngineBench(2, 1)
    bench.submit(graph_of({"g": ()}, {"g": (gpu(),)}, {"g": K1}))
    assert (bench.granted(), bench.preloaded()) == ([], ["g"])
    assert not bench.preload_of("g").reuse
    assert bench.reason("g").kind == "warming"
    assert "its process is being loaded on n0" in bench.reason("g").text
    warm(bench, "g", 2.0)
    assert bench.grant_of("g").warm is True
    assert bench.state.nodes[0].started == 1


def test_a_failed_preload_lets_the_task_start_cold() -> None:
    """No second try in this attempt, no waiting: it loads inside its phase."""
    bench = EngineBench(2, 1)
    bench.submit(graph_of({"g": ()}, {"g": (gpu(),)}, {"g": K1}))
    bench.send(m.PreloadFailed(bench.task("g")))
    assert bench.grant_of("g").warm is False
    assert bench.preloaded() == ["g"]


def test_a_failed_preload_of_a_task_to_come_is_not_tried_again() -> None:
    """A driver that answers each preload with a failure is asked once, however soon the task is due."""
    bench = EngineBench(2, 1)
    bench.submit(graph_of({"a": (), "g": ("a",)}, {"a": (cpu(0.5),), "g": (gpu(),)}, {"g": K1}))
    bench.start("a", 0.0)
    while not bench.preloaded():
        bench.send(m.Tick(), bench.now + 0.05)
    bench.send(m.PreloadFailed(bench.task("g")))
    for step in range(20):
        bench.send(m.Tick(), 0.5 + step * 0.05)
    assert bench.preloaded() == ["g"]
    bench.end("a", 2.0)
    assert bench.grant_of("g").warm is False


@pytest.mark.parametrize("answer", [m.DecisionRejected, m.DecisionLost])
def test_a_refused_preload_is_a_failed_one(answer: type[m.DecisionRejected] | type[m.DecisionLost]) -> None:
    """Rejected or lost by its decision number: the task starts cold."""
    bench = EngineBench(2, 1)
    bench.submit(graph_of({"g": ()}, {"g": (gpu(),)}, {"g": K1}))
    bench.send(answer(bench.preload_of("g").id))
    assert bench.grant_of("g").warm is False


def test_a_new_attempt_is_warmed_again() -> None:
    """After a preemption a failed preload counts no more."""
    bench = EngineBench(2, 1)
    bench.submit(graph_of({"g": ()}, {"g": (gpu(),)}, {"g": K1}))
    bench.send(m.PreloadFailed(bench.task("g")))
    bench.end("g", 1.0, "preempted")
    assert (bench.status("g"), bench.preloaded()) == ("ready", ["g", "g"])


def test_without_preload_everything_starts_cold() -> None:
    """Switched off: no process is loaded ahead, but one that is left over is used."""
    bench = EngineBench(2, 1, config=EngineConfig(preload=False))
    bench.submit(graph_of({"g": (), "h": ("g",)}, {n: (gpu(),) for n in "gh"}, dict.fromkeys("gh", K1)))
    assert bench.grant_of("g").warm is False
    bench.end("g", 1.0)
    assert bench.grant_of("h").warm is True
    assert bench.preloaded() == []


def test_a_cpu_first_task_starts_at_once_and_cold() -> None:
    """It holds no GPU while it loads, so it need not wait."""
    bench = EngineBench(2, 1)
    bench.submit(graph_of({"c": ()}, {"c": (cpu(), gpu())}, {"c": K1}))
    assert bench.grant_of("c").warm is False


def chained(first_s: float, key: TaskOptions = K1) -> tuple[EngineBench, Graph]:
    bench = EngineBench(2, 1)
    graph = graph_of({"a": (), "g": ("a",)}, {"a": (cpu(first_s),), "g": (gpu(),)}, {"g": key})
    return bench, graph


def test_the_process_is_started_in_time_and_not_before() -> None:
    """Due = the predecessor's predicted end less the warm-up and its margin; the GPU task then starts at once."""
    bench, graph = chained(10.0)
    bench.submit(graph)
    bench.start("a", 0.0)
    due = bench.engine.next_wakeup()
    assert due == pytest.approx(10.0 - (2.0 * LEAD_FACTOR + LEAD_S))
    bench.send(m.Tick(), 5.0)
    assert bench.preloaded() == []
    bench.send(m.Tick(), due)
    assert bench.preloaded() == ["g"]
    warm(bench, "g", 9.6)
    bench.end("a", 10.0)
    assert (bench.status("g"), bench.grant_of("g").warm) == ("granted", True)


def test_before_a_task_of_unknown_length_ends_the_process_is_started_at_once() -> None:
    """Nothing is known of a first run: the next task's process loads as soon as there is room for it; once history
    says how long its predecessor takes, in time."""
    lengths = {None: ["g"], 30.0: []}
    for seconds, expected in lengths.items():
        bench = EngineBench(2, 1)
        bench.submit(graph_of({"a": (), "g": ("a",)}, {"a": (cpu(seconds),), "g": (gpu(),)}, {"g": K1}))
        bench.start("a", 0.0)
        bench.send(m.Tick(), 0.1)
        assert bench.preloaded() == expected


def test_an_estimate_moves_the_moment() -> None:
    """A predecessor that is believed to end sooner makes the preload due at once."""
    bench, graph = chained(100.0)
    bench.submit(graph)
    bench.start("a", 0.0)
    bench.send(m.Estimates(((0, 3.0, 3.0),)), 1.0)
    assert bench.preloaded() == ["g"]


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


def test_when_a_started_task_ends() -> None:
    """Its current phase from the law of what it has outlived, then the later ones; granted is not yet running."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": ()}, {"a": (cpu(), cpu(3.0))}))
    bench.send(m.Estimates(((0, 10.0, 20.0),)))
    assert task_end(bench.state, 0, 0.0) == (13.0, 5.0)
    bench.start("a", 0.0)
    assert task_end(bench.state, 0, 1.0) == (13.0, 5.0)
    at_s, _ = task_end(bench.state, 0, 30.0)
    assert at_s > 33.0


def test_no_process_is_loaded_while_every_device_is_busy_for_long() -> None:
    """Ready, but the GPU is held for 30 s more: the process is due when the device is, not now."""
    bench = EngineBench(2, 1)
    bench.submit(graph_of({"holder": ()}, {"holder": (gpu(30.0),)}), "h")
    bench.start("holder", 0.0)
    bench.submit(graph_of({"g": ()}, {"g": (gpu(),)}, {"g": K1}))
    assert bench.preloaded() == []
    due = bench.engine.next_wakeup()
    assert due == pytest.approx(30.0 - (2.0 * LEAD_FACTOR + LEAD_S))
    bench.send(m.Tick(), due)
    assert bench.preloaded() == ["g"]


def test_what_may_end_early_is_prepared_for_early() -> None:
    """The wider the predecessor's distribution, the sooner: at its quantile of the two costs, less the warm-up."""
    bench, graph = chained(20.0)
    bench.submit(graph)
    bench.send(m.Estimates(((0, 20.0, 40.0),)))
    bench.start("a", 0.0)
    early_s = 20.0 - 20.0 * 20.0 / 40.0
    assert bench.engine.next_wakeup() == pytest.approx(20.0 - EARLY * early_s - (2.0 * LEAD_FACTOR + LEAD_S))
    assert pytest.approx(1.0) == EARLY


def test_a_late_predecessor_costs_few_looks() -> None:
    """Its end moves away as time passes: the planner looks again at pauses, not in ever smaller steps."""
    bench, graph = chained(10.0)
    bench.submit(graph)
    bench.send(m.Estimates(((0, 10.0, 40.0),)))
    bench.start("a", 0.0)
    looks = 0
    while (due := bench.engine.next_wakeup()) is not None and looks < 500:
        bench.send(m.Tick(), due)
        looks += 1
    assert bench.preloaded() == ["g"]
    assert looks < 200


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


def test_tasks_that_will_want_a_device_spread_over_the_nodes() -> None:
    """CPU-first tasks stay with their process: packed on one node they would queue for its GPU beside an idle one."""
    bench = EngineBench()
    for name in "xy":
        bench.send(m.NodeAdded(name, 8.0, 1))
    bench.submit(graph_of({"a": (), "b": ()}, {n: (cpu(), gpu()) for n in "ab"}, dict.fromkeys("ab", K1)))
    assert {bench.grant_of(n).node for n in "ab"} == {"x", "y"}


def test_the_outlook_sees_so_many_steps() -> None:
    """Steps to the nearest task with a warm key, itself included and not; farther than the look-ahead: out of sight."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": (), "b": ("a",), "c": ("b",), "d": ("c",), "k": ("d",)}, options={"k": K1}))
    outlook = Outlook()
    outlook.extend(bench.state)
    assert list(outlook.near) == [FAR, 3, 2, 1, 0]
    assert list(outlook.near_children) == [FAR, 3, 2, 1, FAR]
    assert outlook.longest_warmup_s == K1.warmup_s


def test_the_forecast_serves_what_is_committed_in_turn() -> None:
    """Two GPUs held to 10 and 20 s; a started task asks for one of them at 5 s, for 4: the next is free at 14 s."""
    bench = EngineBench(8, 2)
    phases = {"a": (gpu(10.0),), "b": (gpu(20.0),), "c": (cpu(5.0), gpu(4.0))}
    bench.submit(graph_of(dict.fromkeys("abc", ()), phases))
    for name in "abc":
        bench.start(name, 0.0)
    ends = {bench.task(n): task_end(bench.state, bench.task(n), 0.0) for n in "abc"}
    forecast = DeviceForecast(bench.state, 0.0, ends)
    assert forecast.next_free([0], 1) == (14.0, 0.0)
    assert forecast.next_free([0], 2) == (20.0, 0.0)
    forecast.commit(0, 1, 30.0, 5.0)
    assert forecast.next_free([0], 2) == (35.0, 0.0)


def test_a_ready_task_does_not_wait_for_a_device_behind_who_waits_for_it() -> None:
    """It has to start anew while a process is kept for its child: the child's GPU phase is no reason to load later."""
    bench = EngineBench(4, 2)
    phases = {"a": (gpu(5.0, gpus=2.0),), "later": (cpu(5.0), gpu(2.0))}
    bench.submit(graph_of({"a": (), "later": ("a",)}, phases, {"a": K1, "later": K2}))
    warm(bench, "a", 2.0)
    bench.start("a", 2.0)
    bench.send(m.Tick(), 5.0)
    warm(bench, "later", 6.0)
    bench.end("a", 6.5, "preempted")
    assert bench.preloaded() == ["a", "later", "a"]
    warm(bench, "a", 8.5)
    assert (bench.status("a"), bench.state.now) == ("granted", 8.5)


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
