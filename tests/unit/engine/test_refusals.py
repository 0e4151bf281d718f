"""What was refused beside room that is kept is not asked again for nothing, and is where something has changed."""

from __future__ import annotations

import heapq
import random

import pytest

from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.order.refusals import Refusals
from egs_core.engine.passes.grant import Granting
from egs_core.engine.state.lifecycle import GRANTED, RUNNING
from egs_core.graph.columns import CPU, GPU, Graph, Shape

SHAPES = (Shape(1000), Shape(3000), Shape(0, 500), Shape(1000, 1000), Shape(1000, 250), Shape(2000, 2000))


def _graph(draw: random.Random, tasks: int) -> Graph:
    graph = Graph()
    for number in range(tasks):
        shapes = [draw.choice(SHAPES) for _ in range(draw.choice((1, 1, 1, 3)))]
        phases = tuple([(GPU if s.gpu_milli else CPU, s, draw.uniform(1, 9)) for s in shapes])
        parents = {draw.randrange(number) for _ in range(draw.randrange(3)) if number}
        graph.add_task(f"t{number}", tuple(sorted(parents)), phases)
    return graph


def _run(seed: int) -> list[tuple[float, m.Decision]]:
    """Five workloads on seven nodes to their end: phases start at once or late, end sooner or later than was believed,
    some fail, beliefs change, nodes go and come, and work joins."""
    draw, engine, out = random.Random(seed), Engine(EngineConfig()), list[tuple[float, m.Decision]]()
    coming: list[tuple[float, int, m.Event]] = []

    def push(at: float, event: m.Event) -> None:
        heapq.heappush(coming, (at, len(out) + len(coming) * 1_000_003, event))

    def send(event: m.Event, now: float) -> None:
        decisions = engine.handle(event, now)
        out.extend((now, decision) for decision in decisions)
        for decision in decisions:
            if isinstance(decision, m.Grant):
                late = draw.choice((0.0, 0.0, 0.0, 5.0))
                long = draw.choice((0.5, 1.0, 1.0, 1.0, 1.0, 2.5)) * engine.state.estimate_s[decision.phase]
                outcome = "failed" if draw.random() < 0.02 else "succeeded"
                if not late:
                    send(m.PhaseStarted(decision.phase, decision.attempt), now)
                else:
                    push(now + late, m.PhaseStarted(decision.phase, decision.attempt))
                push(now + late + long, m.PhaseEnded(decision.phase, decision.attempt, outcome))

    for number in range(7):
        send(m.NodeAdded(f"n{number}", 6.0, 4), 0.0)
    for number in range(5):
        send(m.WorkloadSubmitted(f"w{number}"), 0.0)
        send(m.TasksAdded(f"w{number}", _graph(draw, 60)), 0.0)
    first = [(phase, 20 * seconds, 30 * seconds) for phase, seconds in enumerate(engine.state.estimate_s)]
    send(m.Estimates(tuple(first)), 0.0)  # so much that soon some have waited too long for others
    for _ in range(12):
        at, number = draw.uniform(100, 2000), draw.randrange(7)
        push(at, m.NodeLost(f"n{number}"))
        push(at + 1.0, m.NodeAdded(f"n{number}", 6.0, 4))
    for number in range(3):
        push(draw.uniform(100, 1500), m.TasksAdded(f"w{number}", _graph(draw, 5)))
    while coming:
        now, _, event = heapq.heappop(coming)
        send(event, now)
        if draw.random() < 0.05:
            phases = draw.choices(range(len(engine.state.status)), k=5)
            seconds = [draw.uniform(1, 200) for _ in phases]
            open_phases = [p for p in phases if engine.state.status[p] <= RUNNING and engine.state.status[p] != GRANTED]
            values = tuple([(p, s, 2 * s) for p, s in zip(open_phases, seconds, strict=False)])
            send(m.Estimates(values), now)
        engine.validate_state()
    return out


@pytest.mark.parametrize("seed", [1, *[pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3)]])
def test_decisions_are_those_of_asking_each_time(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every decision and its time are the same where nothing is remembered, and much was."""
    spared, holds = [0], Refusals.holds

    def counted(self: Refusals, phase: int, with_room: int) -> bool:
        found = holds(self, phase, with_room)
        spared[0] += found
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Refusals, "holds", counted)
        found = _run(seed)
    assert spared[0] > 5
    monkeypatch.setattr(Granting, "_note_refused", lambda *_: None)
    assert _run(seed) == found
