"""What users and operators do to runs: abort, pause, hold, change, release, drain; and time boxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from egs_core.client import messages as c
from egs_core.server.logic import SiteLogic
from egs_core.server.principals import Principal
from egs_core.server.runs import Offer, Refusal
from tests.unit.server.site_steps import ANN, BOB, ROOT, behind, end, request, start, three_devices
from tests.unit.server.site_world import GIB, OFFER


class Seat(NamedTuple):
    """A driver of a framework, as far as it is named."""

    id: str
    user: str


@pytest.fixture
def site() -> SiteLogic:
    return three_devices()


@pytest.mark.parametrize("state", ["waiting", "granted", "running"])
def test_an_abort_ends_a_run_wherever_it_is(site: SiteLogic, state: str) -> None:
    """What does not run ends at once; what runs is told to stop, and keeps its devices until it has."""
    if state == "waiting":
        start(site, 8, gpus=3)
    view = start(site, 1) if state == "running" else site.submit(ANN, request(1))
    assert view.state == state
    after = site.control(ROOT, view.id, "abort", c.Control(reason="not now", grace_s=3.0))
    if state == "running":
        assert (after.state, after.stop, after.grace_s) == ("stopping", "aborted by root: not now", 3.0)
        after = end(site, view, code=143)
        assert after.exit_code == 143
    assert (after.outcome, after.reason) == ("aborted", "aborted by root: not now")
    site.validate()
    with pytest.raises(Refusal, match="has ended: aborted"):
        site.control(ROOT, view.id, "abort", c.Control())


def test_a_run_that_is_asked_for_by_its_name(site: SiteLogic) -> None:
    """Where a request needs a number, whoever sees runs of that name is told theirs, the newest first; nobody else is,
    and no number is a name."""
    start(site, 1)
    site.submit(ANN, request(2).model_copy(update={"name": "job1"}))
    with pytest.raises(Refusal, match="'job1' is a name, and a run is meant by its number here: 2, 1"):
        site.view(ANN, "job1")
    with pytest.raises(Refusal, match="'job1' is a name, and a run is meant by its number here: 2, 1"):
        site.control(ANN, "job1", "abort", c.Control())
    after = request(3).model_copy(update={"after": [c.After(run="job1")]})
    with pytest.raises(Refusal, match="after: 'job1' is a name, and a run is meant by its number here: 2, 1"):
        site.submit(ANN, after)
    other = Principal("eve", "submitter", ("speech",))
    for who, name in ((other, "job1"), (ANN, "job"), (ANN, "77")):
        with pytest.raises(Refusal, match=f"there is no run '{name}': `egs ps`"):
            site.view(who, name)


def test_a_run_that_is_meant_by_its_name(site: SiteLogic) -> None:
    """The only open one that has it, of those that the asker sees; several are told by their numbers, and who they are
    of; of those that have ended the latest. A number is no name. A driver of a framework counts as open."""
    first = start(site, 1)
    second = site.submit(BOB, request(2).model_copy(update={"name": "job1"}))
    numbered = site.submit(ANN, request(3).model_copy(update={"name": first.id}))
    with pytest.raises(
        Refusal, match=r"'job1' is the name of 2 open runs: say which by its number: 1 \(ann\), 2 \(bob\)"
    ):
        site.called(ANN, "job1")
    only_bobs = Principal("bob", "submitter", ("speech",))
    assert site.called(only_bobs, "job1") == second.id
    site.control(ROOT, second.id, "abort", c.Control())
    assert site.called(ANN, "job1") == first.id
    driver = Seat("r4", "eve")
    with pytest.raises(Refusal, match=r"1 \(ann\), r4 \(eve\)"):
        site.called(ANN, "job1", [driver])
    site.at(site.now + 1)
    end(site, first)
    assert site.called(ANN, "job1") == first.id, "it ended after the other one"
    assert site.called(ANN, "job1", [driver]) == "r4"
    assert numbered.state == "granted"
    assert site.called(ANN, first.id) == first.id
    for who, name in ((Principal("eve", "submitter", ("speech",)), "job1"), (ANN, "job")):
        with pytest.raises(Refusal, match=f"there is no run '{name}': `egs ps`"):
            site.called(who, name)


def test_an_array_is_no_run(site: SiteLogic) -> None:
    """Its name is that of none: whoever sees its runs that are open is told theirs."""
    for number in range(3):
        site.submit(ANN, request(number + 1, name=f"many[{number}]"))
    site.control(ANN, "2", "abort", c.Control())
    text = r"'many' is the name of an array, and one of its runs is meant here: many\[0\] \(1\), many\[2\] \(3\)$"
    with pytest.raises(Refusal, match=text):
        site.called(ANN, "many")
    assert site.called(ANN, "many[2]") == "3"
    with pytest.raises(Refusal, match="there is no run 'many': `egs ps`"):
        site.called(Principal("eve", "submitter", ("speech",)), "many")


def test_a_paused_run_does_not_start_until_it_is_resumed(site: SiteLogic) -> None:
    first = start(site, 1, gpus=3)
    second = site.submit(ANN, request(2))
    paused = site.control(ANN, second.id, "pause", c.Control(reason="later"))
    assert (paused.state, paused.reason) == ("paused", "paused by ann at 1970-01-01 00:16:40 UTC: later")
    end(site, first)
    assert site.view(ANN, second.id).state == "paused"
    assert site.control(ANN, second.id, "resume", c.Control()).state == "granted"


def test_a_run_may_be_held_from_its_start(site: SiteLogic) -> None:
    """Also while it waits for another; resumed, it starts when that has ended too."""
    held = site.submit(ANN, request(1, hold=True))
    assert (held.state, held.kind, held.lease) == ("paused", "paused", None)
    assert site.control(ANN, held.id, "resume", c.Control()).state == "granted"
    first = start(site, 2)
    later = site.submit(ANN, behind(3, first))
    assert site.control(ANN, later.id, "pause", c.Control()).state == "paused"
    end(site, first)
    assert site.view(ANN, later.id).state == "paused"
    assert site.control(ANN, later.id, "resume", c.Control()).state == "granted"
    site.validate()


def test_what_waits_may_be_changed(site: SiteLogic) -> None:
    """Its priority puts it before others, fewer GPUs let it start; what can never start is refused, and all stays."""
    first = start(site, 1, gpus=2)
    for number in (2, 3):
        site.submit(ANN, request(number, gpus=3))
    assert site.update(ANN, "3", c.Change(priority=5, for_s=60.0)).priority == 5
    assert [run.id for run in site.views.queue().runs] == ["3", "2"]
    with pytest.raises(Refusal, match="needs 9 GPUs"):
        site.update(ANN, "2", c.Change(gpus=9))
    with pytest.raises(Refusal, match="nothing is to be changed"):
        site.update(ANN, "2", c.Change())
    with pytest.raises(Refusal, match="is of ann"):
        site.update(BOB, "2", c.Change(priority=9))
    assert (site.view(ANN, "2").gpus, site.view(ANN, "2").state) == (3, "waiting")
    assert site.update(ANN, "2", c.Change(gpus=1)).state == "granted"
    with pytest.raises(Refusal, match="is about to start"):
        site.update(ANN, "2", c.Change(gpus=1))
    site.control(ANN, "3", "pause", c.Control())
    assert site.update(ANN, "3", c.Change(gpus=0, gpu_memory_bytes=20 * GIB)).state == "paused"
    assert site.control(ANN, "3", "resume", c.Control()).gpus == 0.25
    with pytest.raises(Refusal, match="run 1 has started: its --gpus cannot change"):
        site.update(ANN, first.id, c.Change(gpus=1))
    site.validate()


def test_what_is_released_has_succeeded(site: SiteLogic) -> None:
    """However its command ends then; what waits for it starts. What has not started can only be aborted."""
    run = start(site, 1, gpus=3, for_s=100.0)
    later = site.submit(ANN, behind(2, run))
    with pytest.raises(Refusal, match="has not started: `egs abort` takes it back"):
        site.control(ANN, later.id, "release", c.Control())
    told = site.control(ANN, run.id, "release", c.Control(grace_s=3.0))
    assert (told.state, told.stop, told.grace_s) == ("stopping", "released by ann", 3.0)
    with pytest.raises(Refusal, match="is about to end"):
        site.control(ANN, run.id, "release", c.Control())
    assert end(site, run, code=143).outcome == "succeeded"
    assert site.view(ANN, later.id).state == "granted"
    site.validate()


def test_nothing_new_gets_a_drained_device(site: SiteLogic) -> None:
    """What holds it keeps it; what waits says so; undrained, it is given again. A drained host starts nothing, also
    what needs no GPU; that it is drained is known after a restart, but not where the devices are others."""
    first = start(site, 1, gpus=1)
    told = site.drain(ROOT, c.Drain(target="0"))
    assert [(device.drained, device.state) for device in told.devices][:2] == [(True, "held"), (False, "free")]
    site.drain(ROOT, c.Drain(target="1"))
    assert start(site, 2).lease == c.Lease(token=2, devices=("2",), claimed=True, mark="site.2.2")
    waits = site.submit(ANN, request(3, gpus=1))
    assert (waits.state, "host has 0 of 3 GPUs wholly free (2 drained)" in waits.reason) == ("waiting", True)
    end(site, first)
    assert site.view(ANN, "3").state == "waiting"
    site.drain(ROOT, c.Drain(target="0", drained=False))
    assert site.view(ANN, "3").state == "granted"
    site.drain(ROOT, c.Drain(target="host"))
    small = site.submit(ANN, request(4, gpus=0))
    assert (small.state, small.kind) == ("waiting", "drained")
    site.validate()
    site.offer(OFFER)
    assert all(device.drained for device in site.listed(ROOT).devices)
    site.drain(ROOT, c.Drain(target="host", drained=False))
    assert site.view(ANN, small.id).state == "granted"
    site.drain(ROOT, c.Drain(target="host"))
    site.offer(Offer("host", OFFER.devices, 8.0, 1 << 40, is_new=True))
    assert not any(device.drained for device in site.listed(ROOT).devices)
    site.validate()


def test_who_may_drain(site: SiteLogic) -> None:
    """Operators of no team; what is not there is named."""
    for who in (ANN, Principal("olga", "operator", ("blue",))):
        with pytest.raises(Refusal) as refused:
            site.drain(who, c.Drain(target="0"))
        assert refused.value.status == 403
    with pytest.raises(Refusal, match="no host and no device 'x'; there are host, 0, 1, 2"):
        site.drain(ROOT, c.Drain(target="x"))


def test_a_running_time_box_may_be_longer_or_shorter(site: SiteLogic) -> None:
    run = start(site, 1, for_s=100.0)
    site.at(site.now + 90)
    assert site.update(ANN, run.id, c.Change(for_s=200.0)).for_s == 200
    assert site.next_wakeup() == site.now + 110
    site.at(site.now + 20)
    assert site.view(ANN, run.id).stop == ""
    site.update(ANN, run.id, c.Change(for_s=1.0))
    site.at(site.now)
    assert site.view(ANN, run.id).stop == "over its limit of 1 s"


def test_only_its_user_and_operators_change_a_run(site: SiteLogic) -> None:
    """Not even its token helps another user."""
    run = start(site, 1)
    assert run.lease is not None
    token = run.lease.token
    asks: list[Callable[[], c.RunView]] = [
        lambda: site.control(BOB, run.id, "abort", c.Control()),
        lambda: site.beat(BOB, run.id, c.Beat()),
        lambda: site.claim(BOB, run.id, c.Claim(token=token)),
        lambda: site.end(BOB, run.id, c.End(token=token, outcome="failed", exit_code=1)),
    ]
    for ask in asks:
        with pytest.raises(Refusal) as refused:
            ask()
        assert refused.value.status == 403
    assert site.control(ROOT, run.id, "pause", c.Control()).state == "running"


def test_a_time_box_is_ended_and_has_had_what_it_asked_for(site: SiteLogic) -> None:
    """`--for`: after that time it is told to stop; however the command ends then, it has succeeded."""
    run = start(site, 1, for_s=100.0)
    site.at(site.now + 99)
    assert site.view(ANN, run.id).stop == ""
    site.at(site.now + 2)
    assert site.view(ANN, run.id).stop == "over its limit of 100 s"
    assert (end(site, run, code=143).outcome, site.view(ANN, run.id).exit_code) == ("succeeded", 143)
    site.validate()
