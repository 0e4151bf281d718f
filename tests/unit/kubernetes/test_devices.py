"""Devices of DRA drivers and what pods claim of them: as values, in a session, and in a controller on an emulated API
server. What a scheduler makes of claims is tried in `tests/cluster/test_real_devices.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.kubernetes import devices
from egs_core.kubernetes.claiming import MADE_S, Inventory, nodes_with_devices
from egs_core.kubernetes.cluster import Cluster
from egs_core.kubernetes.manifests import Installation, objects
from egs_core.kubernetes.pods import Node, Pod, node_of, pod_of
from egs_core.kubernetes.session import ClusterSession
from tests.unit.kubernetes.controlled import controlled
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_devices import (
    A100,
    DRIVER,
    T4,
    allocated,
    claim,
    claiming,
    device_class,
    exactly,
    gpu,
    mig,
    request,
    resource_slice,
    tiers,
)
from tests.unit.kubernetes.made_pods import node, pod
from tests.unit.kubernetes.test_steering import api

__all__ = ["api"]  # the fixture

NOW = 1_800_000_000.0
CLASSES = [
    device_class(resource="nvidia.com/gpu"),
    device_class("mig.nvidia.com", "mig"),
    device_class("nic.example.com", "nic", domain="nic.example.com"),
]
IS_T4 = f"device.attributes['{DRIVER}'].productName == '{T4}'"
ONE = {"n1": (gpu("gpu-0"),)}


class Listed:
    """What is listed, and a session that is told of it. offers: devices by node."""

    def __init__(self, offers: Mapping[str, Sequence[dict[str, Any]]], **nodes: Any) -> None:
        self.claims: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.slices = [devices.slice_of(resource_slice(name, *found)) for name, found in offers.items()]
        self.nodes = [node_of(node(name, **nodes)) for name in offers] + [node_of(node("cpus"))]
        self.inventory = self._listed()
        self.session = ClusterSession()

    def _listed(self) -> Inventory:
        return Inventory(self.slices, map(devices.claim_of, self.claims.values()), map(devices.class_of, CLASSES))

    def add(self, *pods: dict[str, Any]) -> None:
        self.pods |= {one["metadata"]["name"]: one for one in pods}

    def claim(self, *claims: dict[str, Any]) -> None:
        self.claims |= {one["metadata"]["name"]: one for one in claims}

    def seen(self, now: float = NOW) -> tuple[dict[str, Pod], list[Node]]:
        classes = [devices.class_of(one) for one in CLASSES]
        self.inventory = self.inventory.renewed(self.slices, map(devices.claim_of, self.claims.values()), classes)
        pods = {one.uid: one for one in map(pod_of, self.pods.values())}
        return self.inventory.applied(pods, self.nodes, now)

    def granted(self, now: float = NOW) -> list[str]:
        """Of what is there by now."""
        self.session.tell(*self.seen(now))
        self.session.order()  # an answer, behind all that was told
        return self.session.granted()

    def runs(self, name: str, on: str, *names: str) -> None:
        """The scheduler has placed it, and allocated these to its claim."""
        raw = self.pods[name]
        raw["spec"] = raw["spec"] | {"nodeName": on, "schedulingGates": []}
        if f"c-{name}" in self.claims:
            self.claims[f"c-{name}"] = allocated(self.claims[f"c-{name}"], on, *names)

    def ends(self, name: str) -> None:
        """Its claim stays allocated until the cluster has given that back."""
        self.pods[name]["status"] = {"phase": "Succeeded"}


@pytest.fixture
def made() -> Iterator[list[Listed]]:
    found: list[Listed] = []
    yield found
    for one in found:
        one.session.close()


def cluster(made: list[Listed], offers: Mapping[str, Sequence[dict[str, Any]]], **nodes: Any) -> Listed:
    made.append(Listed(offers, **nodes))
    return made[-1]


def asks(name: str, *requests: dict[str, Any], **stated: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A pod that claims, and its claim as the cluster makes it of a template."""
    its = claiming("", of="template", made=f"c-{name}")
    raw = pod(name, uid=name, run=name, status=its["status"], spec=its["spec"], **stated)
    return raw, claim(f"c-{name}", *(requests or (request(),)), owner=name)


def put(into: Listed, *pairs: tuple[dict[str, Any], dict[str, Any]]) -> None:
    for raw, its in pairs:
        into.add(raw)
        into.claim(its)


# --- as values ---


def test_a_slice_of_resources_gives_gpus_with_flavor_and_memory() -> None:
    """By what drivers say they are: whole GPUs, and slices, which are of their own flavor."""
    raw = resource_slice("n1", gpu("gpu-0"), gpu("gpu-1", T4, "15Gi"), mig("gpu-2-mig-1g5gb-19-0"))
    found = devices.by_node([devices.slice_of(raw)])["n1"]
    assert [(one.name, one.flavor, one.memory_bytes >> 20) for one in found] == [
        (f"{DRIVER}/n1/gpu-0", "A100-SXM4-40GB", 40 << 10),
        (f"{DRIVER}/n1/gpu-2-mig-1g5gb-19-0", "MIG-1g.5gb-A100-SXM4-40GB", 4864),
        (f"{DRIVER}/n1/gpu-1", "T4", 15 << 10),
    ]


def test_what_is_no_gpu_of_one_node_does_not_count() -> None:
    """Another driver's, one for virtual machines, shared ones, and those of several nodes."""
    vfio = gpu("gpu-vfio-0")
    vfio["attributes"]["type"] = {"string": "vfio"}
    found: list[dict[str, Any]] = [
        resource_slice("n1", gpu("nic-0"), driver="nic.example.com"),
        resource_slice("n1", vfio),
        resource_slice("n1", gpu("gpu-0", allowMultipleAllocations=True)),
        resource_slice("n1", gpu("gpu-0"), nodeName=None, allNodes=True),
        {"metadata": None, "spec": {"driver": "gpu.x", "devices": [None, {"attributes": []}]}},
    ]
    assert [devices.slice_of(raw).devices for raw in found] == [{}] * len(found)


def test_of_a_pool_the_newest_generation_counts() -> None:
    """While a driver replaces what it has published, both are listed."""
    old = resource_slice("n1", gpu("gpu-0"), gpu("gpu-1"))
    new = resource_slice("n1", gpu("gpu-0"), pool={"name": "n1", "generation": 2, "resourceSliceCount": 1})
    found = devices.by_node(devices.newest(map(devices.slice_of, (old, new))))
    assert [one.name for one in found["n1"]] == [f"{DRIVER}/n1/gpu-0"]


def test_what_nothing_is_offered_for_is_as_it_was(made: list[Listed]) -> None:
    """Without slices pods and nodes are the very same objects, whatever is claimed."""
    there = cluster(made, {"n1": ()}, gpus=1)
    put(there, asks("a"))
    there.add(pod("b", uid="b", gpus=1))
    raws = {one.uid: one for one in map(pod_of, there.pods.values())}
    pods, nodes = there.inventory.applied(raws, there.nodes, NOW)
    assert all(pods[uid] is raws[uid] for uid in raws)
    assert all(one is other for one, other in zip(nodes, there.nodes, strict=True))


def test_objects_stay_the_same_while_nothing_changes(made: list[Listed]) -> None:
    """What is looked at again only where it has changed is not looked at."""
    there = cluster(made, ONE)
    put(there, asks("a"))
    raws = {one.uid: one for one in map(pod_of, there.pods.values())}
    there.seen()
    first, again = (there.inventory.applied(raws, there.nodes, NOW) for _ in range(2))
    assert first[0]["a"] is again[0]["a"]
    assert first[1][0] is again[1][0]
    there.claim(allocated(there.claims["c-a"], "n1", "gpu-0"))
    there.seen()
    assert there.inventory.applied(raws, there.nodes, NOW)[1][0] is not first[1][0]


# --- in a session ---


def test_claims_are_granted_in_order_as_many_as_there_are_devices(made: list[Listed]) -> None:
    """Two GPUs, three claims of one: the two first in the order; the third when one of these has ended."""
    there = cluster(made, {"n1": (gpu("gpu-0"), gpu("gpu-1"))})
    put(there, asks("short", rank=1), asks("long", rank=99), asks("middle", rank=50))
    assert there.granted() == ["long", "middle"]
    there.runs("long", "n1", "gpu-1")
    there.runs("middle", "n1", "gpu-0")
    assert "short" not in there.granted()
    there.ends("long")
    assert there.granted()[-1:] == ["short"]


def test_a_claim_of_several_devices_waits_for_a_node_that_has_them(made: list[Listed]) -> None:
    """Two are free, on two nodes; then a pod that is alone on its node ends."""
    there = cluster(made, {"n1": (gpu("gpu-0"), gpu("gpu-1")), "n2": (gpu("gpu-0"),)})
    put(there, asks("runs"))
    there.runs("runs", "n1", "gpu-0")
    put(there, asks("two", request(count=2)))
    assert "two" not in there.granted()
    there.ends("runs")
    assert there.granted()[-1:] == ["two"]


def test_a_request_of_a_kind_gets_that_kind_alone(made: list[Listed]) -> None:
    """On one node: a whole GPU, one of another product, a slice; a pod for each, and a second one for the slice."""
    there = cluster(made, {"n1": (gpu("gpu-0"), gpu("gpu-1", T4), mig("gpu-2-mig"))})
    put(there, asks("t4", {"name": "gpus", "exactly": exactly(1, IS_T4)}))
    put(there, asks("slice", request(of="mig.nvidia.com")), asks("other", request(of="mig.nvidia.com")))
    put(there, asks("gpu", {"name": "gpus", "exactly": exactly(1, f"!({IS_T4})")}))
    assert sorted(there.granted()) == ["gpu", "slice", "t4"]


def test_tiers_are_any_of_their_kinds(made: list[Listed]) -> None:
    """A100 first, else T4: each of two pods gets what there is."""
    either = tiers(exactly(1, f"device.attributes['{DRIVER}'].productName == '{A100}'"), exactly(1, IS_T4))
    there = cluster(made, {"n1": (gpu("gpu-0"),), "n2": (gpu("gpu-0", T4),)})
    put(there, asks("one", either), asks("two", either), asks("three", either))
    assert there.granted() == ["one", "two"]


def test_limits_are_met_by_plugins_and_by_classes_that_stand_for_them(made: list[Listed]) -> None:
    """One node of each kind, and a limit of `nvidia.com/gpu` three times. A claim never means a plugin's GPU."""
    there = cluster(made, ONE)
    there.nodes.append(node_of(node("plugin", gpus=1)))
    there.add(*(pod(name, uid=name, run=name, gpus=1) for name in ("a", "b", "c")))
    put(there, asks("claims", rank=99))
    assert len(there.granted()) == 2
    assert "claims" in there.granted()
    grant = there.session._grant_of(there.session._known["claims"].task)
    assert grant is not None
    assert grant.node == "n1"


def test_what_others_hold_is_not_free(made: list[Listed]) -> None:
    """A pod without EGS's labels, a claim that nobody's pod has, and a partition of a GPU: of three one is left."""
    counters = [{"counterSet": "gpu-2-counter-set", "counters": {"memory": {"value": "5Gi"}}}]
    offers = gpu("gpu-0"), gpu("gpu-1"), gpu("gpu-2", consumesCounters=counters), mig("p", consumesCounters=counters)
    there = cluster(made, {"n1": (*offers, gpu("gpu-3"))})
    foreign, its = asks("foreign", gate=False)
    del foreign["metadata"]["labels"]
    put(there, (foreign, its), asks("a"), asks("b"))
    there.runs("foreign", "n1", "gpu-1")
    there.claim(allocated(claim("by-hand", request()), "n1", "gpu-0"))
    there.claim(allocated(claim("part", request(of="mig.nvidia.com")), "n1", "p"))
    assert there.granted() == ["a"]
    del there.claims["part"]
    assert there.granted() == ["a", "b"]


def test_a_claim_of_several_pods_is_asked_once(made: list[Listed]) -> None:
    """Both share the one GPU; a third pod waits until both have ended and it is given back."""
    there = cluster(made, ONE)
    shared = claiming("shared")["spec"]
    there.add(*(pod(name, uid=name, run=name, rank=99, spec=shared) for name in ("one", "two")))
    there.claim(claim("shared", request()))
    put(there, asks("third"))
    assert there.granted() == ["one", "two"]
    there.claim(allocated(there.claims["shared"], "n1", "gpu-0"))
    there.runs("one", "n1")
    there.runs("two", "n1")
    assert "third" not in there.granted()
    there.ends("one")
    assert "third" not in there.granted()
    del there.pods["one"]
    assert "third" not in there.granted()
    there.ends("two")
    there.claim(claim("shared", request()))
    assert there.granted()[-1:] == ["third"]


def test_a_pod_whose_claim_is_not_made_yet_is_waited_for(made: list[Listed]) -> None:
    """It is in its place in the order when the claim comes; where none comes it is opened, for the scheduler to say
    which template is missing."""
    there = cluster(made, ONE)
    early = pod("early", uid="early", run="early", rank=99, spec=claiming("", of="template")["spec"])
    there.add(early)
    assert there.granted() == []
    put(there, asks("late"), (early | {"status": claiming("", of="t", made="c-early")["status"]}, asks("early")[1]))
    assert there.granted() == ["early"]
    there.add(pod("never", uid="never", run="never", spec=claiming("", of="missing")["spec"]))
    assert "never" not in there.granted()
    assert "never" in there.granted(NOW + MADE_S)


def test_a_request_of_no_gpu_asks_for_none(made: list[Listed]) -> None:
    """A network card of another driver, an administrator's look: opened when there are CPUs."""
    there = cluster(made, ONE)
    put(
        there,
        asks("nic", request(of="nic.example.com")),
        asks("admin", request(adminAccess=True)),
        asks("no-class", request(of="mistyped")),
        asks("gpu"),
    )
    assert sorted(there.granted()) == ["admin", "gpu", "nic", "no-class"]
    assert {one.name for one in there.seen()[0].values() if one.shape.gpu_milli} == {"gpu"}
    assert not there.inventory.uncounted


def test_what_an_administrator_looks_at_is_free(made: list[Listed]) -> None:
    """Such a claim is allocated a device that others may have, too."""
    there = cluster(made, ONE)
    its = allocated(claim("by-hand", request(adminAccess=True)), "n1", "gpu-0")
    its["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    there.claim(its)
    put(there, asks("gpu"))
    assert there.granted() == ["gpu"]


def test_a_device_with_a_taint_is_for_what_tolerates_it(made: list[Listed]) -> None:
    """As with nodes: `Exists`, or `Equal` with the value."""
    taint = {"key": "bad", "value": "yes", "effect": "NoSchedule"}
    there = cluster(made, {"n1": (gpu("gpu-0", taints=[taint]), gpu("gpu-1"))})
    tolerates = request(tolerations=[{"key": "bad", "operator": "Exists"}])
    put(there, asks("a"), asks("b"), asks("tolerates", tolerates))
    assert there.granted() == ["a", "tolerates"]


def test_a_new_controller_knows_what_runs(made: list[Listed]) -> None:
    """Told of everything at once: a slice that runs has the slice, and the GPU beside it is free."""
    there = cluster(made, {"n1": (gpu("gpu-0"), mig("gpu-1-mig"))})
    put(there, asks("runs", request(of="mig.nvidia.com")))
    there.runs("runs", "n1", "gpu-1-mig")
    put(there, asks("slice", request(of="mig.nvidia.com"), rank=99), asks("gpu"))
    assert there.granted() == ["gpu"]


# --- in a controller ---


def test_pods_that_claim_are_opened_in_order_and_one_after_another(api: EmulatedApi) -> None:
    """By what the API server lists: slices, classes and claims. A device that is allocated to the pod that was opened
    for it is no other's, also while that has no node yet, and the next one's when that has ended."""
    api.add("nodes", node("n1"))
    api.add("resourceslices", resource_slice("n1", gpu("gpu-0")))
    api.add("deviceclasses", CLASSES[0])
    for name, rank in (("short", 1), ("long", 99)):
        raw, its = asks(name, rank=rank)
        api.add("resourceclaims", its)
        api.add("pods", raw)
    with controlled(api):
        api.until(lambda: api.opened() == ["long"])
        api.change("resourceclaims", "c-long", lambda one: one.update(allocated(one, "n1", "gpu-0")))
        api.add("pods", pod("cpus", uid="cpus", run="cpus"))
        api.until(lambda: api.opened() == ["long", "cpus"])
        api.bind("long", "n1")
        api.end("long")
        api.until(lambda: api.opened() == ["long", "cpus", "short"])


@pytest.mark.parametrize("kind", ["absent", "forbidden"])
def test_a_cluster_without_dra_or_its_rights_is_as_before(api: EmulatedApi, kind: str) -> None:
    """404 is nothing to speak of; 403 is one line, as the manifests may be of an earlier version."""
    getattr(api, kind).update({"resourceslices", "resourceclaims", "deviceclasses"})
    api.add("nodes", node("n1", gpus=1))
    for name, rank in (("short", 1), ("long", 99)):
        api.add("pods", pod(name, uid=name, run=name, gpus=1, rank=rank))
    said: list[str] = []
    with controlled(api, says="are not counted", said=said):
        api.until(lambda: api.opened() == ["long"])
        api.bind("long", "n1")
        api.end("long")
        api.until(lambda: api.opened() == ["long", "short"])
    assert len(said) == (kind == "forbidden")


def test_a_profile_is_compared_with_what_drivers_offer_too(api: EmulatedApi) -> None:
    """A pool of which no node has a device plugin."""
    api.add("resourceslices", resource_slice("n1", gpu("gpu-0"), gpu("gpu-1")))
    found = Cluster(api.kubeconfig)
    assert nodes_with_devices(found, [node_of(node("n1"))])[0].gpus == 2
    api.absent.add("resourceslices")
    assert nodes_with_devices(found, [node_of(node("n1"))])[0].gpus == 0
    found.close()


def test_it_may_read_what_it_reads_and_no_more() -> None:
    """The rights to DRA's kinds are those of reading three of them."""
    rules = [rule for one in objects(Installation("i")) for rule in one.get("rules", ())]
    (found,) = [rule for rule in rules if rule["apiGroups"] == ["resource.k8s.io"]]
    assert sorted(found["resources"]) == ["deviceclasses", "resourceclaims", "resourceslices"]
    assert found["verbs"] == ["get", "list", "watch"]


def test_a_placeholder_claims_nothing(made: list[Listed]) -> None:
    """So none is made for a pod that claims: it would stand for another place."""
    from egs_core.kubernetes.placeholders import to_stand_for

    there = cluster(made, ONE)
    put(there, asks("claims"))
    there.add(pod("limits", uid="limits", run="limits", gpus=1))
    pods, _ = there.seen()
    found = to_stand_for(pods, ["claims", "limits"], [])
    assert [one.owner.uid for one in found] == ["limits"]
    assert msgspec.json.decode(found[0].where)["devices"]
