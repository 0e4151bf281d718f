"""Devices that drivers offer (DRA) on a real API server, whose scheduler allocates claims (`test_real_cluster`). No
driver is there: the test publishes the ResourceSlices that NVIDIA's would (`made_devices`), and nothing prepares a
device, as no kubelet runs the pods."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egs_core.kubernetes.cluster import CLAIM_TEMPLATES, CLAIMS, DEVICE_CLASSES, PODS, SLICES
from tests.cluster.real import Site, controlled, until
from tests.cluster.test_real_cluster import pytestmark
from tests.unit.kubernetes.made_devices import (
    DRIVER,
    T4,
    device_class,
    exactly,
    gpu,
    mig,
    request,
    resource_slice,
    template,
    tiers,
)

__all__ = ["pytestmark"]

IS_T4 = f"device.attributes['{DRIVER}'].productName == '{T4}'"
IS_A100 = f"device.attributes['{DRIVER}'].productName.lowerAscii().matches('^nvidia a100')"


class Driven:
    """A site whose node has these devices, and classes of its own."""

    def __init__(self, site: Site, *devices: dict[str, Any]) -> None:
        self.site, self.admin = site, site.admin
        self.gpus, self.slices = f"{site.name}-gpu", f"{site.name}-mig"
        self._made: list[tuple[Any, str]] = []
        self.publish(site.name, *devices)
        self._create(DEVICE_CLASSES, device_class(self.gpus, resource=f"{site.name}.example.com/gpu"))
        self._create(DEVICE_CLASSES, device_class(self.slices, "mig"))

    def publish(self, node: str, *devices: dict[str, Any]) -> None:
        self._create(SLICES, resource_slice(node, *devices))

    def _create(self, kind: Any, raw: dict[str, Any]) -> None:
        self.admin.create(kind, raw)
        self._made.append((kind, raw["metadata"]["name"]))

    def template(self, name: str, *requests: dict[str, Any]) -> None:
        self.admin.create(CLAIM_TEMPLATES, template(name, *requests, namespace=self.site.name), self.site.name)

    def add(self, name: str, of: str, **stated: Any) -> None:
        """A pod that claims what the template says."""
        spec = stated.pop("spec", {})
        claims = [{"name": "gpus", "resourceClaimTemplateName": of}]
        self.site.add(name, spec={**spec, "resourceClaims": claims}, **stated)

    def device(self, pod: str) -> str:
        """What the scheduler has allocated to its claim, "" for nothing yet."""
        for one in self.admin.list(CLAIMS, self.site.name)[0]:
            owners = [owner["name"] for owner in one["metadata"].get("ownerReferences", ())]
            results = one.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
            if pod in owners and results:
                return str(results[0]["device"])
        return ""

    def close(self) -> None:
        for kind, name in self._made:
            self.admin.delete(kind, name)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """With a node that no device plugin has told of a GPU."""
    found = Site(tmp_path, gpus=0)
    try:
        found.apply()
        yield found
    finally:
        found.close()


@pytest.fixture
def driven(site: Site) -> Iterator[Driven]:
    """Two GPUs and a slice."""
    found = Driven(site, gpu("gpu-0"), gpu("gpu-1", T4, "15Gi"), mig("gpu-2-mig-1g5gb-19-0"))
    try:
        yield found
    finally:
        found.close()


def gated(site: Site) -> set[str]:
    return {one.name for one in site.pods().values() if one.is_gated}


def test_pods_that_claim_get_their_devices_in_the_engines_order(driven: Driven) -> None:
    """Two GPUs, four claims of one: the scheduler gets them in order, allocates each and binds the pod; the next one's
    gate is opened when one has ended, or is gone."""
    site = driven.site
    driven.template("one", request(of=driven.gpus))
    for name, rank in (("p1", 10), ("p4", 99), ("p2", 50), ("p3", 60)):
        driven.add(name, "one", rank=rank, predicted=5)
    with controlled(site):
        until(lambda: all(site.pods()[name].node for name in ("p4", "p3")))
        assert gated(site) == {"p1", "p2"}
        assert {driven.device("p4"), driven.device("p3")} == {"gpu-0", "gpu-1"}
        site.end("p4")
        until(lambda: site.pods()["p2"].node)
        assert gated(site) == {"p1"}
        site.delete("p3")
        until(lambda: site.pods()["p1"].node)
        assert all(one.opened_for == "order" for one in site.pods().values())


def test_each_gets_the_kind_that_it_asks_for(driven: Driven) -> None:
    """A slice, and a GPU by its product: two of each wait, and the first of each starts."""
    site = driven.site
    driven.template("slice", request(of=driven.slices))
    driven.template("t4", {"name": "gpus", "exactly": exactly(1, IS_T4, of=driven.gpus)})
    for name, of, rank in (("s1", "slice", 9), ("s2", "slice", 1), ("t1", "t4", 8), ("t2", "t4", 2)):
        driven.add(name, of, rank=rank, predicted=3600)
    with controlled(site):
        until(lambda: driven.device("s1") and driven.device("t1"))
        until(lambda: site.pods()["s1"].node and site.pods()["t1"].node)
        assert gated(site) == {"s2", "t2"}
    assert (driven.device("s1"), driven.device("t1")) == ("gpu-2-mig-1g5gb-19-0", "gpu-1")


def test_tiers_are_tried_in_their_order_by_the_scheduler(driven: Driven) -> None:
    """A100, else T4: two of three pods start, the first one on the first tier."""
    site = driven.site
    driven.template("either", tiers(exactly(1, IS_A100, of=driven.gpus), exactly(1, IS_T4, of=driven.gpus)))
    for name, rank in (("p1", 9), ("p2", 8), ("p3", 7)):
        driven.add(name, "either", rank=rank, predicted=3600)
    with controlled(site):
        until(lambda: site.pods()["p1"].node and site.pods()["p2"].node)
        assert gated(site) == {"p3"}
        assert {driven.device("p1"), driven.device("p2")} == {"gpu-0", "gpu-1"}


def test_a_limit_that_a_class_stands_for_is_counted(driven: Driven) -> None:
    """As NVIDIA's own class stands for `nvidia.com/gpu`: the scheduler makes the claim itself. Three pods, two GPUs."""
    site = driven.site
    limits = {"cpu": "1", f"{site.name}.example.com/gpu": "1"}
    spec = {"containers": [{"name": "main", "image": "image:1", "resources": {"limits": limits}}]}
    for name, rank in (("p1", 9), ("p2", 8), ("p3", 7)):
        site.add(name, spec=spec, rank=rank, predicted=3600)
    with controlled(site):
        until(lambda: site.pods()["p1"].node and site.pods()["p2"].node)
        assert gated(site) == {"p3"}
        site.end("p1")
        until(lambda: site.pods()["p3"].node)


def test_what_a_pod_of_others_has_is_not_given_again(driven: Driven) -> None:
    """It has one GPU, and no label of EGS: of two pods that claim one the first starts, the second when that ends."""
    site = driven.site
    driven.template("one", request(of=driven.gpus))
    claims = [{"name": "gpus", "resourceClaimTemplateName": "one"}]
    spec = {
        "nodeSelector": {"egs-test": site.name},
        "tolerations": [{"operator": "Exists"}],
        "resourceClaims": claims,
        "containers": [{"name": "main", "image": "image:1"}],
    }
    foreign = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "foreign", "namespace": site.name}, "spec": spec}
    site.admin.create(PODS, foreign, site.name)
    until(lambda: driven.device("foreign"))
    driven.add("p1", "one", rank=9, predicted=3600)
    driven.add("p2", "one", rank=8, predicted=3600)
    with controlled(site):
        until(lambda: site.pods()["p1"].node)
        assert gated(site) == {"p2"}
        site.end("foreign")
        until(lambda: site.pods()["p2"].node)
