"""A driver whose server dies and comes back, over a way in memory that loses, doubles and delays messages."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import pytest
from pytest_mock import MockerFixture

from egs_core.client import messages as c
from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.specs import UNLIMITED, QueueSpec
from egs_core.graph.columns import GPU, Graph, Shape, TaskOptions
from egs_core.runlog import records as r
from egs_core.server.pools import Pools
from egs_core.server.principals import Principal
from egs_core.site import AnyTold, Asked, Ended, Grant, Granted, Settled, Where, pooled, returning, wire
from egs_core.site.holder_thread import HolderThread
from egs_core.site.protocol import Holder
from egs_core.site.refusal import Refusal
from egs_core.site.remote import RemoteSite
from egs_core.site.returning import ReturningSite

LIMIT_S = 120.0
ANN = Principal("ann")
ONE = QueueSpec("one", nominal=(UNLIMITED, 1000, UNLIMITED))


class Silence(Exception):
    """Nobody answers."""


class Server:
    """Pools that may be ended and begun anew. faults: how often a message, or its answer, is lost, doubled or late."""

    def __init__(self, seed: int = 0, faults: float = 0.0) -> None:
        self.rng, self.faults, self.lock = random.Random(seed), faults, threading.Lock()
        self.lives, self.is_of_before = 0, False
        self.pools: Pools | None = None
        self.most_held = 0
        self.start()

    def start(self) -> None:
        with self.lock:
            self.lives += 1
            self.began = time.monotonic()
            self.pools = Pools((ONE,), f"life {self.lives}", 0.0)

    def kill(self) -> None:
        with self.lock:
            self.pools = None

    def ask(self, question: Callable[[Pools], object]) -> object:
        with self.lock:
            fate = self.rng.random()
            if self.pools is None or fate < self.faults:
                raise Silence("no answer")
            self.pools.at(time.monotonic() - self.began)
            answer = question(self.pools)
            if fate < 2 * self.faults:
                answer = question(self.pools)  # it came twice
            self.pools.validate()
        if fate < 3 * self.faults:
            raise Silence("the answer is lost")
        if fate < 4 * self.faults:
            time.sleep(0.02)
        return answer

    def held(self) -> int:
        """GPUs that the pool's engine counts as held."""
        with self.lock:
            assert self.pools is not None
            return sum(len(pool.engine.state.leases) for pool in self.pools._pools.values())


class MemoryLine:
    """A `Line`."""

    silences: tuple[type[Exception], ...] = (Silence,)

    def __init__(self, server: Server, joined: c.Driver) -> None:
        self.server, self.joined, self.is_over = server, joined, False

    def batch(self, body: bytes) -> bytes:
        return self.server.ask(lambda pools: pools.batch(ANN, self.joined.id, body))  # type: ignore[return-value]  # bytes

    def poll(self, ack: int, wait_s: float) -> bytes:
        until = time.monotonic() + wait_s
        ask = c.Poll(epoch=self.joined.epoch, ack=ack)
        while True:
            found = self.server.ask(lambda pools: pools.poll(ANN, self.joined.id, ask))
            if found or self.is_over or time.monotonic() > until:
                return msgspec.json.encode(wire.Messages(found))  # type: ignore[arg-type]  # encoded at once
            time.sleep(0.01)

    def leave(self) -> None:
        self.is_over = True
        leave = c.Leave(epoch=self.joined.epoch)
        self.server.ask(lambda pools: pools.leave(ANN, self.joined.id, leave))

    def close_poll(self) -> None:
        self.is_over = True


class Driver:
    """A holder: tasks with one GPU each, which end when the test says so."""

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name = server, name
        self.told: list[AnyTold] = []
        self.running: dict[str, Grant] = {}
        self.order: list[str] = []  # names of tasks as they were granted
        self.records: list[r.Record] = []
        self.lost: list[BaseException] = []
        self.names: dict[int, str] = {}
        self.joins = 0
        self.site = ReturningSite(self._join, EngineConfig(), self, "the server")
        self.site.start()

    def _join(self, inner: Holder, own: HolderThread, back: bool) -> RemoteSite:
        self.joins += 1
        key = f"{self.name}-{self.joins}-12345678"
        ask = c.DriverRequest(key=key, framework="ray", pool="p", name=self.name, queue="one", back=back)
        joined = self.server.ask(lambda pools: pools.join(ANN, ask))
        assert isinstance(joined, c.Driver)
        takes = not self.server.is_of_before
        known = wire.Joined(joined.id, joined.epoch, joined.now, wants_progress=takes, takes_flavors=takes)
        return RemoteSite(MemoryLine(self.server, joined), known, inner, own)

    def perform(self, decision: AnyTold, now: float) -> None:
        assert now >= -0.01
        self.told.append(decision)
        if isinstance(decision, Grant):
            name = self.names[decision.task]
            assert name not in self.order, f"{name} was granted twice"
            self.order.append(name)
            self.running[name] = decision
            self.site.note(Granted(decision))
            self.site.report(m.PhaseStarted(decision.phase, decision.attempt))

    def record(self, record: r.Record) -> None:
        self.records.append(record)

    def asked(self, request: Asked) -> None:
        raise AssertionError(request)

    def site_lost(self, error: BaseException) -> None:
        self.lost.append(error)

    def submit(self, *names: str, priority: int = 0, after: str = "") -> None:
        def grow() -> None:
            if not self.names:
                self.site.report(m.NodeAdded("n", cpus=8, gpus=2))
                self.site.submit(m.WorkloadSubmitted("w", "w"))
            graph, known = Graph(), {name: number for number, name in enumerate(self.names.values())}
            for name in names:
                parents = (known[after],) if after else ()
                graph.add_task(name, parents, ((GPU, Shape(0, 1000), 1.0),), options=TaskOptions(priority=priority))
            first = self.site.grow("w", len(self.names), graph).task
            self.names.update(dict(enumerate(names, first)))

        self.site.call(grow, LIMIT_S)

    def end(self, name: str, outcome: str = "succeeded") -> None:
        def report() -> None:
            grant = self.running.pop(name)
            self.site.note(Ended(grant.phase, grant.attempt, outcome))
            self.site.report(m.PhaseEnded(grant.phase, grant.attempt, outcome))

        self.site.call(report, LIMIT_S)

    def has_settled(self) -> bool:
        return Settled("w") in self.told


def until(condition: Callable[[], object], text: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, text
        time.sleep(0.01)


@pytest.fixture
def said(mocker: MockerFixture) -> list[str]:
    """The lines that the site has said."""
    lines: list[str] = []
    mocker.patch.object(returning, "warn", lines.append)
    return lines


@pytest.fixture
def drivers(mocker: MockerFixture) -> Iterator[Callable[..., Driver]]:
    mocker.patch.object(pooled, "GATHER_S", 2.0)
    mocker.patch("egs_core.site.remote.LOST_S", 0.3)
    made: list[Driver] = []

    def make(server: Server, name: str) -> Driver:
        made.append(Driver(server, name))
        return made[-1]

    yield make
    for driver in made:
        driver.site.close()


def test_what_runs_counts_and_what_waits_goes_in_order(drivers: Callable[..., Driver], said: list[str]) -> None:
    """Two drivers, a quota of one GPU. The server dies while one task runs and others wait, and a new one comes at
    once: what runs counts there before anything is granted; the waiting ones go by priority across both drivers, one
    after the other, under the numbers that their drivers know; nobody says a word, and both workloads settle."""
    server = Server()
    low, high = drivers(server, "low"), drivers(server, "high")
    low.submit("l0", "l1", "l2")
    until(lambda: low.running, "the first runs")
    high.submit("h0", "h1", priority=5)
    server.kill()
    server.start()
    until(lambda: not low.site.is_home and low.joins > 1 and not high.site.is_home and high.joins > 1, "both are back")
    until(server.held, "what runs counts")  # what is told of it is on its way
    assert (low.order, high.order, server.held()) == (["l0"], [], 1)
    granted = ["l0"]
    while len(granted) < 5:
        (driver,) = [one for one in (low, high) if one.running]
        (name,) = driver.running
        assert server.held() == 1
        driver.end(name)
        until(lambda: low.running or high.running, f"a task after {granted}")
        granted.append(next(iter({**low.running, **high.running})))
        assert len(low.running) + len(high.running) == 1
    assert granted == ["l0", "h0", "h1", "l1", "l2"]
    low.end("l2")
    until(lambda: low.has_settled() and high.has_settled(), "both workloads have settled")
    assert (said, low.lost, high.lost) == ([], [], [])


def told_there(server: Server) -> list[tuple[str, float | None]]:
    """Name and step of the tasks that tell it, as people see them."""
    with server.lock:
        assert server.pools is not None
        views = server.pools.listed(Principal("root", "admin"))
    return [(one.task, one.step) for view in views if view.tasks is not None for one in view.tasks.told]


def test_where_a_task_is_is_told_again_to_a_server_that_is_new(
    drivers: Callable[..., Driver], said: list[str], mocker: MockerFixture
) -> None:
    """Also one that tells no more: else nobody would hear that it hangs. With how long ago that was."""
    mocker.patch("egs_core.progressed.EVERY_S", 0.05)
    server = Server()
    driver = drivers(server, "a")
    driver.submit("a0", "a1")
    until(lambda: driver.running, "it runs")
    (grant,) = driver.running.values()
    for step in range(10):
        driver.site.progressed(Where(grant.task, step=float(step)))
    until(lambda: told_there(server) == [("a0", 9.0)], "it is told")
    began = time.monotonic()
    server.kill()
    server.start()
    until(lambda: driver.joins > 1 and told_there(server) == [("a0", 9.0)], "it is told again")
    with server.lock:
        assert server.pools is not None
        (view,) = server.pools.listed(Principal("root", "admin"))
    assert view.tasks is not None
    assert view.tasks.told[0].told_at <= began - server.began + 0.1
    driver.end("a0")
    until(lambda: told_there(server) == [], "it has ended")
    assert (said, driver.lost) == ([], [])


def test_a_server_of_before_is_told_nothing(drivers: Callable[..., Driver]) -> None:
    """Of progress and of flavors: it would refuse the whole batch."""
    server = Server()
    server.is_of_before = True
    driver = drivers(server, "a")
    driver.submit("a0")
    until(lambda: driver.running, "it runs")
    threads = threading.active_count()
    driver.site.call(lambda: driver.site.progressed(Where(driver.running["a0"].task, step=1.0)))
    assert threading.active_count() == threads
    driver.site.report(m.FlavorsAllowed(driver.running["a0"].task, ("l4",)))
    driver.end("a0")
    until(driver.has_settled, "it ends")
    assert server.pools is not None
    assert not any(one.flavors for pool in server.pools._pools.values() for one in pool.engine.state.options.values())
    assert driver.lost == []


def test_a_driver_goes_on_at_home_and_comes_back_above_its_quota(
    drivers: Callable[..., Driver], said: list[str]
) -> None:
    """No server for longer than a moment: each driver orders its own work, so that more runs than the quota has; one
    line says so. When the server is back one line says that, all that runs counts, and nothing new starts before it
    is below the quota."""
    server = Server()
    a, b = drivers(server, "a"), drivers(server, "b")
    a.submit("a0", "a1", "a2", "a3")
    b.submit("b0", "b1", "b2")
    until(lambda: a.running, "the first runs")
    server.kill()
    until(lambda: len(a.running) == 2 and len(b.running) == 2, "each has both GPUs of the node by its own engine")
    until(lambda: len(said) == 2, "both have said so")
    assert all("orders its own work until the server is back" in line for line in said)
    a.submit("late", after="a0")
    server.start()
    until(lambda: len(said) == 4, "both are back")
    assert all("the server is back" in line for line in said[2:])
    until(lambda: server.held() >= 4, "what runs counts")  # what is told of it is on its way
    assert server.held() == 4
    for driver, name in ((a, "a0"), (b, "b0"), (b, "b1")):
        driver.end(name)
        a.site.tasks([0])  # what was reported has arrived
        assert (len(a.order), len(b.order)) == (2, 2), "a grant above the quota"
    a.end("a1")
    until(lambda: len(a.order) + len(b.order) == 5, "the next one")
    assert server.held() == 1
    while len(a.order) + len(b.order) < 8:
        before = len(a.order) + len(b.order)
        (driver,) = [one for one in (a, b) if one.running]
        driver.end(next(iter(driver.running)))
        until(lambda: len(a.order) + len(b.order) > before, "one after the other")  # noqa: B023  # called before the loop goes on
        assert len(a.running) + len(b.running) == 1
    (driver,) = [one for one in (a, b) if one.running]
    driver.end(next(iter(driver.running)))
    until(lambda: a.has_settled() and b.has_settled(), "both workloads have settled")
    times = [one.t for one in a.records if isinstance(one, r.Granted)]
    assert times == sorted(times), "the run log's clock went back"


def test_a_driver_that_the_server_has_dropped_joins_again(drivers: Callable[..., Driver]) -> None:
    """It was silent for too long: its task was taken for gone. It comes back with what runs."""
    server = Server()
    driver = drivers(server, "a")
    driver.submit("a0", "a1")
    until(lambda: driver.running, "the first runs")
    with server.lock:
        assert server.pools is not None
        (known,) = server.pools._drivers.values()
        server.pools._drop(known)
    until(lambda: driver.joins == 2 and not driver.site.is_home, "it is back")
    until(lambda: server.held() == 1, "its task counts")
    driver.end("a0")
    until(lambda: driver.running, "the next one")
    driver.end("a1")
    until(driver.has_settled, "all has ended")


@pytest.mark.parametrize("seed", range(4))
def test_over_a_way_that_loses_doubles_and_delays(
    drivers: Callable[..., Driver], mocker: MockerFixture, seed: int
) -> None:
    """Two drivers with a few tasks each, a bad way, and a server that dies twice at any moment: every task is granted
    once and ends, no driver loses its site, and the workloads settle."""
    mocker.patch.object(returning, "PAUSE_S", 0.3)
    mocker.patch.object(returning, "warn")
    server, rng = Server(seed, 0.05), random.Random(seed)
    pair: list[Driver] = []
    for name in "ab":
        until(partial(_made, pair, drivers, server, name), "it joins")
    for driver in pair:
        driver.submit(*[f"{driver.name}{n}" for n in range(5)], priority=rng.randint(0, 2))
    steps = 0
    while not all(driver.has_settled() for driver in pair):
        steps += 1
        assert steps < 3000, [(driver.order, driver.running) for driver in pair]
        if steps in (10, 40):
            server.kill()
        if steps in (25, 44):
            server.start()
        for driver in pair:
            if driver.running and rng.random() < 0.2:
                driver.end(rng.choice(sorted(driver.running)))
        time.sleep(0.02)
    assert [sorted(driver.order) for driver in pair] == [[f"{name}{n}" for n in range(5)] for name in "ab"]
    assert [driver.lost for driver in pair] == [[], []]


def _made(pair: list[Driver], make: Callable[..., Driver], server: Server, name: str) -> bool:
    try:
        pair.append(make(server, name))
    except (Silence, Refusal):
        return False
    return True
