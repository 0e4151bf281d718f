"""Placeholder pods where a real cluster autoscaler adds nodes for them and removes these, on the cluster of
`test_real_cluster`: in groups of nodes that EGS_TEST_AUTOSCALED, and EGS_TEST_AUTOSCALED_CPUS, name by a label."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import NODES, PODS, ApiError, Cluster, Kind
from egs_core.kubernetes.placeholding import PlaceholderSettings
from tests.cluster.real import FILE, Site, applied, controlled, until
from tests.cluster.test_real_cluster import pytestmark as _needs_a_cluster
from tests.cluster.test_real_placeholders import stand_ins

GPUS, CPUS = "EGS_TEST_AUTOSCALED", "EGS_TEST_AUTOSCALED_CPUS"
STATUS = "cluster-autoscaler-status"
UPDATED = "cluster-autoscaler.kubernetes.io/last-updated"
CONFIG_MAPS = Kind("/api/v1", "configmaps")
NODE_S, GOES_S = 900.0, 1500.0
"""For so long a node is waited for, and until it is gone again: ten minutes after nothing needs it, usually."""
SOME = PlaceholderSettings(most=3)


def status(cluster: Cluster) -> str:
    """When the autoscaler looked last; "": none is there."""
    try:
        found = cluster.get(CONFIG_MAPS, STATUS, "kube-system")
    except ApiError as error:
        if error.status != 404:
            raise
        return ""
    return str(found["metadata"].get("annotations", {}).get(UPDATED, "once"))


def _why_not() -> str:
    if not FILE:
        return str(_needs_a_cluster.kwargs["reason"])
    if not os.environ.get(GPUS):
        return f"{GPUS} names no LABEL=VALUE of nodes with a GPU that a cluster autoscaler may add: none was tried"
    if not status(Cluster(Path(FILE))):
        return f"no cluster autoscaler is there: kube-system has no ConfigMap {STATUS}"
    return ""


WHY_NOT = _why_not()
pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
    pytest.mark.slow,
    pytest.mark.timeout(2 * (NODE_S + GOES_S)),  # until a cloud's node is there, and gone again
]


class Scaled(Site):
    """A site whose pods may run on the nodes of a group, too. asks: what each of them takes of one."""

    label: str
    asks: dict[str, int]

    def nodes(self) -> set[str]:
        return {one["metadata"]["name"] for one in self.admin.list(NODES, labels=self.label)[0]}

    def new(self) -> set[str]:
        return self.nodes() - {self.name}

    def adds(self, name: str, **stated: Any) -> None:
        key, _, value = self.label.partition("=")
        spec = {"nodeSelector": {key: value}, **stated.pop("spec", {})}
        self.add(name, **{"predicted": 3600, **self.asks, **stated, "spec": spec})

    def is_full(self) -> None:
        """Its own node is one of the group, too, and is taken for an hour."""
        key, _, value = self.label.partition("=")
        self.admin.patch(NODES, self.name, {"metadata": {"labels": {key: value}}})
        self.adds("first", gate=False, spec={"nodeName": self.name})
        self.begins("first", 0)

    def goes(self) -> None:
        """All that has ended, then the nodes that came. No controller is there that would take placeholders away, and
        one that got a node would keep it for a quarter of an hour."""
        for one in stand_ins(self):
            self.admin.delete(PODS, one["metadata"]["name"], self.of.namespace)
        for name, pod in self.pods().items():
            if not pod.is_over:
                self.end(name) if pod.node else self.delete(name)
        until(lambda: not self.new(), GOES_S)


@contextmanager
def scaled(folder: Path, label: str, asks: dict[str, int]) -> Iterator[Scaled]:
    with applied(folder, preloads=True, placeholders=SOME, made=Scaled) as found:
        assert isinstance(found, Scaled)
        found.label, found.asks = label, asks
        if found.new():
            pytest.skip(f"{label}: the group has nodes that stay: what is added could not be told from them")
        yield found
        found.goes()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Scaled]:
    """Of a group of nodes with GPUs."""
    with scaled(tmp_path, os.environ[GPUS], {"gpus": 1}) as found:
        yield found


@pytest.mark.parametrize(("group", "asks"), [(GPUS, {"gpus": 1}), (CPUS, {"cpu": 5})], ids=["gpus", "cpus"])
def test_a_node_is_added_for_a_pod_behind_its_gate_and_goes_again(
    tmp_path: Path, group: str, asks: dict[str, int]
) -> None:
    """It sees the placeholder and adds one node. The pod has it in its turn, no placeholder is left, no second node
    comes; and when it has ended the node is taken away while the controller still lives."""
    if not os.environ.get(group):
        pytest.skip(f"{group} names no nodes")
    with scaled(tmp_path, os.environ[group], asks) as site:
        site.is_full()
        site.adds("second")
        with controlled(site, placeholders=SOME):
            until(lambda: site.pods()["second"].node, NODE_S)
            assert site.pods()["second"].opened_for == "order"
            assert {site.pods()["second"].node} == site.new()
            until(lambda: not stand_ins(site))
            site.end("second")
            until(lambda: not site.new(), GOES_S)
            assert not stand_ins(site)


def test_a_gang_has_all_its_nodes(site: Scaled) -> None:
    """None of its members starts before there is room for both."""
    site.is_full()
    for name in ("left", "right"):
        site.adds(name, gang="both", size=2)
    with controlled(site, placeholders=SOME):
        until(lambda: site.pods()["left"].node and site.pods()["right"].node, NODE_S)
        assert {one.opened_for for one in site.pods().values() if one.gang} == {"order"}
        opened = {one.opened_at for one in site.pods().values() if one.gang}
        assert max(opened) - min(opened) <= 1
        until(lambda: not stand_ins(site))
    assert {site.pods()[name].node for name in ("left", "right")} == site.new()


def test_no_node_is_added_for_what_is_of_a_preloads_class(site: Scaled) -> None:
    """One that no node takes is there while the autoscaler looks three times. Then a placeholder comes, and one node:
    it is the pod's."""
    site.is_full()
    low = {"priorityClassName": names.PRELOAD_CLASS, "terminationGracePeriodSeconds": 0}  # no kubelet would end it
    site.adds("low", gate=False, spec=low)
    until(lambda: site.pods()["low"].refusal)
    for _ in range(3):
        before = status(site.admin)
        until(lambda one=before: status(site.admin) != one)  # type: ignore[misc]  # one each
    assert not site.new()
    site.adds("second")
    with controlled(site, placeholders=SOME):
        until(lambda: site.pods()["second"].node, NODE_S)
        assert site.new() == {site.pods()["second"].node}


def test_what_an_empty_group_alone_could_take_has_its_node_in_its_turn(site: Scaled) -> None:
    """Two wait for a node that is not there, one placeholder is allowed: one node comes. The longer path has it first,
    then the other one; without waiting both would be the autoscaler's at once, as two nodes."""
    site.adds("short", rank=3600)
    site.adds("long", rank=7200)
    one = PlaceholderSettings(most=1)
    with controlled(site, placeholders=one):
        until(lambda: site.pods()["long"].node, NODE_S)
        assert site.pods()["short"].is_gated
        site.end("long")
        until(lambda: site.pods()["short"].node, NODE_S)
        assert {site.pods()["short"].opened_for, site.pods()["long"].opened_for} == {"order"}
        assert len({one.node for one in site.pods().values()}) == 1
