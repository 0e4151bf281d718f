"""A reservation is firm: what was let past it and stays longer than was believed is stopped, and nothing else is."""

from __future__ import annotations

import pytest

from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.graph.columns import TaskOptions
from egs_core.testing.engine_bench import EngineBench, gpu, graph_of

ON = EngineConfig(preempt=True, grace_s=5.0)


def reserved(config: EngineConfig = ON, passing: TaskOptions | None = None) -> EngineBench:
    """Two GPUs: `runs` has one until 10 s; for the gang of `a` and `b` both are kept from then on; `passes`, believed
    to end at 9.9 s, is let past and starts at 1.9 s."""
    bench = EngineBench(8, 2, config=config)
    bench.submit(graph_of({"first": ()}, {"first": (gpu(1.0),)}), "f")
    bench.submit(graph_of({"runs": ()}, {"runs": (gpu(10.0),)}), "r")
    bench.start("first")
    bench.start("runs")
    gang = dict.fromkeys("ab", TaskOptions(gang="g"))
    bench.submit(graph_of({"a": (), "b": ()}, default=(gpu(0.2),), options=gang), "gang", 0.5)
    bench.end("first", 1.9)
    given = {"passes": passing} if passing else None
    bench.submit(graph_of({"passes": ()}, {"passes": (gpu(8.0),)}, given), "p", 1.9)
    bench.start("passes")
    assert [kept.at for kept in bench.state.reservations.values()] == [10.0]
    return bench


def stops(bench: EngineBench) -> list[tuple[str, str]]:
    return [(bench.state.task_ids[d.task], d.reason) for d in bench.decisions if isinstance(d, m.Stop)]


def test_what_was_let_past_is_stopped_when_it_overruns() -> None:
    """With grace and once only; the gang has its places as soon as it is gone, and it starts again after the gang."""
    bench = reserved()
    bench.end("runs", 9.95)
    assert (stops(bench), bench.engine.next_wakeup()) == ([], 10.0)
    bench.send(m.Tick(), 10.0)
    assert stops(bench) == [("passes", "preempted for a: overrun")]
    stop = next(d for d in bench.decisions if isinstance(d, m.Stop))
    assert (stop.requeue, stop.grace_s) == (True, 5.0)
    bench.send(m.Tick(), 12.0)
    assert len(stops(bench)) == 1
    bench.end("passes", 13.0, "preempted")
    assert [bench.status(name) for name in ("a", "b", "passes")] == ["granted", "granted", "ready"]
    workload = bench.state.workloads[bench.state.workload_number("p")]
    assert workload.lost_s == pytest.approx(11.1)


def test_what_was_there_before_is_waited_for() -> None:
    """The reservation is due, but `runs` was promised its time before it was made: no stop would let the gang start."""
    bench = reserved()
    for at in (10.0, 11.0, 30.0):
        bench.send(m.Tick(), at)
    assert stops(bench) == []
    bench.end("runs", 31.0)
    assert [name for name, _ in stops(bench)] == ["passes"]


def test_a_higher_priority_may_overrun() -> None:
    """It need not wait for the gang's reservation, so it is not stopped for it."""
    bench = reserved(passing=TaskOptions(priority=1))
    bench.end("runs", 10.0)
    bench.send(m.Tick(), 30.0)
    assert stops(bench) == []


def test_nothing_is_stopped_where_preemption_is_off() -> None:
    """Only a driver that can run a task again turns it on."""
    bench = reserved(EngineConfig())
    bench.end("runs", 10.0)
    bench.send(m.Tick(), 30.0)
    assert (stops(bench), bench.status("a")) == ([], "ready")


def test_a_restored_engine_knows_who_was_let_past() -> None:
    """A snapshot between the start and the overrun loses nothing."""
    bench = reserved()
    bench.end("runs", 9.95)
    again = type(bench.engine).restore(bench.engine.snapshot(), ON)
    assert [d.reason for d in again.handle(m.Tick(), 10.0) if isinstance(d, m.Stop)] == ["preempted for a: overrun"]
