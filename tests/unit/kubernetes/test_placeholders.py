"""Which placeholders should be there, as functions."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from egs_core.graph.columns import Shape
from egs_core.kubernetes import names
from egs_core.kubernetes import places as places_
from egs_core.kubernetes.foreseen import Owner, Wanted
from egs_core.kubernetes.placeholders import (
    LATER,
    STAYS_S,
    Place,
    Steps,
    hosts_of,
    key_of,
    made,
    select_steps,
    to_stand_for,
)
from egs_core.kubernetes.pods import Node, Pod, node_of, pod_of
from tests.unit.kubernetes.made_pods import node, pod
from tests.unit.kubernetes.test_preloads import NOW, runs, wanted

NODE_S = 180.0
GPU = "nvidia.com/gpu"


def place(gpus: int = 1, where: str = "", of: str = GPU) -> Place:
    return Place(Shape(1000, 1000 * gpus, 0), where, ((of, gpus),))


ONE = place()


def gpu_node(name: str = "n1", gpus: int = 1) -> Node:
    return node_of(node(name, gpus=gpus))


def busy(left_s: float | None = 3600, name: str = "n1") -> Pod:
    return runs(f"on-{name}", name, left_s, gpus=1)


def steps(
    wanted_: list[Wanted], pods: list[Pod], nodes: list[Node], there: tuple[Pod, ...] = (), most: int = 9
) -> Steps:
    return select_steps(wanted_, there, pods, nodes, NOW, node_s=NODE_S, most=most)


def places(found: Steps) -> list[Place]:
    return [one for _, one in found.make]


def stand_in(its: Place = ONE, number: int = 0, on: str = "", **status: Any) -> Pod:
    """A placeholder that is there."""
    raw = made(f"egs-placeholder-{its.key}-{number}", its, "egs-system", "pause")
    raw["metadata"] |= {"uid": f"{its.key}-{number}"}
    raw["spec"] |= {"nodeName": on} if on else {}
    return pod_of(raw | {"status": status})


def waits(name: str, takes_s: float | None = 3600, **stated: Any) -> Wanted:
    return wanted(name, gpus=1, takes_s=takes_s, **stated)


def test_what_starts_soon_enough_on_the_nodes_there_needs_none() -> None:
    """A GPU that is free now, or before a node would be worth it."""
    assert steps([waits("a")], [], [gpu_node()]) == Steps()
    assert steps([waits("a")], [busy(LATER * NODE_S - 5)], [gpu_node()]) == Steps()
    assert steps([], [busy()], [gpu_node()]) == Steps()


@pytest.mark.parametrize(
    ("takes_s", "many"),
    [(3600, 4), (150, 2), (60, 1), (None, 4)],
    ids=["long", "two after each other", "all after each other", "nobody knows"],
)
def test_no_more_places_than_it_takes_to_begin_all_in_time(takes_s: float | None, many: int) -> None:
    """Four that wait behind an hour: short ones take a place after each other, as they would on the node to come."""
    found = steps([waits(str(n), takes_s) for n in range(4)], [busy()], [gpu_node()])
    assert places(found) == [ONE] * many
    assert len({name for name, _ in found.make}) == many
    assert {key_of(name) for name, _ in found.make} == {ONE.key}


def test_what_the_nodes_there_can_begin_in_time_is_theirs() -> None:
    """Ten of a minute: the GPU that is free takes them until a node would have come and been worth it, the rest takes
    one place. No ten nodes for ten minutes of work."""
    assert places(steps([waits(str(n), 60.0) for n in range(10)], [], [gpu_node()])) == [ONE]


def test_one_that_runs_and_of_which_nothing_is_known_stays() -> None:
    """As for an autoscaler. So does what waits: each has a place of its own, but for the one that is free."""
    assert places(steps([waits("a")], [busy(None)], [gpu_node()])) == [ONE]
    assert places(steps([waits("a", None), waits("b", None)], [], [gpu_node()])) == [ONE]


def test_there_are_never_more_than_are_allowed() -> None:
    """The first in the order have them; none at all is off, and takes away what is there."""
    big = place(2)
    two = wanted("two", gpus=2, takes_s=3600)
    found = steps([two, waits("a"), waits("b")], [busy()], [gpu_node()], most=2)
    assert places(found) == [big, ONE]
    kept = stand_in()
    assert steps([waits("a"), waits("b")], [busy()], [gpu_node()], (kept,), most=1) == Steps()
    assert steps([waits("a")], [busy()], [gpu_node()], (kept,), most=0) == Steps(remove=(kept,))


def test_a_step_to_come_has_one_when_a_node_would_be_there_in_time() -> None:
    """Ahead of need, and no earlier: its node takes three minutes, it is ready in two, or in ten."""
    assert places(steps([waits("a", ready_at=NOW + 120)], [busy()], [gpu_node()])) == [ONE]
    assert steps([waits("a", ready_at=NOW + 600)], [busy()], [gpu_node()]) == Steps()


def test_each_has_the_demands_of_what_it_stands_for() -> None:
    """Kinds that differ share no place; the resource of the GPU goes with it."""
    other = json.dumps({"select": {"pool": "b"}})
    found = steps([waits("a", 60.0, where=other), waits("b", 60.0, of="amd.com/gpu")], [busy()], [gpu_node()])
    assert places(found) == [place(where=other), place(of="amd.com/gpu")]


def test_members_of_a_gang_share_no_place() -> None:
    """One GPU is free, two members wait, who start together: one more place."""
    listed = {name: pod_of(pod(name, uid=name, gpus=1, gang="g", size=2, predicted=10)) for name in ("a", "b")}
    found = to_stand_for(listed, ["a", "b"], [])
    assert [one.takes_s for one in found] == [STAYS_S, STAYS_S]
    assert [one.devices for one in places(steps(found, [], [gpu_node()]))] == [((GPU, 1),)]


def test_what_is_open_takes_its_room_and_has_none() -> None:
    """Its pod is what an autoscaler sees. What waits behind it has one; a paused one, or one that goes, is not asked
    for."""
    opened = pod_of(pod("open", uid="open", gate=False, gpus=1, predicted=3600))
    gone = msgspec.structs.replace(pod_of(pod("gone", uid="gone", gpus=1)), is_leaving=True)
    listed = {"open": opened, "gone": gone, "waits": pod_of(pod("waits", uid="waits", gpus=1, predicted=3600))}
    found = to_stand_for(listed, ["gone", "waits"], [])
    assert [(one.owner.name, one.is_seen, one.devices) for one in found] == [
        ("open", True, ((GPU, 1),)),
        ("waits", False, ((GPU, 1),)),
    ]
    assert len(places(steps(found, [], [gpu_node()]))) == 1
    assert len(places(steps(found, [], []))) == 1
    assert steps(found[:1], [], []) == Steps()


def test_one_that_is_there_stays_a_little_longer_than_one_would_be_made() -> None:
    """What was predicted moves: between one and two times the way of a node nothing is made, and nothing taken away."""
    between = [busy(1.5 * NODE_S)]
    assert steps([waits("a")], between, [gpu_node()]) == Steps()
    assert steps([waits("a")], between, [gpu_node()], (stand_in(),)) == Steps()
    assert steps([waits("a")], [busy(0.5 * NODE_S)], [gpu_node()], (stand_in(),)) == Steps(remove=(stand_in(),))


def test_what_is_not_wanted_any_more_or_has_ended_goes() -> None:
    """Nothing waits; another kind does; it was stopped at its deadline. What is on its way out is left alone."""
    there, other = stand_in(), place(2)
    assert steps([], [busy()], [gpu_node()], (there,)).remove == (there,)
    found = steps([wanted("b", gpus=2, takes_s=3600)], [busy()], [gpu_node()], (there,))
    assert (found.remove, places(found)) == ((there,), [other])
    ended = stand_in(phase="Failed")
    again = steps([waits("a")], [busy()], [gpu_node()], (ended,))
    assert (again.remove, [name for name, _ in again.make]) == ((ended,), [f"egs-placeholder-{ONE.key}-1"])
    leaving = msgspec.structs.replace(there, is_leaving=True)
    assert steps([], [], [], (leaving,)) == Steps()


def test_one_with_a_node_makes_way_for_what_starts_there() -> None:
    """A node has come with the placeholder on it. What waits would start there now: it goes. A step that is ready in
    two minutes keeps it there; one that starts beside it does so only where there is no room for both."""
    nodes, on = [gpu_node(), gpu_node("n2")], stand_in(on="n2")
    assert steps([waits("a")], [busy()], nodes, (on,)) == Steps(remove=(on,))
    later = waits("later", ready_at=NOW + 120)
    assert steps([later], [busy()], nodes, (on,)) == Steps()
    assert steps([waits("a", 30.0), later], [busy()], nodes, (on,)).remove == (on,)
    larger = [gpu_node(), gpu_node("n2", 2)]
    assert steps([waits("a", 3600.0), later], [busy()], larger, (on,)) == Steps()
    assert steps([], [busy()], nodes, (on,)).remove == (on,)
    assert steps([later], [busy(), busy(60, "n2")], nodes, (on,)).remove == (on,)


def test_whatever_is_asked_for_it_holds_to_its_bounds() -> None:
    """Of five hundred random clusters: never more at once than are allowed, no name twice, none both kept and removed,
    and a second look finds what the first has made and changes nothing."""
    rng = random.Random(7)
    made_some = 0
    for _ in range(500):
        nodes = [gpu_node(f"n{n}", rng.choice((1, 2, 8))) for n in range(rng.randrange(4))]
        pods = [busy(rng.choice((None, 60, 400, 5000)), one.name) for one in nodes if rng.random() < 0.7]
        ask = [
            wanted(
                f"w{n}",
                gpus=rng.choice((0, 1, 1, 2, 8)),
                cpu=rng.choice((1, 4)),
                takes_s=rng.choice((None, 10, 100, 3600)),
                ready_at=rng.choice((0.0, 0.0, NOW + 100, NOW + 500)),
            )
            for n in range(rng.randrange(12))
        ]
        most = rng.randrange(6)
        first = steps(ask, pods, nodes, most=most)
        made_some += bool(first.make)
        assert len(first.make) <= most
        assert len({name for name, _ in first.make}) == len(first.make)
        there = tuple(
            msgspec.structs.replace(stand_in(its), name=name, uid=name, phase="Pending") for name, its in first.make
        )
        assert steps(ask, pods, nodes, there, most) == Steps()
        on = tuple(msgspec.structs.replace(one, node=rng.choice(nodes).name) for one in there if nodes)
        again = steps(ask, pods, nodes, on, most)
        assert len(on) - len(again.remove) + len(again.make) <= most
        assert steps([], pods, nodes, on, most) == Steps(remove=on)
    assert made_some > 100


def test_a_placeholder_as_an_object_of_kubernetes() -> None:
    """By the official schema; what is read back of it says which place it stands for, and that it is no work."""
    where = {"select": {"pool": "a"}, "terms": [{"matchExpressions": [{"key": "k", "operator": "Exists"}]}]}
    where["tolerate"] = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    its = Place(Shape(1500, 2000, 1 << 30), json.dumps(where, sort_keys=True), ((GPU, 2),))
    raw = made(f"egs-placeholder-{its.key}-0", its, "egs-system", "pause:1")
    found = pod_of(raw)
    assert (found.is_placeholder, found.is_ours, key_of(found.name)) == (True, False, its.key)
    assert (found.shape, found.where, found.resources) == (its.shape, its.where, its.devices)
    assert not pod_of(raw | {"spec": raw["spec"] | {"priorityClassName": ""}}).is_placeholder
    assert raw["spec"]["priorityClassName"] == names.PLACEHOLDER_CLASS
    pytest.importorskip("kubernetes_validate").validate(raw, "1.36", strict=True)


def test_it_asks_for_a_node_that_is_not_there_yet() -> None:
    """So it takes nothing that is given back on those there: they are named, as far as they could take it. What its
    pod says of nodes holds besides, each of several terms."""
    nodes = [gpu_node("n1"), gpu_node("n2", 2), gpu_node("cpus", 0), node_of(node("b", gpus=1, labels={"pool": "b"}))]
    assert hosts_of(ONE, nodes) == ("b", "n1", "n2")
    two = place(2)
    assert hosts_of(two, nodes) == ("n2",)
    terms = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": [name]}]} for name in ("b", "c")]
    only_b = place(where=json.dumps({"terms": terms}))
    assert hosts_of(only_b, nodes) == ("b",)
    raw = made("egs-placeholder-x-0", only_b, "egs-system", "pause", hosts_of(only_b, nodes))
    where = pod_of(raw).where
    assert [places_.allows(where, one) for one in nodes] == [False] * 4
    assert places_.allows(where, node_of(node("new", gpus=1, labels={"pool": "c"})))
    plain = pod_of(made("egs-placeholder-x-0", ONE, "egs-system", "pause", ("n1",))).where
    assert [places_.allows(plain, one) for one in nodes] == [False, True, True, True]


def test_what_will_come_is_asked_for_last() -> None:
    """As it is told, behind what waits."""
    coming = Wanted(Owner("argoproj.io/v1alpha1", "Workflow", "w", "u"), "team", Shape(0))
    listed = {"a": pod_of(pod("a", uid="a"))}
    assert to_stand_for(listed, ["a"], [coming])[1:] == [coming]
