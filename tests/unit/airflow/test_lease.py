"""The lease of the agent that hosts the engine, on a store with the same promises as Airflow's metadata: creating is
atomic, everything else is not."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from egs_airflow.agent.lease import TTL_S, Lease, Record, record_of
from egs_airflow.agent.lease_store import epoch_of
from egs_core.errors import InputError


@dataclass
class FakeStore:
    """before: called before and after each request, for what others do in between; is_down: raises."""

    records: dict[int, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    before: Callable[[str], None] = lambda _: None
    is_down: bool = False

    def texts(self) -> dict[int, str]:
        self._ask("texts")
        with self.lock:
            found = dict(self.records)
        self.before("after texts")
        return found

    def create(self, epoch: int, text: str) -> None:
        self._ask("create")
        with self.lock:
            if epoch in self.records:
                raise InputError("store", "answers 409 Conflict")
            self.records[epoch] = text

    def replace(self, epoch: int, text: str) -> bool:
        self._ask("replace")
        with self.lock:
            is_there = epoch in self.records
            if is_there:
                self.records[epoch] = text
        self.before("after replace")
        return is_there

    def remove(self, epoch: int) -> None:
        self._ask("remove")
        with self.lock:
            self.records.pop(epoch, None)

    def _ask(self, what: str) -> None:
        if self.is_down:
            raise InputError("store", "no answer")
        self.before(what)


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_one_hosts_the_other_watches_and_takes_over() -> None:
    """The first one takes it; the second never while it is renewed; once silent for its time to live the second takes
    it with the next epoch, and the record of the first is gone: a renewal by it fails."""
    store, clock = FakeStore(), Clock(100.0)
    first, second = Lease(store, "a", clock=clock), Lease(store, "b", clock=clock)
    assert first.tick()
    for _ in range(10):
        clock.now_s += TTL_S - 1
        assert first.tick()
        assert not second.tick()
        assert second.holder_seen == "a"
    clock.now_s += TTL_S - 1
    assert not second.tick()
    clock.now_s += 1.1
    assert not first.is_held
    assert second.tick()
    assert (second.epoch, list(store.records)) == (2, [2])
    assert not first.tick()
    assert first.holder_seen == "b"


def test_a_lease_that_is_let_go_is_taken_at_once() -> None:
    """On SIGTERM: no time to live is waited for, and the epoch goes on."""
    store, clock = FakeStore(), Clock()
    first, second = Lease(store, "a", clock=clock), Lease(store, "b", clock=clock)
    assert first.tick()
    first.release()
    assert not first.is_held
    assert second.tick()
    assert second.epoch == 2


def test_two_that_both_see_it_expired() -> None:
    """Exactly one wins, also where each of the loser's requests comes after all of the winner's."""
    store, clock = FakeStore({3: Record("dead", 9).text()}), Clock()
    agents = [Lease(store, name, clock=clock) for name in "abc"]
    assert [agent.tick() for agent in agents] == [False] * 3
    clock.now_s += TTL_S
    others = agents[1:]

    def race(what: str) -> None:
        if what == "create" and others:
            others.pop().tick()

    store.before = race
    agents[0].tick()
    assert sum(agent.is_held for agent in agents) == 1
    assert list(store.records) == [4]


def test_one_that_slept_between_looking_and_taking() -> None:
    """It saw epoch 1 expire and sleeps; others take 2 and then 3, and remove what is older; its creation of 2 succeeds
    in the store, and yet it holds nothing."""
    store, clock = FakeStore({1: Record("dead", 1).text()}), Clock()
    sleeper, other, third = (Lease(store, name, clock=clock) for name in ("s", "o", "t"))
    for agent in (sleeper, other):
        assert not agent.tick()
    clock.now_s += TTL_S

    def sleep(what: str) -> None:
        if what == "create":
            store.before = lambda _: None
            assert other.tick()
            other.release()
            assert third.tick()
            assert (third.epoch, list(store.records)) == (3, [3])

    store.before = sleep
    assert not sleeper.tick()
    assert not sleeper.is_held
    assert third.tick()
    assert list(store.records) == [3]


def test_a_holder_that_does_not_reach_the_store_stops_in_time() -> None:
    """It holds on until its time to live is over by its own clock, which is never later than anybody else's."""
    store, clock = FakeStore(), Clock()
    first, second = Lease(store, "a", clock=clock), Lease(store, "b", clock=clock)
    assert first.tick()
    assert not second.tick()
    store.is_down = True
    clock.now_s += TTL_S - 0.1
    with pytest.raises(InputError):
        first.tick()
    assert first.is_held
    store.is_down = False
    assert not second.tick()
    clock.now_s += 0.1
    assert not first.is_held
    assert second.tick()


def test_what_users_do_to_the_records() -> None:
    """A damaged record is taken over after the usual time; one that was deleted by hand is made anew by one of them."""
    store, clock = FakeStore({5: "scribble"}), Clock()
    first, second = Lease(store, "a", clock=clock), Lease(store, "b", clock=clock)
    assert not first.tick()
    clock.now_s += TTL_S
    assert first.tick()
    assert first.epoch == 6
    store.records.clear()
    assert not first.tick()
    assert [first.tick(), second.tick()] == [True, False]
    assert record_of(store.records[1]).holder == "a"
    assert record_of('{"holder": "x", "beat": 1, "ttl_s": 1e9}').ttl_s <= 600.0


def test_a_store_that_refuses_to_write_is_an_error() -> None:
    """An agent without the right to create connections says so, instead of trying in silence for ever."""
    store = FakeStore()
    store.create = lambda *_: (_ for _ in ()).throw(InputError("store", "refuses"))  # type: ignore[method-assign]  # a store that fails
    with pytest.raises(InputError, match="refuses"):
        Lease(store, "a").tick()


def test_an_answer_that_was_lost() -> None:
    """The record was made, and the answer did not arrive: what is stored decides."""
    store = FakeStore()
    create = store.create

    def lost(epoch: int, text: str) -> None:
        create(epoch, text)
        raise InputError("store", "no answer")

    store.create = lost  # type: ignore[method-assign]  # a store that fails
    assert Lease(store, "a").tick()


@pytest.mark.parametrize("seed", range(20))
def test_never_two_hold_it(seed: int) -> None:
    """Agents that act in any order, are stopped between any two requests, die, lose answers and let go: at no moment do
    two of them hold it, each by its own clock, and epochs only grow."""
    rng, store, clock = random.Random(seed), FakeStore(), Clock()
    names = iter(range(1000))
    agents = {name: Lease(store, f"{name}", clock=clock) for name in (next(names) for _ in range(4))}
    epochs: list[int] = []
    depth = [0]

    def between(_: str) -> None:
        check()
        if depth[0] < 3 and rng.random() < 0.5:
            clock.now_s += rng.choice((0.0, 0.1, TTL_S / 3, TTL_S))
            idle = [agent for agent in agents.values() if agent not in acting]
            if idle:
                act(rng.choice(idle))
        if rng.random() < 0.05:
            raise InputError("store", "no answer")

    def check() -> None:
        holders = [agent for agent in agents.values() if agent.is_held]
        assert len(holders) <= 1, holders
        if holders and (not epochs or epochs[-1] != holders[0].epoch):
            assert not epochs or holders[0].epoch > epochs[-1]
            epochs.append(holders[0].epoch)

    acting: list[Lease] = []

    def act(agent: Lease) -> None:
        depth[0] += 1
        acting.append(agent)
        try:
            if rng.random() < 0.1:
                agent.release()
            else:
                agent.tick()
        except InputError:
            pass
        finally:
            acting.remove(agent)
            depth[0] -= 1
        check()

    store.before = between
    for _ in range(200):
        clock.now_s += rng.choice((0.0, 1.0, TTL_S / 3, TTL_S))
        act(rng.choice(list(agents.values())))
        if rng.random() < 0.05:  # one dies, another one starts
            agents.pop(rng.choice(list(agents)))
            name = next(names)
            agents[name] = Lease(store, f"{name}", clock=clock)
    assert len(epochs) > 3


def test_threads_at_once() -> None:
    """Twenty agents at the same moment: one holds it."""
    store, barrier = FakeStore(), threading.Barrier(20)
    agents = [Lease(store, f"{number}") for number in range(20)]

    def run(agent: Lease) -> None:
        barrier.wait()
        agent.tick()

    threads = [threading.Thread(target=run, args=(agent,)) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(agent.is_held for agent in agents) == 1


def epochs() -> Iterator[tuple[str, int]]:
    yield from (("egs_engine_7", 7), ("egs_engine_", 0), ("egs_engine_x", 0), ("other_7", 0), ("7", 0))


def test_other_connections_are_no_records() -> None:
    """What a user calls alike is left alone."""
    assert all(epoch_of(name) == epoch for name, epoch in epochs())
