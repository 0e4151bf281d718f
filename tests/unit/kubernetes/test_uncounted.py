"""Claims of all devices of a node, and claims that are not counted, which are named."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from tests.unit.kubernetes.controlled import controlled
from tests.unit.kubernetes.emulated_api import EmulatedApi
from tests.unit.kubernetes.made_devices import A100, DRIVER, T4, exactly, gpu, mig, request, resource_slice
from tests.unit.kubernetes.made_pods import node
from tests.unit.kubernetes.test_devices import CLASSES, IS_T4, Listed, api, asks, cluster, made, put

__all__ = ["api", "made"]  # the fixtures

IS_A100 = IS_T4.replace(T4, A100)


def all_of(*selectors: str, of: str = DRIVER) -> dict[str, Any]:
    stated = {"deviceClassName": of, "allocationMode": "All"}
    return {"name": "gpus", "exactly": stated | {"selectors": [{"cel": {"expression": one}} for one in selectors]}}


def test_all_devices_are_as_many_as_each_node_has(made: list[Listed]) -> None:
    """Two A100s on each of two nodes: who asks for all has two, and waits until a node is empty. Of T4s one node has
    one alone, so all of these are one."""
    two = (gpu("gpu-0"), gpu("gpu-1"))
    there = cluster(made, {"n1": two, "n2": (*two, gpu("gpu-2", T4))})
    put(there, asks("one"), asks("other"))
    there.runs("one", "n1", "gpu-0")
    there.runs("other", "n2", "gpu-0")
    put(there, asks("all", all_of(IS_A100)), asks("t4", all_of(IS_T4)))
    counted = {one.name: one.shape.gpu_milli // 1000 for one in there.seen()[0].values()}
    assert counted == {"one": 1, "other": 1, "all": 2, "t4": 1}
    assert "all" not in there.granted()
    there.ends("one")
    del there.claims["c-one"]
    assert "all" in there.granted()
    assert not there.inventory.uncounted


def test_a_claim_that_cannot_be_counted_is_named(made: list[Listed]) -> None:
    """All devices where nodes have one and two; a partition that is yet to be made; a shared GPU. Each is opened when
    there are CPUs, and the first pod of each kind is named, in one line whatever comes after it."""
    sharing = {"name": "gpus", "exactly": exactly(1, IS_T4)}
    partition = mig("gpu-0-mig-1g", consumesCounters=[{"counterSet": "gpu-0", "counters": {}}])
    shared = gpu("gpu-9", T4, allowMultipleAllocations=True)
    there = cluster(made, {"n1": (gpu("gpu-0"), partition, shared), "n2": (gpu("gpu-0"), gpu("gpu-1"))})
    put(
        there,
        asks("all", all_of()),
        asks("part", request(of="mig.nvidia.com")),
        asks("sharing", sharing),
    )
    put(there, asks("late", all_of()), asks("nic", request(of="nic.example.com")))
    assert sorted(there.granted()) == ["all", "late", "nic", "part", "sharing"]
    assert {one.shape.gpu_milli for one in there.seen()[0].values()} == {0}
    named = {why.partition(",")[0]: said for why, said in there.inventory.uncounted.items()}
    assert {why: said.partition(")")[0].rpartition("/")[2] for why, said in named.items()} == {
        "all devices of a node": "all",
        "a partition that its driver makes when it is asked for": "part",
        "a device that several share": "sharing",
    }


def test_what_a_claim_holds_that_is_not_counted_is_not_free(made: list[Listed]) -> None:
    """All eight GPUs of one node, where another has four: no pod that needs eight is granted the same again."""
    there = cluster(made, {"n1": [gpu(f"gpu-{n}") for n in range(8)], "n2": [gpu(f"gpu-{n}") for n in range(4)]})
    put(there, asks("all", all_of()))
    there.runs("all", "n1", *(f"gpu-{n}" for n in range(8)))
    put(there, asks("eight", request(count=8)), asks("four", request(count=4)))
    assert there.seen()[0]["all"].shape.gpu_milli == 0
    assert "eight" not in there.granted()
    assert "four" in there.granted()
    there.ends("all")
    del there.claims["c-all"]
    assert "eight" in there.granted()


def test_what_is_not_counted_is_one_line(api: EmulatedApi) -> None:
    """Of the controller's log, however many claim so; their gates are opened."""
    partition = mig("gpu-0-mig-1g", consumesCounters=[{"counterSet": "gpu-0", "counters": {}}])
    api.add("nodes", node("n1"))
    api.add("resourceslices", resource_slice("n1", gpu("gpu-0"), partition))
    api.add("deviceclasses", CLASSES[1])
    said: list[str] = []
    with controlled(api, says="is not counted", said=said):
        for name in ("first", "second"):
            raw, its = asks(name, request(of="mig.nvidia.com"))
            api.add("resourceclaims", its)
            api.add("pods", raw)
            api.until(lambda name=name: name in api.opened())  # type: ignore[misc]  # one each
    assert said == [
        "a claim of a partition that its driver makes when it is asked for: is not counted (team/first): such pods wait"
        " for CPUs and memory alone"
    ]
