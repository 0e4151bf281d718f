"""What the server counts for `/metrics`: once, only what is durable, never less than before."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from egs_core.client import messages as c
from egs_core.client import requests as q
from egs_core.engine import Engine
from egs_core.server import requests
from egs_core.server.book import CONFIG, TOLD_LATE
from egs_core.server.logic import SiteLogic
from egs_core.server.principals import Principal
from egs_core.server.runs import Run, SiteFacts
from egs_core.server.slo import events_of
from egs_core.server.store import StoreError
from egs_core.server.tally import MOST_KEYS, OTHERS, Buckets, Tally
from egs_core.server.writer import Turns
from egs_core.slo import Objectives
from tests.unit.server.site_steps import ANN, BOB, end, request, start
from tests.unit.server.site_world import OFFER, MemoryStore, World
from tests.unit.server.test_requeue import evicted

KEY = ("", "")


class Counted:
    """A site without queues, and what is counted of it: each call of `at` is a batch."""

    def __init__(self) -> None:
        self.site = SiteLogic(SiteFacts("site", 1000.0), Engine(CONFIG))
        self.site.offer(OFFER)
        self.tally = Tally()
        self.tally.recovered((), (), 0.0)

    def at(self, now: float) -> None:
        """What was done so far is durable; it is now so late."""
        batch = self.site.take()
        self.tally.committed(batch.entries, batch.runs, self.site.now, 0.001)
        self.site.at(now)

    def gpu_s(self) -> tuple[float, float]:
        self.at(self.site.now)
        self.tally.settle(self.site.now)
        found = self.tally.gpu_s[KEY]
        return found.held, found.used


@pytest.fixture
def counted() -> Counted:
    return Counted()


def test_a_lease_is_held_from_its_grant_and_used_from_its_claim(counted: Counted) -> None:
    """Two GPUs: 5 s until the claim, 20 s of work; also while it lasts."""
    site = counted.site
    view = site.submit(ANN, request(1, 2))
    counted.at(5.0)
    assert view.lease is not None
    site.claim(ANN, view.id, c.Claim(token=view.lease.token))
    counted.at(15.0)
    assert counted.gpu_s() == pytest.approx((30.0, 20.0))
    counted.at(25.0)
    end(site, view)
    counted.at(100.0)
    assert counted.gpu_s() == pytest.approx((50.0, 40.0))
    assert (counted.tally.grants[KEY], counted.tally.ended) == (1, Counter({(KEY, "succeeded"): 1}))
    assert counted.tally.open == {}


def test_of_a_gpu_request_used_is_what_commands_ran_in(counted: Counted) -> None:
    """Two that overlap count once, and a part of a GPU as that part."""
    site = counted.site
    ask = q.GpuRequest(key="request-1", gpus=0.5, for_s=1000.0)
    number = requests.ask_for(site.book, ANN, ask).id
    counted.at(10.0)
    first = start(site, 1, 0, inside=number)
    counted.at(20.0)
    second = start(site, 2, 0, inside=number)
    counted.at(30.0)
    end(site, first)
    counted.at(40.0)
    end(site, second)
    counted.at(50.0)
    assert counted.gpu_s() == pytest.approx((25.0, 15.0))
    requests.release(site.book, ANN, number, c.Control())
    requests.advance(site.book)
    counted.at(90.0)
    assert counted.gpu_s() == pytest.approx((25.0, 15.0))
    assert counted.tally.grants == Counter({KEY: 1}), "commands have the request's GPUs"


def test_waits_count_from_when_it_was_its_turn(counted: Counted) -> None:
    """Not while it waits for another run or is paused; an evicted one waits anew, and counts as that."""
    site, tally = counted.site, counted.tally
    low = start(site, 1, 3, requeue=True)
    after = site.submit(BOB, request(2, 1, after=(c.After(run=low.id, when="any"),)))
    held = site.submit(BOB, request(3, 1, hold=True))
    counted.at(10.0)
    assert {run for run, seen in tally.open.items() if seen.waits_since is not None} == set()
    high = site.submit(ANN, request(4, 3, priority=5))
    counted.at(12.0)
    assert tally.open[high.id].waits_since == 10.0
    evicted(site, low)
    counted.at(20.0)
    assert (tally.evictions[KEY], tally.requeues[KEY]) == (1, 1)
    assert tally.open[low.id].waits_since == 12.0
    site.control(BOB, held.id, "resume", c.Control())
    counted.at(20.0)
    assert tally.open[held.id].waits_since == 20.0
    assert tally.open[after.id].waits_since is None
    assert (tally.waits[KEY].sum, sum(tally.waits[KEY].counts)) == (2.0, 2)


def test_a_gang_waits_for_its_turn_when_each_of_it_might_start(counted: Counted) -> None:
    """Not while others are to come, nor while one is paused or waits for another run; also after a restart."""
    site, tally = counted.site, counted.tally
    first = start(site, 1, 3)
    gang = c.Gang(name="train", size=2, wait_s=600.0)
    alone = site.submit(ANN, request(2, 2, gang=gang))
    counted.at(100.0)
    again = Tally()
    again.recovered((), site.runs.values(), site.now)
    assert (tally.open[alone.id].waits_since, again.open[alone.id].waits_since) == (None, None)
    other = site.submit(ANN, request(3, 1, gang=gang, hold=True))
    counted.at(150.0)
    assert [tally.open[one.id].waits_since for one in (alone, other)] == [None, None]
    site.control(ANN, other.id, "resume", c.Control())
    counted.at(200.0)
    assert [tally.open[one.id].waits_since for one in (alone, other)] == [150.0, 150.0]
    end(site, first)
    counted.at(300.0)
    assert tally.waits[KEY].sum == 100.0, "each of the two waited 50 s for its turn"


def test_what_was_there_before_counts_from_the_start(counted: Counted) -> None:
    """Counters begin at zero with a process: a run that began an hour ago adds what it holds from now on."""
    site = counted.site
    run = start(site, 1, 1)
    site.submit(ANN, request(2, 3))
    site.at(3600.0)
    again = Tally()
    again.recovered([b"12345"], site.runs.values(), 3600.0)
    again.settle(3610.0)
    assert (again.gpu_s[KEY].held, again.gpu_s[KEY].used) == (10.0, 10.0)
    assert again.open["2"].waits_since == 0.0
    assert (again.journal_entries, again.journal_bytes) == (1, 5)
    assert again.grants == Counter()
    end(site, run)
    assert again.ended == Counter()


def test_labels_are_bounded() -> None:
    """A queue that the site's file has not is none; so many teams, and all further ones are one."""
    tally = Tally(["research"])
    assert tally.key("research", "vision") == ("research", "vision")
    assert tally.key("made up by a client", "vision") == ("", "vision")
    for number in range(2 * MOST_KEYS):
        tally.key("research", f"team {number}")
    assert len(tally.keys) == MOST_KEYS + 1
    assert OTHERS in tally.keys
    assert tally.key("research", "one more") == OTHERS


def test_a_histogram_has_values_at_its_bounds_below() -> None:
    """Prometheus's `le`: at most so large."""
    found = Buckets((1.0, 5.0))
    for value in (0.0, 1.0, 1.1, 5.0, 6.0):
        found.add(value)
    assert found.counts == [2, 2, 1]
    assert found.sum == pytest.approx(13.1)


class CountedWorld(World):
    """The fault simulation, whose server goes on after a failed commit as `Writer` does, with the same counts."""

    def __init__(self, seed: int) -> None:
        self._before: list[float] = []
        super().__init__(seed)
        self._began = self.turns.logic.now
        promised = Objectives(wait_p95=5, jct_p95=20, deadline_share=0.9).slos()
        self.turns.tally.slos.objectives = {"": promised, "one": promised}

    def _restart(self) -> None:
        self.crashes += 1
        while True:
            try:
                self.turns.recover()
                return
            except StoreError:
                self.crashes += 1

    def check(self) -> None:
        """As the store has it: what is open, and with which leases; and no counter falls."""
        super().check()
        tally, logic = self.turns.tally, self.turns.logic
        kept = [msgspec.json.decode(run, type=Run) for run in self.store.runs.values()]
        leases = {one.id: one.lease.token if one.lease and not one.inside else 0 for one in kept if one.is_open}
        assert {number: seen.lease.token if seen.lease else 0 for number, seen in tally.open.items()} == leases
        tally.settle(logic.now)
        held, used = (sum(getattr(one, kind) for one in tally.gpu_s.values()) for kind in ("held", "used"))
        ended = Counter("lost" if one.why == TOLD_LATE else one.outcome for one in kept if not one.is_open)
        assert Counter({outcome: count for (_, outcome), count in tally.ended.items()}) == ended
        assert sum(tally.requeues.values()) == sum(one.evictions for one in kept)
        now = [held, used, held - used, *(float(sum(one.values())) for one in (tally.grants, tally.evictions))]
        assert all(a <= b + 1e-6 for a, b in zip(self._before, now, strict=False)), (self._before, now)
        assert held <= len(OFFER.devices) * (logic.now - self._began) + 1e-6, "more was held than there is"
        self._before = now
        self._check_objectives(kept)

    def _check_objectives(self, kept: list[Run]) -> None:
        """What is promised of ends is counted once of each run, as the report does; of those whose end was told late as
        what it was then believed to be. Whoever waits once more is counted once more."""
        tally, logic = self.turns.tally, self.turns.logic
        tally.look(logic.open_runs(), logic.now)
        for slo in tally.slos.objectives[""]:
            counted = sum(count for (_, name), count in tally.slos.events.items() if name == slo.name)
            bad = sum(count for (_, name), count in tally.slos.errors.items() if name == slo.name)
            told = list(events_of(slo, kept, logic.now))
            more = sum(one.evictions if slo.kind == "wait" else one.why == TOLD_LATE for one in kept)
            if slo.kind == "wait":
                assert len(told) <= counted, (slo.name, counted, len(told))
                more += sum(tally.grants.values())
            assert len(told) - more <= counted <= len(told) + more, (slo.name, counted, len(told), more)
            assert bad >= sum(not event.is_good for event in told), (slo.name, bad)


def test_counts_are_what_is_durable_whatever_fails() -> None:
    """Commits that fail, before or after they are taken, lost and repeated requests, evictions, GPU requests."""
    worlds = [CountedWorld(seed) for seed in range(10)]
    for world in worlds:
        for _ in range(120):
            world.step()
        world.settle()
        assert world.turns.tally.open == {}
    tallies = [world.turns.tally for world in worlds]
    assert sum(world.crashes for world in worlds) > len(worlds)
    assert sum(one.failed_commits for one in tallies) > len(worlds)
    assert {outcome for one in tallies for _, outcome in one.ended} >= {"succeeded", "aborted", "lost"}
    assert sum(sum(one.requeues.values()) for one in tallies)


def test_a_bug_in_what_is_counted_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch is durable and answered; the log has the bug."""
    turns = Turns(MemoryStore(), OFFER, clock=lambda: 5.0)
    monkeypatch.setattr(turns.tally, "committed", lambda *_: 1 / 0)
    (view,), _ = turns.take([lambda logic: logic.submit(Principal("ann"), request(1))])
    assert view.state == "granted"
    assert "ZeroDivisionError" in caplog.text
