"""Leases: who holds one, what becomes of it without its supervisor, and that no old one is taken for a new one."""

from __future__ import annotations

import pytest

from egs_core.client import messages as c
from egs_core.server.logic import CLAIM_S, RETURN_S, SILENT_S, Seen, SiteLogic
from egs_core.server.runs import Refusal
from tests.unit.server.site_steps import ANN, BOB, behind, end, request, start, three_devices
from tests.unit.server.site_world import OFFER


@pytest.fixture
def site() -> SiteLogic:
    return three_devices()


def test_an_old_token_is_refused(site: SiteLogic) -> None:
    """A grant that was not claimed in time is taken back and given out anew with a higher token; who comes with the old
    one starts nothing."""
    view = site.submit(ANN, request(1))
    assert view.lease is not None
    site.at(site.now + SILENT_S + CLAIM_S)
    site.seen([Seen(view.id, view.lease.token, has_supervisor=True)])
    assert site.view(ANN, view.id).lease is None
    with pytest.raises(Refusal) as refused:
        site.claim(ANN, view.id, c.Claim(token=view.lease.token))
    assert refused.value.status == 409
    site.at(site.now + 60)
    again = site.view(ANN, view.id).lease
    assert again is not None
    assert again.token > view.lease.token
    with pytest.raises(Refusal):
        site.claim(ANN, view.id, c.Claim(token=view.lease.token))
    assert site.claim(ANN, view.id, c.Claim(token=again.token)).state == "running"
    with pytest.raises(Refusal):
        site.end(ANN, view.id, c.End(token=view.lease.token, outcome="succeeded", exit_code=0))


def test_a_claimed_lease_never_ends_because_time_has_passed(site: SiteLogic) -> None:
    """A supervisor that is silent for days but there (suspended) keeps its devices, and is shown as lost until it is
    heard of again."""
    run = start(site, 1, gpus=3)
    assert run.lease is not None
    site.at(site.now + 1e6)
    site.seen([Seen(run.id, run.lease.token, has_supervisor=True)])
    assert (site.view(ANN, run.id).state, site.view(ANN, run.id).lost) == ("running", True)
    assert site.submit(BOB, request(2)).state == "waiting"
    assert not site.beat(ANN, run.id, c.Beat(token=run.lease.token)).lost


def test_devices_are_kept_while_a_process_of_a_dead_supervisor_lives(site: SiteLogic) -> None:
    """They are given on when the last one is gone, and that was seen twice."""
    run = start(site, 1, gpus=3)
    assert run.lease is not None
    next_one = site.submit(BOB, request(2))
    for _ in range(3):
        site.seen([Seen(run.id, run.lease.token, has_supervisor=False, living=(4711,))])
    view = site.view(ANN, run.id)
    assert (view.lost, view.processes, site.view(ANN, next_one.id).state) == (True, (4711,), "waiting")
    site.seen([Seen(run.id, run.lease.token, has_supervisor=False)])
    assert site.view(ANN, run.id).state == "running"
    site.seen([Seen(run.id, run.lease.token, has_supervisor=False)])
    assert (site.view(ANN, run.id).outcome, site.view(ANN, next_one.id).state) == ("lost", "granted")


def test_what_waits_ends_with_its_supervisor(site: SiteLogic) -> None:
    run = start(site, 1, gpus=3)
    waiting = site.submit(ANN, request(2))
    for _ in range(2):
        site.seen([Seen(waiting.id, 0, has_supervisor=False)])
    assert (site.view(ANN, waiting.id).outcome, site.view(ANN, run.id).state) == ("lost", "running")
    assert site.views.queue().runs == ()


def test_an_end_that_is_told_again_changes_nothing(site: SiteLogic) -> None:
    run = start(site, 1)
    assert end(site, run, code=3) == end(site, run, code=4)


def test_what_ended_while_no_server_was_there_may_be_told_for_some_seconds(site: SiteLogic) -> None:
    """After a start its devices are held for so long, and it is shown as lost; an end that is told then is as if it had
    been told at once. A run that began after the start has no such time: nobody was away."""
    run, told = start(site, 1), start(site, 2)
    waiting = site.submit(ANN, behind(3, told))
    site.at(site.now + 300)
    site.offer(OFFER)
    later = start(site, 4)
    for _ in range(3):
        site.seen([_gone(one) for one in (run, told, later)])
    assert [site.view(ANN, one.id).outcome for one in (run, told, later)] == ["", "", "lost"]
    assert site.view(ANN, told.id).lost
    assert (end(site, told).outcome, site.view(ANN, waiting.id).state) == ("succeeded", "granted")
    site.at(site.now + RETURN_S)
    for _ in range(2):
        site.seen([_gone(run)])
    assert site.view(ANN, run.id).outcome == "lost"


def test_the_end_of_what_is_lost_is_taken(site: SiteLogic) -> None:
    """From whoever held that lease; once. Its devices stay with who has them by then, and what waited for its success
    has ended. Another token, or one of another user, changes nothing."""
    run = start(site, 1, gpus=3)
    waiting, next_one = site.submit(ANN, behind(2, run)), site.submit(BOB, request(3, 3))
    for _ in range(2):
        site.seen([_gone(run)])
    assert (site.view(ANN, run.id).outcome, site.view(ANN, waiting.id).outcome) == ("lost", "aborted")
    assert run.lease is not None
    site.end(ANN, run.id, c.End(token=run.lease.token + 1, outcome="succeeded", exit_code=0))
    with pytest.raises(Refusal):
        end(site, run, BOB)
    assert site.view(ANN, run.id).outcome == "lost"
    for code in (3, 0):
        end(site, run, code=code)
        view = site.view(ANN, run.id)
        assert (view.outcome, view.exit_code, view.state) == ("failed", 3, "ended")
    site.validate()
    assert (site.view(ANN, waiting.id).outcome, site.view(BOB, next_one.id).state) == ("aborted", "granted")


def _gone(run: c.RunView) -> Seen:
    assert run.lease is not None
    return Seen(run.id, run.lease.token, has_supervisor=False)
