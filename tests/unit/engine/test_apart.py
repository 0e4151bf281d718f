"""Gangs whose members must be apart: each on a node, or in a rack, of its own."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.rules.apart import select_apart
from egs_core.engine.rules.topology import separate
from egs_core.graph.columns import TaskOptions
from egs_core.testing.engine_bench import EngineBench, PhaseSpec, cpu, gpu, graph_of
from tests.unit.engine.test_topology import hold, places, racks, submit_gang

HOSTS, RACKS = TaskOptions(gang="g", gang_apart="node"), TaskOptions(gang="g", gang_apart="rack")


def test_each_member_is_on_a_node_of_its_own() -> None:
    """One node has room for both, and would be the best fit: without the wish both are there."""
    bench = racks(r1=(2, 4, 4))
    assert places(bench, submit_gang(bench, 2, TaskOptions(gang="g"))) == {"r1-0"}
    bench = racks(r1=(2, 4, 4))
    assert places(bench, submit_gang(bench, 2, HOSTS)) == {"r1-0", "r1-1"}


def test_waits_until_as_many_groups_have_room() -> None:
    """Four devices in one rack are not enough for two in different racks; one that comes free elsewhere is."""
    bench = racks(r1=(2, 2), r2=(1,))
    hold(bench, "r2-0")
    names = submit_gang(bench, 2, RACKS)
    assert [bench.status(name) for name in names] == ["ready", "ready"]
    text = bench.reason(names[0]).text
    assert "its gang g 2 GPUs at once, each on a rack of its own (there are 2)" in text
    bench.end("h r2-0")
    assert places(bench, names) == {"r1-0", "r2-0"}


def test_more_members_than_groups_are_told_so() -> None:
    """No room will ever come: the reason has the numbers, also where no node is in a rack at all."""
    bench = racks(r1=(4, 4), r2=(4,))
    reason = bench.reason(submit_gang(bench, 3, RACKS)[0])
    assert reason.kind == "infeasible"
    assert "need 3 GPUs at once, each on a rack of its own (there are 2); the nodes never have room" in reason.text
    bench = EngineBench(cpus=8.0, gpus=4)
    reason = bench.reason(submit_gang(bench, 2, RACKS)[0])
    assert (reason.kind, "no node says in which rack it is" in reason.text) == ("infeasible", True)


def test_a_member_makes_way_where_it_may_have_another_node() -> None:
    """The larger one is placed first, on the fuller node: the other one may have that alone, so it goes on."""
    bench = racks(r1=(2, 4))
    phases = {"large": (gpu(10.0, 2.0),), "bound": (gpu(10.0),)}
    options = {"large": HOSTS, "bound": TaskOptions(gang="g", gang_apart="node", flavors=("r1-0",))}
    bench.submit(graph_of({"large": (), "bound": ()}, phases, options))
    assert (bench.grant_of("large").node, bench.grant_of("bound").node) == ("r1-1", "r1-0")


def test_a_reservation_is_on_different_nodes() -> None:
    """An overdue gang keeps room on two nodes, though one of them has enough for both sooner; what would run for too
    long gets the rest."""
    bench = EngineBench(config=EngineConfig(default_max_wait_s=0.0))
    for name in "ab":
        bench.send(m.NodeAdded(name, 8.0, 2, flavor=name))
    for name, seconds in (("a", 5.0), ("b", 20.0), ("b", 30.0)):
        only = TaskOptions(flavors=(name,))
        held = f"h {name} {seconds:g}"
        bench.submit(graph_of({held: ()}, options={held: only}, default=(gpu(seconds),)), held)
        bench.start(held)
    names = submit_gang(bench, 2, HOSTS)
    bench.send(m.Tick(), 0.5)
    kept = next(iter(bench.state.reservations.values()))
    assert kept.at == 20.0
    assert sorted(bench.state.nodes[node].name for _, node in kept.places) == ["a", "b"]
    bench.end("h b 20", 20.0)
    assert places(bench, names) == {"a", "b"}


def test_victims_are_on_different_nodes() -> None:
    """What goes first evicts one on each of two nodes, not two of one node."""
    bench = EngineBench(config=EngineConfig(preempt=True))
    for name in "ab":
        bench.send(m.NodeAdded(name, 8.0, 2, flavor=name))
    low = [f"low{i}" for i in range(4)]
    bench.submit(graph_of(dict.fromkeys(low, ()), default=(gpu(100.0),)), "low")
    for name in low:
        bench.start(name)
    first = TaskOptions(gang="g", gang_apart="node", priority=5)
    names = submit_gang(bench, 2, first)
    stopped = [d for d in bench.decisions if isinstance(d, m.Stop)]
    assert len(stopped) == 2
    for decision in stopped:
        bench.end(bench.state.task_ids[decision.task], 1.0, "preempted")
    assert places(bench, names) == {"a", "b"}


def test_later_phases_stay_where_their_tasks_are() -> None:
    """CPU first, then a GPU: the second phases start together on the nodes of the first."""
    bench = EngineBench()
    for name in "ab":
        bench.send(m.NodeAdded(name, 8.0, 1, flavor=name))
    graph = graph_of({"x": (), "y": ()}, options=dict.fromkeys("xy", HOSTS), default=(cpu(1.0), gpu(10.0)))
    bench.submit(graph)
    before = {name: bench.grant_of(name).node for name in "xy"}
    assert set(before.values()) == {"a", "b"}
    for name in "xy":
        bench.start(name)
        bench.end(name)
    assert {name: bench.grant_of(name).node for name in "xy"} == before


@given(st.lists(st.lists(st.integers(0, 5), unique=True), max_size=6))
def test_all_have_a_group_whenever_that_is_possible(offers: list[list[int]]) -> None:
    """By trying every way: a way is found exactly where there is one, and gives each what it may have."""
    found = select_apart(dict(enumerate(offers)))
    is_possible = any(
        all(group in offer for group, offer in zip(way, offers, strict=True))
        for way in permutations(range(6), len(offers))
    )
    assert (found is not None) == is_possible
    if found is not None:
        assert len(set(found.values())) == len(offers)
        assert all(group in offers[member] for member, group in found.items())


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=7),
    st.lists(st.integers(1, 3), min_size=2, max_size=4),
    st.sampled_from([("node",), ("rack",), ("node", "rack"), ("rack", "zone")]),
)
def test_what_is_placed_shares_no_group(
    nodes: list[tuple[int, int, int]], wants: list[int], levels: tuple[str, ...]
) -> None:
    """Any nodes of GPUs, racks and zones (0: in none), any gang: no two members are in one group of a level that any
    of them named, all places fit together, and at one level a gang waits only where no way exists."""
    bench = EngineBench()
    for number, (gpus, rack, zone) in enumerate(nodes):
        named = [(level, str(value)) for level, value in (("rack", rack), ("zone", zone)) if value]
        bench.send(m.NodeAdded(f"n{number}", 8.0, gpus, topology=tuple(named)))
    names = [f"t{i}" for i in range(len(wants))]
    options = {name: TaskOptions(gang="g", gang_apart=levels[i % len(levels)]) for i, name in enumerate(names)}
    phases: dict[str, tuple[PhaseSpec, ...]] = {
        name: (gpu(1.0, float(want)),) for name, want in zip(names, wants, strict=True)
    }
    bench.submit(graph_of(dict.fromkeys(names, ()), phases, options))
    columns = {"node": range(1, len(nodes) + 1), "rack": [one[1] for one in nodes], "zone": [one[2] for one in nodes]}
    if bench.status(names[0]) == "ready":
        if len(levels) == 1:
            assert not any(
                all(nodes[n][0] >= want for n, want in zip(way, wants, strict=True))
                and all(columns[levels[0]][n] for n in way)
                and len({columns[levels[0]][n] for n in way}) == len(way)
                for way in permutations(range(len(nodes)), len(wants))
            )
        return
    placed = [int(bench.grant_of(name).node[1:]) for name in names]
    for level in levels:
        groups = [columns[level][n] for n in placed]
        assert all(groups)
        assert len(set(groups)) == len(groups)


def test_nodes_that_share_a_group_of_either_level_are_one_part() -> None:
    """a and b share a rack, b and c a zone: all three are one part; d is another one, and e, in no zone, in none."""
    bench = EngineBench()
    for name, rack, zone in (("a", "1", "x"), ("c", "2", "y"), ("b", "1", "y"), ("d", "3", "z"), ("e", "4", "")):
        bench.send(m.NodeAdded(name, 8.0, 1, topology=(("rack", rack), ("zone", zone)) if zone else (("rack", rack),)))
    part_of = separate(dict(enumerate(bench.state.nodes)), ("rack", "zone"))
    assert part_of[0] == part_of[1] == part_of[2]
    assert (part_of[3] != part_of[0], 4 in part_of) == (True, False)
