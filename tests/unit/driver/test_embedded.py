"""The embedded driver: events in order on one thread, timers, questions, and an end that never reaches the caller."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from egs_core.driver.embedded import EmbeddedDriver
from egs_core.driver.journal import encode_entry, folded
from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.graph.columns import CPU, Graph, Shape
from egs_core.testing.engine_bench import canonical

LIMIT_S = 120.0


class Played:
    """A driver whose performer runs each phase in no time, and what it saw."""

    def __init__(self, config: EngineConfig | None = None) -> None:
        self.engine = Engine(config)
        self.decisions: list[m.Decision] = []
        self.died: list[BaseException] = []
        self.done, self.dead = threading.Event(), threading.Event()
        self.inside = 0
        self.driver = EmbeddedDriver(self.engine, self.perform, on_death=self._on_death)
        self.driver.start()

    def perform(self, decision: m.Decision, now: float) -> None:
        assert now >= 0
        assert not self.inside, "a decision is carried out inside another one"
        self.inside += 1
        self.decisions.append(decision)
        if isinstance(decision, m.Grant):
            self.driver.handle(m.PhaseStarted(decision.phase, decision.attempt))
            self.driver.handle(m.PhaseEnded(decision.phase, decision.attempt))
        self.inside -= 1
        if not self.engine.state.workloads[0].open_tasks:
            self.done.set()

    def _on_death(self, error: BaseException) -> None:
        self.died.append(error)
        self.dead.set()


@pytest.fixture
def played() -> Iterator[Played]:
    """A driver that is closed afterwards; its engine's state is valid then."""
    made = Played()
    yield made
    made.driver.close()
    made.engine.validate_state()


def chain(length: int) -> Graph:
    graph = Graph()
    for number in range(length):
        parents = (number - 1,) if number else ()
        graph.add_task(f"t-{number}", parents, ((CPU, Shape(1000), 0.01),), name="t")
    return graph


def submit(driver: EmbeddedDriver, graph: Graph) -> None:
    driver.post(m.WorkloadSubmitted("w", "w"))
    driver.post(m.TasksAdded("w", graph))
    driver.post(m.NodeAdded("n", cpus=1.0))


def test_a_workload_runs_to_its_end(played: Played) -> None:
    """Events posted from another thread are handled in order; nested decisions come after those already given out."""
    submit(played.driver, chain(50))
    assert played.done.wait(LIMIT_S)
    grants = [decision.task for decision in played.decisions if isinstance(decision, m.Grant)]
    assert grants == list(range(50))
    assert played.driver.ask(lambda engine: engine.state.workloads[0].open_tasks) == 0


def test_questions_come_in_turn_and_raise_what_they_raise(played: Played) -> None:
    """`ask` answers after everything posted before it, from any thread, and passes on errors."""
    submit(played.driver, chain(3))
    assert played.driver.ask(lambda engine: len(engine.state.task_ids)) == 3
    with pytest.raises(KeyError):
        played.driver.ask(lambda engine: engine.state.workload_number("unknown"))
    assert played.driver.is_alive


def test_timers_are_ticks() -> None:
    """A rejected grant is tried again when the engine's timer is due, without any event."""
    engine, again = Engine(), threading.Event()
    seen: list[m.Grant] = []

    def perform(decision: m.Decision, _now: float) -> None:
        if isinstance(decision, m.Grant):
            seen.append(decision)
            if len(seen) == 1:
                driver.post(m.DecisionRejected(decision.id, "not now"))
            else:
                again.set()

    driver = EmbeddedDriver(engine, perform)
    driver.start()
    submit(driver, chain(1))
    assert again.wait(LIMIT_S)
    driver.close()
    assert engine.state.now >= 0.5


@pytest.mark.parametrize("where", ["engine", "performer", "action"])
def test_death_is_told_once_and_actions_go_on(played: Played, where: str) -> None:
    """Whatever raises, on_death hears of it once; events are then ignored, actions still run, questions time out."""

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError(where)

    if where == "engine":
        played.driver.do(lambda: setattr(played.engine, "handle", broken))
    elif where == "performer":
        played.driver._perform = broken
    else:
        played.driver.do(broken)
    submit(played.driver, chain(2))
    assert played.dead.wait(LIMIT_S)
    assert [str(error) for error in played.died] == [where]
    assert not played.driver.is_alive
    ran = threading.Event()
    played.driver.do(broken)
    played.driver.do(ran.set)
    assert ran.wait(LIMIT_S)
    with pytest.raises(TimeoutError):
        played.driver.ask(lambda engine: engine)
    assert len(played.died) == 1


def test_close_handles_what_is_queued_and_ends_the_thread() -> None:
    """After `close` what was posted before has been handled and the thread is gone; closing again does no harm."""
    made = Played()
    submit(made.driver, chain(5))
    made.driver.close()
    assert made.done.is_set()
    assert not made.driver._thread.is_alive()
    made.driver.close()
    with pytest.raises(TimeoutError):
        made.driver.ask(lambda engine: engine)


def test_what_is_kept_after_each_event_leads_to_the_same_state() -> None:
    """Entries that are made after each event fold to the state that the driver's engine ended with, and each is made
    before anything that was decided is carried out."""
    engine = Engine(EngineConfig(record=True))
    entries: list[bytes] = []
    done = threading.Event()

    def keep(event: m.Event, now: float) -> None:
        entries.append(encode_entry(event, now, engine.take_transitions()))

    def perform(decision: m.Decision, _now: float) -> None:
        assert folded(b"", entries, "here").next_decision > decision.id
        if isinstance(decision, m.Grant):
            driver.handle(m.PhaseEnded(decision.phase, decision.attempt))
            if not engine.state.workloads[0].open_tasks:
                done.set()

    driver = EmbeddedDriver(engine, perform, after=keep)
    driver.start()
    submit(driver, chain(4))
    assert done.wait(LIMIT_S)
    driver.close()
    assert canonical(folded(b"", entries, "here")) == canonical(engine.state)


def test_a_recovered_engine_s_time_goes_on() -> None:
    """A driver of an engine that has lived for a day does not wait a day for its next timer."""
    engine = Engine()
    engine.handle(m.NodeAdded("n", cpus=1.0), 86_400.0)
    driver = EmbeddedDriver(engine, lambda *_: None, clock=lambda: 5.0)
    assert driver.now() == 86_400.0
