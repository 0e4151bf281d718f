"""GPUs that pods of others hold, of which no list says which they are: what the session grants beside them, in whatever
order pods end and others take their place. On a real scheduler: `tests/cluster/test_real_resources.py`."""

from __future__ import annotations

from typing import ClassVar

import pytest

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.kubernetes.made_pods import node
from tests.unit.kubernetes.test_resources import NVIDIA, SLICE, Site, site, sites

__all__ = ["sites"]  # the fixture


def stranger(there: Site, name: str, of: str = NVIDIA) -> None:
    """A pod without EGS's labels that has its device already."""
    there.add(name, asks={of: 1}, gate=False)
    del there.pods[name]["metadata"]["labels"]
    there.runs(name, "n1")


@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize("kinds", [{NVIDIA: 2}, {NVIDIA: 2, SLICE: 1}], ids=["one kind", "two kinds"])
def test_a_stranger_that_takes_what_one_of_ours_gives_back(
    sites: list[Site], first: str, kinds: dict[str, int]
) -> None:
    """Both GPUs run pods of ours; whichever ends, a stranger has its GPU at once: none is free, also for a new engine.
    When the other one ends, too, one is."""
    there = site(sites, node("n1", offers=kinds))
    for name, rank in (("a", 9), ("b", 8), ("c", 2), ("d", 1)):
        there.add(name, rank, asks={NVIDIA: 1})
    assert there.granted() == ["a", "b"]
    there.runs("a", "n1")
    there.runs("b", "n1")
    there.granted()
    there.ends(first)
    stranger(there, "x")
    assert {"c", "d"}.isdisjoint(there.granted())
    there.session.renew()
    assert {"c", "d"}.isdisjoint(there.granted())
    there.ends("b" if first == "a" else "a")
    assert set(there.granted()) & {"c", "d"} == {"c"}
    there.runs("c", "n1")
    there.ends("x")
    assert set(there.granted()) & {"c", "d"} == {"c", "d"}


Step = tuple[str, int]
STEPS = ("ends", "ends", "ends", "stranger", "stranger", "stranger", "leaves", "unasked", "anew")


class Life:
    """A node of three GPUs and two slices, whose pods start, end and are others' as steps say it; what is there never
    holds more than the node has, as a scheduler sees to it."""

    HAS: ClassVar = {NVIDIA: 3, SLICE: 2}

    def __init__(self, pods: list[tuple[str, int]]) -> None:
        self.site = Site(node("n1", offers=self.HAS, cpu=64))
        self.of = {f"p{number}": one for number, one in enumerate(pods)}
        self.waits, self.on = list(self.of), dict[str, tuple[str, int]]()
        self.granted: list[str] = []
        for number, (name, (kind, count)) in enumerate(self.of.items()):
            self.site.add(name, 1 + number % 3, asks={kind: count})

    def free(self, kind: str) -> int:
        return self.HAS[kind] - sum(count for of, count in self.on.values() if of == kind)

    def take(self, step: str, number: int) -> None:
        ours = [name for name in self.on if name in self.of]
        others = [name for name in self.on if name not in self.of]
        fitting = self.fitting(self.waits)
        if step == "unasked" and fitting:  # whoever opened it
            self.start(fitting[number % len(fitting)])
        elif step == "ends" and ours:
            self.end(ours[number % len(ours)])
        elif step == "leaves" and others:
            self.end(others[number % len(others)])
        elif step == "stranger" and self.free(kind := (NVIDIA, SLICE)[number % 3 == 2]):
            name = f"x{len(self.site.pods)}"
            stranger(self.site, name, kind)
            self.on[name] = kind, 1
        elif step == "anew":
            self.site.session.renew()

    def fitting(self, names: list[str]) -> list[str]:
        return [name for name in names if name in self.waits and self.free(self.of[name][0]) >= self.of[name][1]]

    def start_granted(self) -> None:
        while found := self.fitting(self.granted):
            self.start(found[0])

    def start(self, name: str) -> None:
        self.waits.remove(name)
        self.on[name] = self.of[name]
        self.site.runs(name, "n1")

    def end(self, name: str) -> None:
        del self.on[name]
        self.site.ends(name)

    def look(self) -> None:
        """What is granted since the last look has room beside all that runs and all that was granted before; where all
        ask for one device, none is left idle."""
        before, self.granted = set(self.granted), self.site.granted()
        for kind in self.HAS:
            waiting = [name for name in self.waits if self.of[name][0] == kind]
            granted = [name for name in waiting if name in self.granted]
            left = self.free(kind) - sum(self.of[name][1] for name in granted)
            new = [name for name in granted if name not in before]
            assert left >= 0 or not new, f"{new} were granted, and {-left} {kind} are not there"
            if left > 0 and all(count == 1 for _, count in self.of.values()):
                assert waiting == granted, f"{left} {kind} are free"


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=80)  # an engine each
@given(
    pods=st.lists(
        st.tuples(st.sampled_from((NVIDIA, NVIDIA, SLICE)), st.sampled_from((1, 1, 1, 2))), min_size=6, max_size=12
    ),
    rounds=st.lists(
        st.tuples(
            st.sampled_from((True, True, False)),
            st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 5)), min_size=1, max_size=4),
        ),
        min_size=3,
        max_size=10,
    ),
)
def test_no_more_is_granted_than_the_node_has_free(
    pods: list[tuple[str, int]], rounds: list[tuple[bool, list[Step]]]
) -> None:
    """Whatever ends, whoever takes its place, in whatever order between two looks, and with a new engine at times."""
    life = Life(pods)
    try:
        life.look()
        for starts, steps in rounds:
            if starts:
                life.start_granted()
            for step, number in steps:
                life.take(step, number)
            life.look()
    finally:
        life.site.session.close()
