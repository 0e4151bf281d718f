"""A GPU that fails, or is taken away, on a node where pods run: as many are granted as the node has left beside them,
whichever of its devices the engine has given to whom."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.kubernetes.devices import slice_of
from tests.unit.kubernetes.made_devices import gpu, resource_slice
from tests.unit.kubernetes.made_pods import node
from tests.unit.kubernetes.test_devices import Listed, asks, cluster, put
from tests.unit.kubernetes.test_devices import made as listed
from tests.unit.kubernetes.test_resources import NVIDIA, SLICE, Site, site, sites

__all__ = ["listed", "sites"]  # the fixtures


def full(sites: list[Site], gpus: int = 4, **others: int) -> Site:
    """A node of so many GPUs, each of which a pod has."""
    found = site(sites, node("n1", offers={NVIDIA: gpus, **others}))
    for number in range(gpus):
        found.add(f"p{number}", 9 - number, asks={NVIDIA: 1})
    found.granted()
    for number in range(gpus):
        found.runs(f"p{number}", "n1")
    found.granted()
    return found


def wait(there: Site, count: int = 4, **asked: int) -> None:
    for number in range(count):
        there.add(f"w{number}", 20, asks=asked or {NVIDIA: 1})


def new(there: Site) -> int:
    """So many of those that wait are granted."""
    return len([name for name in there.granted() if name.startswith("w")])


@pytest.mark.parametrize("others", [{}, {SLICE: 1}], ids=["one kind", "another kind beside"])
@pytest.mark.parametrize("ended", [*itertools.combinations(range(4), 2)])
def test_what_is_left_is_granted_whichever_device_has_failed(
    sites: list[Site], ended: tuple[int, int], others: dict[str, int]
) -> None:
    """Two of four run on, of three GPUs by now: one more starts. Then the GPU is there again, and another one does."""
    there = full(sites, **others)
    for number in ended:
        there.ends(f"p{number}")
    there.offers("n1", **{NVIDIA: 3, **others})
    wait(there)
    assert new(there) == 1
    there.offers("n1", **{NVIDIA: 4, **others})
    assert new(there) == 2


@pytest.mark.parametrize("is_new", [False, True], ids=["a controller that has seen it", "one that starts now"])
def test_what_runs_runs_on_and_nothing_starts_before_there_is_room(sites: list[Site], is_new: bool) -> None:
    """Four run, of three GPUs by now, as no kubelet ends them: the first that ends gives nothing back."""
    there = full(sites)
    there.offers("n1", **{NVIDIA: 3})
    if is_new:
        there.session.renew()
        there.granted()
    wait(there)
    assert new(there) == 0
    for ended, granted in ((0, 0), (1, 1), (2, 2), (3, 3)):
        there.ends(f"p{ended}")
        assert new(there) == granted


def test_beside_what_others_hold(sites: list[Site]) -> None:
    """One of four GPUs is a stranger's, three are ours, and three are left: the first that ends gives nothing back."""
    there = site(sites, node("n1", offers={NVIDIA: 4}))
    there.add("stranger", asks={NVIDIA: 1})
    del there.pods["stranger"]["metadata"]["labels"]["egs.io/workload"]
    there.runs("stranger", "n1")
    for number in range(3):
        there.add(f"p{number}", 9 - number, asks={NVIDIA: 1})
        there.runs(f"p{number}", "n1")
    there.granted()
    there.offers("n1", **{NVIDIA: 3})
    wait(there)
    for ended, granted in ((2, 0), (0, 1), (1, 2)):
        there.ends(f"p{ended}")
        assert new(there) == granted


def test_a_device_that_its_driver_offers_no_longer(listed: list[Listed]) -> None:
    """The driver says which one has failed: it is one that nobody has."""
    there = cluster(listed, {"n1": [gpu(f"gpu-{n}") for n in range(4)]})
    put(there, *(asks(f"p{n}", rank=9) for n in range(4)))
    there.granted()
    for number in range(4):
        there.runs(f"p{number}", "n1", f"gpu-{number}")
    there.granted()
    for number in (0, 1):
        there.ends(f"p{number}")
        del there.claims[f"c-p{number}"]
    there.slices = [slice_of(resource_slice("n1", *(gpu(f"gpu-{n}") for n in (1, 2, 3))))]
    put(there, *(asks(f"w{n}") for n in range(4)))
    assert len([name for name in there.granted() if name.startswith("w")]) == 1
