"""Budgets of money: what is held is counted at the price of its node and moment, and stops new work as GPU hours do. No
process but in the last test; the clock is the test's."""

from __future__ import annotations

import random
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from egs_core.budgets import Budget, money
from egs_core.cli.app import run
from egs_core.cli.serve import with_currency
from egs_core.client import hosts as h
from egs_core.client import messages as c
from egs_core.cost.ledger import Ledger
from egs_core.cost.prices import Prices, parse_prices
from egs_core.cost.served import uses_of_runs
from egs_core.engine.specs import QueueSpec
from egs_core.errors import InputError
from egs_core.queues import load_budgets
from egs_core.server.logic import SiteLogic
from egs_core.server.principals import Principal
from tests.unit.server.real_site import PATIENCE_S, RealSite, wait_for
from tests.unit.server.served import UNTIL, content
from tests.unit.server.site_world import OFFER, MemoryStore
from tests.unit.server.test_budgets import later, leap
from tests.unit.server.test_hosts import AGENT, FAR_ANN, offer
from tests.unit.server.test_pools import ANN, BEN, ROOT, Client
from tests.unit.server.test_spanning import Server

HOUR = 3600.0
NOVEMBER = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
SECOND = datetime(2026, 11, 2, tzinfo=UTC).timestamp()
DECEMBER = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
FREE = QueueSpec("one")
TEN = Budget(0.0, ("one",), queue="one", cost=10.0, currency="EUR")
FILE = """
currency: EUR
flavors:
  - name: big
    prices: [{since: 2026-10-01, on_demand: 4}, {since: 2026-11-02, on_demand: 2}]
  - name: small
    prices: [{since: 2026-10-01, on_demand: 1}]
nodes: [{name: "far*", flavor: small}, {name: "*", flavor: big}]
"""


def prices(at: float = NOVEMBER) -> Prices:
    return parse_prices(FILE).for_all(at)


def site(*budgets: Budget, now: float = NOVEMBER, store: MemoryStore | None = None) -> Server:
    return Server(store or MemoryStore(), (FREE,), budgets, now, prices())


def spent(site: Server, who: Principal = ROOT) -> tuple[float | None, str]:
    (found,), _ = site.turns.take([lambda logic: logic.queue(who)])
    (one,) = found.budgets
    return None if one.cost_used is None else round(one.cost_used, 6), one.state


def test_money_that_is_used_up_stops_what_is_new() -> None:
    """Two GPUs of 4 EUR an hour: after an hour eight of ten, and who submits is told; after 75 minutes nothing new gets
    a GPU, what runs goes on, and December has its own ten."""
    both = site(TEN)
    first = both.start(both.submit(1, gpus=2).id)
    assert both.submit(2, gpus=0).notice == ""
    later(both, HOUR - 1)
    assert spent(both) == (7.997778, "ok")
    later(both, 1)
    assert spent(both) == (8.0, "warned")
    told = both.submit(3).notice
    assert told.startswith("queue 'one' has used 8.00 EUR of its 10.00 EUR of 2026-11; when they are used up, nothing")
    both.end(both.start("3"))
    later(both, HOUR / 4)
    assert spent(both) == (10.0, "used up")
    waits = both.submit(4)
    assert (waits.state, waits.kind, both.view(first.id).state) == ("waiting", "budget", "running")
    assert waits.reason == (
        "queue 'one' has used up its 10.00 EUR of 2026-11, 10.00 EUR so far: "
        "nothing new of it gets a GPU before 2026-12-01 00:00 (UTC)"
    )
    both.end(first)
    leap(both, DECEMBER - 1)
    assert both.view(waits.id).state == "waiting"
    leap(both, DECEMBER)
    assert both.view(waits.id).state == "granted"


def test_an_hour_costs_what_it_costs_on_its_day() -> None:
    """The price falls at midnight, and the moment at which the money is used up moves; the server looks then by
    itself."""
    both = site(TEN, now=SECOND - HOUR)
    both.start(both.submit(1).id)
    later(both, HOUR)
    assert spent(both) == (4.0, "ok")
    waits: list[float] = []
    while spent(both)[1] != "used up":
        waits.append(both.turns.wait_s())
        later(both, max(1.0, waits[-1]))
    assert both.now - SECOND == pytest.approx(3 * HOUR)


def test_each_node_has_its_price_and_each_pool_counts() -> None:
    """A GPU of the server's host, one of a host that has joined, and a task of a driver, all of one queue."""
    both = site(TEN)

    def joined(logic: SiteLogic) -> None:
        session = logic.join_host(AGENT, offer()).session
        logic.report(AGENT, h.Report(session=session, number=1))

    both.turns.take([joined])
    both.start(both.submit(1).id)
    far = both.submit(2, FAR_ANN)
    both.start(far.id, FAR_ANN)
    later(both, HOUR)
    assert spent(both) == (5.0, "ok")
    driver = Client(both.pools, BEN, "train.py")
    driver.submit(1)
    driver.poll()
    assert len(driver.held) == 1
    later(both, HOUR / 2, driver)
    assert spent(both)[0] == 5.0 + 2.5 + 2.0


def test_unlike_gpus_of_a_host_have_their_prices() -> None:
    """By their flavors' names, in the budget as in `egs cost`; and so have the nodes of a framework that have one."""
    kinds = [replace(one, flavor=flavor) for one, flavor in zip(OFFER.devices, ("A100", "A100", "T4"), strict=True)]
    text = FILE.replace('{name: "far*", flavor: small}', '{name: "T4", flavor: small}')
    rates = parse_prices(text).for_all(NOVEMBER)
    both = Server(
        MemoryStore(), (FREE,), (replace(TEN, cost=1e6),), NOVEMBER, rates, replace(OFFER, devices=tuple(kinds))
    )
    both.start(both.submit(1, flavors=("T4",)).id)
    later(both, HOUR)
    assert spent(both)[0] == 1.0
    both.start(both.submit(2, flavors=("A100",)).id)
    later(both, HOUR)
    (found,), _ = both.turns.take([lambda logic: logic.listed(ROOT, with_ended=True)])
    ledger = Ledger(rates)
    for use in uses_of_runs(found.runs, both.now, found.devices):
        ledger.add(use)
    assert (spent(both)[0], ledger.total.cost) == (6.0, 6.0)
    assert rates.of("ray-node-17/T4", [(NOVEMBER, NOVEMBER + HOUR)]) == 1.0


def test_a_server_that_starts_again_goes_on_counting() -> None:
    """Also the time in which there was none, at the prices of that time."""
    store = MemoryStore()
    before = site(TEN, store=store, now=SECOND - HOUR)
    before.start(before.submit(1).id)
    later(before, HOUR / 2)
    after = site(TEN, store=store, now=SECOND + HOUR)
    assert spent(after) == (4.0 + 2.0, "ok")


def test_hours_and_money_are_counted_apart() -> None:
    """A budget that was of hours begins anew when it becomes one of money."""
    store = MemoryStore()
    before = Server(store, (FREE,), (Budget(5.0, ("one",), queue="one"),), NOVEMBER)
    before.start(before.submit(1).id)
    later(before, HOUR)
    after = site(TEN, store=store, now=NOVEMBER + HOUR)
    assert spent(after) == (0.0, "ok")
    later(after, HOUR)
    assert spent(after) == (4.0, "ok")


@pytest.mark.parametrize("seed", range(5))
def test_it_is_what_egs_cost_says(seed: int) -> None:
    """Runs come and go over days on which prices change: the budget has used what the ledger adds up of the runs."""
    rng = random.Random(seed)
    both = site(replace(TEN, cost=1e6))
    running: list[c.RunView] = []
    for number in range(1, 40):
        if running and rng.random() < 0.4:
            both.end(running.pop(rng.randrange(len(running))))
        view = both.submit(number, gpus=rng.choice([0.25, 0.5, 1]))
        if view.lease is not None:
            running.append(both.start(view.id))
        else:
            both.turns.take([partial(_abort, view.id)])
        leap(both, both.now + rng.uniform(1, 3 * HOUR))
    (found,), _ = both.turns.take([lambda logic: logic.listed(ROOT, with_ended=True)])
    ledger = Ledger(prices())
    for use in uses_of_runs(found.runs, both.now):
        ledger.add(use)
    assert ledger.total.cost is not None
    assert ledger.total.cost > 50
    assert spent(both)[0] == pytest.approx(ledger.total.cost, abs=1e-3)


def _abort(run: str, logic: SiteLogic) -> c.RunView:
    return logic.control(ANN, run, "abort", c.Control())


def test_a_file_of_money_needs_prices(tmp_path: Path) -> None:
    """In one currency, for all nodes, from today on; each mistake is one error that says where and what to do."""
    path = tmp_path / "queues.yaml"
    path.write_text("queues: [{name: one, budget: {cost: 10}}]\n")
    (budget,) = load_budgets(path)
    assert (budget.cost, budget.key, money(1e4, "EUR")) == (10.0, "cost of queue:one", "10,000.00 EUR")
    assert with_currency([budget], prices(), path)[0].currency == "EUR"
    with pytest.raises(InputError, match="the budget of queue 'one' is of money, and there are no prices"):
        with_currency([budget], None, path)
    with pytest.raises(InputError, match="is in USD, and prices are in EUR"):
        with_currency([replace(budget, currency="USD")], prices(), path)
    for old, new, told in (
        ('"*"', '"a*"', "the last entry has to be for all other nodes"),
        ("since: 2026-10-01, on_demand: 1", "since: 2027-01-01, on_demand: 1", "'small' has no price on 2026-11-01"),
    ):
        with pytest.raises(InputError, match=told):
            parse_prices(FILE.replace(old, new)).for_all(NOVEMBER)
    for budget_text, told in (
        ("{}", "line 1: queues[0].budget: is either of GPU hours or of money"),
        ("{gpu_hours: 1, cost: 1}", "is either of GPU hours or of money"),
        ("{gpu_hours: 1, currency: EUR}", "has a currency, and is of GPU hours"),
        ("{cost: -1}", "must be 0 or more"),
    ):
        path.write_text(f"queues: [{{name: one, budget: {budget_text}}}]\n")
        with pytest.raises(InputError) as found:
            load_budgets(path)
        assert told in str(found.value)


def test_a_budget_of_money_as_a_user_meets_it(tmp_path: Path) -> None:
    """A real server: some cents are used up by the first command, the second waits and says why, `egs queue` and
    `/metrics` have the sums; without prices the server does not start."""
    queues, rates, go = tmp_path / "queues.yaml", tmp_path / "prices.yaml", tmp_path / "go"
    queues.write_text("queues: [{name: images, budget: {cost: 0.03}}]\n")
    rates.write_text("currency: EUR\nflavors: [{name: a, prices: [{since: 2020-01-01, on_demand: 36}]}]\n")
    assert run(["serve", "--emulated-gpus", "1", "--data", str(tmp_path / "none"), "--queues", str(queues)]) == 2
    site = RealSite(tmp_path / "site")
    try:
        site.start("--queues", str(queues), "--prices", str(rates))
        words = ("--name", "first", "--", sys.executable, "-c", UNTIL, str(tmp_path / "first"), str(go), "0")
        first = site.run("--gpus", "1", *words)
        wait_for(partial(content, tmp_path / "first"), "it runs")
        wait_for(lambda: site.client.queue().budgets[0].state == "used up", "it is used up")
        second = site.run("--gpus", "1", "--name", "second", "--", "true")
        assert second.stderr is not None
        assert "waits: queue 'images' has used up its 0.03 EUR of " in second.stderr.readline()
        (told,) = site.told("queue")["budgets"]
        assert (told["cost"], told["cost_used"] >= 0.03, told["currency"]) == (0.03, True, "EUR")
        assert " of 0.03 EUR of " in site.egs("queue").stdout
        go.touch()
        assert first.wait(PATIENCE_S) == 0
    finally:
        site.close()
