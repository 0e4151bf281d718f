"""A queue that has its order learned: it changes by an event alone, at once, and whoever asks is told why."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egs_core.engine import Engine
from egs_core.engine import messages as m
from egs_core.engine.specs import LEARNED, ORDERS, UNLIMITED, QueueSpec
from egs_core.testing.engine_bench import EngineBench, canonical, cpu, graph_of

Q = QueueSpec("q", order=LEARNED)


def two_waiting(spec: QueueSpec = Q, slots: int = 1) -> EngineBench:
    """One slot, taken by "busy"; "large" has come before "small"."""
    bench = EngineBench(slots)
    bench.send(m.QueuesChanged((spec,)))
    bench.submit(graph_of({"busy": ()}), "other")
    for name, seconds in (("large", 300.0), ("small", 30.0)):
        bench.send(m.WorkloadSubmitted(name, queue="q"))
        bench.submit(graph_of({name: ()}, default=(cpu(seconds),)), name)
    return bench


def test_until_something_is_chosen_less_work_goes_first() -> None:
    bench = two_waiting()
    bench.end("busy")
    assert bench.granted()[-1] == "small"


def test_what_is_chosen_holds_at_once_and_is_said() -> None:
    """By arrival the large one goes first; whoever waits is told the order, since when, and why."""
    bench = two_waiting()
    bench.send(m.OrderChosen("q", "arrival", "12 % less time"), 5.0)
    bench.end("busy", 7.0)
    assert bench.granted()[-1] == "large"
    text = bench.reason("small").text
    assert "queue 'q' learns its order, which is arrival since 5.000 s: 12 % less time" in text


def test_who_waits_for_quota_is_told_the_order_too() -> None:
    """As who waits for room; before anything is chosen it is the default."""
    bench = two_waiting(QueueSpec("q", nominal=(1000, UNLIMITED, UNLIMITED), order=LEARNED), slots=3)
    text = bench.reason("small").text
    assert text.endswith("and it uses 1 CPU; queue 'q' learns its order, which is remaining_work")


def test_it_stays_when_queues_are_configured_anew_and_goes_when_they_state_an_order() -> None:
    bench = two_waiting()
    bench.send(m.OrderChosen("q", "arrival"))
    bench.send(m.QueuesChanged((Q, QueueSpec("another"))))
    assert bench.state.queues[0].order == "arrival"
    bench.send(m.QueuesChanged((QueueSpec("q"),)))
    assert bench.state.queues[0].order == ORDERS[0]
    bench.send(m.QueuesChanged((Q,)))
    assert bench.state.queues[0].order == ORDERS[0]


@pytest.mark.parametrize("queue", ["q", "no such queue"])
def test_a_queue_that_states_its_order_is_left_alone(queue: str) -> None:
    """Nothing changes: not even a transition is noted."""
    bench = two_waiting(QueueSpec("q", order="remaining_work"))
    bench.send(m.OrderChosen(queue, "arrival"))
    assert not bench.log[-1][2]
    bench.end("busy")
    assert bench.granted()[-1] == "small"


def test_an_order_that_there_is_not_is_refused() -> None:
    bench = two_waiting()
    with pytest.raises(ValueError, match="unknown order 'fastest'; one of remaining_work, dependents, arrival"):
        bench.engine.handle(m.OrderChosen("q", "fastest"), 0.0)


STEPS = st.lists(st.tuples(st.sampled_from(("submit", "end", *ORDERS)), st.integers(1, 500)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_a_restored_engine_and_a_folded_journal_agree_at_any_moment(steps: list[tuple[str, int]]) -> None:
    """Workloads come and end while the order changes: the journal folds to the state after every event (the bench holds
    that), and an engine that is restored has the same order of what waits, and takes the same next decisions."""
    bench = EngineBench(2)
    bench.send(m.QueuesChanged((Q,)))
    for number, (what, seconds) in enumerate(steps):
        at = bench.now + seconds / 10
        if what == "submit":
            bench.send(m.WorkloadSubmitted(str(number), queue="q"), at)
            tasks = {f"{number}a": (), f"{number}b": (f"{number}a",)}
            bench.submit(graph_of(tasks, default=(cpu(float(seconds)),)), str(number))
        elif what == "end":
            running = sorted(bench.state.leases)
            if running:
                bench.end(bench.state.task_ids[bench.state.task_of[running[seconds % len(running)]]], at)
        else:
            bench.send(m.OrderChosen("q", what, "a test"), at)
        twin = Engine.restore(bench.engine.snapshot(), bench.engine.config)
        twin.validate_state()
        assert twin.ready_order() == bench.engine.ready_order()
        assert canonical(twin.state) == canonical(bench.state)
