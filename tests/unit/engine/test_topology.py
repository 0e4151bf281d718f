"""Gangs whose members must be close to each other: on one node, in one rack."""

from __future__ import annotations

import pytest

from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.specs import FlavorSpec
from egs_core.graph.columns import TaskOptions
from egs_core.testing.engine_bench import EngineBench, gpu, graph_of

RACK = TaskOptions(gang="g", gang_same="rack")


def racks(default_max_wait_s: float | None = None, **gpus: tuple[int, ...]) -> EngineBench:
    """Nodes with so many GPUs each, in racks of these names; each node is a flavor of its own."""
    bench = EngineBench(config=EngineConfig(default_max_wait_s=default_max_wait_s))
    for rack, nodes in gpus.items():
        for i, count in enumerate(nodes):
            topology = (("rack", rack), ("zone", "a"))
            bench.send(m.NodeAdded(f"{rack}-{i}", 8.0, count, flavor=f"{rack}-{i}", topology=topology))
    return bench


def submit_gang(bench: EngineBench, size: int, options: TaskOptions = RACK) -> list[str]:
    names = [f"member{i}" for i in range(size)]
    bench.submit(graph_of(dict.fromkeys(names, ()), options=dict.fromkeys(names, options), default=(gpu(10.0),)))
    return names


def hold(bench: EngineBench, node: str, seconds: float = 5.0) -> None:
    """A task takes a device of this node."""
    only = TaskOptions(flavors=(node,))
    bench.submit(graph_of({f"h {node}": ()}, options={f"h {node}": only}, default=(gpu(seconds),)), f"h {node}")
    bench.start(f"h {node}")


def places(bench: EngineBench, names: list[str]) -> set[str]:
    return {bench.grant_of(name).node for name in names}


def test_all_members_start_in_the_smallest_rack_with_room() -> None:
    """Both racks have room: the smaller one is taken, though a node of the larger one alone would do."""
    bench = racks(r1=(1, 1, 4), r2=(1, 1))
    assert places(bench, submit_gang(bench, 2)) == {"r2-0", "r2-1"}


def test_waits_while_no_single_rack_has_room() -> None:
    """One free device in each rack is not enough for two that must be together, though it is for two that need not;
    when one rack has two, the gang starts there."""
    bench = racks(r1=(1, 1), r2=(1, 1))
    hold(bench, "r1-0")
    hold(bench, "r2-1")
    names = submit_gang(bench, 2)
    assert bench.status(names[0]) == "ready"
    bench.end("h r2-1")
    assert places(bench, names) == {"r2-0", "r2-1"}

    bench = racks(r1=(1, 1), r2=(1, 1))
    hold(bench, "r1-0")
    hold(bench, "r2-1")
    assert places(bench, submit_gang(bench, 2, TaskOptions(gang="g"))) == {"r1-1", "r2-0"}


def test_all_on_one_node() -> None:
    """The level `node` needs no topology."""
    bench = EngineBench()
    for name in "ab":
        bench.send(m.NodeAdded(name, 8.0, 1))
    names = submit_gang(bench, 2, TaskOptions(gang="g", gang_same="node"))
    assert bench.status(names[0]) == "ready"
    bench.send(m.NodeAdded("c", 8.0, 2))
    assert places(bench, names) == {"c"}


def test_a_reservation_is_in_one_rack() -> None:
    """An overdue gang keeps room in one rack, the first to be free as a whole, and a long task may not have it."""
    bench = racks(0.0, r1=(1, 1), r2=(1, 1))
    for node, seconds in (("r1-0", 30.0), ("r2-0", 10.0), ("r1-1", 1.0)):
        hold(bench, node, seconds)
    names = submit_gang(bench, 2)
    bench.send(m.Tick(), 0.5)
    kept = next(iter(bench.state.reservations.values()))
    assert kept.at == 10.0
    assert {bench.state.nodes[node].name for _, node in kept.places} == {"r2-0", "r2-1"}
    bench.submit(graph_of({"long": ()}, default=(gpu(50.0),)), "long")
    assert bench.status("long") == "ready"
    bench.end("h r1-1", 1.0)
    assert bench.grant_of("long").node == "r1-1"
    bench.end("h r2-0", 10.0)
    assert places(bench, names) == {"r2-0", "r2-1"}


def test_larger_than_any_rack_is_explained_with_the_numbers() -> None:
    """Three devices in one rack of two will never be there, and a level that no node states neither."""
    bench = racks(r1=(1, 1), r2=(1, 1, 0))
    names = submit_gang(bench, 3)
    reason = bench.reason(names[0])
    assert reason.kind == "infeasible"
    assert "3 GPUs at once, all in one rack (the largest, r2, has 2 GPUs and 24 CPUs)" in reason.text

    bench = racks(r1=(4,))
    names = submit_gang(bench, 2, TaskOptions(gang="g", gang_same="row"))
    assert "no node says in which row it is" in bench.reason(names[0]).text


@pytest.mark.parametrize("unlike", [False, True])
@pytest.mark.parametrize("bare", [1, 2])
def test_one_alone_starts_where_its_level_is_known(bare: int, unlike: bool) -> None:
    """A gang of one task, as a pipeline has it whose number of shards came out as one, starts in a rack like a larger
    one: it waits for that while the node that is in none has room, also where the engine chooses between flavors; and
    once it is overdue room is kept for it in the rack."""
    bench = EngineBench(config=EngineConfig(default_max_wait_s=0.0))
    bench.send(m.NodeAdded("bare", 8.0, bare, flavor="A"))
    bench.send(m.NodeAdded("racked", 8.0, 1, flavor="B", topology=(("rack", "r1"),)))
    if unlike:
        bench.send(m.FlavorsChanged((FlavorSpec("A", 4.0), FlavorSpec("B", 1.0))))
    hold(bench, "B")
    (name,) = submit_gang(bench, 1)
    assert bench.status(name) == "ready"
    bench.send(m.Tick(), 0.5)
    kept = next(iter(bench.state.reservations.values()))
    assert [bench.state.nodes[node].name for _, node in kept.places] == ["racked"]
    bench.end("h B", 5.0)
    assert places(bench, [name]) == {"racked"}


def test_one_alone_is_told_that_no_node_is_in_a_rack() -> None:
    """No room will ever come: the reason says why."""
    bench = EngineBench(cpus=8.0, gpus=2)
    (name,) = submit_gang(bench, 1)
    assert bench.status(name) == "ready"
    reason = bench.reason(name)
    assert reason.kind == "infeasible"
    assert "1 phase of its gang g needs 1 GPU at once" in reason.text
    assert "no node says in which rack it is" in reason.text


def test_members_that_name_different_levels_get_both() -> None:
    """One in the same zone, one on the same node: the stricter of both holds, since all must agree."""
    bench = racks(r1=(1, 1), r2=(2,))
    options = {"a": TaskOptions(gang="g", gang_same="zone"), "b": TaskOptions(gang="g", gang_same="node")}
    bench.submit(graph_of({"a": (), "b": ()}, options=options, default=(gpu(10.0),)))
    assert places(bench, ["a", "b"]) == {"r2-0"}
