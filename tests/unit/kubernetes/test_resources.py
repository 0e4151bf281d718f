"""GPUs and parts of them that device plugins offer, each kind by the name of its resource: as values, in a session, and
in a controller on an emulated API server. The scheduler's part is in `tests/cluster/test_real_resources.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.adapter import ClusterProfile, ProfiledPool
from egs_core.graph.columns import Shape
from egs_core.kubernetes import devices, names, texts
from egs_core.kubernetes.claiming import Inventory
from egs_core.kubernetes.limits import gpu_s
from egs_core.kubernetes.objects import moment
from egs_core.kubernetes.placeholders import Place, made, select_steps, to_stand_for
from egs_core.kubernetes.pods import Node, Pod, node_of, pod_of
from egs_core.kubernetes.profiled import differences
from egs_core.kubernetes.session import ClusterSession, preempting_site
from egs_core.kubernetes.workflows import workflow_of
from tests.unit.kubernetes.controlled import controlled
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_devices import gpu, mig, resource_slice
from tests.unit.kubernetes.made_pods import node, pod
from tests.unit.kubernetes.made_workflows import task, workflow
from tests.unit.kubernetes.test_controller import OLD
from tests.unit.kubernetes.test_devices import NOW, api, asks, cluster, put
from tests.unit.kubernetes.test_devices import made as listed
from tests.unit.kubernetes.test_uncounted import all_of

__all__ = ["api", "listed"]  # the fixtures

NVIDIA, AMD = "nvidia.com/gpu", "amd.com/gpu"
SLICE, LARGER, SHARED = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-2g.10gb", "nvidia.com/gpu.shared"


class Site:
    """Nodes and pods that are listed, and a session that is told of them."""

    def __init__(self, *nodes: dict[str, Any], preempts: bool = False) -> None:
        self.nodes = {one["metadata"]["name"]: one for one in nodes}
        self.pods: dict[str, dict[str, Any]] = {}
        self.inventory = Inventory((), (), ())
        self.session = ClusterSession(preempting_site) if preempts else ClusterSession()

    def add(self, name: str, rank: int = 1, **stated: Any) -> None:
        """All of one run, in which the rank says who is first."""
        self.pods[name] = pod(name, uid=name, rank=10 * rank, predicted=1, **stated)

    def seen(self) -> tuple[dict[str, Pod], list[Node]]:
        pods = {one.uid: one for one in map(pod_of, reversed(self.pods.values()))}
        return self.inventory.applied(pods, map(node_of, self.nodes.values()), NOW)

    def granted(self) -> list[str]:
        self.session.tell(*self.seen())
        self.session.order()  # an answer, behind all that was told
        return self.session.granted()

    def runs(self, name: str, on: str) -> None:
        raw = self.pods[name]
        raw["spec"] = raw["spec"] | {"nodeName": on, "schedulingGates": []}

    def ends(self, name: str) -> None:
        self.pods[name]["status"] = {"phase": "Succeeded"}

    def offers(self, name: str, **resources: int) -> None:
        """From now on, what it says in the place of what it said."""
        self.nodes[name] = node(name, offers=resources)


@pytest.fixture
def sites() -> Iterator[list[Site]]:
    found: list[Site] = []
    yield found
    for one in found:
        one.session.close()


def site(sites: list[Site], *nodes: dict[str, Any], **stated: Any) -> Site:
    sites.append(Site(*nodes, **stated))
    return sites[-1]


# --- in a session ---


def test_gpus_of_two_vendors_count_apart(sites: list[Site]) -> None:
    """One of each: the first of each kind in the order; what is given back is for who asks for that kind."""
    there = site(sites, node("n1", offers={NVIDIA: 1}), node("a1", offers={AMD: 1}), node("cpus"))
    for name, rank, of in (
        ("n-9", 9, NVIDIA),
        ("n-8", 8, NVIDIA),
        ("n-7", 7, NVIDIA),
        ("a-2", 2, AMD),
        ("a-1", 1, AMD),
    ):
        there.add(name, rank, asks={of: 1})
    assert there.granted() == ["n-9", "a-2"]
    there.runs("n-9", "n1")
    there.runs("a-2", "a1")
    assert set(there.granted()) <= {"n-9", "a-2"}
    there.ends("a-2")
    assert there.granted()[-1:] == ["a-1"]
    assert "n-8" not in there.granted()
    there.ends("n-9")
    assert there.granted()[-1:] == ["n-8"]


def test_slices_of_a_node_are_as_many_as_it_says(sites: list[Site]) -> None:
    """A GPU and two sizes of slices on one node: each kind has its own order, and none is another's."""
    there = site(sites, node("n1", offers={NVIDIA: 1, SLICE: 2, LARGER: 1}))
    for number, of in enumerate((SLICE, SLICE, SLICE, NVIDIA, NVIDIA, LARGER, LARGER)):
        there.add(f"p{number}", 9 - number, asks={of: 1})
    assert there.granted() == ["p0", "p1", "p3", "p5"]
    for name in ("p0", "p1", "p3", "p5"):
        there.runs(name, "n1")
    there.ends("p1")
    assert there.granted()[-1:] == ["p2"]
    assert {"p4", "p6"}.isdisjoint(there.granted())


def test_several_slices_of_one_node(sites: list[Site]) -> None:
    """Two of three are asked for, where each of two nodes has two, and a GPU beside."""
    there = site(sites, *(node(name, offers={SLICE: 2, NVIDIA: 4}) for name in ("n1", "n2")))
    there.add("one", 9, asks={SLICE: 1})
    there.runs("one", "n1")
    there.add("two", 8, asks={SLICE: 2})
    there.add("too", 7, asks={SLICE: 2})
    assert [one for one in there.granted() if one != "one"] == ["two"]
    there.ends("one")
    assert there.granted()[-1:] == ["too"]


def test_replicas_of_shared_gpus_are_what_the_node_says(sites: list[Site]) -> None:
    """Four of one GPU; GPUs that nobody shares are another kind."""
    there = site(sites, node("n1", offers={SHARED: 4}), node("n2", offers={NVIDIA: 1}))
    for number in range(6):
        there.add(f"s{number}", 9 - number, asks={SHARED: 1})
    there.add("whole", asks={NVIDIA: 1})
    assert there.granted() == ["s0", "s1", "s2", "s3", "whole"]


def test_what_others_hold_is_of_its_kind(sites: list[Site]) -> None:
    """A pod without EGS's labels has a slice: a GPU is as free as before, one slice is not."""
    there = site(sites, node("n1", offers={NVIDIA: 1, SLICE: 2}))
    there.add("foreign", asks={SLICE: 1}, gate=False)
    del there.pods["foreign"]["metadata"]["labels"]
    there.runs("foreign", "n1")
    for name, rank, of in (("s9", 9, SLICE), ("s8", 8, SLICE), ("g1", 1, NVIDIA)):
        there.add(name, rank, asks={of: 1})
    assert there.granted() == ["s9", "g1"]
    there.ends("foreign")
    assert there.granted() == ["s9", "g1", "s8"]


def test_a_new_controller_knows_what_runs(sites: list[Site]) -> None:
    """Told of everything at once, on a node of two kinds."""
    there = site(sites, node("n1", offers={NVIDIA: 1, SLICE: 1}))
    there.add("runs", asks={SLICE: 1})
    there.runs("runs", "n1")
    there.add("slice", 9, asks={SLICE: 1})
    there.add("gpu", 1, asks={NVIDIA: 1})
    assert "gpu" in there.granted()
    assert "slice" not in there.granted()


def test_a_node_that_says_less_by_now_keeps_kinds_apart(sites: list[Site]) -> None:
    """A GPU fails, so all devices behind it have other numbers: slices that run are still slices. Then its plugin
    starts again and says nothing for a moment: pods are told as before."""
    there = site(sites, node("n1", offers={NVIDIA: 2, SLICE: 2}), node("n2", offers={SLICE: 1}))
    there.add("gpu", asks={NVIDIA: 1})
    there.add("s1", asks={SLICE: 1})
    there.add("s2", asks={SLICE: 1})
    for name in ("gpu", "s1", "s2"):
        there.runs(name, "n1")
    there.granted()
    there.offers("n1", **{NVIDIA: 1, SLICE: 2})
    there.add("next", 9, asks={SLICE: 1})
    there.add("late", 8, asks={SLICE: 1})
    there.add("other", 7, asks={NVIDIA: 1})
    assert set(there.granted()) & {"next", "late", "other"} == {"next"}
    told = there.seen()[0]["late"].where
    there.offers("n1", **{SLICE: 2})
    assert there.seen()[0]["late"].where == told
    there.offers("n1", **{NVIDIA: 2, SLICE: 2})
    assert set(there.granted()) & {"next", "late", "other"} == {"next", "other"}


def test_a_kind_that_comes_later_is_told_apart_from_then_on(sites: list[Site]) -> None:
    """One kind of GPUs: pods and nodes are the very objects that are listed. Then a node of another vendor comes, and
    what runs keeps what it has."""
    there = site(sites, node("n1", gpus=1))
    raw = pod_of(pod("p", uid="p", gpus=1))
    listed = node_of(node("n1", gpus=1))
    found = Inventory((), (), ()).applied({"p": raw}, [listed], NOW)
    assert (found[0]["p"] is raw, found[1][0] is listed) == (True, True)
    for name, rank in (("a", 9), ("b", 8)):
        there.add(name, rank, gpus=1)
    assert there.granted() == ["a"]
    there.runs("a", "n1")
    there.nodes["n2"] = node("n2", offers={AMD: 1})
    there.add("amd", 7, asks={AMD: 1})
    assert set(there.granted()) - {"a"} == {"amd"}
    there.ends("a")
    assert there.granted()[-1:] == ["b"]


def test_who_stops_for_another_has_its_kind(sites: list[Site]) -> None:
    """An urgent pod takes the place of one that has a slice, and not of those that have GPUs."""
    there = site(sites, node("n1", offers={NVIDIA: 2, SLICE: 1}), preempts=True)
    for name, of in (("g1", NVIDIA), ("g2", NVIDIA), ("s1", SLICE)):
        there.pods[name] = pod(name, uid=name, run=name, predicted=9000, asks={of: 1})
        there.runs(name, "n1")
    there.granted()
    there.add("urgent", 9, asks={SLICE: 1}, hints={"priority": 10})
    there.granted()
    assert there.session.stops() == ["s1"]


# --- two kinds in one pod ---


def test_a_pod_of_two_kinds_waits_for_the_first_and_its_node_has_both(sites: list[Site]) -> None:
    """A GPU and a slice: not where there are GPUs alone. While it runs, neither is another pod's."""
    there = site(sites, node("n1", offers={NVIDIA: 1, SLICE: 1}), node("n2", offers={NVIDIA: 1}))
    there.add("gpu", 9, asks={NVIDIA: 1}, spec={"nodeSelector": {"kubernetes.io/hostname": "n1"}})
    there.runs("gpu", "n1")
    there.add("both", 8, asks={NVIDIA: 1, SLICE: 1})
    assert "both" not in there.granted()
    there.ends("gpu")
    assert "both" in there.granted()
    there.runs("both", "n1")
    there.add("slice", asks={SLICE: 1})
    there.add("another", asks={NVIDIA: 1})
    there.add("third", asks={NVIDIA: 1})
    assert len({"another", "third"} & {*there.granted()}) == 1
    assert "slice" not in there.granted()
    there.ends("both")
    assert {"another", "third", "slice"} <= {*there.granted()}


def test_a_pod_of_two_kinds_uses_both() -> None:
    """Its GPU time counts each, and no placeholder of another shape stands for it."""
    raw = pod("p", uid="p", asks={NVIDIA: 2, SLICE: 1}, status={"startTime": moment(NOW - 100)})
    nodes = [node_of(node("n1", offers={NVIDIA: 2, SLICE: 1}))]
    found = Inventory((), (), ()).applied({"p": pod_of(raw)}, nodes, NOW)[0]
    assert (found["p"].shape.gpu_milli, found["p"].gpus, gpu_s(found["p"], NOW)) == (2000, 3, 300.0)
    (one,) = to_stand_for(found, ["p"], [])
    assert one.devices == ((NVIDIA, 2), (SLICE, 1))


def test_a_claim_of_two_kinds_counts_its_first(listed: list[Any]) -> None:
    """A GPU and a slice of a driver: opened when a GPU is free; what it has of both is no other's while it runs."""
    there = cluster(listed, {"n1": (gpu("gpu-0"), gpu("gpu-1"), mig("gpu-2-mig"))})
    slices = {"name": "slices", "exactly": {"deviceClassName": "mig.nvidia.com", "count": 1}}
    gpus = {"name": "gpus", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 1}}
    put(there, asks("both", gpus, slices))
    assert there.granted() == ["both"]
    there.runs("both", "n1", "gpu-0", "gpu-2-mig")
    put(there, asks("slice", slices), asks("gpu", gpus), asks("other", gpus))
    assert len({"gpu", "other"} & {*there.granted()}) == 1
    assert "slice" not in there.granted()
    there.ends("both")
    assert {"slice", "gpu", "other"} <= {*there.granted()}


def test_of_two_claims_the_one_that_can_be_counted_counts(listed: list[Any]) -> None:
    """One GPU, and by another claim all of a node, where nodes have different numbers. It waits for one GPU; when it
    has all four, no other pod is given three of them."""
    four, two = [gpu(f"gpu-{n}") for n in range(4)], [gpu(f"gpu-{n}") for n in range(2)]
    there = cluster(listed, {"n1": four, "n2": two})
    both = {"name": "one", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 1}}, all_of()
    put(there, asks("both", *both))
    assert there.granted() == ["both"]
    there.runs("both", "n1", "gpu-0", "gpu-1", "gpu-2", "gpu-3")
    put(there, asks("three", {"name": "gpus", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 3}}))
    assert "three" not in there.granted()
    there.ends("both")
    del there.claims["c-both"]
    assert "three" in there.granted()


# --- with drivers beside ---


def test_a_gpu_that_a_plugin_and_a_driver_offer_counts_once(listed: list[Any]) -> None:
    """Two GPUs and a slice, both ways: two pods have the GPUs, by whichever way they ask, and one the slice."""
    there = cluster(listed, {"n1": (gpu("gpu-0"), gpu("gpu-1"), mig("gpu-2-mig"))})
    there.nodes[0] = node_of(node("n1", offers={NVIDIA: 2, SLICE: 1}))
    assert there.seen()[1][0].gpus == 3
    there.add(*(pod(name, uid=name, run=name, gpus=1) for name in ("l1", "l2")))
    there.add(pod("s1", uid="s1", run="s1", asks={SLICE: 1}))
    put(there, asks("c1"))
    put(there, asks("s2", {"name": "gpus", "exactly": {"deviceClassName": "mig.nvidia.com", "count": 1}}))
    whole, slices = {"l1", "l2", "c1"}, {"s1", "s2"}
    found = {*there.granted()}
    assert (len(found & whole), len(found & slices)) == (2, 1)


def test_what_a_stranger_has_of_a_plugin_is_the_drivers_too(listed: list[Any]) -> None:
    """One GPU, both ways: a pod of others has it by its limit, so a claim waits."""
    there = cluster(listed, {"n1": (gpu("gpu-0"),)})
    there.nodes[0] = node_of(node("n1", gpus=1))
    foreign = pod("foreign", uid="foreign", gpus=1, gate=False, spec={"nodeName": "n1"})
    del foreign["metadata"]["labels"]
    there.add(foreign)
    put(there, asks("claims"))
    assert there.granted() == []
    del there.pods["foreign"]
    assert there.granted() == ["claims"]


def test_what_is_more_than_the_driver_offers_is_the_plugins() -> None:
    """And another vendor's driver stands for none of it."""
    slices = [devices.slice_of(resource_slice("n1", gpu("gpu-0")))]
    nodes = [node_of(node("n1", offers={NVIDIA: 3, AMD: 2}))]
    (found,) = Inventory(slices, (), ()).applied({}, nodes, NOW)[1]
    assert found.resources == ((AMD, 2), (NVIDIA, 2))
    assert found.gpus == 5


# --- around it ---


def test_placeholders_stand_for_their_kind() -> None:
    """A GPU is free and the slice is not: who asks for a slice waits, and so has a placeholder, on no node that offers
    slices already. One for a GPU is not needed."""
    nodes = [node_of(node("n1", offers={NVIDIA: 1, SLICE: 1})), node_of(node("n2", offers={AMD: 1}))]
    runs = pod("runs", uid="runs", asks={SLICE: 1}, predicted=9000, gate=False, spec={"nodeName": "n1"})
    waits = {name: pod(name, uid=name, asks={of: 1}, predicted=9000) for name, of in (("s", SLICE), ("g", NVIDIA))}
    listed = {name: pod_of(raw) for name, raw in {"runs": runs, **waits}.items()}
    pods, there = Inventory((), (), ()).applied(listed, nodes, NOW)
    wanted = to_stand_for(pods, ["s", "g"], [])
    found = select_steps(wanted, (), [pods["runs"]], there, NOW, node_s=180.0, most=9)
    ((name, place),) = found.make
    limits = made(name, place, "egs-system", "pause")["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "1000m", "memory": "0", SLICE: "1"}
    assert place == Place(Shape(1000, 1000, 0), pods["s"].where, ((SLICE, 1),))


def test_a_step_of_a_pipeline_asks_for_a_slice_by_its_name() -> None:
    """As its component says; an input of the pipeline says nothing yet."""
    raw = workflow("r", {"a": task(5, gpus="1")})
    for one in raw["spec"]["arguments"]["parameters"]:
        one["value"] = one["value"].replace("nvidia.com/gpu", SLICE)
    steps = [step for one in workflow_of(raw).templates.values() for step in one.steps or ()]
    asked = [step.asks.devices for step in steps if step.asks.gpus]
    assert asked == [((SLICE, 1),)]


def test_a_pool_of_slices_is_compared_by_them() -> None:
    """Seven slices are seven of what it says, GPUs beside them are none."""
    pool = ProfiledPool("a100", {"pool": "a"}, has_gpus=True, gpus_per_node=7, resource=SLICE)

    def told(**offers: int) -> list[str]:
        its = [node_of(node("n1", labels={"pool": "a"}, offers=offers))]
        return differences(ClusterProfile("team", "ops", (pool,)), its, None)

    assert told(**{SLICE: 7}) == []
    assert told(**{NVIDIA: 8, SLICE: 6}) == ["pool a100: its nodes should offer 7 GPUs or more: n1 6"]


def test_long_texts_are_not_kept() -> None:
    """What a tenant writes may be long: it is read each time. A short one is read once."""
    long = "x" * texts.KEPT_LENGTH

    def where(selector: str) -> str:
        return f'{{"devices": [[{{"count": 1, "selectors": ["{selector}"]}}]]}}'

    assert devices.asked(where("device.driver")) is devices.asked(where("device.driver"))
    assert devices.asked(where(long)) == devices.asked(where(long))
    assert devices.asked(where(long)) is not devices.asked(where(long))


# --- in a controller ---


def test_each_kind_is_opened_in_its_order(api: EmulatedApi) -> None:
    """Two vendors and slices: by what the API server lists. What no node offers is opened at once, for the scheduler to
    say so, and takes no GPU."""
    api.add("nodes", node("n1", offers={NVIDIA: 1, SLICE: 1}))
    api.add("nodes", node("a1", offers={AMD: 1}))
    for kind, of in (("n", NVIDIA), ("s", SLICE), ("a", AMD)):
        for rank in (5, 9):
            name = f"{kind}{rank}"
            api.add("pods", pod(name, uid=name, rank=10 * rank, asks={of: 1}, predicted=1))
    api.add("pods", pod("none", uid="none", run="none", rank=99, asks={LARGER: 1}))
    with controlled(api):
        api.until(lambda: {*api.opened()} == {"n9", "s9", "a9", "none"})
        assert api.all("pods")["none"]["metadata"]["annotations"][names.OPENED].endswith(" nowhere")
        for name, on in (("n9", "n1"), ("s9", "n1"), ("a9", "a1")):
            api.bind(name, on)
        api.end("s9")
        api.until(lambda: api.opened()[-1] == "s5")
        assert api.gated() == {"n5", "a5"}
        api.end("a9")
        api.until(lambda: api.opened()[-1] == "a5")
        assert api.gated() == {"n5"}


def test_a_slice_is_nowhere_where_all_gpus_are_whole(api: EmulatedApi) -> None:
    """One kind in the cluster: who asks for another one is opened at once, and is no GPU pod to the others."""
    api.add("nodes", node("n1", gpus=1))
    api.add("pods", pod("slice", uid="slice", run="slice", rank=99, asks={SLICE: 1}))
    api.add("pods", pod("gpu", uid="gpu", run="gpu", gpus=1))
    with controlled(api):
        api.until(lambda: {*api.opened()} == {"slice", "gpu"})
    found = api.all("pods")
    assert {name: found[name]["metadata"]["annotations"][names.OPENED].split()[-1] for name in found} == {
        "slice": "nowhere",
        "gpu": "order",
    }


def test_claims_that_cannot_be_read_keep_no_gate_closed(api: EmulatedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """By something that a tenant has written into one: each gate is opened when its moment has come."""

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("egs_core.kubernetes.claiming.Inventory.applied", broken)
    api.add("nodes", node("n1"))
    api.add("pods", pod("waits"))
    api.add("pods", pod("late", notes={"egs.io/release-by": OLD}))
    with controlled(api, says="step: RuntimeError: broken"):
        api.until(lambda: api.opened() == ["late"])
        assert api.gated() == {"waits"}
