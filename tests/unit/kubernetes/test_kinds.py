"""Nodes of several kinds: what may run where, also when nodes of a kind come that was not there, or get taints."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.kubernetes import session as sessions
from egs_core.kubernetes.pods import Node, Pod, node_of, pod_of
from egs_core.kubernetes.session import ClusterSession, own_site
from egs_core.site import Site
from egs_core.site.protocol import Holder
from tests.unit.kubernetes.controlled import controlled
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_pods import node, pod
from tests.unit.kubernetes.test_preloading import occupy
from tests.unit.kubernetes.test_steering import api

__all__ = ["api"]  # the fixture

TAINT = {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}
TOLERATES = {"tolerations": [{"key": "gpu", "operator": "Exists"}]}


def in_pools(*pools: str) -> dict[str, Any]:
    """A pod that may run in any of these."""
    terms = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": list(pools)}]}]
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    }


def asks(name: str, spec: dict[str, Any] | None = None, **stated: Any) -> dict[str, Any]:
    """A pod with one GPU."""
    made = pod(name, uid=name, gpus=1, run=name, **stated)
    made["spec"] |= spec or {}
    return made


def test_a_node_of_a_kind_that_was_not_there_is_given_to_what_waits(api: EmulatedApi) -> None:
    """Its pod may run in pool `a` or `b`; there was only `a`, and nodes of neither, when it came. The node that comes
    is of `b`: the gate is opened."""
    occupy(api, "n1", 3600)
    api.add("nodes", node("n1", gpus=1, labels={"pool": "a"}))
    api.add("nodes", node("cpus"))
    api.add("pods", asks("waits", in_pools("a", "b")))
    with controlled(api) as controller:
        api.until(lambda: controller._gated is not None and controller._gated.order() == ["waits"])
        api.add("nodes", node("n2", gpus=1, labels={"pool": "b"}))
        api.until(lambda: api.opened() == ["waits"])


def test_what_no_node_can_take_holds_no_room(api: EmulatedApi) -> None:
    """It is opened for the scheduler to say why, and waits there: the GPU that is free is the next pod's. A node that
    can take it is its own when it comes."""
    api.add("nodes", node("n1", gpus=1, labels={"pool": "a"}))
    api.add("pods", asks("nowhere", in_pools("z"), rank=99))
    with controlled(api) as controller:
        api.until(lambda: api.opened() == ["nowhere"])
        api.until(lambda: controller._gated is not None and "nowhere" in controller._gated._known)
        api.add("pods", asks("fits"))
        api.until(lambda: api.opened() == ["nowhere", "fits"])
        api.add("nodes", node("n2", gpus=1, labels={"pool": "z"}))
        api.until(lambda: controller._gated is not None and "nowhere" in controller._gated.granted())


class Counted:
    """A session that says how often it was begun anew, and of which pods it was told."""

    def __init__(self) -> None:
        self.begun = 0
        self.session = ClusterSession(self._begin)
        self.pods: dict[str, Pod] = {}

    def _begin(self, holder: Holder) -> Site:
        self.begun += 1
        return own_site(holder)

    def tell(self, nodes: list[Node], *raws: dict[str, Any]) -> list[str]:
        """Also of these pods; what is granted by then."""
        self.pods |= {one.uid: one for one in map(pod_of, raws)}
        self.session.tell(self.pods, nodes)
        self.session.order()  # an answer, behind all that was told
        return self.session.granted()


@pytest.fixture
def told() -> Counted:
    return Counted()


def gpu_node(name: str, spec: dict[str, Any] | None = None, **labels: str) -> Node:
    return node_of(node(name, gpus=1, spec=spec or {}, labels=labels))


def test_a_node_whose_taints_nobody_tolerates_takes_nothing(told: Counted) -> None:
    """Nor is anything told anew for it: nodes get taints and lose them."""
    plain, tainted = gpu_node("n1"), gpu_node("n2", TAINT)
    try:
        assert told.tell([plain], asks("a"), asks("b")) == ["a"]
        assert told.tell([plain, tainted]) == ["a"]
        assert told.tell([plain, gpu_node("n2")]) == ["a", "b"]
        assert told.begun == 1
    finally:
        told.session.close()


def test_what_tolerates_a_node_that_has_come_gets_it_and_nothing_else_does(told: Counted) -> None:
    """Two wait, the first in the order without a toleration; once it is told anew what may run where."""
    plain, tainted = gpu_node("n1"), gpu_node("n2", TAINT)
    try:
        assert told.tell([plain], asks("has", rank=900)) == ["has"]
        told.tell([plain], asks("first", rank=500), asks("second", TOLERATES))
        assert "second" in told.tell([plain, tainted])
        assert "first" not in told.session.granted()
        began = told.begun
        assert told.tell([plain, tainted, gpu_node("n3", TAINT)])
        assert (told.begun, "first" in told.session.granted()) == (began, False)
    finally:
        told.session.close()


def test_a_pod_that_runs_keeps_its_place_whatever_taints_come(told: Counted) -> None:
    """A new controller finds it on a node whose taint it does not tolerate: that GPU is not free."""
    runs = asks("runs", {"nodeName": "n2"}, gate=False)
    try:
        assert told.tell(
            [gpu_node("n1"), gpu_node("n2", TAINT)], runs, asks("one", TOLERATES), asks("two", TOLERATES)
        ) in (
            ["one"],
            ["two"],
        )
    finally:
        told.session.close()


@pytest.mark.parametrize("spec", [TAINT, {"unschedulable": True}], ids=["tainted", "cordoned"])
def test_a_pod_that_runs_where_nothing_may_start_takes_no_room_elsewhere(told: Counted, spec: dict[str, Any]) -> None:
    """A new controller finds it there: the GPU of the other node is for what waits."""
    runs = asks("runs", {"nodeName": "n2"}, gate=False, rank=999)
    try:
        assert told.tell([gpu_node("n1"), gpu_node("n2", spec)], runs, asks("one")) == ["one"]
    finally:
        told.session.close()


def test_a_pod_that_got_a_node_before_that_was_listed_is_told_with_it(told: Counted) -> None:
    """Two watches, of which the one of nodes is behind: the GPU that it has there is its own, and what waits gets that
    of the other node that has come."""
    opened: dict[str, Any] = {"schedulingGates": []}
    nodes = [gpu_node(name) for name in ("n1", "n0", "n2")]
    try:
        assert told.tell(nodes[:1], asks("other", rank=900)) == ["other"]
        told.tell(nodes[:1], asks("fast", opened))
        told.tell(nodes[:1], asks("fast", opened | {"nodeName": "n2"}))
        assert "next" in told.tell(nodes, asks("next"))
        grant = told.session._grant_of(told.session._known["next"].task)
        assert grant is not None
        assert grant.node == "n0"
    finally:
        told.session.close()


def test_what_no_node_could_take_has_the_one_that_has_come_for_it(told: Counted) -> None:
    """Node and place are seen at the same moment: its GPU there is not free."""
    nowhere = in_pools("z") | {"schedulingGates": []}
    free, come = gpu_node("n1"), gpu_node("n2", pool="z")
    try:
        told.tell([free], asks("runs", {"nodeName": "n1"}, gate=False), asks("nowhere", nowhere))
        told.tell([free, come], asks("nowhere", nowhere | {"nodeName": "n2"}), asks("next"))
        assert told.session.granted() == []
        assert told.session.order() == ["next"]
    finally:
        told.session.close()


def test_labels_that_no_node_has_make_nothing_anew(told: Counted) -> None:
    """Whoever may make pods may make up labels: all would be told anew at each. A node that has one is told apart."""
    plain = gpu_node("n1")
    try:
        for number in range(5):
            told.tell([plain], asks(f"made-up-{number}", {"nodeSelector": {f"label-{number}": "x"}}))
        assert (told.begun, told.session._kinds.keys) == (1, frozenset())
        assert told.tell([plain, gpu_node("n2", None, **{"label-3": "x"})], asks("other")) == ["made-up-3", "other"]
        assert told.session._kinds.keys == {"label-3"}
    finally:
        told.session.close()


def test_labels_that_are_named_no_more_are_forgotten(told: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are too many; those that pods name now still tell where these may run, however many they are."""
    monkeypatch.setattr(sessions, "MOST_KEYS", 4)
    nodes = [gpu_node("none"), *(gpu_node(f"n{number}", None, **{f"label-{number}": "x"}) for number in range(12))]

    def granted_on(*labels: int) -> set[str]:
        told.pods.clear()
        granted = told.tell(
            nodes, *(asks(f"{labels}-{one}", {"nodeSelector": {f"label-{one}": "x"}}) for one in labels)
        )
        grants = [told.session._grant_of(told.session._known[uid].task) for uid in granted]
        return {grant.node for grant in grants if grant is not None}

    try:
        for number in range(12):
            assert granted_on(number) == {f"n{number}"}
            assert len(told.session._kinds.keys) <= 4
        assert granted_on(*range(8)) == {f"n{number}" for number in range(8)}
        assert len(told.session._kinds.keys) == 8
        assert granted_on(11) == {"n11"}
        assert len(told.session._kinds.keys) == 1
    finally:
        told.session.close()


def test_what_says_the_same_of_all_nodes_makes_nothing_anew(told: Counted) -> None:
    """Nodes have many labels, and each pod may name another one of them. Once one comes of which such a label says
    another thing, it is told apart; also when another label told it apart before."""
    same = {f"label-{number}": "x" for number in range(9)}
    nodes = [gpu_node(name, None, pool=pool, **same) for name, pool in (("n1", "a"), ("n2", "a"), ("n3", "b"))]
    other = gpu_node("n4", None, pool="b", **{**same, "label-7": "y"})
    try:
        for number in range(9):
            told.tell(nodes, asks(f"p{number}", {"nodeSelector": {f"label-{number}": "x"}}))
        assert (told.begun, len(told.session.granted()), told.session._kinds.keys) == (1, 3, frozenset())
        told.tell(nodes, asks("b", {"nodeSelector": {"pool": "b"}}, rank=900))
        assert (told.begun, told.session._kinds.keys) == (2, frozenset({"pool"}))
        told.tell([*nodes, other], asks("y", {"nodeSelector": {"label-7": "y"}}, hints={"priority": 9}))
        assert (told.begun, told.session._kinds.keys) == (3, frozenset({"pool", "label-7"}))
        grants = {uid: told.session._grant_of(told.session._known[uid].task) for uid in ("b", "y")}
        assert {uid: grant and grant.node for uid, grant in grants.items()} == {"b": "n3", "y": "n4"}
    finally:
        told.session.close()
