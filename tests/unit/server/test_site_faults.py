"""The fault simulation of the server: its production logic on a simulated store, clock, network and host."""

from __future__ import annotations

import msgspec
import pytest

from egs_core.server.leader import NotActive
from egs_core.server.logic import Batch
from egs_core.server.runs import Device
from egs_core.server.store import Kept, StoreError
from egs_core.server.writer import Turns
from tests.unit.server.site_world import GIB, OFFER, BudgetedStore, MemoryStore, World

FLAVORS = {"0": "slow", "1": "fast", "2": "slow"}
MEMORY = {"slow": 80 * GIB, "fast": 40 * GIB}


class Led:
    """A store of several servers as one of them has it, and its `Lead`: who took it last has it."""

    def __init__(self, store: MemoryStore, epochs: list[int]) -> None:
        self._store, self._epochs, self._epoch = store, epochs, 0

    def take(self) -> None:
        self._epoch = self._epochs[-1] + 1
        self._epochs.append(self._epoch)

    def check(self) -> None:
        if self._epochs[-1] != self._epoch:
            raise NotActive("another one is active")

    def load(self) -> Kept:
        return self._store.load()

    def commit(self, batch: Batch) -> None:
        self.check()
        self._store.commit(batch)

    def compact(self, snapshot: bytes) -> None:
        self.check()
        self._store.compact(snapshot)

    @property
    def wants_snapshot(self) -> bool:
        return self._store.wants_snapshot


class Pair(World):
    """Its server is replaced by another one while it is stopped, and goes on later: it is asked, too."""

    before: Turns | None = None
    refused = 0

    def __init__(self, seed: int) -> None:
        self.epochs = [0]
        super().__init__(seed)

    def _server(self) -> Turns:
        led = Led(self.store, self.epochs)
        found = self._turns(led, led)
        found.recover()
        return found

    def _restart(self) -> None:
        before = self.turns
        super()._restart()
        self.before = before

    def step(self) -> None:
        if self.before is not None and self.random.random() < 0.5:
            asks = [one.next_ask() for one in self.all if one.is_alive and not one.is_done]
            with pytest.raises(StoreError):
                self.before.take(asks)
            self.before, self.refused = None, self.refused + 1
        super().step()


class Unlike(World):
    """One device is of another flavor than the rest, with half the memory, and three times as fast; what runs has one
    of two names, so that it is learned how long it takes; some may have one flavor only."""

    offered = msgspec.structs.replace(
        OFFER, devices=tuple([Device(name, "", MEMORY[flavor], flavor) for name, flavor in FLAVORS.items()])
    )

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        slow = frozenset(name for name, flavor in FLAVORS.items() if flavor == "slow")
        for one in self.all:
            one.slow_on = slow
            more: dict[str, object] = {"name": self.random.choice(("a", "b"))}
            if one.request.gang is None and one.inside is None and one.request.gpus == 1 and self.random.random() < 0.5:
                more["flavors"] = (self.random.choice(("slow", "fast")),)
            one.request = one.request.model_copy(update=more)

    def check(self) -> None:
        """Besides: nothing is on a flavor that it did not want, and no memory is exceeded."""
        super().check()
        for device, flavor in FLAVORS.items():
            holders = [one for one in self.all if device in one.devices and not one.inside]
            asked = [one.request if one.view is None else one.view for one in holders]  # wishes may have been changed
            used = sum(one.gpu_memory_bytes for one in asked)
            assert used <= MEMORY[flavor], f"{used} bytes of {device}"
        for one in self.all:
            wanted = one.request.flavors
            assert not wanted or all(FLAVORS[device] in wanted for device in one.devices), (wanted, one.devices)


@pytest.mark.parametrize("seed", [*range(6), 2016, 2092, 11935, 12712])
def test_the_same_where_devices_are_unlike(seed: int) -> None:
    """Also that a run is only ever on a flavor that it wanted; and what has ended is what the others are placed by. In
    2016 a server starts again while a GPU request has just been granted; in 2092 one of a gang ends while the other,
    which was evicted for what is kept for others, is granted it anew; in 11935 what waited for another run is admitted
    while a server starts; in 12712 somebody changes what a run needs."""
    world = simulate(seed, Unlike)
    learned = world.turns.logic.book.flavors
    known = [learned.estimates(run) for run in world.turns.logic.runs.values() if run.flavor]
    assert any(known), "nothing was learned"


def simulate(seed: int, kind: type[World] = World) -> World:
    world = kind(seed)
    for _ in range(60):
        world.step()
    world.settle()
    world.turns.logic.validate()
    return world


@pytest.mark.parametrize("seed", range(8))
def test_no_device_is_given_twice_and_every_run_ends(seed: int) -> None:
    """Messages lost, doubled and late, commits that fail, servers and supervisors killed, clocks set: no two processes
    ever use a device, a used device is never given out, of a gang all get devices or none does, nothing starts twice,
    nothing is granted beyond a budget, which is counted as what is durable says, and at the end every run has ended."""
    simulate(seed)


def test_a_server_that_was_replaced_tells_nothing() -> None:
    """The same with two servers: one that another took over from, and that goes on and is asked what all clients would
    ask, takes nothing and answers nothing, and no device is given twice."""
    refused = 0
    for seed in range(8):
        world = Pair(seed)
        for _ in range(60):
            world.step()
        world.settle()
        world.turns.logic.validate()
        refused += world.refused
    assert refused > 8


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 250))
def test_many_more_seeds(first: int) -> None:
    """The same for 2,000 seeds, four minutes of one processor, in parts that several may share."""
    for seed in range(first, first + 250):
        simulate(seed)


def test_the_simulation_does_what_it_claims() -> None:
    """The faults happen: servers were started again, supervisors were killed with their processes left, runs were
    aborted, and most commands ran."""
    worlds = [simulate(seed) for seed in range(100, 126)]
    outcomes = [run.outcome for world in worlds for run in world.turns.logic.runs.values()]
    assert sum(world.crashes for world in worlds) >= len(worlds)
    assert {"succeeded", "aborted", "lost", "skipped"} <= set(outcomes)
    assert outcomes.count("succeeded") > len(outcomes) / 3
    inside = [run for world in worlds for run in world.turns.logic.runs.values() if run.inside]
    assert {"succeeded", "lost"} <= {run.outcome for run in inside if run.started_at is not None}
    assert any(run.started_at is not None and run.why.startswith("request ") for run in inside)
    assert sum(run.evictions for world in worlds for run in world.turns.logic.runs.values()) >= 5
    assert any(run.is_request and "idle" in run.why for world in worlds for run in world.turns.logic.runs.values())
    gangs = [run for world in worlds for run in world.turns.logic.runs.values() if run.gang]
    assert sum(run.outcome == "succeeded" for run in gangs) >= len(gangs) / 5
    assert any("was not whole in time" in run.why for run in gangs)
    assert any("of its gang has ended" in run.why for run in gangs)
    assert any(run.evictions for run in gangs)
    assert sum(world.kept > 0 for world in worlds) >= 5
    assert any(world.store.snapshot for world in worlds)
    budgets = [world.store for world in worlds if isinstance(world.store, BudgetedStore)]
    assert sum(store.grants for store in budgets) > 5 * len(budgets)
    assert sum(store.most > 0 for store in budgets) >= len(budgets) / 2, "they are used up, by what went on"
