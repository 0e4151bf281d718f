"""The order between submissions: work that is left, whose next task others wait for, arrival, and waiting too long."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.order.submission_order import LEAST_WAIT_S, remaining_work
from egs_core.engine.specs import Limits, QueueSpec
from egs_core.engine.state.histories import Lengths, Submission, amount_of
from egs_core.graph.columns import CPU, Graph, Shape, TaskOptions
from egs_core.graph.load import LoadedWorkload
from egs_core.runlog import records as r
from egs_core.sim import SimConfig, simulate
from egs_core.testing.engine_bench import EngineBench, cpu, gpu, graph_of

FIXTURES = Path(__file__).parents[2] / "fixtures" / "snapshot"


def chain(name: str, seconds: float, count: int = 2) -> Graph:
    """Tasks of so many seconds each, one after the other."""
    return graph_of({f"{name}{i}": (f"{name}{i - 1}",) if i else () for i in range(count)}, default=(cpu(seconds),))


def waiting(*workloads: tuple[str, Graph], policy: str = "egs", queue: QueueSpec | None = None) -> EngineBench:
    """One slot, taken by "busy"; the workloads have come in this order."""
    bench = EngineBench(1, config=EngineConfig(policy=policy))
    if queue is not None:
        bench.send(m.QueuesChanged((queue,)))
    bench.submit(graph_of({"busy": ()}), "other")
    for name, graph in workloads:
        bench.send(m.WorkloadSubmitted(name, queue=queue.name if queue else ""))
        bench.submit(graph, name)
    return bench


def all_in_order(bench: EngineBench) -> list[str]:
    """Names in the order of their starts, each ending before the next."""
    while bench.state.leases:
        bench.end(bench.granted()[-1], bench.now + 1)
    return bench.granted()[1:]


def test_the_submission_with_less_work_left_goes_first() -> None:
    """60 s of work go before 600 s that came earlier, and the grant says why."""
    bench = waiting(("large", chain("l", 300.0)), ("small", chain("s", 30.0)))
    assert all_in_order(bench) == ["s0", "s1", "l0", "l1"]
    assert bench.grant_of("s0").reason == "remaining_work"


def test_what_has_been_done_counts() -> None:
    """Of 400 s of which 360 s are done, 40 s are left: it goes before 100 s."""
    bench = EngineBench(1)
    bench.submit(chain("a", 40.0, 10), "a")
    for i in range(8):
        bench.end(f"a{i}")
    bench.submit(chain("b", 50.0), "b")
    bench.end("a8")
    assert bench.granted()[-1] == "a9"


@pytest.mark.parametrize("is_first", [True, False])
def test_in_a_class_the_one_whose_next_task_others_wait_for_goes_first(is_first: bool) -> None:
    """50 s and 55 s are one class: the chain's head goes before the leaf, whichever came first."""
    pair = ("leaf", graph_of({"leaf": ()}, default=(cpu(55.0),))), ("chain", chain("c", 25.0))
    bench = waiting(*(pair if is_first else pair[::-1]))
    bench.end("busy")
    assert bench.granted()[-1] == "c0"
    assert bench.grant_of("c0").reason == "dependents"


def test_in_a_class_the_first_head_of_a_submission_counts() -> None:
    """The longest path of "mixed" is a leaf's: the chain goes first, although "mixed" has a parent too."""
    mixed = graph_of({"leaf": (), "p": (), "q": ("p",)}, {"leaf": (cpu(40.0),)}, default=(cpu(4.0),))
    bench = waiting(("mixed", mixed), ("chain", chain("c", 25.0)))
    assert all_in_order(bench)[0] == "c0"


def test_between_equals_the_submission_that_came_first_goes_first() -> None:
    bench = waiting(("a", chain("a", 25.0)), ("b", chain("b", 20.0)))
    assert all_in_order(bench)[:2] == ["a0", "a1"]
    assert bench.grant_of("a0").reason == "workload_order"


@pytest.mark.parametrize(("order", "first"), [("arrival", "l0"), ("dependents", "l0"), ("remaining_work", "s0")])
def test_a_queue_chooses_its_order(order: str, first: str) -> None:
    """With `arrival` the large one goes first since it came first, with `dependents` for its longer path."""
    bench = waiting(("large", chain("l", 300.0)), ("small", chain("s", 30.0)), queue=QueueSpec("q", order=order))
    bench.end("busy")
    assert bench.granted()[-1] == first


def test_device_time_counts_where_devices_are_needed() -> None:
    """An hour on a CPU and a minute on a GPU is less than ten minutes on a GPU."""
    bench = EngineBench(8, 1)
    bench.submit(graph_of({"busy": ()}, default=(gpu(1.0),)), "other")
    bench.submit(graph_of({"long": ()}, default=(gpu(600.0),)), "a")
    bench.submit(graph_of({"after": (), "cpu": ("after",)}, {"cpu": (cpu(3600.0),)}, default=(gpu(60.0),)), "b")
    bench.end("busy")
    assert bench.granted()[-1] == "after"
    assert bench.grant_of("after").reason == "remaining_work"


def test_unknown_lengths_count_as_the_queues_median() -> None:
    """Ten tasks of which nothing is known count ten times what tasks took so far, and more once those took longer."""
    bench = EngineBench(4)
    bench.submit(graph_of({f"u{i}": () for i in range(10)}, default=(cpu(None),)), "unknown")
    unknown = bench.state.submissions[0]
    assert remaining_work(bench.state, unknown) == 10 * 1000 * 1000
    for name in bench.granted():
        bench.start(name)
    bench.end("u0", 100.0)
    assert remaining_work(bench.state, unknown) == pytest.approx(9 * 100e6, rel=0.2)
    for name in ("u1", "u2", "u3"):
        bench.end(name, 1000.0)
    assert remaining_work(bench.state, unknown) == pytest.approx(6 * 1000e6, rel=0.2)


def test_an_estimate_makes_a_length_known() -> None:
    bench = EngineBench(1)
    bench.submit(graph_of({"u": ()}, default=(cpu(None),)), "unknown")
    bench.send(m.Estimates(((0, 80.0, 80.0),)))
    assert remaining_work(bench.state, bench.state.submissions[0]) == 80 * 1000 * 1000


def test_what_has_grown_may_grow_again() -> None:
    """A driver whose last run took 400 s counts with what is left of that, not with the one task that it has shown."""
    bench = EngineBench(1)
    for run in range(2):
        bench.send(m.WorkloadSubmitted(f"run{run}", "script"))
        for i in range(4 if not run else 1):
            bench.submit(graph_of({f"r{run}.{i}": ()}, default=(cpu(100.0),)), f"run{run}")
            if not run:
                bench.start(f"r0.{i}")
                bench.end(f"r0.{i}", bench.now + 100.0)
    assert remaining_work(bench.state, bench.state.submissions[1]) == 400 * 1000 * 1000


class Counted(list[Submission]):
    """Submissions, and how often one of them was looked at."""

    looks = 0

    def __getitem__(self, number: Any) -> Any:
        self.looks += 1
        return super().__getitem__(number)


@pytest.mark.parametrize("limits", [None, Limits(max_runtime_s=1e9)])
def test_what_is_over_is_not_counted_again(limits: Limits | None) -> None:
    """However many workloads have come and gone, news of the queue's lengths, or a limit, costs a look at those that
    are open: one workload after the other, of unknown and ever other lengths, some of which grow."""
    engine, now, count = Engine(EngineConfig()), 0.0, 200
    submissions = engine.state.submissions = Counted()
    engine.handle(m.NodeAdded("n0", 1.0), now)
    unknown = graph_of({"a": ()}, default=(cpu(None),))
    for number in range(count):
        engine.handle(m.WorkloadSubmitted(f"w{number}", f"n{number % 3}", limits=limits), now)
        engine.handle(m.TasksAdded(f"w{number}", unknown), now)
        for _ in range(2 if number % 4 == 0 else 1):
            phase = len(engine.state.status) - 1
            engine.handle(m.PhaseStarted(phase, 1), now)
            now += 2.0 ** (number % 11)
            if number % 4 == 0 and len(engine.state.workloads[number].numbers) == 1:
                engine.handle(m.TasksAdded(f"w{number}", graph_of({"b": ("a",)}, known=("a",))), now)
            engine.handle(m.PhaseEnded(phase, 1), now)
    assert not any(workload.open_tasks for workload in engine.state.workloads)
    assert submissions.looks < 30 * count, submissions.looks


def _cut(graph: Graph, parts: int, seed: int) -> list[Graph]:
    """The graph's components, dealt out to so many graphs."""
    rng = random.Random(seed)
    part_of: dict[int, int] = {}
    local: dict[int, int] = {}
    out = [Graph() for _ in range(parts)]
    for task, parents in enumerate(graph.parents):
        part_of[task] = part_of[parents[0]] if parents else rng.randrange(parts)
        own = out[part_of[task]]
        local[task] = own.n_tasks
        phase = (CPU, Shape(), graph.phase_duration_s[task])
        own.add_task(graph.ids[task], tuple(local[p] for p in parents), (phase,))
    return out


def _forest(seed: int, tasks: int, name: str = "t") -> Graph:
    rng, graph = random.Random(seed), Graph()
    for task in range(tasks):
        parents = (rng.randrange(task),) if task and rng.random() < 0.6 else ()
        graph.add_task(f"{name}{task}", parents, ((CPU, Shape(), rng.uniform(1.0, 90.0)),))
    return graph


def _starts(workloads: list[tuple[str, str, Graph]]) -> list[str]:
    """On three slots, every task in the order of its start; (id, submission, graph)."""
    bench = EngineBench(3, config=EngineConfig(search_placements=0))
    bench.submit(graph_of({"b0": (), "b1": (), "b2": ()}, default=(cpu(1.0),)), "busy")
    for name, submission, graph in workloads:
        bench.send(m.WorkloadSubmitted(name, submission=submission))
        bench.submit(graph, name)
    ends: list[tuple[float, str]] = []
    known = 0
    while True:
        for name in bench.granted()[known:]:
            seconds = bench.state.estimate_s[bench.state.cursor[bench.task(name)]]
            ends.append((bench.now + seconds, name))
        known = len(bench.granted())
        if not ends:
            return bench.granted()
        ends.sort()
        at, name = ends.pop(0)
        bench.end(name, at)


@settings(derandomize=True, database=None, deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(2, 4))
def test_cutting_a_submission_into_parts_changes_nothing(seed: int, parts: int) -> None:
    """The parts with one id start what the whole would have started, in the same order, beside another workload."""
    whole, other = _forest(seed, 14, "w"), _forest(seed + 1, 6, "o")
    pieces = [(f"p{i}", "s", g) for i, g in enumerate(_cut(whole, parts, seed)) if g.n_tasks]
    cut = _starts([*pieces, ("other", "", other)])
    assert len(cut) == 3 + 14 + 6
    assert cut == _starts([("whole", "s", whole), ("other", "", other)])


@settings(derandomize=True, database=None, deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 6))
def test_one_workload_alone_is_ordered_as_by_rule_2(seed: int, tasks: int, slots: int) -> None:
    """Whatever the graph: the same starts at the same time, for the same reasons, as under `dependents`."""
    workload = LoadedWorkload("w", "w", "", "", 0.0, _forest(seed, tasks))
    found = [simulate([workload], SimConfig(slots=slots, policy=policy)).records for policy in ("egs", "dependents")]
    assert len(found[0]) > 2 * tasks
    assert found[0][1:] == found[1][1:]  # all but the header, which names the policy


def test_a_restored_engine_learns_from_a_submission_of_which_nothing_is_queued() -> None:
    """The second workload only runs when the engine is restored; how long it took says what the first has left."""
    bench = EngineBench(4)
    bench.submit(graph_of({"a": (), "big": ("a",)}, {"a": (cpu(None),), "big": (cpu(None, cpus=4),)}), "first")
    bench.submit(graph_of({"b": ()}, {"b": (cpu(None),)}), "second")
    bench.start("a", 0.0)
    bench.start("b", 9_999.0)
    bench.end("a", 10_000.0)
    twin = Engine.restore(bench.engine.snapshot(), bench.engine.config)
    ended = m.PhaseEnded(bench.state.cursor[bench.task("b")], 1)
    decisions = twin.handle(ended, 10_001.0)
    twin.validate_state()
    assert bench.send(ended, 10_001.0) == decisions


@settings(derandomize=True, database=None, deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 30))
def test_a_restored_engine_orders_the_same(seed: int, at: int) -> None:
    """Half of the lengths are unknown: whenever it is restored, what starts next and why is the same."""
    rng = random.Random(seed)
    bench = EngineBench(2)
    for number in range(5):
        graph = _forest(rng.randrange(10**6), 8)
        seconds = [s if rng.random() < 0.5 else None for s in graph.phase_duration_s]
        bench.submit(msgspec.structs.replace(graph, phase_duration_s=seconds), f"w{number}")
    twin: Engine | None = None
    for step in range(40):
        if step == at:
            twin = Engine.restore(bench.engine.snapshot(), bench.engine.config)
        if not bench.state.leases:
            break
        phase = sorted(bench.state.leases)[rng.randrange(len(bench.state.leases))]
        now = bench.now + rng.uniform(1.0, 400.0)
        for event in (m.PhaseStarted(phase, 1), m.PhaseEnded(phase, 1)):
            decisions = bench.send(event, now)
            if twin is not None:
                assert twin.handle(event, now) == decisions
                twin.validate_state()


def _stream(count: int) -> list[LoadedWorkload]:
    """Small workloads that keep coming, a little more than one slot can do."""
    out = []
    for number in range(count):
        graph = Graph()
        graph.add_task("t", (), ((CPU, Shape(), 10.0),))
        out.append(LoadedWorkload(f"s{number}", "s", "", "", 9.5 * number, graph))
    return out


def _large() -> LoadedWorkload:
    graph = Graph()
    for task in range(3):
        graph.add_task(f"l{task}", (), ((CPU, Shape(), 200.0),))
    return LoadedWorkload("large", "large", "", "", 5.0, graph)


def test_nobody_starves_behind_smaller_workloads() -> None:
    """More small work than can be done keeps coming for an hour: each of the large one's tasks starts once it has
    waited for four times what was there when it came, 610 s of work. Without that default they would come last."""
    starts = _starts_of_large(SimConfig(slots=1))
    assert all(4 * 600 < at <= 4 * 610 + 200 * 3 + 20 for at in starts)
    assert min(_starts_of_large(SimConfig(slots=1, default_max_wait_s=1e6))) > 3700


def _starts_of_large(config: SimConfig) -> list[float]:
    found = simulate([*_stream(400), _large()], config)
    return [x.t for x in found.records if isinstance(x, r.Started) and x.task.startswith("l")]


def test_who_waits_too_long_keeps_what_it_lacks() -> None:
    """A task that needs all four CPUs behind small ones of other workloads: late, it reserves them."""
    bench = EngineBench(4)
    bench.submit(graph_of({f"s{i}": () for i in range(4)}, default=(cpu(100.0),)), "small")
    bench.submit(graph_of({"big": ()}, {"big": (cpu(100.0, cpus=4.0),)}), "big")
    limit_s = 4 * (4 * 100 + 4 * 100) / 4
    assert wait_limit(bench, 1) == pytest.approx(limit_s)
    bench.submit(graph_of({f"t{i}": () for i in range(8)}, default=(cpu(200.0),)), "more")
    for i in range(4):
        bench.end(f"s{i}", limit_s - 10)
        bench.start(f"t{i}")
    assert bench.granted()[-4:] == ["t0", "t1", "t2", "t3"]
    bench.end("t0", limit_s + 1)
    assert bench.reason("t4").kind == "reservation"
    for name in ("t1", "t2", "t3"):
        assert bench.granted()[-1] == "t3"
        bench.end(name, limit_s + 100)
    assert bench.granted()[-1] == "big"


@pytest.mark.parametrize("preempts", [False, True])
def test_who_waits_alone_is_not_passed_for_ever(preempts: bool) -> None:
    """Both GPUs are wanted. Small ones come one by one, each before the last one has ended, so that none of them ever
    waits behind it: late, it reserves what it lacks as soon as the next one comes."""
    bench = EngineBench(4, 2, config=EngineConfig(preempt=preempts))
    bench.submit(graph_of({"s0": ()}, default=(gpu(20.0),)), "w0")
    bench.start("s0")
    bench.submit(graph_of({"big": ()}, {"big": (gpu(20.0, 2.0),)}), "big")
    at, small = 0.0, 0
    while bench.status(f"s{small}") == "running" and at < 1000:
        at, small = at + 10, small + 1
        bench.submit(graph_of({f"s{small}": ()}, default=(gpu(20.0),)), f"w{small}", at)
        if bench.status(f"s{small}") == "granted":
            assert at <= wait_limit(bench, 1)
            bench.start(f"s{small}")
            bench.end(f"s{small - 1}", at + 5)
    assert bench.reason(f"s{small}").kind == "reservation"
    bench.end(f"s{small - 1}", at + 6)
    assert bench.status("big") == "granted"


def test_who_waits_alone_and_late_says_that_nobody_delays_it() -> None:
    """Before that, what needs fewer may start before it."""
    bench = EngineBench(4, 2)
    bench.submit(graph_of({"s": ()}, default=(gpu(200.0),)), "w")
    bench.start("s")
    bench.submit(graph_of({"big": ()}, {"big": (gpu(20.0, 2.0),)}), "big")
    assert "; what needs fewer GPUs may start before it" in bench.reason("big").text
    bench.send(m.Tick(), wait_limit(bench, 1) + 1.0)
    assert bench.reason("big").text.endswith("; what comes after it starts only where that should not delay it")


def wait_limit(bench: EngineBench, submission: int) -> float:
    order = bench.engine._queue.lines.order
    assert order is not None
    return order.wait_limit(submission)


def test_the_least_wait_is_a_minute() -> None:
    bench = EngineBench(100)
    bench.submit(graph_of({"t": ()}), "w")
    assert wait_limit(bench, 0) == LEAST_WAIT_S


def test_who_waits_too_long_is_seen_where_tasks_have_limits() -> None:
    """How long is too long follows the mean length of what has ended, with limits too: a long task, then short ones."""
    bench = EngineBench(1)
    names = [f"a{i}" for i in range(40)]
    bench.submit(
        graph_of(dict.fromkeys(names, ()), {}, dict.fromkeys(names, TaskOptions(max_runtime_s=1e6, priority=1)))
    )
    bench.submit(graph_of({"b": ()}, default=(cpu(None),)), "b")
    order = bench.engine._queue.lines.order
    assert order is not None
    for number, name in enumerate(names[:30]):
        bench.start(name)
        bench.end(name, 200.0 + number)  # the bench asks after each event whether all are where they belong
        assert (1 in order.late) == (bench.now > wait_limit(bench, 1))
    assert 1 in order.late


def test_priority_and_max_wait_go_before_the_work_that_is_left() -> None:
    options = {"p": TaskOptions(priority=1)}
    bench = waiting(("small", chain("s", 10.0)), ("urgent", graph_of({"p": ()}, {"p": (cpu(900.0),)}, options)))
    bench.end("busy")
    assert bench.granted()[-1] == "p"
    options = {"old": TaskOptions(max_wait_s=5.0)}
    bench = waiting(("small", chain("s", 10.0)), ("old", graph_of({"old": ()}, {"old": (cpu(900.0),)}, options)))
    bench.end("busy", 6.0)
    assert bench.grant_of("old").reason == "overdue"


def test_who_waits_is_told_why_another_submission_goes_first() -> None:
    """Each term of the place in words, with its numbers."""
    said = {
        "large": "; workload 'large' has about 2.0 slot hours left, that of the first 50 slot seconds: "
        "less work goes first",
        "leaf": "; tasks wait for what is next in workload 'chain', nothing waits for what is next in workload 'leaf'",
        "second": "; workload 'chain' came first, and has about as much work left",
    }
    others = {
        "large": ("l0", chain("l", 3600.0)),
        "leaf": ("leaf", graph_of({"leaf": ()}, default=(cpu(55.0),))),
        "second": ("s0", chain("s", 20.0)),
    }
    for workload, (task, graph) in others.items():
        bench = waiting(("chain", chain("c", 25.0)), (workload, graph))
        assert bench.reason(task).text.endswith("1 ahead of it, first c0" + said[workload])


def test_who_waits_is_told_who_has_waited_too_long() -> None:
    bench = waiting(("large", chain("l", 100.0)), ("small", chain("s", 10.0)))
    bench.send(m.Tick(), 850.0)
    expected = "; workload 'large' has waited for others longer than the 804 s that it may"
    assert bench.reason("s0").text.endswith("1 ahead of it, first l0" + expected)
    bench.end("busy")
    assert bench.grant_of("l0").reason == "workload_wait"


def test_a_rejected_grant_that_is_tried_again_has_waited_since_it_was_ready() -> None:
    """Its wait is over when it is tried again: it goes before what came later, though that is less work."""
    bench = EngineBench(1)
    bench.submit(graph_of({"large": ()}, default=(cpu(300.0),)), "large")
    bench.submit(graph_of({"next": ()}), "next")
    late = 5 * bench.state.estimate_s[0]
    bench.send(m.DecisionRejected(bench.grant_of("large").id, "no room"), late)
    assert bench.granted() == ["large", "next"]
    bench.submit(graph_of({"small": ()}), "small")
    bench.send(m.Tick(), late + 10.0)  # fails where it is queued only after the step has looked at who waits too long
    assert bench.reason("small").text.count("1 ahead of it, first large")
    bench.end("next")
    assert bench.grant_of("large").reason == "workload_wait"


def test_a_snapshot_of_before_submissions_is_readable() -> None:
    """Each of its workloads is a submission, and what they have left is counted: the GPU phase of 60 s that runs."""
    engine = Engine.restore((FIXTURES / "before-submissions.json").read_bytes())
    engine.validate_state()
    assert [s.left_device for s in engine.state.submissions] == [60 * 1000 * 1000, 0]
    assert [s.left_slot for s in engine.state.submissions] == [61 * 1000 * 1000, 1000 * 1000 * 1000]
    ended = engine.handle(m.PhaseEnded(engine.state.cursor[engine.task_number("first", 1)], 1), 100.0)
    engine.validate_state()
    assert engine.state.histories[""].gpu_phases.count == 1
    assert ended == []


@settings(derandomize=True, database=None, deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=40))
def test_the_median_of_a_histogram_is_within_a_step(amounts: list[int]) -> None:
    """As many were added, and taken back, at random: the step of the lower median."""
    lengths = Lengths()
    for amount in amounts:
        lengths.add(amount)
    lengths.add(7)
    lengths.remove(7)
    middle = sorted(amounts)[(len(amounts) - 1) // 2]
    assert lengths.middle == (middle * middle).bit_length()
    assert 0.8 * middle <= amount_of(lengths.middle) <= 1.25 * middle or middle < 10
