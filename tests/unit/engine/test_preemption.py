"""Preemption: for whom, of whom, and that it happens no more often than it must."""

from __future__ import annotations

from collections.abc import Sequence

from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.rules.victims import MOST_PREEMPTIONS
from egs_core.engine.specs import UNLIMITED, Amounts, QueueSpec
from egs_core.graph.columns import TaskOptions
from egs_core.testing.engine_bench import EngineBench, PhaseSpec, cpu, gpu, graph_of

ON = EngineConfig(preempt=True, grace_s=5.0, min_gain_s=10.0)


def gpus(number: float) -> Amounts:
    return UNLIMITED, round(number * 1000), UNLIMITED


def lab(devices: int, **nominal: float) -> EngineBench:
    """Queues of one cohort with these nominal quotas of GPUs."""
    bench = EngineBench(16, devices, config=ON)
    bench.send(m.QueuesChanged(tuple(QueueSpec(name, "lab", gpus(number)) for name, number in nominal.items())))
    return bench


def submit(
    bench: EngineBench,
    queue: str,
    names: str,
    phases: Sequence[PhaseSpec],
    at: float | None = None,
    options: TaskOptions | None = None,
) -> None:
    workload = f"{queue}-{len(bench.state.workloads)}"
    tasks = names.split()
    bench.send(m.WorkloadSubmitted(workload, queue=queue), at)
    given = dict.fromkeys(tasks, options) if options else None
    bench.submit(graph_of(dict.fromkeys(tasks, ()), default=phases, options=given), workload, at)


def start_all(bench: EngineBench, at: float | None = None) -> None:
    for phase in sorted(bench.state.leases):
        bench.send(m.PhaseStarted(phase, bench.state.attempt[bench.state.task_of[phase]]), at)


def stops(bench: EngineBench) -> list[tuple[str, str]]:
    return [(bench.state.task_ids[d.task], d.reason) for d in bench.decisions if isinstance(d, m.Stop)]


def test_lent_quota_is_taken_back() -> None:
    """The lender's task comes: one borrower is stopped with grace, requeued, and the GPU is kept for the lender."""
    bench = lab(2, a=1, b=1)
    submit(bench, "a", "a0 a1", (gpu(500.0),))
    start_all(bench, 0.0)
    submit(bench, "b", "b0", (gpu(100.0),), 10.0)
    (victim, reason), *others = stops(bench)
    assert (others, reason) == ([], "preempted for b0: reclaim")
    stop = next(d for d in bench.decisions if isinstance(d, m.Stop))
    assert (stop.requeue, stop.grace_s) == (True, 5.0)
    submit(bench, "a", "a2", (gpu(2000.0),), 11.0)
    bench.end(victim, 12.0, "preempted")
    assert (bench.status("b0"), bench.status(victim), bench.status("a2")) == ("granted", "ready", "ready")
    assert bench.state.workloads[0].lost_s == 12.0
    bench.end("b0", 20.0)
    assert bench.status(victim) == "granted"


def test_only_what_is_borrowed_is_taken() -> None:
    """The lender wants two, one has been lent: the borrower keeps its own."""
    bench = lab(3, a=2, b=1)
    submit(bench, "a", "a0 a1 a2", (gpu(500.0),))
    start_all(bench, 0.0)
    submit(bench, "b", "b0 b1", (gpu(500.0),), 10.0)
    assert len(stops(bench)) == 1
    bench.end(stops(bench)[0][0], 11.0, "preempted")
    assert (bench.status("b0"), bench.status("b1")) == ("granted", "ready")
    assert len(stops(bench)) == 1


def test_nobody_is_stopped_for_one_that_would_borrow() -> None:
    """Beyond its own quota a queue waits like everybody."""
    bench = lab(2, a=2, b=0)
    submit(bench, "a", "a0 a1", (gpu(500.0),))
    start_all(bench, 0.0)
    submit(bench, "b", "b0", (gpu(1.0),), 10.0, TaskOptions(priority=99))
    assert stops(bench) == []


def test_a_cpu_stage_stops_nobody() -> None:
    """A team that comes back with CPU phases takes no GPU from who borrowed; its GPU phase does."""
    bench = lab(2, a=1, b=1)
    submit(bench, "a", "a0 a1", (gpu(500.0),))
    start_all(bench, 0.0)
    submit(bench, "b", "b0", (cpu(30.0), gpu(30.0)), 10.0)
    assert (bench.status("b0"), stops(bench)) == ("granted", [])
    bench.end("b0", 40.0)
    assert len(stops(bench)) == 1


def test_priority_counts_within_a_queue() -> None:
    """The lowest priority goes first; equal priority is never stopped, nor is another queue's lower one."""
    bench = lab(2, a=2, b=0)
    submit(bench, "a", "low", (gpu(500.0),), options=TaskOptions(priority=-1))
    submit(bench, "a", "mid", (gpu(500.0),))
    start_all(bench, 0.0)
    submit(bench, "a", "equal", (gpu(1.0),), 5.0, TaskOptions(priority=-1))
    assert stops(bench) == []
    submit(bench, "a", "high", (gpu(1.0),), 10.0, TaskOptions(priority=5))
    assert stops(bench) == [("low", "preempted for high: priority")]


def test_nobody_is_stopped_for_one_that_starts_soon_anyway() -> None:
    """What runs ends within min_gain_s: waiting costs less than stopping."""
    bench = EngineBench(4, 1, config=ON)
    submit(bench, "", "low", (gpu(20.0),), options=TaskOptions(priority=-1))
    start_all(bench, 0.0)
    submit(bench, "", "high", (gpu(1.0),), 12.0, TaskOptions(priority=5))
    assert stops(bench) == []


def test_the_least_work_is_lost() -> None:
    """Of two borrowers the one that has just saved a checkpoint is stopped, though it has run longer."""
    bench = lab(2, a=1, b=1)
    submit(bench, "a", "old", (gpu(900.0),))
    start_all(bench, 0.0)
    submit(bench, "a", "young", (gpu(900.0),), 50.0)
    start_all(bench, 50.0)
    bench.send(m.Checkpointed(bench.task("old"), 1), 99.0)
    assert [bench.state.lost_work_s(bench.task(n)) for n in ("old", "young")] == [0.0, 49.0]
    submit(bench, "b", "b0", (gpu(1.0),), 100.0)
    assert stops(bench)[0][0] == "old"
    bench.end("old", 101.0, "preempted")
    assert bench.state.workloads[0].lost_s == 2.0


def test_a_gang_is_stopped_as_a_whole() -> None:
    """Taking one member's GPU takes the gang's."""
    bench = lab(4, a=1, b=3)
    submit(bench, "a", "g0 g1 g2", (gpu(500.0),), options=TaskOptions(gang="g"))
    start_all(bench, 0.0)
    submit(bench, "b", "b0 b1", (gpu(100.0),), 10.0)
    assert sorted(name for name, _ in stops(bench)) == ["g0", "g1", "g2"]
    for name in ("g0", "g1", "g2"):
        bench.end(name, 11.0, "preempted")
    assert [bench.status(n) for n in ("b0", "b1", "g0")] == ["granted", "granted", "ready"]


def test_what_may_not_start_anew_is_left_alone() -> None:
    """It is no victim, neither of a priority nor of a quota that is taken back, and keeps the rest of its gang."""
    firm = TaskOptions(priority=-1, may_restart=False)
    bench = lab(3, a=1, b=2)
    submit(bench, "a", "firm", (gpu(500.0),), options=firm)
    submit(bench, "a", "soft", (gpu(500.0),), options=TaskOptions())
    submit(bench, "a", "last", (gpu(500.0),), options=firm)
    start_all(bench, 0.0)
    submit(bench, "a", "high", (gpu(1.0),), 10.0, TaskOptions(priority=5))
    assert stops(bench) == [("soft", "preempted for high: priority")]
    submit(bench, "b", "b0 b1", (gpu(100.0),), 20.0)
    assert len(stops(bench)) == 1
    ganged = lab(2, a=2, b=0)
    given = {"g0": TaskOptions(gang="g"), "g1": TaskOptions(gang="g", may_restart=False)}
    ganged.send(m.WorkloadSubmitted("w", queue="a"))
    ganged.submit(graph_of(dict.fromkeys(given, ()), default=(gpu(500.0),), options=given), "w")
    start_all(ganged, 0.0)
    submit(ganged, "a", "high", (gpu(1.0),), 10.0, TaskOptions(priority=5))
    assert stops(ganged) == []


def test_a_gang_gets_what_it_has_a_right_to() -> None:
    """A gang within nominal quota takes back as many GPUs as it needs at once, and they are kept for it."""
    bench = lab(4, a=1, b=3)
    submit(bench, "a", "a0 a1 a2 a3", (gpu(500.0),))
    start_all(bench, 0.0)
    submit(bench, "b", "g0 g1 g2", (gpu(500.0),), 10.0, TaskOptions(gang="g"))
    victims = [name for name, _ in stops(bench)]
    assert len(victims) == 3
    for number, name in enumerate(victims):
        bench.end(name, 11.0 + number, "preempted")
        assert bench.status(name) == "ready"
    assert [bench.status(f"g{i}") for i in range(3)] == ["granted"] * 3


def test_no_thrash() -> None:
    """A task that has been stopped often enough is left alone; what was freed goes to whoever it was freed for."""
    bench = lab(1, a=0, b=1)
    submit(bench, "a", "a0", (gpu(500.0),))
    for turn in range(MOST_PREEMPTIONS + 2):
        start_all(bench, turn * 100.0)
        submit(bench, "b", f"b{turn}", (gpu(10.0),), turn * 100.0 + 20.0)
        if len(stops(bench)) > turn:
            bench.end("a0", turn * 100.0 + 21.0, "preempted")
            start_all(bench)
            bench.end(f"b{turn}", turn * 100.0 + 31.0)
        else:
            break
    assert [name for name, _ in stops(bench)] == ["a0"] * MOST_PREEMPTIONS
    assert bench.status("a0") in ("granted", "running")


def test_freed_quota_is_kept_like_freed_room() -> None:
    """A device too many: the first victim to end would fit again at once, but its quota is for the gang."""
    bench = lab(4, a=1, b=2)
    submit(bench, "a", "a0 a1 a2", (gpu(500.0),))
    start_all(bench, 0.0)
    submit(bench, "b", "g0 g1", (gpu(500.0),), 10.0, TaskOptions(gang="g"))
    first, second = [name for name, _ in stops(bench)]
    bench.end(first, 11.0, "preempted")
    assert (bench.status(first), bench.reason(first).kind) == ("ready", "quota")
    bench.end(second, 12.0, "preempted")
    assert [bench.status(name) for name in ("g0", "g1", first, second)] == ["granted"] * 2 + ["ready"] * 2


def test_only_where_it_would_start() -> None:
    """Two GPUs of one node are wanted: the cheapest victim runs on the other node, and stopping it would free one."""
    bench = EngineBench(config=ON)
    for node in ("n0", "n1"):
        bench.send(m.NodeAdded(node, 16, 2))
    bench.send(m.QueuesChanged((QueueSpec("a", "lab", gpus(0)), QueueSpec("b", "lab", gpus(4)))))
    for number in range(4):
        submit(bench, "a", f"a{number}", (gpu(900.0),), 10.0 * number)
        start_all(bench, 10.0 * number)
    assert [bench.grant_of(f"a{number}").node for number in range(4)] == ["n0", "n0", "n1", "n1"]
    bench.send(m.Checkpointed(bench.task("a0"), 1), 65.0)
    submit(bench, "b", "wants", (gpu(10.0, 2),), 70.0)
    assert sorted(name for name, _ in stops(bench)) == ["a2", "a3"]


def test_enough_is_being_stopped_already() -> None:
    """Room that is coming is counted: nobody else is stopped while the first victim saves its checkpoint."""
    bench = lab(2, a=1, b=1)
    submit(bench, "a", "a0 a1", (gpu(500.0),))
    start_all(bench, 0.0)
    submit(bench, "b", "b0", (gpu(100.0),), 10.0)
    for at in (11.0, 12.0, 13.0):
        bench.send(m.Tick(), at)
        submit(bench, "b", f"b{at:.0f}", (gpu(100.0),), at)
    assert len(stops(bench)) == 1


def test_age_takes_from_its_own_queue_what_nothing_waits_for() -> None:
    """Past its `max_wait` a task may stop one of its own queue and priority; another queue's, and one that others wait
    for, it may not."""
    bench = lab(2, a=1, b=1)
    submit(bench, "b", "other", (gpu(900.0),))
    bench.send(m.WorkloadSubmitted("dag", queue="a"))
    bench.submit(graph_of({"parent": (), "child": ("parent",)}, default=(gpu(900.0),)), "dag")
    start_all(bench, 0.0)
    submit(bench, "a", "waits", (gpu(10.0),), 5.0, TaskOptions(max_wait_s=20.0))
    bench.send(m.Tick(), 30.0)
    assert stops(bench) == []
    bench.end("parent", 31.0)
    assert bench.status("waits") == "granted"
    bench.end("waits", 32.0)
    start_all(bench, 32.0)
    submit(bench, "a", "again", (gpu(10.0),), 40.0, TaskOptions(max_wait_s=20.0))
    bench.send(m.Tick(), 59.0)
    assert stops(bench) == []
    bench.send(m.Tick(), 60.0)
    assert stops(bench) == [("child", "preempted for again: age")]
