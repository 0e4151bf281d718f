"""When what waits should start, and where no moment is told: no clock, no network, no process."""

from __future__ import annotations

import pytest

from egs_core.client import messages as c
from egs_core.engine import Engine
from egs_core.engine.specs import UNLIMITED, QueueSpec
from egs_core.server.book import CONFIG
from egs_core.server.forecast import expected_starts
from egs_core.server.logic import SiteLogic
from egs_core.server.overview import overview
from egs_core.server.runs import SiteFacts
from tests.unit.server.site_steps import ANN, end, request, start
from tests.unit.server.site_world import OFFER


@pytest.fixture
def site() -> SiteLogic:
    """Three devices, nothing on them."""
    logic = SiteLogic(SiteFacts("site", 1000.0), Engine(CONFIG))
    logic.offer(OFFER)
    return logic


def test_no_time_is_promised_to_what_waits_for_quota(site: SiteLogic) -> None:
    """The forecast counts devices, of which one is free, or comes free: what has no quota then starts nobody knows
    when, in no view. What is behind it in another queue is told its moment."""
    site.offer(OFFER, (QueueSpec("images", nominal=(UNLIMITED, 1000, UNLIMITED)), QueueSpec("others")))
    start(site, 1, queue="images")
    busy = start(site, 2, gpus=1, queue="others", expected_s=60.0)
    waits = site.submit(ANN, request(3, queue="images"))
    assert (waits.kind, waits.starts_in_s) == ("quota", None)
    assert [view.starts_in_s for view in site.queue(ANN).runs] == [None]
    found = overview(site.book, ANN)
    assert ([run.starts_in_s for run in found.waiting], [queue.starts_in_s for queue in found.queues]) == (
        [None],
        [None, None],
    )
    start(site, 4, gpus=1, queue="others")
    site.at(site.now + 20)
    assert site.view(ANN, waits.id).starts_in_s is None, "nor when the other one is awaited"
    site.control(ANN, waits.id, "abort", c.Control())
    other = site.submit(ANN, request(5, queue="others"))
    assert (other.kind, other.starts_in_s) == ("capacity", 40.0)
    end(site, busy)


def test_no_time_is_promised_to_what_will_wait_for_quota(site: SiteLogic) -> None:
    """All devices are held until 60 s; then the first of a queue with a quota of one has a device, and the second,
    which waits for a device until then, has no quota: it is not told the moment at which it will be told so, nor one
    of its queue behind it, also by `egs run --check`. Another queue's, behind both, has a device at that moment."""
    site.offer(OFFER, (QueueSpec("images", nominal=(UNLIMITED, 1000, UNLIMITED)), QueueSpec("others")))
    busy = start(site, 1, gpus=3, queue="others", expected_s=60.0)
    first = site.submit(ANN, request(2, queue="images", expected_s=10.0))
    second = site.submit(ANN, request(3, queue="images", expected_s=600.0))
    other = site.submit(ANN, request(4, queue="others"))
    found = {view.id: view.starts_in_s for view in site.queue(ANN).runs}
    assert found == {first.id: 60.0, second.id: None, other.id: 60.0}
    assert [site.view(ANN, one.id).starts_in_s for one in (first, second, other)] == [60.0, None, 60.0]
    assert site.check(ANN, request(5, queue="images")).starts_in_s is None
    site.at(site.now + 60)
    end(site, busy)
    states = {one.id: site.view(ANN, one.id) for one in (first, second, other)}
    assert [one.state for one in states.values()] == ["granted", "waiting", "granted"]
    assert (states[second.id].kind, states[second.id].starts_in_s) == ("quota", None)


def test_quota_that_comes_free_with_the_device_is_counted(site: SiteLogic) -> None:
    """What its queue's own run holds until then is no longer used: the moment is told."""
    site.offer(OFFER, (QueueSpec("images", nominal=(UNLIMITED, 1000, UNLIMITED)), QueueSpec("others")))
    start(site, 1, gpus=2, queue="others", expected_s=300.0)
    start(site, 2, queue="images", expected_s=60.0)
    ahead = site.submit(ANN, request(3, queue="others"))
    waits = site.submit(ANN, request(4, queue="images"))
    assert (site.view(ANN, ahead.id).starts_in_s, waits.kind) == (60.0, "quota")
    assert expected_starts(site.book.engine)[site.book.engine.state.cursor[site.runs[waits.id].task]] == 300.0


def test_no_time_is_promised_to_what_waits_for_memory(site: SiteLogic) -> None:
    """A device is free, so that the forecast, which counts nothing else, expects the start at once."""
    start(site, 1, memory_bytes=OFFER.memory_bytes)
    waits = site.submit(ANN, request(2, memory_bytes=OFFER.memory_bytes))
    assert (waits.kind, waits.starts_in_s) == ("capacity", None)


@pytest.mark.parametrize("expected_s", [None, 60.0, 4.0])
def test_an_eviction_that_is_decided_is_foretold(site: SiteLogic, expected_s: float | None) -> None:
    """What is evicted has ten seconds to stop, however long it was expected to run: whoever it makes room for is told
    so at once, with its number, and what waits behind it reckons with that. Nobody else is told of an eviction."""
    low = start(site, 1, gpus=3, requeue=True, expected_s=expected_s)
    first = site.submit(ANN, request(2, gpus=3, priority=5, expected_s=100.0))
    second = site.submit(ANN, request(3))
    most_s = min(CONFIG.grace_s, expected_s or CONFIG.grace_s)
    assert first.reason.endswith(f"; evicted for it, and stopped within {CONFIG.grace_s:g} s: {low.id} (job1)")
    assert (first.starts_in_s, second.starts_in_s) == (most_s, most_s + 100.0)
    assert "evicted" not in second.reason
    hidden = site.views.view(site.runs[first.id], True, sees=lambda run: run.id == first.id)
    assert hidden.reason.endswith("s: (one of another team)")


def test_what_does_not_stop_when_it_should_is_waited_for_by_name(site: SiteLogic) -> None:
    """An eviction is decided, and the run goes on for 40 s: no moment is told any more, but which run is waited for and
    for how long it was to stop; that clock goes on over whatever happens meanwhile."""
    low = start(site, 1, gpus=3, requeue=True, expected_s=600.0)
    first = site.submit(ANN, request(2, gpus=3, priority=5))
    site.take()
    assert first.starts_in_s == CONFIG.grace_s
    site.at(site.now + 4)
    site.submit(ANN, request(3))
    assert site.view(ANN, first.id).starts_in_s == CONFIG.grace_s - 4
    site.at(site.now + 36)
    site.submit(ANN, request(4))
    site.take()
    view = site.view(ANN, first.id)
    assert view.starts_in_s is None
    late = f"{low.id} (job1) for 40 s now"
    told = f"; it waits for the end of what was told to stop: {late}; evicted for it: {low.id} (job1)"
    assert view.reason.endswith(told)
    hidden = site.views.view(site.runs[first.id], True, sees=lambda run: run.id == first.id)
    assert "(one of another team) for 40 s now" in hidden.reason
    assert low.lease is not None
    site.end(ANN, low.id, c.End(token=low.lease.token, outcome="evicted", exit_code=143))
    assert site.view(ANN, first.id).state == "granted"
    site.take()
    assert site.runs[low.id].stop_at is None


def test_an_abort_that_does_not_end_a_run_is_told_to_what_waits(site: SiteLogic) -> None:
    """As long as it has its grace nothing is said of that; then who waits is told. So is one who waits for GPUs that a
    run has whose time is over."""
    busy = start(site, 1, gpus=2)
    boxed = start(site, 2, for_s=60.0)
    waits = site.submit(ANN, request(3))
    site.control(ANN, busy.id, "abort", c.Control(grace_s=5.0))
    site.take()
    site.at(site.now + 5)
    assert "told to stop" not in site.view(ANN, waits.id).reason
    site.at(site.now + 65)
    site.take()
    site.at(site.now + 130)
    reason = site.view(ANN, waits.id).reason
    assert f"told to stop: {busy.id} (job1) for 3 min now, {boxed.id} (job2) for 2 min now" in reason


def test_no_time_is_promised_behind_what_an_operator_ends(site: SiteLogic) -> None:
    """It was expected to run for a minute, and has half a second: how long it then takes it alone knows."""
    busy = start(site, 1, gpus=3, expected_s=60.0)
    waits = site.submit(ANN, request(2))
    assert waits.starts_in_s == 60.0
    site.control(ANN, busy.id, "abort", c.Control(grace_s=0.5))
    assert site.view(ANN, waits.id).starts_in_s is None


def test_a_moment_that_has_passed_is_not_promised_for_ever(site: SiteLogic) -> None:
    """What should have ended has not: for a moment it is now, then it is not known."""
    start(site, 1, gpus=3, expected_s=60.0)
    waits = site.submit(ANN, request(2))
    seen = []
    for at in (59.0, 62.0, 70.0):
        site.at(at)
        seen.append(site.view(ANN, waits.id).starts_in_s)
    assert seen == [1.0, 0.0, None]


def test_a_quota_of_all_gpus_is_not_what_is_waited_for(site: SiteLogic) -> None:
    """Where the quota is as much as there is, its queue's own runs hold the devices and the quota at once: who waits is
    told by whom they are held, and when they should be free."""
    site.offer(OFFER, (QueueSpec("all", nominal=(UNLIMITED, 3000, UNLIMITED)),))
    busy = start(site, 1, gpus=3, queue="all", expected_s=60.0)
    waits = site.submit(ANN, request(2, queue="all"))
    assert (waits.kind, waits.starts_in_s) == ("capacity", 60.0)
    assert "has 0 of 3 GPUs wholly free" in waits.reason
    assert waits.reason.endswith(f"GPUs are held by {busy.id} (job1, ann)")
    assert [view.starts_in_s for view in site.queue(ANN).runs] == [60.0]
    end(site, busy)
    assert site.view(ANN, waits.id).state == "granted"
