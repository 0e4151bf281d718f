"""Promises of queues that are at risk: who goes forward for one, from when until when, and what they never override."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egs_core.engine import Engine
from egs_core.engine import messages as m
from egs_core.engine.specs import AtRisk, QueueSpec
from egs_core.graph.columns import TaskOptions
from egs_core.testing.engine_bench import EngineBench, PhaseSpec, canonical, cpu, gpu, graph_of

Q = QueueSpec("q")
WAITS = AtRisk((100.0,), share=0.95, why="wait_p95 (95% within 100 s)")


def add(bench: EngineBench, name: str, phase: PhaseSpec, at: float, queue: str = "q", **options: float) -> None:
    """A workload of one task, both of this name."""
    bench.send(m.WorkloadSubmitted(name, queue=queue), at)
    told = {name: TaskOptions(**options)} if options else None  # type: ignore[arg-type]  # floats and whole numbers
    bench.submit(graph_of({name: ()}, default=(phase,), options=told), name)


def two_waiting(*queues: QueueSpec, risk: AtRisk | None = WAITS) -> EngineBench:
    """One slot, taken by "busy"; "large" (300 s) waits from 0 on, "small" (30 s) from 60 on."""
    bench = EngineBench(1)
    bench.send(m.QueuesChanged(queues or (Q,)))
    add(bench, "busy", cpu(30.0), 0.0)
    if risk is not None:
        bench.send(m.PromisesAtRisk("q", risk))
    add(bench, "large", cpu(300.0), 0.0)
    add(bench, "small", cpu(30.0), 60.0)
    return bench


def test_what_would_break_a_promise_next_goes_first_and_says_so() -> None:
    """It has waited more than half of what is promised: it goes before what has less work, both are told why."""
    bench = two_waiting()
    told = bench.reason("large").text
    promise = "its promise wait_p95 (95% within 100 s) is at risk since 0.000 s"
    assert told.endswith(f"; it goes first in its queue: {promise}")
    assert "that one would be the next to break a promise of its queue" in bench.reason("small").text
    bench.end("busy", 70.0)
    assert (bench.grant_of("large").reason, bench.status("small")) == ("promise", "ready")


def test_a_queue_that_keeps_its_promises_is_ordered_as_before() -> None:
    """Nothing was told, or it is at risk no more: less work goes first."""
    bench = two_waiting(risk=None)
    assert "promise" not in bench.reason("large").text
    again = two_waiting()
    again.send(m.PromisesAtRisk("q"))
    for one in (bench, again):
        one.end("busy", 70.0)
        assert (one.granted()[-1], one.grant_of("small").reason) == ("small", "remaining_work")


def test_it_goes_forward_at_half_of_what_is_promised_and_back_when_that_is_broken() -> None:
    """The engine wakes at both moments; what is broken waits like everybody."""
    bench = two_waiting()
    assert bench.engine.next_wakeup() == 100.0
    bench.send(m.Tick(), 100.0)
    assert bench.engine.next_wakeup() == 110.0  # half of the small one's time
    bench.end("busy", 101.0)
    assert (bench.granted()[-1], bench.grant_of("small").reason) == ("small", "remaining_work")
    early = EngineBench(1)
    early.send(m.QueuesChanged((Q,)))
    add(early, "busy", cpu(30.0), 0.0)
    early.send(m.PromisesAtRisk("q", WAITS))
    add(early, "large", cpu(300.0), 0.0)
    assert "it goes first in its queue from 50.000 s on: its promise" in early.reason("large").text
    assert early.engine.next_wakeup() == 50.0


def test_of_those_that_go_first_less_work_goes_first() -> None:
    """Where not all can be in time, that keeps more promises than the earliest moment does."""
    bench = two_waiting()
    add(bench, "medium", cpu(100.0), 60.0)
    bench.send(m.Tick(), 115.0)
    bench.end("busy", 116.0)
    assert bench.granted()[-1] == "small"
    both = two_waiting(risk=AtRisk((200.0,)))
    both.send(m.Tick(), 170.0)
    both.end("busy", 171.0)
    assert (both.granted()[-1], both.grant_of("small").reason) == ("small", "remaining_work")


def test_priority_age_and_deadlines_go_before_promises() -> None:
    """What users set by hand, who has waited too long, and deadlines whose slack is used up."""
    bench = two_waiting()
    add(bench, "due", cpu(20.0), 60.0, deadline_s=40.0)
    add(bench, "old", cpu(400.0), 60.0, max_wait_s=5.0)
    add(bench, "top", cpu(500.0), 60.0, priority=1)
    for name, at in (("busy", 70.0), ("top", 71.0), ("old", 72.0), ("due", 73.0), ("large", 74.0)):
        bench.end(name, at)
    assert bench.granted() == ["busy", "top", "old", "due", "large", "small"]


def test_a_promise_takes_nothing_from_another_queue() -> None:
    """A queue that uses less of its share goes first, whatever the other has promised; so does what is within its
    nominal quota before what borrows."""
    bench = two_waiting(Q, QueueSpec("r"))
    add(bench, "others", cpu(900.0), 60.0, queue="r")
    bench.end("busy", 70.0)
    assert (bench.granted()[-1], bench.grant_of("others").reason) == ("others", "fair_share")
    quota = two_waiting(QueueSpec("q", "c", (0, 0, 0), weight=100.0), QueueSpec("r", "c", (1000, 0, 0), weight=0.1))
    add(quota, "others", cpu(900.0), 60.0, queue="r")
    quota.end("busy", 70.0)
    assert (quota.granted()[-1], quota.grant_of("others").reason) == ("others", "nominal_quota")


def test_a_promise_of_ends_counts_from_the_submission() -> None:
    """700 s are promised, and 300 to do: from 100 s on (its length before it must start) it goes first, until 400 s."""
    bench = two_waiting(risk=AtRisk((), (700.0,)))
    assert bench.engine.next_wakeup() == 100.0
    bench.send(m.Tick(), 100.0)
    assert bench.engine.next_wakeup() == 400.0
    bench.end("busy", 120.0)
    assert bench.grant_of("large").reason == "promise"


def test_those_with_the_most_work_may_break_it() -> None:
    """Of 20 that have ended one had 300 s: of 95 in 100 that is too much, of 99 it is not."""
    for share, first in ((0.95, "small"), (0.99, "large")):
        bench = EngineBench(1)
        bench.send(m.QueuesChanged((Q,)))
        for number in range(20):
            add(bench, f"past{number}", cpu(300.0 if number == 7 else 30.0), bench.now)
            bench.start(f"past{number}")
            bench.end(f"past{number}", bench.now + (300.0 if number == 7 else 30.0))
        begun = bench.now
        add(bench, "busy", cpu(30.0), begun)
        bench.send(m.PromisesAtRisk("q", AtRisk((100.0,), share=share)))
        add(bench, "large", cpu(300.0), begun)
        add(bench, "small", cpu(30.0), begun + 60.0)
        bench.end("busy", begun + 70.0)
        assert bench.granted()[-1] == first, share


@pytest.mark.parametrize("max_wait_s", [400.0, None])
def test_nobody_starves(max_wait_s: float | None) -> None:
    """Small tasks come faster than they can be done, and each goes first while its promise can be kept: the large one,
    whose promise is broken, starts when its `max_wait` has passed, or where there is none by what bounds all waiting
    for others."""
    bench = EngineBench(1)
    bench.send(m.QueuesChanged((QueueSpec("q", max_wait_s=max_wait_s),)))
    add(bench, "s0", cpu(30.0), 0.0)
    bench.send(m.PromisesAtRisk("q", AtRisk((100.0,))))
    add(bench, "large", cpu(300.0), 0.0)
    running, number = "s0", 0
    while bench.status("large") == "ready":
        assert bench.now < 3000.0, "it starves"
        for _ in range(2):
            number += 1
            add(bench, f"s{number}", cpu(30.0), bench.now)
        bench.end(running, bench.now + 30.0)
        running = bench.granted()[-1]
    assert bench.now > 100.0


def test_a_set_of_gpus_keeps_nothing_for_itself() -> None:
    """It goes first, and does not make free GPUs wait for others: that costs more promises than it keeps."""
    bench = EngineBench(8, 2)
    bench.send(m.QueuesChanged((Q,)))
    for name in ("s0", "s1"):
        add(bench, name, gpu(40.0), 0.0)
    bench.send(m.PromisesAtRisk("q", WAITS))
    add(bench, "pair", gpu(40.0, gpus=2), 0.0)
    add(bench, "s2", gpu(60.0), 20.0)
    bench.send(m.Tick(), 60.0)
    bench.end("s0", 61.0)
    assert bench.granted()[-1] == "s2"
    assert not bench.state.reservations


def test_it_stays_when_queues_are_configured_anew_and_needs_a_known_queue() -> None:
    """What is told of a queue that there is not, or that nothing is at risk of one that keeps its promises, is not even
    a transition."""
    bench = two_waiting()
    bench.send(m.QueuesChanged((Q, QueueSpec("another"))))
    assert bench.state.queues[0].at_risk == WAITS
    for event in (m.PromisesAtRisk("no such queue", WAITS), m.PromisesAtRisk("another")):
        bench.send(event)
        assert not bench.log[-1][2]


def test_told_again_it_is_at_risk_since_the_first_time() -> None:
    """With the promise as it is told now."""
    bench = two_waiting()
    bench.send(m.PromisesAtRisk("q", AtRisk((100.0,), why="wait_p99")), 65.0)
    assert "its promise wait_p99 is at risk since 0.000 s" in bench.reason("large").text


STEPS = st.lists(
    st.tuples(st.sampled_from(("submit", "submit", "end", "wait", "wait_p95", "jct_p95", "safe")), st.integers(1, 400)),
    max_size=40,
)
RISKS = {"wait_p95": AtRisk((60.0,), share=0.95), "jct_p95": AtRisk((20.0,), (200.0,), 0.95), "safe": AtRisk()}


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_a_restored_engine_and_a_folded_journal_agree_at_any_moment(steps: list[tuple[str, int]]) -> None:
    """Workloads and gangs come, wait and end while promises are at risk and safe again: the journal folds to the state
    after every event, every key is where its moment puts it (the bench holds both), and an engine that is restored has
    the same order, the same next moment and takes the same next decisions."""
    bench = EngineBench(2)
    bench.send(m.QueuesChanged((Q,)))
    for number, (what, seconds) in enumerate(steps):
        at, event = bench.now + seconds / 10, m.Tick()
        if what == "submit":
            bench.send(m.WorkloadSubmitted(str(number), queue="q" if seconds % 5 else ""), at)
            gang = "together" if seconds % 3 == 0 else ""
            tasks = {f"{number}a": (), f"{number}b": () if gang else (f"{number}a",)}
            options = {name: TaskOptions(gang=gang) for name in tasks}
            bench.submit(graph_of(tasks, default=(cpu(float(seconds)),), options=options), str(number))
        elif what == "end":
            running = sorted(bench.state.leases)
            if running:
                bench.end(bench.state.task_ids[bench.state.task_of[running[seconds % len(running)]]], at)
        elif what == "wait":
            bench.send(m.Tick(), at)
        else:
            bench.send(m.PromisesAtRisk("q", RISKS[what]), at)
        twin = Engine.restore(bench.engine.snapshot(), bench.engine.config)
        twin.validate_state()
        assert twin.ready_order() == bench.engine.ready_order()
        assert twin.next_wakeup() == bench.engine.next_wakeup()
        later = bench.now + 30.0
        assert twin.handle(event, later) == Engine.restore(bench.engine.snapshot(), bench.engine.config).handle(
            event, later
        )
        assert canonical(Engine.restore(bench.engine.snapshot(), bench.engine.config).state) == canonical(bench.state)


@pytest.mark.parametrize(("order", "first"), [("arrival", "large"), ("dependents", "small")])
def test_a_queue_that_states_an_order_has_that_order(order: str, first: str) -> None:
    """There nothing but `max_wait` bounds how long one waits for others."""
    bench = two_waiting(QueueSpec("q", order=order))
    assert "promise" not in bench.reason("large").text
    bench.end("busy", 70.0)
    assert bench.granted()[-1] == first
    assert bench.grant_of(first).reason != "promise"
