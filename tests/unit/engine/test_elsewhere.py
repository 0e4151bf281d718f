"""What other pools use of a queue's quota counts here: in quotas, borrowing, shares and reasons."""

from __future__ import annotations

import pytest

from egs_core.engine import Engine
from egs_core.engine import messages as m
from egs_core.engine.specs import NOTHING, EngineConfig, QueueSpec
from egs_core.engine.state.records import smoothed_at
from egs_core.testing.engine_bench import EngineBench, canonical, gpu
from tests.unit.engine.test_quota import bench_of, gpus, submit


def used(queue: str, number: float) -> m.Elsewhere:
    return m.Elsewhere(queue, (0, round(1000 * number), 0))


def tell(bench: EngineBench, *told: m.Elsewhere, at: float | None = None) -> None:
    bench.send(m.UsedElsewhere(told), at)


def test_what_is_used_elsewhere_counts_against_the_quota_and_is_said() -> None:
    """Two GPUs of quota, one held elsewhere: one may start here, the second when that one is given back."""
    bench = bench_of(4, QueueSpec("a", nominal=gpus(2)))
    tell(bench, used("a", 1), used("no such queue", 5))
    submit(bench, "a", "a0 a1", (gpu(),))
    assert bench.granted() == ["a0"]
    text = "its nominal quota is 2 GPUs and it uses 2 GPUs, 1 GPU of it in other pools"
    assert (bench.reason("a1").kind, text in bench.reason("a1").text) == ("quota", True)
    tell(bench)
    assert bench.granted() == ["a0", "a1"]


def test_quota_lent_elsewhere_is_not_lent_here() -> None:
    """A cohort of three GPUs: what one queue has borrowed elsewhere is missing here; and within its nominal quota the
    lender goes before it."""
    bench = bench_of(4, QueueSpec("a", "lab", gpus(1)), QueueSpec("b", "lab", gpus(2)))
    tell(bench, used("a", 2))
    submit(bench, "a", "a0", (gpu(),))
    submit(bench, "b", "b0 b1", (gpu(),))
    assert bench.granted() == ["a0"]
    tell(bench, used("a", 1))
    assert bench.granted() == ["a0", "b0"]
    tell(bench)
    assert bench.granted() == ["a0", "b0", "b1"]


def test_what_was_borrowed_elsewhere_is_reclaimed_here() -> None:
    """With preemption: a queue that holds one GPU here and one elsewhere has borrowed one, so its task here stops for
    the lender's."""
    bench = EngineBench(16, 1, config=EngineConfig(preempt=True))
    bench.send(m.QueuesChanged((QueueSpec("a", "lab", gpus(1)), QueueSpec("b", "lab", gpus(1)))))
    submit(bench, "a", "a0", (gpu(99.0),))
    bench.start("a0", 1.0)
    submit(bench, "b", "b0", (gpu(),), 2.0)
    assert not [d for d in bench.decisions if isinstance(d, m.Stop)]
    tell(bench, used("a", 1), at=3.0)
    (stop,) = [d for d in bench.decisions if isinstance(d, m.Stop)]
    assert (stop.task, "reclaim" in stop.reason) == (bench.task("a0"), True)


def test_the_share_counts_what_was_used_elsewhere_and_forgets_it() -> None:
    """Of two queues the one that uses less elsewhere goes first; an hour after that has ended, half of it counts."""
    bench = bench_of(1, QueueSpec("a", nominal=gpus(9)), QueueSpec("b", nominal=gpus(9)))
    submit(bench, "a", "first", (gpu(),))
    tell(bench, used("a", 2), used("b", 1))
    submit(bench, "a", "a0", (gpu(),))
    submit(bench, "b", "b0", (gpu(),))
    bench.end("first", 1.0)
    assert bench.granted() == ["first", "b0"]
    queue = bench.state.queues[0]
    tell(bench, used("a", 2), at=1e6)
    assert smoothed_at(queue, 1e6)[1] == pytest.approx(2000, rel=1e-6)
    tell(bench, at=1e6)
    assert smoothed_at(queue, 1e6 + queue.spec.half_life_s)[1] == pytest.approx(1000, rel=1e-6)


def test_without_a_turn_nothing_starts_and_with_one_no_more_than_it_says() -> None:
    """`most` bounds what this engine's work holds of the queue; the reason speaks of quotas only where they are it."""
    bench = bench_of(4, QueueSpec("a", nominal=gpus(9)))
    bench.send(m.UsedElsewhere((m.Elsewhere("a", most=NOTHING),)))
    submit(bench, "a", "a0 a1 a2", (gpu(),))
    assert bench.granted() == []
    assert bench.reason("a0").kind != "quota"
    assert bench.engine.waiting_for_quota() == {"a": (0, 1000, 0)}
    bench.send(m.UsedElsewhere((m.Elsewhere("a", most=(0, 2000, 0)),)))
    assert bench.granted() == ["a0", "a1"]
    tell(bench)
    assert bench.granted() == ["a0", "a1", "a2"]
    assert bench.engine.waiting_for_quota() == {}


def test_only_what_has_room_and_may_ever_start_waits_for_quota() -> None:
    """Not what lacks a device, nor what no quota will ever allow; a gang as a whole."""
    bench = bench_of(2, QueueSpec("a", nominal=gpus(1)), QueueSpec("b", nominal=gpus(4)))
    submit(bench, "a", "never", (gpu(1.0, gpus=2.0),))
    assert bench.engine.waiting_for_quota() == {}
    tell(bench, used("a", 1), used("b", 3))
    submit(bench, "a", "a0", (gpu(),))
    submit(bench, "b", "b0", (gpu(1.0, gpus=2.0),))
    assert bench.engine.waiting_for_quota() == {"a": (0, 1000, 0), "b": (0, 2000, 0)}
    submit(bench, "", "other", (gpu(1.0, gpus=1.0),))
    assert bench.engine.waiting_for_quota() == {"a": (0, 1000, 0)}


def test_what_was_told_is_in_snapshots_and_kept_through_other_queues() -> None:
    """A restored engine goes on with the same numbers; queues configured anew keep theirs by name."""
    bench = bench_of(4, QueueSpec("a", nominal=gpus(2)))
    tell(bench, used("a", 1))
    submit(bench, "a", "a0 a1", (gpu(),))
    twin = Engine.restore(bench.engine.snapshot())
    assert canonical(twin.state) == canonical(bench.state)
    assert not twin.handle(m.Tick(), 1.0)
    bench.send(m.QueuesChanged((QueueSpec("z"), QueueSpec("a", nominal=gpus(2)))))
    assert bench.status("a1") == "ready"


def test_an_engine_is_idle_with_nothing_ready_and_nothing_held() -> None:
    bench = bench_of(1, QueueSpec("a", nominal=gpus(1)))
    assert bench.engine.is_idle
    submit(bench, "a", "a0 a1", (gpu(),))
    assert not bench.engine.is_idle
    bench.end("a0", 1.0)
    bench.end("a1", 2.0)
    assert bench.engine.is_idle
