"""Reconciliation row by row: what the engine believes, what the node says, and what becomes of the task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from egs_core.driver.reconcile import RUNNING, Found, Question, events_of, open_questions, strays
from egs_core.engine import messages as m
from egs_core.graph.columns import TaskOptions
from egs_core.testing.engine_bench import EngineBench, cpu, gpu, graph_of


def bench_with(*, two_phases: bool = False) -> EngineBench:
    """Task a is granted on node n0, in its first phase."""
    bench = EngineBench(1, 1)
    bench.submit(graph_of({"a": ()}, {"a": (cpu(), gpu()) if two_phases else (cpu(),)}))
    return bench


def ask(bench: EngineBench) -> list[Question]:
    return open_questions(bench.state)


def answer(bench: EngineBench, found: Sequence[Found] = (), warm: Mapping[int, bool] | None = None) -> list[m.Event]:
    """What follows from the node's answer; the engine gets it."""
    events = events_of(bench.state, ask(bench), found, warm or {})
    for event in events:
        bench.send(event)
    return events


def test_nothing_open_asks_nothing() -> None:
    """A task that waits for capacity and one that has ended are nobody's business."""
    bench = bench_with()
    bench.start("a")
    bench.submit(graph_of({"b": ()}, known=["a"]))
    bench.end("a")
    bench.start("b")
    bench.end("b")
    bench.submit(graph_of({"c": ()}, {"c": (cpu(cpus=9.0),)}, known=["a", "b"]))
    assert ask(bench) == []


def test_a_running_phase_is_started() -> None:
    """Granted, and the node runs it: its start had not been heard."""
    bench = bench_with()
    assert ask(bench) == [Question("n0", 0, 1, 0, 1)]
    assert answer(bench, [Found(0, 1, 0, RUNNING, True)]) == [m.PhaseStarted(0, 1)]
    assert bench.status("a") == "running"


def test_an_end_that_was_not_heard_is_told() -> None:
    """However it ended."""
    for outcome, status in (("succeeded", "succeeded"), ("failed", "failed")):
        bench = bench_with()
        assert answer(bench, [Found(0, 1, 0, outcome, False)]) == [m.PhaseEnded(0, 1, outcome)]
        assert bench.status("a") == status


def test_a_grant_that_never_arrived_is_fenced() -> None:
    """The node knows nothing of it: a new attempt, so that a late start of the old one is recognised."""
    bench = bench_with()
    assert answer(bench) == [m.DecisionLost(1)]
    assert (bench.state.attempt[0], bench.status("a"), bench.grant_of("a").id) == (2, "granted", 2)


def test_a_started_phase_that_is_gone_was_preempted() -> None:
    """It had started, so its grant is no open decision any more; the task begins again."""
    bench = bench_with()
    bench.start("a")
    assert answer(bench) == [m.PhaseEnded(0, 1, "preempted")]
    assert (bench.state.attempt[0], bench.status("a")) == (2, "granted")


def test_a_later_phase_that_did_not_arrive_is_given_out_again() -> None:
    """The process waits for it, so nothing is lost: same attempt, later."""
    bench = bench_with(two_phases=True)
    bench.start("a")
    bench.end("a")
    assert answer(bench, [Found(0, 1, 0, "succeeded", True)]) == [m.DecisionRejected(2, "it did not arrive")]
    assert (bench.state.attempt[0], bench.status("a")) == (1, "held")


def test_between_two_phases_a_process_may_be_there_gone_or_finished() -> None:
    """There: nothing to say. Gone: from the start again. Finished: the task took no more phases."""
    cases: list[tuple[Found | None, list[m.Event]]] = [
        (Found(0, 1, 0, "succeeded", True), []),
        (Found(0, 1, 0, "succeeded", False), [m.PhaseEnded(1, 1, "preempted")]),
        (None, [m.PhaseEnded(1, 1, "preempted")]),
        (Found(0, 1, 0, "succeeded", False, True), [m.TaskFinished(0, 1)]),
    ]
    for found, events in cases:
        bench = bench_with(two_phases=True)
        bench.start("a")
        bench.end("a")
        bench.send(m.DecisionRejected(bench.grant_of("a").id, "busy"))
        assert ask(bench) == [Question("n0", 0, 1, 1)]
        assert answer(bench, [found] if found else []) == events


def test_a_process_that_was_to_get_warm() -> None:
    """Warm, still warming, or gone."""
    for warm, kinds in (({1: True}, [m.PreloadReady]), ({1: False}, []), ({}, [m.PreloadFailed])):
        bench = EngineBench(1, 1)
        options = {"a": TaskOptions(warm_key="k", warmup_s=1.0)}
        bench.submit(graph_of({"a": ()}, {"a": (gpu(),)}, options))
        assert bench.preload_of("a").id == 1
        assert ask(bench) == [Question("n0", 0, 1, 0, 1, is_preload=True)]
        assert [type(event) for event in answer(bench, warm=warm)] == kinds


def test_what_the_engine_has_learned_meanwhile_counts() -> None:
    """An answer to a question that is settled by now changes nothing."""
    bench = bench_with()
    questions = ask(bench)
    bench.send(m.DecisionLost(1))
    assert events_of(bench.state, questions, [], {}) == []


def test_a_stop_under_way_is_part_of_the_question() -> None:
    """The Stop may have died with the driver, so whoever asks must repeat it."""
    bench = bench_with()
    bench.start("a")
    bench.abort("task", "a")
    assert [question.must_stop for question in ask(bench)] == [True]


def test_strays_are_what_lives_and_was_given_up() -> None:
    """An older attempt, a task the engine does not know, a task that belongs on another node; not what has ended."""
    bench = bench_with()
    wanted = Found(0, 1, 0, RUNNING, True)
    assert strays(bench.state, "n0", [wanted]) == []
    assert strays(bench.state, "n1", [wanted]) == [wanted]
    bench.send(m.DecisionLost(1))
    unknown, ended = Found(7, 1, 0, RUNNING, True), Found(0, 1, 0, "failed", False)
    assert strays(bench.state, "n0", [wanted, unknown, ended]) == [wanted, unknown]
