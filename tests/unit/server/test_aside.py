"""`egs run --suspend`: what is put aside waits for the GPUs that it was on. No clock, no network, no process."""

from __future__ import annotations

import msgspec
import pytest

from egs_core.client import messages as c
from egs_core.engine import Engine
from egs_core.server.book import CONFIG
from egs_core.server.logic import SiteLogic
from egs_core.server.runs import Device
from tests.unit.server.site_steps import ANN, ROOT, end, request, start, three_devices
from tests.unit.server.site_world import OFFER

STOPPED = (c.Process(pid=7, started=7),)


@pytest.fixture
def site() -> SiteLogic:
    return three_devices()


def put_aside(site: SiteLogic, view: c.RunView, *, ran_s: float) -> tuple[c.RunView, c.RunView]:
    """It runs for so long, until one of a higher priority has its GPU; both as they are then."""
    site.at(site.now + ran_s)
    high = site.submit(ANN, request(len(site.runs) + 50, priority=5))
    assert view.lease is not None
    site.end(ANN, view.id, c.End(token=view.lease.token, outcome="evicted", exit_code=0, aside=STOPPED))
    lease = site.view(ANN, high.id).lease
    assert lease is not None
    assert lease.devices == view.lease.devices
    site.validate()
    return site.view(ANN, view.id), site.claim(ANN, high.id, c.Claim(token=lease.token))


def full(site: SiteLogic, *, ran_s: float = 600.0) -> tuple[c.RunView, c.RunView, c.RunView]:
    """One is aside, one has its GPU, and one another GPU."""
    low = start(site, 1, requeue=True)
    beside = start(site, 2)
    start(site, 3)
    return *put_aside(site, low, ran_s=ran_s), beside


def devices(site: SiteLogic, run: c.RunView) -> tuple[str, ...]:
    lease = site.view(ANN, run.id).lease
    return lease.devices if lease else ()


def test_it_waits_for_its_own_gpu_while_another_is_free(site: SiteLogic) -> None:
    """The one behind it has that, `egs why` names its own GPU and until when it waits, and it gets that when it is
    free."""
    low, high, beside = full(site)
    behind = site.submit(ANN, request(9))
    end(site, beside)
    assert (devices(site, low), devices(site, behind)) == ((), ("1",))
    reason = site.view(ANN, low.id).reason
    assert "0 of 1 GPU wholly free" in reason
    told = "it was put aside on 0, and goes on there alone: from 1970-01-01 00:36:40 UTC on it may have others"
    assert told in reason
    end(site, high)
    assert devices(site, low) == ("0",)
    site.validate()


def test_it_waits_no_longer_than_it_had_run(site: SiteLogic) -> None:
    """From then on it may have any; the server wakes by itself for that."""
    low, _, beside = full(site, ran_s=600.0)
    end(site, beside)
    site.at(site.now + 599.0)
    assert (devices(site, low), site.next_wakeup()) == ((), 1200.0)
    site.at(site.now + 1.0)
    assert devices(site, low) == ("1",)
    assert "put aside" not in site.view(ANN, low.id).reason
    site.validate()


def test_what_goes_on_twice_counts_all_of_its_time(site: SiteLogic) -> None:
    """600 s and 100 s are 700 s that would be lost; begun anew elsewhere in between it has only the latter."""
    low, high, beside = full(site, ran_s=600.0)
    end(site, high)
    lease = site.view(ANN, low.id).lease
    assert lease is not None
    again = site.claim(ANN, low.id, c.Claim(token=lease.token))
    put_aside(site, again, ran_s=100.0)
    assert site.next_wakeup() == site.now + 700.0
    end(site, beside)
    site.at(site.now + 700.0)
    other = site.view(ANN, low.id).lease
    assert other is not None
    put_aside(site, site.claim(ANN, low.id, c.Claim(token=other.token)), ran_s=50.0)
    assert site.next_wakeup() == site.now + 50.0


def test_what_ends_is_not_bound(site: SiteLogic) -> None:
    """Of one that was evicted without having been put aside nothing is left on its GPU: it begins on any, also after it
    was put aside before."""
    low, high, beside = full(site)
    end(site, high)
    lease = site.view(ANN, low.id).lease
    assert lease is not None
    site.claim(ANN, low.id, c.Claim(token=lease.token))
    site.submit(ANN, request(60, priority=5))
    site.end(ANN, low.id, c.End(token=lease.token, outcome="evicted", exit_code=143))
    end(site, beside)
    assert devices(site, low) == ("1",)
    site.validate()


def test_other_wishes_take_the_bound_away(site: SiteLogic) -> None:
    """With more GPUs it has to begin anew; another priority leaves it where it waits."""
    low, _, beside = full(site)
    site.update(ANN, low.id, c.Change(priority=1))
    site.validate()
    end(site, beside)
    assert devices(site, low) == ()
    site.update(ANN, low.id, c.Change(gpu_memory_bytes=1 << 30))
    assert devices(site, low) == ("1",)
    site.validate()


def test_a_drained_gpu_is_not_waited_for(site: SiteLogic) -> None:
    """Who drains it gives it to nothing new: the run begins anew on another at once."""
    low, _, beside = full(site)
    end(site, beside)
    site.drain(ROOT, c.Drain(target="0"))
    assert devices(site, low) == ("1",)
    site.validate()


def test_no_ten_seconds_are_promised_of_what_is_put_aside(site: SiteLogic) -> None:
    """How long CUDA's driver takes nobody knows: `egs why` of what goes first says so, and no start is foretold; of
    what is ended beside it ten seconds are said."""
    start(site, 1, requeue=True, suspend=True)
    start(site, 2, 2, requeue=True)
    driver = "the time that CUDA's driver takes to put aside what is on a GPU"
    one = site.submit(ANN, request(3, 3, priority=5))
    told = site.view(ANN, one.id)
    assert told.reason.endswith(f"; evicted for it, and stopped within 10 s or {driver}: 1 (job1), 2 (job2)")
    assert told.starts_in_s is None


def test_nothing_is_foretold_of_it_and_of_what_is_behind_it(site: SiteLogic) -> None:
    low, _, _ = full(site)
    behind = site.submit(ANN, request(9))
    assert [site.view(ANN, one.id).starts_in_s for one in (low, behind)] == [None, None]


@pytest.mark.parametrize(("ids", "has"), [("210", "0"), ("12", "1")])
def test_a_server_that_is_started_again_knows_it(site: SiteLogic, ids: str, has: str) -> None:
    """Its GPU may have another place in the list now; where it is there no more, the run may have any."""
    low, high, beside = full(site)
    site.control(ANN, low.id, "pause", c.Control())
    for one in (high, beside, site.view(ANN, "3")):
        end(site, one)
    kept = [msgspec.convert(msgspec.to_builtins(run), type(run)) for run in site.runs.values()]
    again = SiteLogic(site.facts, Engine.restore(site.snapshot(), CONFIG), kept)
    again.offer(msgspec.structs.replace(OFFER, devices=tuple([Device(one) for one in ids]), is_new=True))
    again.validate()
    again.control(ANN, low.id, "resume", c.Control())
    assert devices(again, low) == (has,)
    again.validate()
