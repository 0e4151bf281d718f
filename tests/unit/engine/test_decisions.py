"""Answers to decisions: applied, rejected (held for a while, doubling), lost (fenced by a new attempt)."""

from __future__ import annotations

import pytest

from egs_core.engine import messages as m
from egs_core.engine.passes.restarts import RETRY_MAX_S
from egs_core.graph.columns import TaskOptions
from egs_core.testing.engine_bench import EngineBench, cpu, gpu, graph_of


def test_a_rejected_grant_is_tried_again_later() -> None:
    """It holds nothing meanwhile, others may start, and it comes back with the place it had."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": (), "b": (), "c": ()}))
    bench.send(m.DecisionRejected(bench.grant_of("a").id, "no room"), 1.0)
    assert (bench.status("a"), bench.status("b")) == ("held", "granted")
    assert bench.reason("a").text == "its start was refused once; next try at 1.500 s"
    assert bench.engine.next_wakeup() == 1.5
    bench.send(m.Tick(), 1.5)
    assert bench.status("a") == "ready"
    bench.end("b", 2.0)
    assert bench.granted() == ["a", "b", "a"]
    assert bench.grant_of("a").attempt == 1


def test_the_pause_doubles_up_to_a_limit() -> None:
    """Half a second, one, two … never above the limit; a start resets it."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": ()}, options={"a": TaskOptions(retries=1)}))
    pauses = []
    for _ in range(9):
        bench.send(m.DecisionRejected(bench.grant_of("a").id))
        due = bench.engine.next_wakeup()
        assert due is not None
        pauses.append(due - bench.now)
        bench.send(m.Tick(), due)
    assert pauses == [0.5, 1, 2, 4, 8, 16, RETRY_MAX_S, RETRY_MAX_S, RETRY_MAX_S]
    bench.start("a")
    bench.end("a", outcome="preempted")
    bench.send(m.DecisionRejected(bench.grant_of("a").id))
    assert bench.reason("a").text.startswith("its start was refused once")


def test_a_rejected_first_phase_may_go_elsewhere_a_later_one_not() -> None:
    """Before it has started a task is bound to no node; after that it is."""
    bench = EngineBench()
    for name in ("x", "y"):
        bench.send(m.NodeAdded(name, 1.0, 1))
    bench.submit(graph_of({"a": ()}, {"a": (cpu(), gpu())}))
    bench.send(m.DecisionRejected(bench.grant_of("a").id))
    bench.submit(graph_of({"other": ()}), "o")
    assert bench.grant_of("other").node == "x"
    bench.send(m.Tick(), 0.5)
    assert bench.grant_of("a").node == "y"
    bench.end("a")
    bench.send(m.DecisionRejected(bench.grant_of("a").id))
    bench.send(m.Tick(), 2.0)
    assert bench.grant_of("a").node == "y"


@pytest.mark.parametrize("answer", [m.DecisionRejected, m.DecisionLost])
def test_a_start_or_an_applied_decision_closes_it(answer: type[m.DecisionRejected] | type[m.DecisionLost]) -> None:
    """What is known to be done cannot be rejected or lost any more."""
    bench = EngineBench(2)
    bench.submit(graph_of({"a": (), "b": ()}))
    bench.start("a")
    bench.send(m.DecisionApplied(bench.grant_of("b").id))
    for name in "ab":
        bench.send(answer(bench.grant_of(name).id))
    assert (bench.status("a"), bench.status("b")) == ("running", "granted")
    assert bench.state.decisions == {}


def test_a_lost_grant_is_fenced() -> None:
    """The next attempt has a new number: whatever the old one still says is ignored."""
    bench = EngineBench(1)
    bench.submit(graph_of({"a": ()}))
    bench.send(m.DecisionLost(bench.grant_of("a").id))
    assert (bench.grant_of("a").attempt, bench.status("a")) == (2, "granted")
    bench.send(m.PhaseStarted(0, 1))
    bench.send(m.PhaseEnded(0, 1))
    assert bench.status("a") == "granted"
    bench.send(m.PhaseStarted(0, 2))
    assert bench.status("a") == "running"


def test_decision_numbers_never_repeat() -> None:
    """Grants, preloads, drops and stops share one rising sequence."""
    bench = EngineBench(2, 1)
    options = {"g": TaskOptions(warm_key="k", warmup_s=1.0)}
    bench.submit(graph_of({"a": (), "g": (), "b": ()}, {"g": (gpu(),)}, options))
    bench.abort("task", "g")
    bench.abort("task", "a")
    kinds = [type(d).__name__ for d in bench.decisions]
    assert sorted(set(kinds)) == ["DropPreload", "Grant", "Preload", "Stop"]
    assert [d.id for d in bench.decisions] == list(range(1, len(kinds) + 1))
