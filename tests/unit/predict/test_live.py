"""Beliefs that are revised while a workload runs: from what, when, and never from what is still to come."""

from __future__ import annotations

import pytest

from egs_core.graph.columns import CPU, GPU, Graph, Shape
from egs_core.graph.load import LoadedWorkload
from egs_core.predict import Features, Predictor, signature_of
from egs_core.predict.live import LiveBeliefs
from egs_core.sim import Durations, SimConfig, simulate

MB = 1_000_000


def tasks_of(*categories: str) -> Graph:
    """Independent tasks of one second each."""
    graph = Graph()
    for number, name in enumerate(categories):
        graph.add_task(f"{name}{number}", (), ((CPU, Shape(), 1.0),), name)
    return graph


def by_size(predictor: Predictor, name: str = "b") -> None:
    """Teach that a category takes a second for each MB that it reads."""
    for size in (1, 2, 4, 8, 16, 3, 6, 12, 5, 10, 20, 7):
        signature = signature_of("p", name, 0, Shape())
        predictor.observe(signature, float(size), Features(input_bytes=size * MB))


def test_what_has_ended_tells_of_its_like() -> None:
    """The first of a category brings its others to its own time; another category is not asked again."""
    beliefs = LiveBeliefs(Predictor(), tasks_of("a", "a", "b", "a"), "p")
    assert beliefs.believe(None, 1)[0] == 10.0  # what is usual before anything was seen
    revised = beliefs.learn(None, 0, 3.0)
    assert [phase for phase, *_ in revised] == [1, 3]
    assert [p50 for _, p50, _ in revised] == pytest.approx([3.0, 3.0])


def test_what_has_ended_is_not_believed_anew() -> None:
    """The last of a category leaves nobody to ask about."""
    beliefs = LiveBeliefs(Predictor(), tasks_of("a", "a"), "p")
    assert [phase for phase, *_ in beliefs.learn(None, 1, 3.0)] == [0]
    assert beliefs.learn(None, 0, 3.0) == []


def test_a_category_is_asked_again_when_it_has_grown() -> None:
    """200 ends of one category revise it 20 times, not 200: the answers stay few beside the work."""
    beliefs = LiveBeliefs(Predictor(), tasks_of(*["a"] * 201), "p")
    asked = sum(bool(beliefs.learn(None, phase, 3.0)) for phase in range(200))
    assert 15 <= asked <= 25


def test_sizes_of_inputs_count_where_nobody_writes_them() -> None:
    """Files that are there from the start say before the run which task is the long one."""
    predictor, graph = Predictor(), tasks_of("b", "b")
    by_size(predictor)
    graph.file_ids, graph.file_sizes, graph.inputs = ["s", "l"], [2 * MB, 16 * MB], {0: (0,), 1: (1,)}
    beliefs = LiveBeliefs(predictor, graph, "p")
    small, large = (beliefs.believe(None, phase)[0] for phase in range(2))
    assert large > 2 * small


def test_the_size_of_a_file_is_known_when_it_is_written() -> None:
    """What a task will read counts only once all that write of it have ended, then at once."""
    predictor, graph = Predictor(), tasks_of("a", "a")
    by_size(predictor)
    graph.add_task("reader", (0, 1), ((CPU, Shape(), 1.0),), "b")
    graph.file_ids, graph.file_sizes = ["x", "y"], [8 * MB, 12 * MB]
    graph.outputs, graph.inputs = {0: (0,), 1: (1,)}, {2: (0, 1)}
    beliefs = LiveBeliefs(predictor, graph, "p")
    before = beliefs.believe(None, 2)
    assert [phase for phase, *_ in beliefs.learn(None, 0, 1.0)] == [1]
    assert beliefs.believe(None, 2) == before
    revised = {phase: p50 for phase, p50, _ in beliefs.learn(None, 1, 1.0)}
    assert revised[2] == pytest.approx(20.0, rel=0.4)
    assert revised[2] > 1.5 * before[0]


def test_a_mixed_task_has_written_when_its_last_phase_has_ended() -> None:
    """The end of its first phase tells nothing of files."""
    predictor, graph = Predictor(), Graph()
    by_size(predictor)
    graph.add_task("w", (), ((CPU, Shape(), 1.0), (GPU, Shape(0, 1000), 1.0)), "a")
    graph.add_task("reader", (0,), ((CPU, Shape(), 1.0),), "b")
    graph.file_ids, graph.file_sizes = ["x"], [20 * MB]
    graph.outputs, graph.inputs = {0: (0,)}, {1: (0,)}
    beliefs = LiveBeliefs(predictor, graph, "p")
    assert beliefs.learn(None, 0, 1.0) == []
    assert [phase for phase, *_ in beliefs.learn(None, 1, 1.0)] == [2]


def simulated(is_learning: bool) -> float:
    """Two slots, no history: seven tasks of 1 s and behind them three of another kind, of 6 s, are there at once."""
    graph = tasks_of(*["short"] * 7, *["long"] * 3)
    for phase in range(7, 10):
        graph.phase_duration_s[phase] = 6.0
    beliefs = LiveBeliefs(Predictor(), graph, "p")
    config = SimConfig(slots=2, durations=Durations.PREDICTED, records=False)
    learner = beliefs.learn if is_learning else None
    return simulate([LoadedWorkload("w", "p", "", "", 0.0, graph)], config, beliefs.believe, learner=learner).makespan_s


def test_a_simulation_reorders_as_it_learns() -> None:
    """Once a short one has ended, the other kind, still believed to take 10 s, goes before the rest of them."""
    assert (simulated(is_learning=False), simulated(is_learning=True)) == (15.0, 13.0)


def test_a_learner_is_not_asked_where_durations_are_known() -> None:
    """Exact durations stay exact."""
    graph = tasks_of("a", "a")
    config = SimConfig(slots=1, durations=Durations.EXACT, records=False)
    told: list[int] = []

    def learner(_workload: int, phase: int, _seconds: float) -> list[tuple[int, float, float]]:
        told.append(phase)
        return []

    simulate([LoadedWorkload("w", "p", "", "", 0.0, graph)], config, learner=learner)
    assert told == []
