"""The fault simulation of the server: its production logic on a simulated store, clock, network and host."""

from __future__ import annotations

import pytest

from tests.unit.server.site_world import World


def simulate(seed: int) -> World:
    world = World(seed)
    for _ in range(60):
        world.step()
    world.settle()
    world.turns.logic.validate()
    return world


@pytest.mark.parametrize("seed", range(8))
def test_no_device_is_given_twice_and_every_run_ends(seed: int) -> None:
    """Messages lost, doubled and late, commits that fail, servers and supervisors killed, clocks set: no two processes
    ever use a device, a used device is never given out, nothing starts twice, and at the end every run has ended."""
    simulate(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 250))
def test_many_more_seeds(first: int) -> None:
    """The same for 2,000 seeds, a minute of one processor, in parts that several may share."""
    for seed in range(first, first + 250):
        simulate(seed)


def test_the_simulation_does_what_it_claims() -> None:
    """The faults happen: servers were started again, supervisors were killed with their processes left, runs were
    aborted, and most commands ran."""
    worlds = [simulate(seed) for seed in range(100, 120)]
    outcomes = [run.outcome for world in worlds for run in world.turns.logic.runs.values()]
    assert sum(world.crashes for world in worlds) >= len(worlds)
    assert {"succeeded", "aborted", "lost", "skipped"} <= set(outcomes)
    assert outcomes.count("succeeded") > len(outcomes) / 3
    inside = [run for world in worlds for run in world.turns.logic.runs.values() if run.inside]
    assert {"succeeded", "lost"} <= {run.outcome for run in inside if run.started_at is not None}
    assert any(run.started_at is not None and run.why.startswith("request ") for run in inside)
    assert any(run.is_request and "idle" in run.why for world in worlds for run in world.turns.logic.runs.values())
    assert any(world.store.snapshot for world in worlds)
