"""One quota over `egs run` and frameworks' pools, at one server: what each decides, what is told, what is durable."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from egs_core.budgets import Budget
from egs_core.client import messages as c
from egs_core.engine.specs import UNLIMITED, QueueSpec
from egs_core.server.logic import SiteLogic
from egs_core.server.pools import Pools
from egs_core.server.principals import Principal
from egs_core.server.runs import Offer
from egs_core.server.spending import Rates, Spending
from egs_core.server.store import SqlStore, StoreError
from egs_core.server.writer import Turns
from egs_core.site.spanning import Spanning
from tests.unit.server.site_steps import request
from tests.unit.server.site_world import OFFER, MemoryStore
from tests.unit.server.test_pools import ANN, BEN, EPOCH, ROOT, Client

ONE = (QueueSpec("one", nominal=(UNLIMITED, 1000, UNLIMITED)),)


class Server:
    """Both halves of a server, without HTTP and threads."""

    def __init__(
        self,
        store: MemoryStore | SqlStore,
        queues: tuple[QueueSpec, ...] = ONE,
        budgets: tuple[Budget, ...] = (),
        now: float = 1000.0,
        prices: Rates | None = None,
        offer: Offer = OFFER,
    ) -> None:
        self.store, self.now, self.woken = store, now, 0
        self.spending = Spending(budgets, lambda: self.now, prices)
        spanning = Spanning(self.spending)
        self.turns = Turns(store, offer, queues, lambda: self.now, spanning=spanning, spending=self.spending)
        self.turns.woken = self._wake
        self.pools = Pools(queues, EPOCH, 0.0, spanning=spanning, spending=self.spending)

    def _wake(self) -> None:
        self.woken += 1

    def _ask(self, question: Callable[[SiteLogic], c.RunView]) -> c.RunView:
        (view,), _ = self.turns.take([question])
        assert isinstance(view, c.RunView), view
        return view

    def submit(self, number: int, who: Principal = ANN, **more: Any) -> c.RunView:
        return self._ask(lambda logic: logic.submit(who, request(number, **more)))

    def view(self, run: str, who: Principal = ROOT) -> c.RunView:
        return self._ask(lambda logic: logic.view(who, run))

    def start(self, run: str, who: Principal = ANN) -> c.RunView:
        lease = self.view(run).lease
        assert lease is not None
        return self._ask(lambda logic: logic.claim(who, run, c.Claim(token=lease.token)))

    def end(self, view: c.RunView, who: Principal = ANN) -> None:
        assert view.lease is not None
        ask = c.End(token=view.lease.token, outcome="succeeded", exit_code=0)
        self._ask(lambda logic: logic.end(who, view.id, ask))


def test_a_driver_waits_for_a_run_and_a_run_for_a_driver() -> None:
    """A queue with one GPU, a host with three free ones and a cluster with two: one holder at a time, each told who
    has it; what a driver gives back is the run's at once, and its client is woken for it."""
    server = Server(MemoryStore())
    first = server.start(server.submit(1).id)
    driver = Client(server.pools, BEN, "train.py")
    driver.submit(2)
    driver.poll()
    assert not driver.held
    told = server.pools.view(ROOT, driver.id)
    assert (told.kind, "in other pools it is used by 1 (job1, ann)" in told.reason) == ("quota", True)
    second = server.submit(2)
    assert second.state == "waiting"
    server.end(first)
    server.pools.take_news()
    driver.poll()
    assert (len(driver.held), server.view(second.id).state) == (1, "waiting")
    assert server.view(second.id).kind == "quota"
    assert "1 GPU of it in other pools; in other pools it is used by r1 (train.py, ben)" in server.view("2").reason
    assert server.woken == 0
    driver.end_one()
    assert server.woken == 1
    assert server.view(second.id).state == "granted"
    driver.poll()
    assert not driver.held
    server.end(server.start(second.id))
    server.pools.take_news()
    driver.poll()
    assert len(driver.held) == 1


def test_a_run_of_another_team_is_not_named() -> None:
    """Of what a principal does not see only the number is told."""
    server = Server(MemoryStore())
    server.submit(1, Principal("ann", teams=("vision",)))
    driver = Client(server.pools, Principal("ben", teams=("speech",)), "train.py")
    driver.submit(1)
    reason = server.pools.view(Principal("ben", teams=("speech",)), driver.id).reason
    assert reason.endswith("in other pools it is used by 1 of other teams")


def test_a_server_that_starts_again_knows_what_runs_hold_and_forgets_what_drivers_held(tmp_path: Path) -> None:
    """The journal has what was told of other pools; they are gone with the server, so their part is free, and what its
    own runs hold counts from the first moment."""
    server = Server(SqlStore(tmp_path, 1000.0))
    driver = Client(server.pools, BEN, "train.py")
    driver.submit(1)
    driver.poll()
    waits = server.submit(1)
    assert (len(driver.held), waits.state) == (1, "waiting")
    server.store.close()  # type: ignore[union-attr]  # it is open
    again = Server(SqlStore(tmp_path, 1000.0))
    assert again.view(waits.id).state == "granted"
    again.turns.logic.validate()
    other = Client(again.pools, BEN, "train.py")
    other.submit(1)
    other.poll()
    assert not other.held
    again.end(again.start(waits.id))
    again.pools.take_news()
    other.poll()
    assert len(other.held) == 1


def test_while_the_database_fails_runs_get_no_turns_and_what_they_hold_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes free is the drivers', not withheld for runs that could not be told; once it is there again, both
    take turns."""
    server = Server(MemoryStore())
    driver = Client(server.pools, BEN, "train.py")
    driver.submit(3)
    driver.poll()
    waits = server.submit(1)

    def fail(_batch: object) -> None:
        raise StoreError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(server.store, "commit", fail)
        with pytest.raises(StoreError):
            server.submit(2)
        for _ in range(2):
            driver.end_one()
            driver.poll()
            assert len(driver.held) == 1
    server.turns.recover()
    assert [run.id for run in server.turns.logic.open_runs()] == [waits.id]
    driver.end_one()
    assert server.view(waits.id).state == "granted"


def test_a_snapshot_waits_for_what_the_journal_is_still_to_get() -> None:
    """A driver's end lets a run start between two commits: a snapshot then would have what the journal gets later."""
    store = MemoryStore()
    store.most_entries = 0
    server = Server(store)
    driver = Client(server.pools, BEN, "train.py")
    driver.submit(1)
    driver.poll()
    waits = server.submit(1)
    driver.end_one()
    server.turns.compact()
    assert store.snapshot == b""
    assert server.view(waits.id).state == "granted"
    server.turns.compact()
    assert store.snapshot
    server.turns.recover()
    assert server.view(waits.id).state == "granted"


@pytest.mark.parametrize("seed", range(25))
def test_any_order_of_runs_drivers_and_faults(seed: int) -> None:
    """Runs and drivers of two clusters come and end in any order while commits fail and the server goes on from what
    is durable: the quota holds over all that hold a lease at each moment, and at the end nothing waits."""
    chance = random.Random(seed)
    most = chance.randint(1, 3)
    queues = (QueueSpec("one", nominal=(UNLIMITED, 1000 * most, UNLIMITED)),)
    store = MemoryStore()
    server = Server(store, queues)
    drivers = [Client(server.pools, BEN, f"d{number}", pool=f"p{number % 2}") for number in range(3)]

    def check() -> None:
        server.pools.take_news()
        for driver in drivers:
            driver.poll()
        server.turns.logic.validate()
        runs = [run for run in server.turns.logic.open_runs() if run.lease is not None]
        assert len(runs) + sum(len(driver.held) for driver in drivers) <= most

    for step in range(60):
        server.now += chance.random()
        server.pools.at(server.now - 1000.0)
        act = chance.random()
        running = [run for run in server.turns.logic.open_runs() if run.lease is not None]
        if act < 0.25:
            server.submit(step + 1)
        elif act < 0.45:
            chance.choice(drivers).submit(chance.randint(1, 2))
        elif act < 0.7 and running:
            server.end(server.start(chance.choice(running).id))
        elif act < 0.95 and (holding := [driver for driver in drivers if driver.held]):
            chance.choice(holding).end_one()
        elif act >= 0.95:
            store.fails = chance.choice(["before", "after"])
            with pytest.raises(StoreError):
                server.submit(step + 1)
            server.turns.recover()
        check()
    while True:
        running = [run for run in server.turns.logic.open_runs() if run.lease is not None]
        holding = [driver for driver in drivers if driver.held]
        if not running and not holding:
            break
        if running:
            server.end(server.start(running[0].id))
        else:
            holding[0].end_one()
        check()
    assert server.turns.logic.open_runs() == []
    assert all(view.tasks is not None and not view.tasks.waiting for view in server.pools.listed(ROOT))
