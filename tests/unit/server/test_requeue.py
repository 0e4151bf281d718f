"""`egs run --requeue`: runs that may be evicted for others, and start again. No clock, no network, no process."""

from __future__ import annotations

import pytest

from egs_core.client import messages as c
from egs_core.engine import Engine
from egs_core.engine.specs import QueueSpec
from egs_core.server.book import CONFIG
from egs_core.server.logic import Seen, SiteLogic
from egs_core.server.outlines import Changes, outlines
from egs_core.server.principals import Principal
from egs_core.server.runs import Refusal, SiteFacts
from tests.unit.server.site_steps import ANN, end, request, start
from tests.unit.server.site_world import OFFER


@pytest.fixture
def site() -> SiteLogic:
    """Three devices, nothing on them."""
    logic = SiteLogic(SiteFacts("site", 1000.0), Engine(CONFIG))
    logic.offer(OFFER)
    return logic


def evicted(site: SiteLogic, view: c.RunView) -> c.RunView:
    """Its supervisor has stopped it."""
    assert view.lease is not None
    return site.end(ANN, view.id, c.End(token=view.lease.token, outcome="evicted", exit_code=143))


def test_a_run_that_said_so_is_evicted_for_a_higher_priority(site: SiteLogic) -> None:
    """It is told to stop, waits again when it has, and starts with another lease after the one for which it was
    stopped, whose time box does not count for it."""
    low = start(site, 1, 3, requeue=True, for_s=500.0)
    high = site.submit(ANN, request(2, 3, priority=5))
    told = site.view(ANN, low.id)
    assert (told.state, told.requeue, told.grace_s) == ("stopping", True, CONFIG.grace_s)
    assert told.stop.startswith("preempted for ")
    assert high.state == "waiting"
    site.at(site.now + 1000)
    waiting = evicted(site, low)
    assert (waiting.state, waiting.lease, waiting.stop, waiting.evictions) == ("waiting", None, "", 1)
    assert f"GPUs are held by {high.id}" in waiting.reason, "its supervisor says why it waits again"
    first = site.view(ANN, high.id).lease
    assert first is not None
    running = site.claim(ANN, high.id, c.Claim(token=first.token))
    assert low.lease is not None
    with pytest.raises(Refusal, match="does not run with lease"):
        evicted(site, low)
    with pytest.raises(Refusal, match="does not hold lease"):
        site.claim(ANN, low.id, c.Claim(token=low.lease.token))
    site.validate()
    end(site, running)
    second = site.view(ANN, low.id).lease
    assert second is not None
    assert second.token > first.token > low.lease.token
    again = site.claim(ANN, low.id, c.Claim(token=second.token))
    assert site.view(ANN, low.id).started_at == 1000.0 + site.now
    (first_time,) = site.view(ANN, low.id).earlier
    times = first_time.started_at, first_time.ended_at, first_time.gpus, first_time.waited_s
    assert times == (1000.0, 2000.0, 3, 0.0)
    assert first_time.why == f"preempted for {high.id} (job2): priority"
    assert end(site, again).outcome == "succeeded"
    site.validate()


def test_who_evicted_it_is_told_to_who_may_know_alone(site: SiteLogic) -> None:
    """Whoever sees both reads the other's number and name, asking for the run, for all, and for what the dashboard
    draws; of another team it is said that it is."""
    queues = tuple([QueueSpec(name, cohort="all", nominal=(-1, 1500, -1)) for name in ("a", "b")])
    site.offer(OFFER, queues, {"a": "ours", "b": "theirs"})
    runs = [start(site, number, 1, requeue=True, queue="a") for number in (1, 2, 3)]
    high = site.submit(ANN, request(4, 1, queue="b"))
    (low,) = [one for one in runs if site.view(ANN, one.id).state == "stopping"]
    evicted(site, low)
    for who, other in ((ANN, f"{high.id} (job4)"), (Principal("bob", "viewer", ("ours",)), "(one of another team)")):
        (listed,) = [one for one in site.listed(who).runs if one.id == low.id]
        (drawn,) = [one for one in outlines(site.book, Changes(site.book.runs), who).runs if one.id == low.id]
        (first,), (second,), (third,) = site.view(who, low.id).earlier, listed.earlier, drawn.earlier
        assert {first.why, second.why, third.why} == {f"preempted for {other}: reclaim"}


def test_others_are_never_stopped(site: SiteLogic) -> None:
    """Neither for a priority nor with one beside that said so; a request for GPUs neither. No more than needed stop."""
    kept, given, other = start(site, 1), start(site, 2, requeue=True), start(site, 3, requeue=True)
    high = site.submit(ANN, request(4, 2, priority=5))
    assert [site.view(ANN, one.id).state for one in (kept, given, other)] == ["running", "stopping", "stopping"]
    evicted(site, given)
    evicted(site, other)
    assert site.view(ANN, high.id).state == "granted"
    site.submit(ANN, request(5, 1, priority=9))
    assert site.view(ANN, kept.id).state == "running"
    site.validate()


def test_quota_that_was_lent_is_taken_back(site: SiteLogic) -> None:
    """A queue of the cohort wants its nominal quota: what another queue has borrowed is evicted, if that said so."""
    queues = tuple([QueueSpec(name, cohort="all", nominal=(-1, 1500, -1)) for name in ("ours", "theirs")])
    site.offer(OFFER, queues)
    runs = [start(site, number, 1, queue="ours", requeue=True) for number in (1, 2, 3)]
    wanted = site.submit(ANN, request(4, 1, queue="theirs"))
    states = [site.view(ANN, one.id).state for one in runs]
    assert sorted(states) == ["running", "running", "stopping"]
    evicted(site, runs[states.index("stopping")])
    assert site.view(ANN, wanted.id).state == "granted"
    site.validate()


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "lost", "aborted"])
def test_what_ends_by_itself_is_not_started_again(site: SiteLogic, outcome: str) -> None:
    """Its command had ended before its supervisor heard of the eviction; or that was killed; or it was aborted while it
    was stopped. It has ended then, and what it was stopped for starts."""
    low = start(site, 1, 3, requeue=True)
    high = site.submit(ANN, request(2, 3, priority=5))
    assert low.lease is not None
    if outcome == "lost":
        for _ in range(2):
            site.seen([Seen(low.id, low.lease.token, has_supervisor=False)])
    elif outcome == "aborted":
        site.control(ANN, low.id, "abort", c.Control())
        assert evicted(site, low).state == "ended"
    else:
        end(site, low, code=1 if outcome == "failed" else 0)
    assert (site.view(ANN, low.id).outcome, site.view(ANN, low.id).evictions) == (outcome, 0)
    assert site.view(ANN, high.id).state == "granted"
    site.validate()


def test_it_is_not_evicted_without_end(site: SiteLogic) -> None:
    """After three times it is left alone."""
    low = start(site, 1, 3, requeue=True)
    for number in range(3):
        high = site.submit(ANN, request(10 + number, 3, priority=5))
        evicted(site, low)
        lease = site.view(ANN, high.id).lease
        assert lease is not None
        end(site, site.claim(ANN, high.id, c.Claim(token=lease.token)))
        lease = site.view(ANN, low.id).lease
        assert lease is not None
        low = site.claim(ANN, low.id, c.Claim(token=lease.token))
    site.submit(ANN, request(20, 3, priority=5))
    assert (site.view(ANN, low.id).state, site.view(ANN, low.id).evictions) == ("running", 3)
    site.validate()
