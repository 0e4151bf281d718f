"""Usage limits: what is counted, when it stops a task or workload, and what becomes of it then."""

from __future__ import annotations

import msgspec
import pytest

from egs_core.driver.journal import encode_entry, folded
from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.meters import MOST_REQUEUES
from egs_core.engine.specs import FlavorSpec, Limits, QueueSpec
from egs_core.engine.state.metering import is_over_limit
from egs_core.graph.columns import TaskOptions
from egs_core.testing.engine_bench import EngineBench, PhaseSpec, cpu, gpu, graph_of

ON = EngineConfig(preempt=True, grace_s=5.0)


def one(
    options: TaskOptions, *phases: PhaseSpec, limits: Limits | None = None, config: EngineConfig = ON
) -> EngineBench:
    """A bench with four CPUs and two GPUs, and the task "a" of workload "w" there."""
    bench = EngineBench(4, 2, config=config)
    bench.send(m.WorkloadSubmitted("w", limits=limits))
    bench.submit(graph_of({"a": ()}, {"a": phases or (cpu(),)}, {"a": options}))
    return bench


def stops(bench: EngineBench) -> list[m.Stop]:
    return [d for d in bench.decisions if isinstance(d, m.Stop)]


def tick(bench: EngineBench, at: float) -> list[m.Decision]:
    return bench.send(m.Tick(), at)


def test_a_task_past_its_time_is_stopped_once_and_fails() -> None:
    """A Stop with grace at the limit, not before and not twice; then it has failed, and says why. No retry."""
    bench = one(TaskOptions(max_runtime_s=10.0, retries=3))
    bench.start("a", 1.0)
    assert bench.engine.next_wakeup() == 11.0
    assert bench.reason("a").text == "cpu phase on n0; over its limit of 10 s at 11.000 s"
    assert tick(bench, 10.9) == []
    (stop,) = tick(bench, 11.0)
    assert isinstance(stop, m.Stop)
    assert (stop.reason, stop.grace_s, stop.requeue) == ("over its limit of 10 s", 5.0, False)
    assert is_over_limit(bench.state, bench.task("a"))
    assert bench.reason("a").text == "over its limit of 10 s: it ends when its code has stopped"
    assert (tick(bench, 14.0), bench.engine.next_wakeup()) == ([], None)
    bench.end("a", 15.0, "aborted")
    assert bench.status("a") == "failed"
    assert bench.reason("a").text == "ended: failed: over its limit of 10 s"
    assert (bench.state.workloads[0].failed, bench.state.meters) == (True, {})


def test_a_task_that_ends_within_its_grace_has_succeeded() -> None:
    """The work is done, whatever was decided meanwhile."""
    bench = one(TaskOptions(max_runtime_s=10.0))
    bench.start("a", 0.0)
    tick(bench, 10.0)
    bench.end("a", 12.0)
    assert (bench.status("a"), bench.state.over_limit) == ("succeeded", {})


def test_a_task_that_finishes_within_its_grace_has_succeeded() -> None:
    """The same where its code did not take all of its phases: nothing is left to wait for."""
    bench = one(TaskOptions(max_runtime_s=10.0), cpu(), gpu(), cpu())
    bench.start("a", 0.0)
    tick(bench, 10.0)
    bench.send(m.TaskFinished(bench.task("a"), 1), 12.0)
    assert (bench.status("a"), bench.state.stopping) == ("succeeded", set())


def test_what_ends_in_time_leaves_no_timer() -> None:
    """Nothing fires for a task that has ended."""
    bench = one(TaskOptions(max_runtime_s=10.0))
    bench.start("a", 0.0)
    bench.end("a", 9.0)
    assert bench.engine.next_wakeup() is None
    assert tick(bench, 20.0) == []


def test_time_is_that_of_running_phases() -> None:
    """Between its phases, waiting for a GPU or paused, a task's clock stands still."""
    bench = one(TaskOptions(max_runtime_s=10.0), cpu(), gpu(), cpu())
    bench.start("a", 0.0)
    bench.send(m.PauseRequested("task", str(bench.task("a"))), 3.0)
    bench.end("a", 4.0)
    assert (bench.status("a"), bench.engine.next_wakeup()) == ("held", None)
    bench.send(m.ResumeRequested("task", str(bench.task("a"))), 100.0)
    bench.start("a", 103.0)
    assert bench.engine.next_wakeup() == 109.0
    (stop,) = tick(bench, 109.0)
    assert isinstance(stop, m.Stop)


def test_gpu_time_counts_devices_in_all_attempts() -> None:
    """Two GPUs use two GPU seconds a second, a failed attempt included; its CPU phase none."""
    bench = one(TaskOptions(max_gpu_s=20.0, retries=1), cpu(), gpu(gpus=2))
    bench.start("a", 0.0)
    assert bench.engine.next_wakeup() is None
    bench.end("a", 50.0)
    bench.start("a", 50.0)
    bench.end("a", 56.0, "failed")
    bench.start("a", 60.0)
    bench.end("a", 61.0)
    bench.start("a", 70.0)
    assert bench.engine.next_wakeup() == 74.0
    tick(bench, 74.0)
    assert [stop.reason for stop in stops(bench)] == ["over its limit of 20 s of GPU time"]


def test_time_starts_again_with_each_attempt() -> None:
    """A retry has the whole time; what the attempt before has taken does not count."""
    bench = one(TaskOptions(max_runtime_s=10.0, retries=1))
    bench.start("a", 0.0)
    bench.end("a", 9.0, "failed")
    bench.start("a", 9.0)
    assert bench.engine.next_wakeup() == 19.0


def test_cost_follows_the_prices() -> None:
    """What was used before a change of prices costs what it did then."""
    bench = one(TaskOptions(max_cost=10.0), gpu(cpus=2))
    bench.send(m.FlavorsChanged((FlavorSpec("", gpu_hour=3600.0, cpu_hour=0.0),)))
    bench.start("a", 0.0)
    assert bench.engine.next_wakeup() == 10.0
    bench.send(m.FlavorsChanged((FlavorSpec("", gpu_hour=3600.0, cpu_hour=1800.0),)), 4.0)
    assert bench.engine.next_wakeup() == 7.0
    bench.send(m.FlavorsChanged((FlavorSpec("other", 1.0, 1.0),)), 6.0)
    assert bench.engine.next_wakeup() is None
    bench.send(m.FlavorsChanged((FlavorSpec("", gpu_hour=1800.0),)), 100.0)
    assert bench.engine.next_wakeup() == 104.0
    tick(bench, 104.0)
    assert [stop.reason for stop in stops(bench)] == ["over its limit of 10 in cost"]


def test_requeue_gives_as_much_again_a_few_times() -> None:
    """It is preempted with its checkpoint, goes on with a new allowance, and fails in the end."""
    bench = one(TaskOptions(max_gpu_s=10.0, on_limit="requeue"), gpu())
    for attempt in range(MOST_REQUEUES):
        bench.start("a")
        bench.send(m.Checkpointed(bench.task("a"), attempt + 1), bench.now + 8.0)
        (stop,) = tick(bench, bench.now + 2.0)
        assert isinstance(stop, m.Stop)
        assert (stop.requeue, bench.status("a")) == (True, "running")
        assert bench.reason("a").text.endswith("it stops, to go on later from its checkpoint")
        bench.end("a", bench.now + 1.0, "preempted")
        assert bench.status("a") == "granted"
    assert bench.state.workloads[0].lost_s == 3.0 * MOST_REQUEUES
    bench.start("a")
    (last,) = tick(bench, bench.now + 10.0)
    assert isinstance(last, m.Stop)
    assert not last.requeue


def test_without_a_driver_that_preempts_requeue_fails() -> None:
    """Who cannot run a task again is never asked to."""
    bench = one(TaskOptions(max_runtime_s=1.0, on_limit="requeue"), config=EngineConfig())
    bench.start("a", 0.0)
    tick(bench, 1.0)
    assert [stop.requeue for stop in stops(bench)] == [False]


def test_a_time_box_ends_well() -> None:
    """An interactive request is over when its time is: it has succeeded, its process is gone, and its child runs."""
    bench = EngineBench(4, 2, config=ON)
    options = {"a": TaskOptions(max_runtime_s=7200.0, on_limit="end", warm_key="k")}
    bench.submit(graph_of({"a": (), "b": ("a",)}, {"a": (gpu(), cpu())}, options))
    if bench.status("a") != "granted":
        bench.send(m.PreloadReady(bench.task("a")))
    bench.start("a", 0.0)
    tick(bench, 7200.0)
    bench.end("a", 7201.0, "aborted")
    assert [bench.status(name) for name in "ab"] == ["succeeded", "granted"]
    assert (bench.state.workloads[0].failed, bench.state.nodes[0].processes) == (False, 0)
    assert bench.reason("a").text == "ended: succeeded: over its limit of 7200 s"


def test_a_time_box_on_a_lost_node_ends_well() -> None:
    """However it ends: what it asked for was over."""
    bench = one(TaskOptions(max_runtime_s=10.0, on_limit="end"), gpu())
    bench.start("a", 0.0)
    tick(bench, 10.0)
    bench.send(m.NodeLost("n0"), 11.0)
    assert bench.status("a") == "succeeded"


def test_idle_too_long() -> None:
    """Signs of life put the moment off; those of another attempt do not."""
    bench = one(TaskOptions(idle_timeout_s=60.0, on_limit="end"), gpu())
    bench.start("a", 0.0)
    bench.send(m.Activity(bench.task("a"), 1), 50.0)
    bench.send(m.Activity(bench.task("a"), 2), 55.0)
    bench.send(m.Activity(99, 1), 55.0)
    assert bench.engine.next_wakeup() == 110.0
    tick(bench, 110.0)
    assert [stop.reason for stop in stops(bench)] == ["idle for 60 s"]
    bench.end("a", 111.0, "aborted")
    assert bench.status("a") == "succeeded"


def test_a_workload_past_its_gpu_time_ends() -> None:
    """All that its tasks hold counts together; what runs is stopped, what waits never starts, nor what comes later."""
    bench = EngineBench(4, 2, config=ON)
    bench.send(m.WorkloadSubmitted("w", limits=Limits(max_gpu_s=100.0)))
    bench.submit(graph_of({"a": (), "b": (), "c": (), "d": ("a",)}, default=(gpu(),)))
    bench.start("a", 0.0)
    assert bench.engine.next_wakeup() == 100.0
    bench.start("b", 20.0)
    assert bench.engine.next_wakeup() == 60.0
    tick(bench, 60.0)
    why = "its workload is over its limit of 100 s of GPU time"
    assert sorted((bench.state.task_ids[s.task], s.reason, s.grace_s) for s in stops(bench)) == [
        ("a", why, 5.0),
        ("b", why, 5.0),
    ]
    assert [bench.status(name) for name in "cd"] == ["aborted", "aborted"]
    assert bench.reason("d").text == f"ended: aborted: {why}"
    bench.end("a", 61.0, "aborted")
    bench.end("b", 61.0, "aborted")
    assert [bench.status(name) for name in "ab"] == ["failed", "failed"]
    bench.submit(graph_of({"e": ()}), at=62.0)
    assert bench.status("e") == "aborted"
    assert bench.engine.next_wakeup() is None


def test_a_workloads_time_runs_from_its_first_start() -> None:
    """Waiting for the first start costs nothing, waiting later does; a pause of the whole workload stops the clock."""
    bench = one(TaskOptions(), gpu(), cpu(), limits=Limits(max_runtime_s=100.0))
    assert bench.engine.next_wakeup() is None
    bench.start("a", 1000.0)
    bench.send(m.PauseRequested("workload", "w"), 1010.0)
    assert bench.engine.next_wakeup() is None
    bench.end("a", 1050.0)
    bench.send(m.ResumeRequested("workload", "w"), 2010.0)
    assert bench.engine.next_wakeup() == 2100.0
    tick(bench, 2100.0)
    bench.end("a", 2101.0, "aborted")
    assert (bench.state.workloads[0].open_tasks, bench.state.workloads[0].failed) == (0, True)


def test_a_queues_limits_hold_for_its_tasks() -> None:
    """Of the task's and the queue's the smaller one; stated later, they count from the start of the phase."""
    bench = EngineBench(4, 2, config=ON)
    bench.send(m.WorkloadSubmitted("w", queue="q"))
    options = {"a": TaskOptions(max_runtime_s=50.0), "b": TaskOptions(max_runtime_s=500.0)}
    bench.submit(graph_of({"a": (), "b": (), "c": ()}, options=options))
    for name in "abc":
        bench.start(name, 0.0)
    bench.send(m.QueuesChanged((QueueSpec("q", limits=Limits(max_runtime_s=100.0)),)), 20.0)
    assert bench.engine.next_wakeup() == 50.0
    tick(bench, 50.0)
    tick(bench, 99.0)
    assert len(stops(bench)) == 1
    tick(bench, 100.0)
    assert [bench.state.task_ids[stop.task] for stop in stops(bench)] == ["a", "b", "c"]


@pytest.mark.parametrize("on_limit", ["fail", "requeue"])
def test_a_gang_stops_as_a_whole(on_limit: str) -> None:
    """One member over its limit stops the others too; requeued, each of them has as much again."""
    bench = EngineBench(4, 2, config=ON)
    options = TaskOptions(gang="g", max_gpu_s=10.0, on_limit=on_limit)
    bench.submit(graph_of({"a": (), "b": ()}, default=(gpu(),), options=dict.fromkeys("ab", options)))
    bench.start("a", 0.0)
    bench.start("b", 1.0)
    assert len(tick(bench, 10.0)) == 2
    bench.end("a", 11.0, "preempted")
    bench.end("b", 11.0, "preempted")
    if on_limit == "fail":
        assert [bench.status(name) for name in "ab"] == ["failed", "failed"]
        assert bench.reason("b").text == "ended: failed: its gang is over its limit of 10 s of GPU time"
        assert bench.state.workloads[0].open_tasks == 0
    else:
        for name in "ab":
            bench.start(name, 20.0)
        assert bench.engine.next_wakeup() == 30.0


def test_limits_are_enforced_before_others_are_preempted() -> None:
    """Over limit is the first reason to be a victim: who waits gets that place, and nobody else is stopped."""
    bench = EngineBench(4, 2, config=msgspec.structs.replace(ON, min_gain_s=1.0))
    options = {"a": TaskOptions(max_runtime_s=10.0, priority=1)}
    bench.submit(graph_of({"a": (), "b": ()}, default=(gpu(500.0),), options=options))
    bench.start("a", 0.0)
    bench.start("b", 0.0)
    urgent = {"c": TaskOptions(priority=5)}
    bench.submit(graph_of({"c": ()}, default=(gpu(500.0),), options=urgent), "v", 10.0)
    assert bench.state.task_ids[stops(bench)[0].task] == "a"


def test_a_restart_from_the_journal_keeps_the_totals() -> None:
    """After a crash the limit is reached when it would have been."""
    engine = Engine(EngineConfig(record=True))
    bench = EngineBench()
    bench.submit(graph_of({"a": ()}, {"a": (gpu(), gpu())}, {"a": TaskOptions(max_gpu_s=10.0)}))
    events: list[tuple[m.Event, float]] = [(m.NodeAdded("n0", 4, 1), 0.0)]
    events += [(event, now) for event, now, _ in bench.log]
    events += [(m.PhaseStarted(0, 1), 1.0), (m.PhaseEnded(0, 1), 4.0), (m.PhaseStarted(1, 1), 20.0)]
    entries = []
    for event, now in events:
        engine.handle(event, now)
        entries.append(encode_entry(event, now, engine.take_transitions()))
    again = Engine(EngineConfig(), folded(b"", entries, "the journal"))
    assert again.next_wakeup() == engine.next_wakeup() == 27.0
    assert [type(d) for d in again.handle(m.Tick(), 27.0)] == [m.Stop]
