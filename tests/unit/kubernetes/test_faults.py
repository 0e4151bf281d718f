"""The controller dies at any moment, and the API server fails it: on an emulated one, whose scheduler is the test's.

`tests/cluster` does the same on a real API server.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("kubernetes", reason="the client of Kubernetes is not installed")

from egs_core.kubernetes.pods import Pod, pod_of
from tests.unit.kubernetes.emulated_api import LIMIT_S, EmulatedApi
from tests.unit.kubernetes.killed import Books, kill_often
from tests.unit.kubernetes.made_pods import node, pod

GPUS = {"n1": 2, "n2": 1}
BOUND_S, LASTS_S = 0.15, 0.3


@pytest.fixture
def api(tmp_path: Path) -> Iterator[EmulatedApi]:
    found = EmulatedApi(tmp_path)
    yield found
    found.close()


class Scheduler:
    """Pods without a gate get a place, each a moment later and none before another that came first; those that have one
    end. rng: how long either takes."""

    def __init__(self, api: EmulatedApi, rng: random.Random) -> None:
        self._api, self._rng = api, rng
        self._due: dict[str, float] = {}

    def look(self) -> None:
        """Once."""
        pods = [pod_of(raw) for raw in self._api.all("pods").values()]
        taken = {
            name: sum(one.shape.gpu_milli // 1000 for one in pods if one.holds and one.node == name) for name in GPUS
        }
        for one in pods:
            if one.is_gated or one.is_over:
                continue
            most_s = LASTS_S if one.node else BOUND_S
            due = self._due.setdefault(f"{one.name} {one.node}", time.monotonic() + self._rng.uniform(0.0, most_s))
            if time.monotonic() >= due:
                self._go_on(one, taken)

    def _go_on(self, one: Pod, taken: dict[str, int]) -> None:
        gpus = one.shape.gpu_milli // 1000
        if one.node:
            self._api.end(one.name)
            return
        fits = [name for name, there in GPUS.items() if taken[name] + gpus <= there]
        if fits:
            name = self._rng.choice(fits)
            taken[name] += gpus
            self._api.bind(one.name, name)


@contextmanager
def scheduled(api: EmulatedApi, rng: random.Random) -> Iterator[None]:
    over, scheduler = threading.Event(), Scheduler(api, rng)

    def run() -> None:
        while not over.wait(0.02):
            scheduler.look()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LIMIT_S)


def trouble(api: EmulatedApi, rng: random.Random) -> None:
    """One of what an API server does to who asks it."""
    match rng.randrange(6):
        case 0:
            api.cut()
        case 1:
            api.gone = 2
            api.cut()
        case 2:
            api.conflicts = rng.randrange(1, 4)
        case 3:
            api.lost = rng.randrange(1, 4)
        case 4:
            api.down = True
            api.cut()
            time.sleep(0.1)
            api.down = False


@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 15), *(pytest.param(seed, 40, marks=pytest.mark.slow) for seed in range(2, 7))]
)
def test_no_device_is_given_twice_whenever_the_controller_is_killed(api: EmulatedApi, seed: int, kills: int) -> None:
    """By SIGKILL, two hundred times in all: while it starts, decides, writes, or waits for an answer. Watches are cut
    or answered with 410, patches refused with 409 or done and not answered, and the API server is away. What is open
    never asks for more GPUs than there are, each gate is opened once, for its turn, and every pod ends."""
    rng = random.Random(seed)
    for name, gpus in GPUS.items():
        api.add("nodes", node(name, gpus=gpus))
    made = 0

    def add(many: int) -> None:
        nonlocal made
        for _ in range(many):
            api.add("pods", pod(f"p{made}", gpus=rng.choice((1, 1, 2)), rank=rng.randrange(99), run=f"r{made % 7}"))
            made += 1

    def while_it_lives() -> None:
        add(rng.randrange(3))
        trouble(api, rng)

    add(12)
    with scheduled(api, rng):
        last = kill_often(kills, rng, api.kubeconfig, while_it_lives)
        try:
            add(5)
            api.conflicts = api.lost = api.gone = 0
            api.until(
                lambda: all(one.get("status", {}).get("phase") == "Succeeded" for one in api.all("pods").values())
            )
        finally:
            last.kill()
            last.join()
    books = Books()
    for _, plural, kind, raw in api.log:
        if plural == "pods":
            books.take(kind, raw)
    books.check(sum(GPUS.values()), made)
