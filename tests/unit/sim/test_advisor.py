"""The order that a queue learns: what roll-outs say, when an order is chosen, trusted and given up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest

from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.specs import LEARNED, ORDERS, QueueSpec
from egs_core.graph.columns import CPU, Graph, Shape
from egs_core.graph.load import LoadedWorkload
from egs_core.runlog import records as r
from egs_core.sim import Durations, SimConfig
from egs_core.sim.advisor import DEFAULT, Bounds, QueueAdvisor
from egs_core.sim.rollout import Future, Question, roll_out
from egs_core.sim.simulator import Simulation
from egs_core.testing.engine_bench import EngineBench, cpu, graph_of

QUESTION = Question("q", ORDERS, 2, 7)


def waiting(believed: Sequence[float | None]) -> EngineBench:
    """One slot; workloads of one task each, that come a second apart."""
    bench = EngineBench(1)
    bench.send(m.QueuesChanged((QueueSpec("q", order=LEARNED),)))
    for number, seconds in enumerate(believed):
        bench.send(m.WorkloadSubmitted(str(number), queue="q"), float(number))
        bench.submit(graph_of({str(number): ()}, default=(cpu(seconds),)), str(number))
    bench.start("0")
    return bench


def test_a_roll_out_tells_orders_apart_and_changes_nothing() -> None:
    """Long ones have come first: by work that is left a workload takes far less time than by arrival. The engine that
    gave the snapshot is as it was, and the same question has the same answer."""
    bench = waiting([*[400.0] * 4, *[5.0] * 12])
    before = bench.engine.snapshot()
    futures = roll_out(before, bench.engine.config, QUESTION)
    assert bench.engine.snapshot() == before
    for default, arrival in zip(futures[DEFAULT], futures["arrival"], strict=True):
        assert default.mean_s < 0.8 * arrival.mean_s
        assert len(default.spans) == len(arrival.spans) == 16 + 20  # those that are there, and those that come
    assert roll_out(before, bench.engine.config, QUESTION) == futures


def test_lengths_that_nobody_knows_are_those_that_have_been() -> None:
    """Three phases of 100 s have ended: what waits takes about as long, and the engine is told nothing of it."""
    bench = waiting([None] * 6)
    for number in range(3):
        bench.end(str(number), bench.now + 100.0)
        bench.start(str(number + 1))
    future = roll_out(bench.engine.snapshot(), EngineConfig(), QUESTION)["arrival"][0]
    ends = sorted(end for _, end in future.spans)[:3]
    assert all(80 <= second - first <= 120 for first, second in pairwise(ends))


def test_what_runs_has_not_ended_before_now() -> None:
    """It has outlived what was believed of it: the roll-out goes on from now."""
    bench = waiting([10.0, 20.0])
    bench.send(m.Estimates(((0, 10.0, 12.0),)))
    bench.send(m.Tick(), 500.0)
    future = roll_out(bench.engine.snapshot(), EngineConfig(), QUESTION)[DEFAULT][0]
    assert min(end for _, end in future.spans) >= 0.0


def future(mean_s: float, count: int = 40) -> Future:
    """Workloads that are all there and end one after the other, this long on average."""
    return Future(tuple([(0.0, 2 * mean_s * (n + 0.5) / count) for n in range(count)]), 10_000.0)


def futures(**means: float) -> dict[str, tuple[Future, ...]]:
    return {order: (future(mean), future(1.01 * mean), future(0.99 * mean)) for order, mean in means.items()}


def ended(advisor: QueueAdvisor, now: float, seconds: float, count: int) -> float:
    """So many of 40 end in the next seconds, evenly; returns when."""
    for n in range(count):
        advisor.seen(now + seconds * (n + 1) / count, 40 - n, 1)
    return now + seconds


def test_an_order_is_chosen_where_the_roll_outs_agree_that_it_gains() -> None:
    advisor = QueueAdvisor("q", bounds=Bounds(trust_spread=0.01))
    chosen = advisor.review(futures(remaining_work=100.0, dependents=101.0, arrival=80.0), 0.0)
    assert chosen is not None
    assert (chosen.queue, chosen.order) == ("q", "arrival")
    assert "in 3 roll-outs of what waits and comes, workloads took 20% less time than by remaining_work" in chosen.why
    assert advisor.review(futures(remaining_work=100.0, dependents=101.0, arrival=80.0), 1.0) is None  # it stays


def test_a_gain_on_which_roll_outs_disagree_is_none() -> None:
    """One of three says 40 % less, the others somewhat more time: the default stays, and that is said, once."""
    advisor = QueueAdvisor("q", bounds=Bounds(trust_spread=0.01))
    arrival = future(60.0), future(110.0), future(110.0)
    found = {DEFAULT: (future(100.0),) * 3, "arrival": arrival}
    assert advisor.review(found, 0.0) == m.OrderChosen("q", DEFAULT, "no other order is expected to gain 2%")
    assert advisor.review(found, 1.0) is None
    assert advisor.changes == 0


def test_an_order_that_does_worse_than_the_default_was_expected_to_is_given_up_and_left_out() -> None:
    """By the default half of 40 would have ended in 100 s; only 10 have. The default is back with the reason, and that
    order is not asked about for four reviews, for eight after its second failure."""
    advisor = QueueAdvisor("q", bounds=Bounds(trust_spread=0.01, gain=0.02))
    told = futures(remaining_work=100.0, arrival=80.0)
    now = 0.0
    for left_out in (4, 8):
        chosen = advisor.review(told, now)
        assert chosen is not None
        assert chosen.order == "arrival"
        now = ended(advisor, now, 100.0, 10)
        back = advisor.review(told, now)
        assert back is not None
        assert back.order == DEFAULT
        assert "arrival did worse than remaining_work was expected to" in back.why
        for _ in range(left_out - 1):
            assert "arrival" not in advisor.question().orders
            assert advisor.review({DEFAULT: told[DEFAULT]}, now) is None
        advisor.review({DEFAULT: told[DEFAULT]}, now)
        assert "arrival" in advisor.question().orders


def test_an_order_that_keeps_its_promise_stays() -> None:
    advisor = QueueAdvisor("q", bounds=Bounds(trust_spread=0.01))
    told = futures(remaining_work=100.0, arrival=80.0)
    now = 0.0
    assert advisor.review(told, now) is not None
    for _ in range(5):
        now = ended(advisor, now, 100.0, 26)
        assert advisor.review(told, now) is None
    assert (advisor.order, advisor.changes) == ("arrival", 1)


def test_an_order_in_use_stays_while_little_waits_and_goes_when_it_is_expected_to_lose() -> None:
    advisor = QueueAdvisor("q", bounds=Bounds(trust_spread=0.01))
    assert advisor.review(futures(remaining_work=100.0, arrival=80.0), 0.0) is not None
    assert advisor.review(futures(remaining_work=100.0, arrival=99.5), 0.0) is None
    back = advisor.review(futures(remaining_work=100.0, arrival=105.0), 0.0)
    assert back is not None
    assert (back.order, back.why) == (DEFAULT, "no other order is expected to gain 2%")


def test_reviews_are_bounded_by_ends_and_by_time() -> None:
    """Not before 20 workloads have ended and a minute has passed, and not while hardly anything is open."""
    advisor = QueueAdvisor("q")
    advisor.seen(0.0, 10)
    advisor.seen(30.0, 10, 30)
    assert not advisor.is_due(30.0)
    assert advisor.is_due(60.0)
    advisor.seen(61.0, 2)
    assert not advisor.is_due(61.0)
    calm = QueueAdvisor("q")
    calm.seen(1000.0, 10, 19)
    assert not calm.is_due(1000.0)


def misjudged(count: int) -> list[LoadedWorkload]:
    """Workloads of one task that all come at once."""
    found = []
    for number in range(count):
        graph = Graph()
        graph.add_task("t", (), ((CPU, Shape(), 100.0),))
        found.append(LoadedWorkload(str(number), "w", "", "q", float(number), graph))
    return found


@pytest.mark.parametrize("order", [LEARNED, DEFAULT])
def test_a_simulated_queue_learns_and_repeats_itself(order: str) -> None:
    """With an order that is stated nobody is asked; where it is learned the same seed gives the same run."""
    config = SimConfig(
        slots=2, durations=Durations.PREDICTED, search_placements=0, queues=(QueueSpec("q", order=order),)
    )

    def run() -> tuple[list[float], list[r.Record], bool]:
        simulation = Simulation(misjudged(60), config, lambda workload, _: (50.0 + int(workload.id), 400.0))
        found = simulation.run()
        return found.jct_s, found.records, simulation.advisors is not None

    first = run()
    assert first[2] == (order == LEARNED)
    assert msgspec.json.encode(run()) == msgspec.json.encode(first)
