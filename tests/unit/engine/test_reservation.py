"""What a reservation is found for, and how soon: one phase is no special case of several but for the work it takes."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from benchmarks.engine_world import World
from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.rules.reservation import find_for_one, find_for_several
from egs_core.engine.state.lifecycle import READY
from tests.unit.engine.test_properties import clusters, configs, numbers


@settings(derandomize=True, database=None, deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(configs, clusters(), numbers)
def test_one_phase_is_found_what_a_search_finds(
    config: EngineConfig, nodes: list[m.NodeAdded], choices: list[int]
) -> None:
    """The quick way for a single phase and the search for several name the same time and the same node."""
    world = World(config, nodes, choices)
    world.run()
    state = world.bench.engine.state
    state.reservations.clear()
    for phase, status in enumerate(state.status):
        if status == READY:
            found = find_for_one(state, (phase,), state.now)
            assert found == find_for_several(state, (phase,), state.now)
