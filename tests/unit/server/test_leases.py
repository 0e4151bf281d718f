"""Leases: who holds one, what becomes of it without its supervisor, and that no old one is taken for a new one."""

from __future__ import annotations

import pytest

from egs_core.client import messages as c
from egs_core.server.logic import CLAIM_S, SILENT_S, Seen, SiteLogic
from egs_core.server.runs import Refusal
from tests.unit.server.site_steps import ANN, BOB, end, request, start, three_devices


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
