"""A task that may have some devices of a node only: what waits for them, what passes it, and whom it preempts."""

from __future__ import annotations

import msgspec
import pytest

from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.specs import FlavorSpec
from egs_core.graph.columns import TaskOptions
from egs_core.testing.engine_bench import EngineBench, gpu, graph_of

ONE = (gpu(10.0),)


def busy(gpus: int = 2, config: EngineConfig | None = None) -> EngineBench:
    """`low` on device 0 has been stopped for `high`, which has it; `other` has device 1; low may have device 0 only."""
    bench = EngineBench(8.0, gpus, config=config)
    bench.submit(graph_of({"low": ()}, default=ONE), "low")
    bench.start("low")
    for number in range(1, gpus):
        bench.submit(graph_of({f"other{number}": ()}, default=ONE), f"other{number}")
        bench.start(f"other{number}")
    options = {"high": TaskOptions(priority=5)}
    bench.submit(graph_of({"high": ()}, default=ONE, options=options), "high")
    bench.send(m.DevicesAllowed(bench.task("low"), "n0", (0,)))
    bench.end("low", 5.0, "preempted")
    bench.start("high")
    return bench


def test_it_waits_for_its_own_device_and_others_pass_it() -> None:
    """What comes free beside it goes to one behind it; it says that it may have one only; then it has its own."""
    bench = busy()
    assert bench.grant_of("high").devices == (0,)
    bench.submit(graph_of({"behind": ()}, default=ONE), "behind")
    bench.end("other1", 6.0)
    assert (bench.status("low"), bench.grant_of("behind").devices) == ("ready", (1,))
    assert "0 of 1 GPU wholly free" in bench.reason("low").text
    bench.start("behind")
    bench.end("high", 7.0)
    assert (bench.grant_of("low").devices, bench.grant_of("low").attempt) == ((0,), 2)


def test_it_may_have_any_again_once_that_is_said() -> None:
    """Without a device the event takes the bound back, and it gets what is free at once. An unknown task changes
    nothing."""
    bench = busy()
    bench.send(m.DevicesAllowed(99, "n0", (0,)))
    bench.end("other1", 6.0)
    assert bench.status("low") == "ready"
    bench.send(m.DevicesAllowed(bench.task("low")))
    assert bench.grant_of("low").devices == (1,)


def test_of_another_node_it_has_none() -> None:
    """The number of a device means that of its own node, also among many nodes and beside what is kept for others."""
    bench = busy(1)
    for number in range(1, 8):
        bench.send(m.NodeAdded(f"n{number}", 8.0, 1))
    assert bench.status("low") == "ready"
    bench.submit(graph_of({"behind": ()}, default=ONE), "behind")
    assert bench.grant_of("behind").node != "n0"
    bench.start("behind")
    bench.end("high", 7.0)
    assert (bench.grant_of("low").node, bench.grant_of("low").devices) == ("n0", (0,))


def test_nobody_is_stopped_elsewhere_for_it() -> None:
    """Of a lower priority than it there runs something on the other device: stopping that would give it nothing. What
    is on its own device is stopped for it."""
    config = EngineConfig(preempt=True, min_gain_s=0.0)
    bench = EngineBench(8.0, 2, config=config)
    for name in ("left", "right"):
        bench.submit(graph_of({name: ()}, default=ONE), name)
        bench.start(name)
    only = TaskOptions(priority=5, only_on=("n0", (1,)))
    bench.submit(graph_of({"bound": ()}, default=ONE, options={"bound": only}), "bound")
    stopped = [bench.state.task_ids[one.task] for one in bench.decisions if isinstance(one, m.Stop)]
    assert stopped == ["right"]
    bench.end("right", 5.0, "preempted")
    assert bench.grant_of("bound").devices == (1,)


@pytest.mark.parametrize("milli", [300, 1000])
def test_a_share_of_its_own_device(milli: int) -> None:
    """A part of a device is that of its own one, though another is fuller."""
    bench = EngineBench(8.0, 2)
    bench.submit(graph_of({"part": ()}, default=(gpu(10.0, 0.5),)), "part")
    only = {"low": TaskOptions(only_on=("n0", (1,)))}
    bench.submit(graph_of({"low": ()}, default=(gpu(10.0, milli / 1000),), options=only), "low")
    assert bench.grant_of("low").devices == (1,)


def test_no_other_flavor_is_weighed_for_it() -> None:
    """On a node of two flavors it waits for its own device, the slow one, though the fast one is free."""
    bench = EngineBench()
    bench.send(m.FlavorsChanged((FlavorSpec("fast"), FlavorSpec("slow", speed=0.25))))
    bench.send(m.NodeAdded("n0", 8.0, 2, device_flavors=("fast", "slow")))
    only = TaskOptions(only_on=("n0", (1,)))
    bench.submit(graph_of({"a": (), "b": ()}, default=ONE, options={"a": only, "b": only}))
    assert sorted([bench.status("a"), bench.status("b")]) == ["granted", "ready"]
    first = "a" if bench.status("a") == "granted" else "b"
    assert bench.grant_of(first).devices == (1,)


def test_the_event_survives_the_journal() -> None:
    event = m.DevicesAllowed(1, "n0", (0, 2))
    assert msgspec.json.decode(msgspec.json.encode(event), type=m.AnyEvent) == event
