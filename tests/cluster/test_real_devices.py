"""Devices that drivers offer (DRA) on a real API server, whose scheduler allocates claims (`test_real_cluster`). No
driver is there: the test publishes the ResourceSlices that NVIDIA's would (`made_devices`), and nothing prepares a
device, as no kubelet runs the pods."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from egs_core.kubernetes import names
from egs_core.kubernetes.admission import Rules
from egs_core.kubernetes.cluster import (
    CLAIM_TEMPLATES,
    CLAIMS,
    DEVICE_CLASSES,
    PODS,
    SLICES,
    WEBHOOKS,
    ApiError,
    Cluster,
    Kind,
)
from egs_core.kubernetes.leaving import leave
from egs_core.kubernetes.manifests import objects
from egs_core.kubernetes.tiers import ClaimRule, template_of
from egs_core.kubernetes.webhook import Webhook
from tests.cluster.real import FILE, Site, applied, controlled, understood, until
from tests.cluster.test_real_cluster import pytestmark as on_a_cluster
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
from tests.unit.kubernetes.test_tiers import unwanted


def _why_no_claims() -> str:
    """Nothing where the cluster knows claims, or where none is named, which the other mark says."""
    try:
        if FILE:
            Cluster(Path(FILE)).list(DEVICE_CLASSES)
    except ApiError as error:
        if error.status == 404:
            return "the cluster has no resource.k8s.io/v1 (DRA), which Kubernetes has since 1.34"
    return ""


pytestmark = [on_a_cluster, pytest.mark.skipif(bool(_why := _why_no_claims()), reason=_why)]

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


@contextmanager
def hooked(site: Site, *rules: ClaimRule) -> Iterator[list[str]]:
    """The webhook, under the controller's account, called by its URL: what it says."""
    said: list[str] = []
    (config,) = [one for one in objects(site.of) if one["kind"] == "MutatingWebhookConfiguration"]
    site.admin.delete(WEBHOOKS, names.CONTROLLER)
    cluster, lives = site.account(names.CONTROLLER), threading.Event()
    hook = Webhook(cluster, Rules(600.0, claims=rules), ["127.0.0.1"], lives.is_set, said.append, ("127.0.0.1", 0))
    config["webhooks"][0]["clientConfig"] = {"url": f"https://127.0.0.1:{hook.port}/pods"}
    site.admin.create(WEBHOOKS, config)
    lives.set()
    hook.start()
    try:
        until(lambda: site.admin.get(WEBHOOKS, names.CONTROLLER)["webhooks"][0]["clientConfig"].get("caBundle"))
        yield said
    finally:
        hook.stop()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """With a node that no device plugin has told of a GPU."""
    with applied(tmp_path, 0) as found:
        yield found


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


def test_all_devices_of_a_node_are_waited_for(driven: Driven) -> None:
    """One of two GPUs is held: who asks for all of them waits behind its gate, and the scheduler gives it both when the
    other has ended."""
    site = driven.site
    driven.template("one", request(of=driven.gpus))
    everything = {"deviceClassName": driven.gpus, "allocationMode": "All"}
    driven.template("all", {"name": "gpus", "exactly": everything})
    with controlled(site):
        driven.add("one", "one", predicted=5)
        until(lambda: site.pods()["one"].node)
        driven.add("all", "all", rank=99, predicted=5)
        site.add("cpus", rank=1, predicted=5)
        until(lambda: site.pods()["cpus"].node)
        assert gated(site) == {"all"}
        site.end("one")
        until(lambda: site.pods()["all"].node)
    claims = driven.admin.list(CLAIMS, site.name)[0]
    (its,) = [one for one in claims if one["metadata"]["ownerReferences"][0]["name"] == "all"]
    assert {one["device"] for one in its["status"]["allocation"]["devices"]["results"]} == {"gpu-0", "gpu-1"}


def test_each_gets_the_kind_that_it_asks_for(driven: Driven) -> None:
    """A slice, and a GPU by its product: two of each wait, and the first of each starts."""
    site = driven.site
    driven.template("slice", request(of=driven.slices))
    driven.template("t4", {"name": "gpus", "exactly": exactly(1, IS_T4, of=driven.gpus)})
    for name, of, rank in (("s1", "slice", 9000), ("s2", "slice", 5000), ("t1", "t4", 8000), ("t2", "t4", 6000)):
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
    for name, rank in (("p1", 9000), ("p2", 8000), ("p3", 7000)):
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
    for name, rank in (("p1", 9000), ("p2", 8000), ("p3", 7000)):
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
    driven.add("p1", "one", rank=9000, predicted=3600)
    driven.add("p2", "one", rank=8000, predicted=3600)
    with controlled(site):
        until(lambda: site.pods()["p1"].node)
        assert gated(site) == {"p2"}
        site.end("foreign")
        until(lambda: site.pods()["p2"].node)


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[Driven]:
    """A site whose webhook may make templates: a GPU of each kind, and a class of both."""
    name = f"egs-test-{uuid.uuid4().hex[:8]}-tiers"
    rules = tuple(ClaimRule(flavor, name) for flavor in ("a100", "t4"))
    found = Site(tmp_path, gpus=0, claims=rules)
    try:
        found.apply()
        driven = Driven(found, gpu("gpu-0"), gpu("gpu-1", T4, "15Gi"))
        driven._create(DEVICE_CLASSES, device_class(name))
        try:
            yield driven
        finally:
            driven.close()
    finally:
        found.close()


def test_a_limit_is_claimed_by_tiers_and_pods_start_in_the_engines_order(tiered: Driven) -> None:
    """Three pods with a limit of one GPU, which no node has, and the hint `flavors: [t4, a100]`: the first has the T4,
    the second the A100, the third waits for its turn and gets what is given back. A limit without flavors stays."""
    site, hints = tiered.site, {"flavors": ["t4", "a100"]}
    with hooked(site, *site.of.claims) as said, controlled(site):
        until(lambda: site.add(f"probe-{uuid.uuid4().hex[:8]}", gate=False).is_gated)
        for name in ("p1", "p2", "p3"):
            site.add(name, gate=False, gpus=1, hints=hints, predicted=3600)
            if name != "p3":
                until(lambda n=name: site.pods()[n].node)  # type: ignore[misc]  # one each
        assert (tiered.device("p1"), tiered.device("p2")) == ("gpu-1", "gpu-0")
        site.add("plain", gate=False, gpus=1, predicted=3600)
        assert gated(site) >= {"p3"}
        site.end("p1")
        until(lambda: site.pods()["p3"].node)
        until(lambda: tiered.device("p3") == "gpu-1")
    (one,) = site.admin.list(CLAIM_TEMPLATES, site.name)[0]
    assert sum(f"is claimed of {one['metadata']['name']} (t4, else a100)" in line for line in said) == 3
    plain = site.admin.get(PODS, "plain", site.name)["spec"]
    assert "resourceClaims" not in plain
    assert plain["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    leave(site.admin, site.of, lambda _: None, lambda _: None)
    assert site.admin.list(CLAIM_TEMPLATES, site.name)[0] == []


def test_its_account_makes_such_templates_and_no_others(tiered: Driven) -> None:
    """Each that would gain anything is refused, by the policy or by what the API server itself checks; so are reading
    and deleting them."""
    site = tiered.site
    cluster, kind = (
        site.account(names.CONTROLLER),
        Kind("/apis/resource.k8s.io/v1", "resourceclaimtemplates?dryRun=All"),
    )
    assert f"{names.CONTROLLER}-claims" in understood(site)
    raw = template_of(list(site.of.claims), 1)

    def refused(body: dict[str, Any]) -> bool:
        try:
            cluster.create(kind, body, site.name)
        except ApiError as error:
            return error.status in (403, 422)
        return False

    tried = unwanted(raw)
    until(lambda: refused(tried["another name"]))  # in force a moment after it was made
    assert not refused(raw)
    assert [what for what, body in tried.items() if not refused(body)] == []
    cluster.create(CLAIM_TEMPLATES, raw, site.name)
    for act in (
        lambda: cluster.list(CLAIM_TEMPLATES, site.name),
        lambda: cluster.delete(CLAIM_TEMPLATES, raw["metadata"]["name"], site.name),
    ):
        with pytest.raises(ApiError, match="403"):
            act()
