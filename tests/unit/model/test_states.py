"""What the search computes for a change is what the loss of the changed assignment is."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egs_core.model import OBJECTIVES, Instance, Objective, evaluate
from egs_core.model.anneal import Annealing, Memory
from egs_core.model.levels import finest
from egs_core.model.packing import pack
from egs_core.model.states import RequestState, StreamState, state_of
from tests.unit.model.instances import instances, random_instance


@settings(max_examples=60)
@given(instances(), st.randoms(use_true_random=False), st.sampled_from(OBJECTIVES))
def test_changes_kept_and_undone(instance: Instance, rng: random.Random, objective: Objective) -> None:
    """After each of a row of changes, some undone, T is that of the assignment as it stands."""
    level = finest(instance, objective)
    width, count = len(instance.devices.devices), len(level)
    state = state_of(objective, level, [d.speed for d in instance.devices.devices], [0] * count)
    for _ in range(12):
        before = list(state.assignment)
        operators = rng.sample(range(count), rng.randint(1, count))
        found = state.attempt([(i, rng.randrange(width)) for i in operators], float("inf"))
        assert found is not None
        if rng.random() < 0.5:
            state.keep()
        else:
            state.undo()
            assert state.assignment == before
        t = evaluate(instance, level.finer(state.assignment), objective).latency_s
        assert state.seconds == pytest.approx(t, rel=1e-9, abs=1e-12)


def test_a_change_above_the_limit_is_taken_back() -> None:
    """None, and everything as it was; a limit above its T lets it through."""
    level = finest(random_instance(60, 2, seed=1), "request")
    state = RequestState(level, [1.0, 1.0], [0] * 60)
    before, seconds = list(state.assignment), state.seconds
    assert state.attempt([(30, 1)], seconds * 0.5) is None
    assert (state.assignment, state.seconds) == (before, seconds)
    assert state.attempt([(30, 1)], seconds * 100) is not None


def test_a_critical_path_explains_t() -> None:
    """Its operators follow each other without a gap: their times and transfers add up to T."""
    instance = random_instance(80, 3, seed=2)
    level, rng = finest(instance, "request"), random.Random(1)
    state = RequestState(level, [1.0] * 3, [rng.randrange(3) for _ in range(80)])
    path = state.critical_path()[::-1]
    total = level.seconds[path[0]]
    for i, j in pairwise(path):
        transfer = dict(level.inputs[j]).get(i, 0.0) if state.assignment[i] != state.assignment[j] else 0.0
        total += transfer + level.seconds[j]
    assert total == pytest.approx(state.seconds)


def test_the_busiest_device_or_link_is_found() -> None:
    """With all on one device it is that; with a large tensor between two, the link's ends."""
    level = finest(random_instance(20, 2, seed=3), "stream")
    assert StreamState(level, [1.0, 1.0], [1] * 20).busiest() == (1,)
    assert StreamState(level, [1e6, 1e6], [0] * 10 + [1] * 10).busiest() == (0, 1)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_walk_never_exceeds_a_memory_and_keeps_its_books(objective: Objective) -> None:
    """In little room: the best assignment fits, its loss is the evaluator's, and it is no worse than the start."""
    instance = random_instance(50, 3, seed=4, room=1.05)
    memories = [d.memory for d in instance.devices.devices]
    packed = pack(instance.operators.sizes, memories).assignment
    assert packed is not None
    level = finest(instance, objective)
    start = [packed[members[0]] for members in level.members]
    memory = Memory(memories, instance.lambda_s / instance.devices.total_memory)
    walk = Annealing(level, state_of(objective, level, [1.0] * 3, start), memory, random.Random(2))
    begun = walk.best_loss
    walk.run(60_000, 0.05)
    found = evaluate(instance, level.finer(walk.best), objective)
    assert found.fits
    assert found.loss == pytest.approx(walk.best_loss)
    assert walk.best_loss < begun
