"""Budgets of GPU hours: the calendar, what counts, what is durable, who gets nothing new and what is told of it. No
process, no network; the clock is the test's."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from egs_core.budgets import Budget, Spent, spent_until
from egs_core.client import messages as c
from egs_core.client import requests as q
from egs_core.engine.specs import UNLIMITED, QueueSpec
from egs_core.server import requests
from egs_core.server.logic import SiteLogic
from egs_core.server.principals import Principal
from egs_core.server.spending import SAVE_S, Saved, Spending
from egs_core.server.store import SqlStore, StoreError
from tests.unit.server.databases import Where, database, server, where
from tests.unit.server.site_steps import request
from tests.unit.server.site_world import MemoryStore
from tests.unit.server.test_pools import ANN, BEN, ROOT, Client
from tests.unit.server.test_spanning import Server

__all__ = ["database", "server", "where"]

HOUR, DAY = 3600.0, 86400.0
BERLIN = ZoneInfo("Europe/Berlin")
NOVEMBER = datetime(2026, 11, 1, tzinfo=BERLIN).timestamp()
DECEMBER = datetime(2026, 12, 1, tzinfo=BERLIN).timestamp()
FREE = QueueSpec("one")
ONE = Budget(1.0, ("one",), queue="one", zone="Europe/Berlin")


def site(
    *budgets: Budget,
    store: MemoryStore | SqlStore | None = None,
    now: float = NOVEMBER,
    queues: tuple[QueueSpec, ...] = (FREE,),
) -> Server:
    return Server(store or MemoryStore(), queues, budgets, now)


def later(site: Server, seconds: float, *drivers: Client) -> None:
    """So much later, at a server that does what is due in time."""
    until = site.now + seconds
    while site.now < until:
        leap(site, min(until, site.now + max(site.turns.wait_s(), 0.001)))
        for driver in drivers:
            driver.poll()


def leap(site: Server, until: float) -> None:
    """The same, as after a sleep of the machine."""
    site.now = until
    site.turns.take([])
    site.pools.at(site.now - NOVEMBER)
    site.pools.take_news()


def used(site: Server, who: Principal = ROOT) -> list[tuple[float | None, str]]:
    """Of each budget the hours, and its state."""
    (found,), _ = site.turns.take([lambda logic: logic.queue(who)])
    assert isinstance(found, c.Runs)
    return [(None if one.used is None else round(one.used, 6), one.state) for one in found.budgets]


def test_what_is_held_over_the_end_of_a_month_counts_in_both() -> None:
    spent = spent_until(Spent("2026-11", 100.0, DECEMBER - 60), ONE, 2.0, DECEMBER - 30)
    assert spent == Spent("2026-11", 160.0, DECEMBER - 30)
    assert spent_until(spent, ONE, 2.0, DECEMBER + 10) == Spent("2026-12", 20.0, DECEMBER + 10)
    assert spent_until(spent, ONE, 2.0, DECEMBER - 40).gpu_s == 160.0, "a clock that was set back"


# --- what is counted, and what is stopped ---


def test_runs_and_drivers_use_one_budget() -> None:
    """A run and a script's task, half an hour each, and the hour is used up: nothing new starts, in either pool; what
    runs goes on and counts; in December what waits starts."""
    both = site(ONE)
    run = both.start(both.submit(1).id)
    driver = Client(both.pools, BEN, "train.py")
    driver.submit(3)
    driver.poll()
    assert len(driver.held) == 2
    driver.end_one()
    driver.submit(1)
    driver.poll()
    later(both, HOUR / 4, driver)
    assert used(both) == [(0.75, "ok")]
    later(both, HOUR / 12 - 1, driver)
    assert used(both)[0][1] == "warned"
    later(both, 1, driver)
    assert used(both) == [(1.0, "used up")]
    driver.end_one()
    driver.poll()
    assert len(driver.held) == 1
    waits, again = both.submit(2), both.view(run.id)
    assert (waits.state, waits.kind, waits.starts_in_s, waits.notice) == ("waiting", "budget", None, "")
    assert waits.reason == (
        "queue 'one' has used up its 1 GPU hours of 2026-11, 1 so far: "
        "nothing new of it gets a GPU before 2026-12-01 00:00 (Europe/Berlin)"
    )
    assert (again.state, again.stop) == ("running", "")
    told = both.pools.view(ROOT, driver.id)
    assert (told.kind, "has used up its 1 GPU hours" in told.reason) == ("budget", True)
    late = Client(both.pools, BEN, "late.py")
    assert late.driver.notice == waits.reason, "a script that starts now is told at once"
    late.leave()
    later(both, HOUR, driver)
    assert used(both) == [(3.0, "used up")]
    both.end(run)
    driver.end_one()
    driver.poll()
    assert (both.view(waits.id).state, len(driver.held)) == ("waiting", 0)
    leap(both, DECEMBER - 1)
    assert both.view(waits.id).state == "waiting"
    later(both, 1, driver)
    assert (both.view(waits.id).state, len(driver.held)) == ("granted", 1)
    assert used(both)[0] == (0.0, "ok")


def test_what_needs_no_gpu_starts() -> None:
    found = site(Budget(0.0, ("one",), queue="one"))
    assert found.submit(1, gpus=0, cpus=1).state == "granted"
    assert found.submit(2, gpus=0.5).kind == "budget"


def test_a_budget_that_only_warns() -> None:
    """From four fifths on who submits is told; nothing stops."""
    found = site(Budget(1.0, ("one",), queue="one", then="warn"))
    assert found.start(found.submit(1).id).notice == ""
    later(found, 0.79 * HOUR)
    assert found.submit(2).notice == ""
    later(found, 0.005 * HOUR)
    assert found.submit(3).notice == (
        "queue 'one' has used 0.8 of its 1 GPU hours of 2026-10; new work starts all the same"
    )
    later(found, 2 * HOUR)
    late = found.submit(4)
    assert ("of its 1 GPU hours" in late.notice, used(found)[0][1]) == (True, "used up")
    found.end(found.view("1"))
    assert found.view(late.id).state in ("granted", "waiting")
    assert found.view(late.id).kind != "budget"


def test_a_team_has_one_budget_for_all_its_queues() -> None:
    """Two queues, an hour; a third queue of nobody's goes on. Parts of a GPU count as parts."""
    teams = {"one": "vision", "two": "vision"}
    queues = (FREE, QueueSpec("two"), QueueSpec("three"))
    found = site(Budget(1.0, ("one", "two"), team="vision"), queues=queues)
    found.turns._team_of_queue = teams
    for number, (queue, gpus) in enumerate((("one", 0.5), ("two", 1), ("three", 1)), 1):
        found.start(found.submit(number, gpus=gpus, queue=queue).id)
    later(found, 2 * HOUR / 3)
    assert used(found) == [(1.0, "used up")]
    kinds = [found.submit(number, gpus=0.5, queue=queue).kind for number, queue in enumerate(("one", "two"), 4)]
    assert kinds == ["budget", "budget"]
    assert "team 'vision' has used up its 1 GPU hours" in found.view("4").reason
    assert found.submit(6, gpus=0.5, queue="three").state == "granted"


def test_a_queue_that_is_stopped_keeps_nothing_from_others() -> None:
    """Its nominal quota is lent as if nobody waited there, and others' starts are expected as if it were not there."""
    queues = (
        QueueSpec("one", cohort="lab", nominal=(UNLIMITED, 2000, UNLIMITED)),
        QueueSpec("two", cohort="lab", nominal=(UNLIMITED, 1000, UNLIMITED)),
    )
    found = site(Budget(0.0, ("one",), queue="one"), queues=queues)
    assert found.submit(1, queue="one", expected_s=HOUR).kind == "budget"
    driver = Client(found.pools, BEN, "train.py", queue="two")
    driver.submit(2)
    driver.poll()
    assert len(driver.held) == 2
    assert found.submit(2, queue="two", gpus=1, expected_s=60.0).state == "granted"
    driver.end_one()
    driver.end_one()
    assert [found.submit(n, queue="two", expected_s=60.0).state for n in (3, 4)] == ["granted", "granted"]
    waits = found.submit(5, queue="two", expected_s=60.0)
    assert waits.kind != "budget"


def test_a_gpu_request_and_a_gang_are_new_work() -> None:
    """Neither starts; a command in a request that has begun does, and the request may be made longer."""
    found = site(ONE)

    def ask(question: Callable[[SiteLogic], object]) -> object:
        (answer,), _ = found.turns.take([question])
        return answer

    first = ask(lambda logic: requests.ask_for(logic.book, ANN, q.GpuRequest(key="request-1", gpus=1, for_s=2 * HOUR)))
    assert isinstance(first, q.RequestView)
    assert (first.state, first.notice) == ("ready", "")
    later(found, 0.9 * HOUR)
    second = ask(lambda logic: requests.ask_for(logic.book, ANN, q.GpuRequest(key="request-2", gpus=1, for_s=HOUR)))
    assert isinstance(second, q.RequestView)
    assert second.notice.startswith("queue 'one' has used 0.9 of its 1 GPU hours of 2026-11; when they are used up")
    later(found, HOUR)
    third = ask(lambda logic: requests.ask_for(logic.book, ANN, q.GpuRequest(key="request-3", gpus=1, for_s=HOUR)))
    assert isinstance(third, q.RequestView)
    assert (third.state, "has used up its 1 GPU hours" in third.reason, third.notice) == ("queued", True, "")
    longer = ask(lambda logic: requests.extend(logic.book, ANN, first.id, q.Extend(more_s=HOUR)))
    assert isinstance(longer, q.RequestView)
    assert longer.for_s == 3 * HOUR
    assert found.submit(4, gpus=0, inside=first.id).state == "granted"
    members = [found.submit(n, gang={"name": "both", "size": 2}) for n in (5, 6)]
    assert members[1].kind == "budget"


def test_an_evicted_run_waits_as_what_is_new() -> None:
    """It gave way before the hours were used up, and does not come back after that."""
    found = site(ONE)
    low = found.start(found.submit(1, gpus=3, requeue=True).id)
    later(found, HOUR / 4)
    high = found.submit(2, gpus=3, priority=9)
    low = found.view(low.id)
    assert (low.stop != "", low.requeue) == (True, True)
    later(found, HOUR / 4)
    assert low.lease is not None
    end = c.End(token=low.lease.token, outcome="evicted", exit_code=143)
    found._ask(lambda logic: logic.end(ANN, low.id, end))
    assert [found.view(one).kind for one in (low.id, high.id)] == ["budget", "budget"]


def test_check_says_what_a_request_would_be_told() -> None:
    found = site(ONE)
    found.start(found.submit(1, gpus=1).id)
    later(found, 0.9 * HOUR)
    assert "0.9 of its 1 GPU hours" in found._ask(lambda logic: logic.check(ANN, request(2))).notice
    later(found, HOUR)
    answer = found._ask(lambda logic: logic.check(ANN, request(3)))
    assert (answer.state, answer.kind) == ("waiting", "budget")


# --- what is durable ---


def test_a_server_that_starts_again_goes_on_counting(where: Where) -> None:
    """Also the time in which there was none: what runs held their GPUs then. On SQLite and PostgreSQL."""
    store = SqlStore(where, NOVEMBER)
    before = site(ONE, store=store)
    before.start(before.submit(1, gpus=2).id)
    later(before, HOUR / 8)
    assert used(before) == [(0.25, "ok")]
    store.close()
    again = site(ONE, store=SqlStore(where, NOVEMBER), now=before.now + HOUR / 4)
    assert used(again) == [(0.75, "ok")]
    assert again.submit(2).state == "granted"
    later(again, HOUR / 12)
    assert used(again) == [(1.0, "used up")]
    assert again.submit(3).kind == "budget"
    again.store.close()  # type: ignore[union-attr]  # it is open
    third = site(ONE, store=SqlStore(where, NOVEMBER), now=DECEMBER + HOUR / 3)
    assert used(third) == [(1.0, "used up")], "three GPUs were held in the first twenty minutes of December"
    assert [third.view("3").kind, third.submit(4).kind] == ["budget", "budget"]
    third.store.close()  # type: ignore[union-attr]  # it is open


def test_what_drivers_used_is_lost_for_ten_seconds_at_most(tmp_path: Path) -> None:
    """Their work is not durable; what they have used is written while they work, without any run."""
    store = SqlStore(tmp_path, NOVEMBER)
    before = site(ONE, store=store)
    driver = Client(before.pools, BEN, "train.py")
    driver.submit(1)
    driver.poll()
    later(before, HOUR / 2 + 3, driver)
    store.close()
    again = site(ONE, store=SqlStore(tmp_path, NOVEMBER), now=before.now + HOUR)
    ((hours, _),) = used(again)
    assert hours is not None
    assert HOUR / 2 + 3 - SAVE_S <= hours * HOUR <= HOUR / 2 + 3


def test_a_budget_that_was_left_out_for_a_while() -> None:
    """What was used is kept; what runs hold meanwhile does not count."""
    store = MemoryStore()
    first = site(ONE, store=store)
    first.start(first.submit(1).id)
    later(first, HOUR / 2)
    without = site(store=store, now=first.now)
    assert used(without) == []
    later(without, HOUR)
    third = site(ONE, store=store, now=without.now)
    assert used(third) == [(0.5, "ok")]
    later(third, HOUR / 4)
    assert used(third) == [(0.75, "ok")]


def test_counting_costs_no_commit_of_its_own() -> None:
    """Signs of life of what runs are not written, and neither is what they use, but each ten seconds."""
    store = MemoryStore()
    found, commits = site(ONE, store=store), list[Saved | None]()
    view = found.start(found.submit(1).id)
    commit = store.commit
    store.commit = lambda batch: (commits.append(batch.spending), commit(batch))[1]  # type: ignore[method-assign, func-returns-value]  # counts them
    for _ in range(295):
        found.now += 0.1
        found._ask(lambda logic: logic.beat(ANN, view.id, c.Beat(seen=view.version)))
    assert len(commits) == 2
    without = site(store=MemoryStore())
    assert without.turns.wait_s() > 30


@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_runs_drivers_faults_and_restarts(seed: int) -> None:
    """Runs and drivers come and end in any order while commits fail: nothing is granted once the hours are used up, by
    a count of its own, and the server's count is that one."""
    chance = random.Random(seed)
    budget = Budget(chance.uniform(20, 60) / HOUR, ("one",), queue="one")
    store = MemoryStore()
    found = site(budget, store=store)
    drivers = [Client(found.pools, BEN, f"d{number}", pool=f"p{number % 2}") for number in range(3)]
    counted, tokens, stopped = 0.0, set[object](), 0

    def held() -> dict[object, float]:
        runs = [run for run in found.turns.logic.open_runs() if run.lease is not None]
        return {
            **{("run", run.id): run.gpus for run in runs},
            **{(driver.id, phase): 1.0 for driver in drivers for phase in driver.held},
        }

    for step in range(150):
        found.pools.take_news()
        for driver in drivers:
            driver.poll()
        now = held()
        new = now.keys() - tokens
        tokens = set(now)
        assert not new or counted < budget.gpu_hours * HOUR + 1e-3, (new, counted)
        stopped += counted > budget.gpu_hours * HOUR
        passed_s = chance.random()
        counted += sum(now.values()) * passed_s
        found.now += passed_s
        found.pools.at(found.now - NOVEMBER)
        found.turns.take([])
        assert found.spending.views(ROOT, {})[0].used == pytest.approx(counted / HOUR, abs=1e-6)
        act, running = chance.random(), [run for run in found.turns.logic.open_runs() if run.lease is not None]
        if act < 0.3:
            found.submit(step + 1, gpus=chance.choice((0.5, 1, 2)))
        elif act < 0.5:
            chance.choice(drivers).submit(1)
        elif act < 0.7 and running:
            found.end(found.start(chance.choice(running).id))
        elif act < 0.9 and (holding := [driver for driver in drivers if driver.held]):
            chance.choice(holding).end_one()
        elif act >= 0.95:
            store.fails = chance.choice(["before", "after"])
            with pytest.raises(StoreError):
                found.submit(step + 1)
            found.turns.recover()
    assert stopped, "the hours were used up"


# --- who is told what ---


def test_of_a_queue_for_all_no_team_is_told_what_others_used() -> None:
    """Its own queue's it sees, another team's not at all; who sees everything sees all."""
    teams = {"own": "vision", "theirs": "speech"}
    budgets = (
        Budget(1.0, ("common",), queue="common", is_shared=True),
        Budget(1.0, ("own",), queue="own"),
        Budget(1.0, ("theirs",), queue="theirs"),
    )
    spending = Spending(budgets, lambda: NOVEMBER)
    spending.begin(Saved(), {})
    seen = spending.views(Principal("ann", teams=("vision",)), teams)
    assert [(one.queue, one.used) for one in seen] == [("common", None), ("own", 0.0)]
    assert [one.used for one in spending.views(ROOT, teams)] == [0.0, 0.0, 0.0]
    none = Spending((Budget(0.0, ("common",), queue="common", is_shared=True),), lambda: NOVEMBER)
    none.begin(Saved(), {})
    assert "so far" not in none.why("common")
