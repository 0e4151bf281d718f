"""GPUs of two vendors and slices of a device plugin on a real API server with its scheduler (`test_real_cluster`). No
plugin is there: the tests write into their nodes' status what its kubelet would, and the scheduler goes by that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import PODS
from egs_core.kubernetes.placeholding import PlaceholderSettings
from tests.cluster.real import Site, applied, controlled, until
from tests.cluster.test_real_cluster import pytestmark

__all__ = ["pytestmark"]

NVIDIA, AMD = "nvidia.com/gpu", "amd.com/gpu"
SLICE, SHARED = "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared"
TWO = PlaceholderSettings(most=2)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A node with a GPU and two slices, and one of another vendor."""
    with applied(tmp_path, 1, offers={SLICE: 2}, placeholders=TWO) as found:
        found.add_node(f"{found.name}-amd", 0, {AMD: 1})
        yield found


def add(site: Site, name: str, rank: int, *of: str, **more: Any) -> None:
    site.add(name, asks=dict.fromkeys(of, 1), rank=rank, predicted=5, **more)


def gated(site: Site) -> set[str]:
    return {one.name for one in site.pods().values() if one.is_gated}


def placed(site: Site, *pods: str) -> bool:
    return all(site.pods()[name].node for name in pods)


def test_each_kind_has_its_own_order_and_nothing_is_opened_for_another(site: Site) -> None:
    """Two vendors and slices, more pods than devices of each: the scheduler gets of each kind as many as there are, the
    first first, and refuses none; what is given back is the next one's of that kind."""
    for of, kind, many in ((NVIDIA, "n", 3), (AMD, "a", 2), (SLICE, "s", 4)):
        for number in range(many):
            add(site, f"{kind}{number}", 10 + 10 * number, of)
    with controlled(site):
        until(lambda: placed(site, "n2", "a1", "s3", "s2"))
        waiting = {"n0", "n1", "a0", "s0", "s1"}
        for over, after in (("s2", "s1"), ("a1", "a0"), ("n2", "n1")):
            assert gated(site) == waiting
            site.end(over)
            until(lambda after=after: placed(site, after))  # type: ignore[misc]  # one each
            waiting -= {after}
        assert gated(site) == waiting == {"n0", "s0"}
    found = site.pods().values()
    assert {one.opened_for for one in found if not one.is_gated} == {"order"}
    assert not any(one.refusal for one in found)
    assert {one.node for one in found if one.name.startswith("a") and one.node} == {f"{site.name}-amd"}


def test_what_others_hold_and_a_new_controller_finds_is_of_its_kind(site: Site) -> None:
    """A pod of nobody's has a slice, one of ours the GPU, from before the controller was there: of two that ask for a
    slice one starts, and none that asks for a GPU. Then a stranger takes a slice that one of ours gives back: the next
    one waits for the other slice."""
    add(site, "stranger", 1, SLICE, gate=False, labels={names.WORKLOAD: ""})
    add(site, "before", 1, NVIDIA, gate=False)
    until(lambda: placed(site, "stranger", "before"))
    for name, rank, of in (("s1", 10, SLICE), ("s2", 20, SLICE), ("n1", 90, NVIDIA)):
        add(site, name, rank, of)
    with controlled(site):
        until(lambda: placed(site, "s2"))
        add(site, "cpus", 1)
        until(lambda: placed(site, "cpus"))
        assert gated(site) == {"s1", "n1"}
        site.end("stranger")
        until(lambda: placed(site, "s1"))
        site.end("s2")
        add(site, "another", 1, SLICE, gate=False, labels={names.WORKLOAD: ""})
        until(lambda: placed(site, "another"))
        add(site, "s3", 30, SLICE)
        add(site, "more-cpus", 1)
        until(lambda: placed(site, "more-cpus"))
        assert gated(site) == {"s3", "n1"}
        site.end("s1")
        until(lambda: placed(site, "s3"))
        assert gated(site) == {"n1"}


def test_a_kind_that_comes_and_one_that_nobody_has(site: Site) -> None:
    """Replicas of shared GPUs: nobody has any, so the scheduler is to say so; a node with two of them comes, and two of
    three pods start there. A GPU is never one of them, nor the other way round."""
    add(site, "early", 99, SHARED)
    with controlled(site):
        until(lambda: "early" not in gated(site))
        assert site.pods()["early"].opened_for == "nowhere"
        site.add_node(f"{site.name}-shared", 0, {SHARED: 2})
        until(lambda: placed(site, "early"))
        add(site, "whole", 1, NVIDIA)
        until(lambda: placed(site, "whole"))
        for name, rank in (("r2", 20), ("r1", 10)):
            add(site, name, rank, SHARED)
        until(lambda: placed(site, "r2"))
        add(site, "another", 99, NVIDIA)
        add(site, "cpus", 1)
        until(lambda: placed(site, "cpus"))
        assert gated(site) == {"r1", "another"}
        site.end("early")
        until(lambda: placed(site, "r1"))
        assert gated(site) == {"another"}


def test_a_pod_of_two_kinds_gets_both_and_they_are_nobody_elses(site: Site) -> None:
    """A GPU and a slice: it waits for the GPU. While it runs another slice is free and the GPU is not."""
    add(site, "first", 1, NVIDIA, gate=False)
    until(lambda: placed(site, "first"))
    add(site, "both", 50, NVIDIA, SLICE)
    with controlled(site):
        add(site, "cpus", 1)
        until(lambda: placed(site, "cpus"))
        assert gated(site) == {"both"}
        site.end("first")
        until(lambda: placed(site, "both"))
        for name, rank, of in (("n1", 30, NVIDIA), ("s2", 20, SLICE), ("s1", 10, SLICE)):
            add(site, name, rank, of)
        until(lambda: placed(site, "s2"))
        add(site, "more", 1)
        until(lambda: placed(site, "more"))
        assert gated(site) == {"s1", "n1"}


def test_a_placeholder_asks_for_a_slice(site: Site) -> None:
    """Both slices are held for an hour, and the GPU beside them is free: what an autoscaler sees asks for a slice, and
    the policy lets it. A node with one comes: the pod has it, and the placeholder goes."""
    for name in ("s1", "s2"):
        site.add(name, asks={SLICE: 1}, predicted=3600, gate=False, spec={"nodeName": site.name})
        site.begins(name, 0)
    site.add("waits", asks={SLICE: 1}, predicted=3600)
    label = f"{names.PLACEHOLDER}={names.BY_CONTROLLER}"
    with controlled(site, placeholders=TWO):
        until(lambda: site.admin.list(PODS, site.of.namespace, label)[0])
        (found,) = site.admin.list(PODS, site.of.namespace, label)[0]
        assert found["spec"]["containers"][0]["resources"]["limits"][SLICE] == "1"
        assert gated(site) == {"waits"}
        site.add_node(f"{site.name}-new", 0, {SLICE: 1})
        until(lambda: site.pods()["waits"].node == f"{site.name}-new")
        until(lambda: not site.admin.list(PODS, site.of.namespace, label)[0])
