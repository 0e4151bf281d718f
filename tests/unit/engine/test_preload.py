"""Warm processes: when one is loaded; a GPU is never held for loading."""

from __future__ import annotations

import pytest

from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.passes.device_forecast import DeviceForecast
from egs_core.engine.passes.outlook import FAR, Outlook
from egs_core.engine.passes.preload import EARLY, LEAD_FACTOR, LEAD_S, task_end
from egs_core.graph.columns import Graph, TaskOptions
from egs_core.testing.engine_bench import EngineBench, cpu, gpu, graph_of
from tests.unit.engine.warming import K1, K2, warm


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
