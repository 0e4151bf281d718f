"""Scaling hints: how much of which flavor is needed, when, and how often that is said."""

from __future__ import annotations

import pytest

from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.specs import FlavorSpec
from egs_core.graph.columns import Graph, TaskOptions
from egs_core.testing.engine_bench import EngineBench, cpu, gpu, graph_of

ON = EngineConfig(scaling_hints=True, scaling_horizon_s=100.0, preload=False)


def hints(bench: EngineBench) -> list[tuple[str, int, int, float]]:
    """(flavor, GPUs, CPUs, at) of all hints so far."""
    return [(d.flavor, d.gpus, d.cpus, d.at) for d in bench.decisions if isinstance(d, m.ScalingHint)]


def cluster(gpus: int = 1, config: EngineConfig = ON) -> EngineBench:
    bench = EngineBench(config=config)
    bench.send(m.NodeAdded("n", 4.0, gpus, flavor="fast"))
    return bench


def submit(bench: EngineBench, graph: Graph) -> None:
    """Work comes at 20 s; the engine looks at the latest ten seconds after it looked last, at 30 s."""
    bench.submit(graph, at=20.0)
    assert bench.engine.next_wakeup() == 30.0
    bench.send(m.Tick(), 30.0)


def test_off_unless_asked_for() -> None:
    """Without the setting nothing is said."""
    bench = cluster(config=EngineConfig())
    bench.submit(graph_of({f"t{i}": () for i in range(9)}, default=(gpu(100.0),)))
    bench.send(m.Tick(), 500.0)
    assert hints(bench) == []


def test_what_waits_is_asked_for() -> None:
    """Five tasks of 100 s, a horizon of 100 s, one device there: five devices are wanted now, and no CPU."""
    bench = cluster()
    submit(bench, graph_of({f"t{i}": () for i in range(5)}, default=(gpu(100.0),)))
    assert hints(bench) == [("fast", 5, 0, 30.0)]


def test_no_ten_devices_for_ten_short_tasks() -> None:
    """Ten tasks of 20 s are done within the horizon by two devices."""
    bench = cluster()
    submit(bench, graph_of({f"t{i}": () for i in range(10)}, default=(gpu(20.0),)))
    assert [gpus for _, gpus, *_ in hints(bench)] == [2]


def test_what_fits_nowhere_is_asked_for_too() -> None:
    """A phase of four devices on a cluster with one, though it is short."""
    bench = cluster()
    submit(bench, graph_of({"large": ()}, default=(gpu(1.0, 4.0),)))
    assert hints(bench)[0][1] == 4


def test_a_gang_that_fits_nowhere_is_asked_for_as_a_whole() -> None:
    """Three short tasks of a device each that start together: three devices, though one would be done with them."""
    bench = cluster()
    together = TaskOptions(gang="g")
    names = ("a", "b", "c")
    submit(bench, graph_of(dict.fromkeys(names, ()), options=dict.fromkeys(names, together), default=(gpu(1.0),)))
    assert hints(bench)[0][1] == 3


def test_what_is_about_to_be_ready_counts_from_then_on() -> None:
    """Three children of a task that ends in 50 s: devices for them are wanted at that time, not now."""
    bench = cluster()
    children = {f"c{i}": ("a",) for i in range(3)}
    phases = {"a": (cpu(50.0),), **{name: (gpu(100.0),) for name in children}}
    submit(bench, graph_of({"a": (), **children}, phases))
    bench.start("a")
    bench.send(m.Tick(), 40.0)
    assert (hints(bench)[-1][1], hints(bench)[-1][3]) == (3, 80.0)


def test_a_flavor_that_nobody_has_is_named() -> None:
    """A task that may run on one flavor only, of which there is no node."""
    bench = cluster()
    submit(bench, graph_of({"a": ()}, options={"a": TaskOptions(flavors=("huge",))}, default=(gpu(9.0),)))
    assert ("huge", 1, 0, 30.0) in hints(bench)


@pytest.mark.parametrize(("objective", "flavor"), [("finish", "fast"), ("cost", "slow")])
def test_work_is_asked_for_where_it_would_best_run(objective: str, flavor: str) -> None:
    """Where it is done soonest, or, if price decides, where it is cheapest."""
    config = EngineConfig(scaling_hints=True, scaling_horizon_s=100.0, objective=objective)
    bench = cluster(config=config)
    bench.send(m.NodeAdded("s", 4.0, 1, flavor="slow"))
    bench.send(m.FlavorsChanged((FlavorSpec("fast", 4.0), FlavorSpec("slow", 0.5, speed=0.5))))
    submit(bench, graph_of({f"t{i}": () for i in range(12)}, default=(gpu(100.0),)))
    wanted = {name: gpus for name, gpus, *_ in hints(bench)}
    assert wanted[flavor] >= 10
    assert wanted.get("slow" if flavor == "fast" else "fast", 1) == 1


def test_nothing_new_is_not_said_again() -> None:
    """Looking again without news, or with a difference of less than a tenth, says nothing."""
    bench = cluster()
    submit(bench, graph_of({f"t{i}": () for i in range(30)}, default=(gpu(100.0),)))
    said = len(hints(bench))
    bench.submit(graph_of({"x": (), "y": ()}, default=(gpu(100.0),)), "more", 50.0)
    bench.send(m.Tick(), 70.0)
    assert (said, len(hints(bench))) == (1, 1)


def test_idle_capacity_is_given_up_after_a_horizon() -> None:
    """Four devices and nothing to do: that is said a horizon after they came, by a timer of the engine's own."""
    bench = cluster(gpus=4)
    assert hints(bench) == []
    assert bench.engine.next_wakeup() == 100.0
    bench.send(m.Tick(), 100.0)
    assert hints(bench) == [("fast", 0, 0, 100.0)]
    assert bench.engine.next_wakeup() is None
    bench.submit(graph_of({"a": ()}, default=(gpu(100.0),)), at=150.0)
    bench.send(m.Tick(), 160.0)
    assert hints(bench)[-1][:2] == ("fast", 1)


def test_the_answer_to_a_hint_changes_nothing() -> None:
    """Applied or rejected: it is advice."""
    bench = cluster()
    submit(bench, graph_of({f"t{i}": () for i in range(5)}, default=(gpu(100.0),)))
    hint = next(d for d in bench.decisions if isinstance(d, m.ScalingHint))
    before = dict(bench.state.scaling), list(bench.state.status), dict(bench.state.decisions)
    assert bench.send(m.DecisionRejected(hint.id)) == []
    assert bench.send(m.DecisionApplied(hint.id)) == []
    assert (dict(bench.state.scaling), list(bench.state.status), dict(bench.state.decisions)) == before
