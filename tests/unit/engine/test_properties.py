"""Whatever happens in whatever order: invariants hold, work ends, and the same inputs give the same decisions."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.engine_world import World
from egs_core.engine import POLICIES, Engine, EngineConfig
from egs_core.engine import messages as m

GIB = 1 << 30
quick = settings(
    derandomize=True, database=None, deadline=None, max_examples=120, suppress_health_check=list(HealthCheck)
)


def _numbers(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(2**16), k=length)


numbers = st.builds(_numbers, st.integers(0, 2**32), st.integers(50, 700))  # long histories; they shrink by length
configs = st.builds(
    EngineConfig,
    policy=st.sampled_from([*["egs"] * 5, *POLICIES]),
    preload=st.sampled_from([True, True, True, False]),
    default_max_wait_s=st.sampled_from([None, 0.0, 2.0]),
    seed=st.integers(0, 3),
    preempt=st.booleans(),
    min_gain_s=st.sampled_from([0.0, 5.0]),
    scaling_hints=st.booleans(),
    scaling_horizon_s=st.sampled_from([15.0, 600.0]),
    objective=st.sampled_from(["finish", "finish", "cost", "greedy", "blind"]),
)


@st.composite
def clusters(draw: st.DrawFn) -> list[m.NodeAdded]:
    """One to three nodes; the first can run everything that a world makes."""
    slots = draw(st.sampled_from([1, 2, 4]))
    memory = draw(st.sampled_from([None, 4 * GIB]))
    nodes = [m.NodeAdded("big", draw(st.sampled_from([2.0, 4.0])), 2, memory, memory, draw(st.integers(1, 2)), slots)]
    if draw(st.booleans()):
        nodes.append(m.NodeAdded("cpu", 3.0, 0, None, None, draw(st.integers(0, 2)), draw(st.integers(0, 2))))
    if draw(st.booleans()):
        nodes.append(m.NodeAdded("gpu", 1.0, 1, None, None, 1, draw(st.integers(1, 3))))
    flavors = draw(st.sampled_from([("", "", ""), ("", "", ""), ("slow", "", "fast"), ("fast", "slow", "slow")]))
    racks = draw(st.sampled_from([("r1", "r1", "r1"), ("r1", "r2", "r1"), ("r1", "r2", "r3")]))
    apart = draw(st.booleans())
    return [
        msgspec.structs.replace(node, flavor=flavor, topology=(("rack", rack),), loads_apart=apart)
        for node, flavor, rack in zip(nodes, flavors, racks, strict=False)
    ]


@quick
@given(configs, clusters(), numbers)
def test_every_workload_ends(config: EngineConfig, nodes: list[m.NodeAdded], choices: list[int]) -> None:
    """After any history, once events are delivered and nodes are there, nothing waits for ever."""
    world = World(config, nodes, choices)
    world.run()
    world.drain()


@settings(quick, max_examples=40)
@given(configs, clusters(), numbers, numbers)
def test_a_restored_engine_decides_the_same(
    config: EngineConfig, nodes: list[m.NodeAdded], before: list[int], after: list[int]
) -> None:
    """Snapshot at any point, restore, same events: same decisions and same wake-ups from there on."""
    restore(config, nodes, before, after)


@pytest.mark.slow
@settings(quick, max_examples=200)
@given(configs, clusters(), numbers, numbers)
def test_a_restored_engine_decides_the_same_after_many_histories(
    config: EngineConfig, nodes: list[m.NodeAdded], before: list[int], after: list[int]
) -> None:
    restore(config, nodes, before, after)


def restore(config: EngineConfig, nodes: list[m.NodeAdded], before: list[int], after: list[int]) -> None:
    world = World(config, nodes, before)
    world.run()
    world.restore_twin()
    world.numbers = type(world.numbers)(after)
    world.run()
    world.drain()


@settings(quick, max_examples=40)
@given(configs, clusters(), numbers)
def test_the_same_inputs_give_the_same_decisions(
    config: EngineConfig, nodes: list[m.NodeAdded], choices: list[int]
) -> None:
    """A second engine that gets the same events at the same times gives out the same decisions."""
    world = World(config, nodes, choices)
    world.run()
    world.drain()
    again = Engine(config)
    assert [d for event, now, _ in world.bench.log for d in again.handle(event, now)] == world.bench.decisions
