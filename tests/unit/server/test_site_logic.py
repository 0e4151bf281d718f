"""What requests, time and processes mean to a site: no clock, no network, no process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from pydantic import ValidationError

from egs_core.client import messages as c
from egs_core.engine import Engine
from egs_core.engine.specs import UNLIMITED, QueueSpec
from egs_core.server import logic
from egs_core.server import writer as writer_module
from egs_core.server.book import CONFIG
from egs_core.server.logic import CLAIM_S, SILENT_S, Batch, Seen, SiteLogic
from egs_core.server.principals import Principal
from egs_core.server.runs import Device, Offer, Refusal, SiteFacts
from egs_core.server.store import SqlStore
from egs_core.server.writer import Turns, Unavailable, Writer
from tests.unit.server.real_site import wait_for
from tests.unit.server.site_world import GIB, OFFER, MemoryStore

ANN, BOB, ROOT = Principal("ann"), Principal("bob"), Principal("root", "admin")


def request(number: int, gpus: float = 1, **more: object) -> c.RunRequest:
    supervisor = c.Process(pid=number, started=number)
    fields = {"key": f"key-{number:04}", "supervisor": supervisor, "name": f"job{number}", "gpus": gpus, **more}
    return c.RunRequest.model_validate(fields)


@pytest.fixture
def site() -> SiteLogic:
    """Three devices, nothing on them."""
    logic = SiteLogic(SiteFacts("site", 1000.0), Engine(CONFIG))
    logic.offer(OFFER)
    return logic


def start(site: SiteLogic, number: int, gpus: float = 1, who: Principal = ANN, **more: object) -> c.RunView:
    """A run that has claimed its lease."""
    view = site.submit(who, request(number, gpus, **more))
    assert view.lease is not None
    return site.claim(who, view.id, c.Claim(token=view.lease.token))


def end(site: SiteLogic, view: c.RunView, who: Principal = ANN, code: int = 0) -> c.RunView:
    assert view.lease is not None
    outcome = "failed" if code else "succeeded"
    return site.end(who, view.id, c.End(token=view.lease.token, outcome=outcome, exit_code=code))


def test_what_has_room_is_granted_and_what_has_none_waits_and_says_why(site: SiteLogic) -> None:
    """The first gets its devices at once; the second is told who holds what it needs, and when it should start."""
    first = start(site, 1, gpus=2, expected_s=60.0)
    assert first.lease is not None
    assert (first.state, first.lease.devices) == ("running", ("0", "1"))
    site.at(site.now + 20)
    second = site.submit(BOB, request(2, gpus=2))
    assert (second.state, second.kind, second.lease) == ("waiting", "capacity", None)
    assert "host has 1 of 3 GPUs wholly free" in second.reason
    assert "GPUs are held by 1 (job1, ann)" in second.reason
    assert second.starts_in_s == pytest.approx(40.0)
    site.at(site.now + 15)  # of which the engine hears nothing
    assert site.view(BOB, "2").starts_in_s == pytest.approx(25.0)
    assert end(site, first).outcome == "succeeded"
    assert site.view(ANN, "2").state == "granted"


def test_no_time_is_promised_where_a_length_is_unknown(site: SiteLogic) -> None:
    start(site, 1, gpus=3)
    assert site.submit(ANN, request(2)).starts_in_s is None


def test_what_never_fits_is_refused_with_the_numbers(site: SiteLogic) -> None:
    """Also what only a quota forbids; nothing of it is left open."""
    with pytest.raises(Refusal, match="needs 4 GPUs; no node has more than 3 GPUs: it fits nowhere") as refused:
        site.submit(ANN, request(1, gpus=4))
    assert refused.value.status == 422
    spec = QueueSpec("small", nominal=(UNLIMITED, 1000, UNLIMITED))
    site.offer(OFFER, (spec,))
    with pytest.raises(Refusal, match="its nominal quota is 1 GPUs"):
        site.submit(ANN, request(2, gpus=2, queue="small"))
    with pytest.raises(Refusal, match="there is no queue 'smal'; there are small"):
        site.submit(ANN, request(3, queue="smal"))
    assert site.open_runs() == []
    site.validate()


def test_whoever_names_no_queue_uses_the_only_one(site: SiteLogic) -> None:
    """Where there are several for all it has to be chosen, and the refusal says how."""
    site.offer(OFFER, (QueueSpec("common"),))
    assert site.submit(ANN, request(1)).queue == "common"
    site.offer(OFFER, (QueueSpec("common"), QueueSpec("other")))
    with pytest.raises(Refusal, match="none is named; there are common, other: choose by --queue"):
        site.submit(ANN, request(2))


def test_a_quota_holds_for_a_queue(site: SiteLogic) -> None:
    """The second run of a queue with one GPU waits for the first, though devices are free."""
    site.offer(OFFER, (QueueSpec("small", nominal=(UNLIMITED, 1000, UNLIMITED)),))
    first = start(site, 1, queue="small")
    second = site.submit(BOB, request(2, queue="small"))
    assert (second.state, second.kind) == ("waiting", "quota")
    end(site, first)
    assert site.view(ANN, second.id).state == "granted"


def test_a_repeated_request_is_the_same_run(site: SiteLogic) -> None:
    assert site.submit(ANN, request(1)).id == site.submit(ANN, request(1)).id
    assert site.submit(BOB, request(1)).id == "2"  # another user's key


def test_a_higher_priority_goes_first(site: SiteLogic) -> None:
    first = start(site, 1, gpus=3)
    site.submit(ANN, request(2))
    site.submit(ANN, request(3, gpus=3, priority=5))
    assert [run.id for run in site.views.queue().runs] == ["3", "2"]
    end(site, first)
    assert (site.view(ANN, "3").state, site.view(ANN, "2").state) == ("granted", "waiting")


def test_runs_share_a_device_by_memory(site: SiteLogic) -> None:
    """Three of 25 GiB have one device of 80 GiB, the fourth another; a whole one is not shared. What waits is told
    how much is free at most, and when it should start."""
    parts = [start(site, number, gpus=0, gpu_memory_bytes=25 * GIB, expected_s=60.0) for number in range(1, 5)]
    assert [view.lease.devices for view in parts if view.lease] == [("0",), ("0",), ("0",), ("1",)]
    assert parts[0].gpus == 0.313
    assert [device.runs for device in site.views.listed().devices] == [("1", "2", "3"), ("4",), ()]
    whole = start(site, 5, gpus=1, gpu_memory_bytes=80 * GIB)
    assert whole.lease is not None
    assert whole.lease.devices == ("2",)
    waits = site.submit(BOB, request(6, gpus=0, gpu_memory_bytes=60 * GIB))
    assert (waits.state, "no GPU with more than 55 GiB free" in waits.reason) == ("waiting", True)
    assert waits.starts_in_s == pytest.approx(60.0)
    end(site, parts[3])
    assert site.view(ANN, "6").state == "granted"
    site.validate()


def test_runs_share_a_device_by_number(site: SiteLogic) -> None:
    """Four quarters are one GPU."""
    parts = [start(site, number, gpus=0.25) for number in range(1, 6)]
    assert [view.lease.devices for view in parts if view.lease] == [("0",)] * 4 + [("1",)]
    assert [device.free for device in site.views.listed().devices] == [0.0, 0.75, 1.0]


def test_memory_that_no_gpu_has_is_refused(site: SiteLogic) -> None:
    with pytest.raises(Refusal, match="no node has more than 80 GiB of GPU memory"):
        site.submit(ANN, request(1, gpus=0, gpu_memory_bytes=81 * GIB))
    site.offer(Offer("host", (Device("0"),), 8.0, 1 << 40))
    with pytest.raises(Refusal, match="no GPU here whose memory is known"):
        site.submit(ANN, request(2, gpus=0, gpu_memory_bytes=GIB))


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


def test_what_has_ended_is_forgotten_in_the_end(site: SiteLogic, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest beyond a number, and all after a month; never the latest, so that no number is given twice."""
    monkeypatch.setattr(logic, "MOST_ENDED", 3)
    for number in range(1, 6):
        end(site, start(site, number))
    still = start(site, 6)
    site.at(site.now + 1)
    assert (list(site.runs), site.take().forgotten) == (["3", "4", "5", "6"], ["1", "2"])
    site.at(site.now + logic.KEEP_S + 1)
    assert (list(site.runs), site.take().forgotten) == (["6"], ["3", "4", "5"])
    end(site, still)
    site.at(site.now + logic.KEEP_S + 1)
    assert list(site.runs) == ["6"]
    assert start(site, 7).id == "7"
    site.validate()


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


def test_an_end_that_is_told_again_changes_nothing(site: SiteLogic) -> None:
    run = start(site, 1)
    assert end(site, run, code=3) == end(site, run, code=4)


@pytest.mark.parametrize(
    "change",
    [
        {"gpus": -1},
        {"gpus": 10**9},
        {"cpus": float("nan")},
        {"cpus": float("inf")},
        {"memory_bytes": 2**63},
        {"name": "x" * 1000},
        {"name": "line\nbreak"},
        {"for_s": 0},
        {"priority": 10**9},
        {"key": ""},
        {"argv": ["python", "train.py"]},
    ],
)
def test_a_request_out_of_bounds_is_none(change: dict[str, object]) -> None:
    """Amounts, names and unknown fields: also nobody can send the command's arguments by mistake."""
    fields = {"key": "key-0001", "supervisor": {"pid": 1, "started": 1}, **change}
    with pytest.raises(ValidationError):
        c.RunRequest.model_validate(fields)


def behind(number: int, run: c.RunView, when: str = "ok") -> c.RunRequest:
    return request(number, after=[{"run": run.id, "when": when}])


def test_a_run_waits_for_others(site: SiteLogic) -> None:
    """For an end with code 0, for any end, for a failure; what can then never start ends, and what waits for that."""
    first = start(site, 1)
    waits = {when: site.submit(ANN, behind(n, first, when)) for n, when in enumerate(("ok", "any", "failed"), 2)}
    last = site.submit(ANN, behind(5, waits["ok"]))
    assert (waits["ok"].state, waits["ok"].kind, waits["ok"].reason) == (
        "waiting",
        "dependency",
        "waits for run 1 (job1)",
    )
    assert "waits for run 1 (job1) to fail" in waits["failed"].reason
    end(site, first, code=1)
    found = {when: site.view(ANN, view.id) for when, view in waits.items()}
    assert (found["ok"].outcome, found["any"].state, found["failed"].state) == ("aborted", "granted", "granted")
    assert found["ok"].reason == "run 1 (job1), for which it waited, has ended: failed"
    assert site.view(ANN, last.id).outcome == "aborted"
    with pytest.raises(Refusal, match="after: run 1 has ended: failed"):
        site.submit(ANN, behind(6, first))
    with pytest.raises(Refusal, match="after: there is no run '77'"):
        site.submit(ANN, request(7, after=[{"run": "77"}]))
    site.validate()


def test_a_long_chain_ends_at_once(site: SiteLogic) -> None:
    """Each waits for the one before: when the first fails, all end."""
    before = start(site, 1)
    first = before
    for number in range(2, 2000):
        before = site.submit(ANN, behind(number, before))
    end(site, first, code=1)
    assert site.open_runs() == []


def test_what_waits_for_a_run_is_known_after_a_restart() -> None:
    turns = run_with(store := MemoryStore())
    turns.take([lambda site: start(site, 1), lambda site: site.submit(ANN, behind(2, site.view(ANN, "1")))])
    again = run_with(store).logic
    assert again.view(ANN, "2").kind == "dependency"
    end(again, again.view(ANN, "1"))
    assert again.view(ANN, "2").state == "granted"


def test_a_check_says_when_it_would_start_and_asks_for_nothing(site: SiteLogic) -> None:
    """The same answer as a request has, and no trace of it: not in the engine, the runs, the batch."""
    start(site, 1, gpus=3, expected_s=60.0)
    site.take()
    before = site.snapshot()
    asked = site.check(BOB, request(2, gpus=2))
    assert (asked.state, asked.starts_in_s) == ("waiting", 60.0)
    assert (site.snapshot(), site.take(), len(site.runs)) == (before, Batch([], []), 1)
    with pytest.raises(Refusal, match="fits nowhere"):
        site.check(BOB, request(3, gpus=9))
    real = site.submit(BOB, request(2, gpus=2))
    assert (real.id, real.reason, real.starts_in_s) == (asked.id, asked.reason, asked.starts_in_s)


def test_a_deadline_puts_a_run_forward(site: SiteLogic) -> None:
    """It would be late behind the one that came first."""
    start(site, 1, gpus=3, expected_s=60.0)
    site.submit(ANN, request(2, gpus=3, expected_s=100.0))
    site.submit(ANN, request(3, gpus=3, expected_s=100.0, deadline_s=170.0))
    assert [run.id for run in site.views.queue().runs] == ["3", "2"]


# --- the store and the writer ---


def submitted(number: int, gpus: int, site: SiteLogic) -> c.RunView:
    return site.submit(ANN, request(number, gpus))


def run_with(store: SqlStore | MemoryStore) -> Turns:
    return Turns(store, OFFER, clock=lambda: 1000.0)


def test_nothing_is_told_before_it_is_durable() -> None:
    """A batch that the disk does not take is answered with Unavailable, and undone; the same request then succeeds, and
    a device that was granted in it is free."""
    store, told = MemoryStore(), list[list[str]]()
    writer = Writer(run_with(store), told.append)
    store.fails = "before"
    asked = [writer.ask(partial(submitted, n, 3)) for n in (1, 2)]
    writer.start()
    for one in asked:
        with pytest.raises(Unavailable, match="the disk failed before the commit"):
            one.result(30)
    assert told == []
    view = writer.ask(lambda site: site.submit(ANN, request(2, gpus=3))).result(30)
    assert (view.id, view.state) == ("1", "granted")
    writer.close()
    assert told[-1] == ["1"]


def test_a_full_disk_is_said_once_and_the_site_goes_on_when_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own limit on pages stands for the disk: each request hears what is wrong and that it passes, the log has
    one line however often it is tried, and with room again the site has what it had, and takes what it is asked."""
    monkeypatch.setattr(writer_module, "LOG", logging.getLogger("egs.test"))  # uvicorn's may have handlers of its own
    store, pages = SqlStore(tmp_path, 0.0), [1_000_000]
    sa.event.listen(
        store._engine, "checkout", lambda connection, *_: connection.execute(f"PRAGMA max_page_count={pages[0]}")
    )
    writer = Writer(run_with(store), lambda _: None)
    writer.start()
    assert writer.ask(partial(submitted, 1, 1)).result(30).state == "granted"
    pages[0] = 1  # SQLite makes it the number of pages that there are
    states = [writer.ask(partial(submitted, number, 1)).exception(30) for number in range(2, 200)]
    kept = 1 + states.count(None)  # until a page more is needed
    assert {type(one) for one in states} == {type(None), Unavailable}
    text = "database or disk is full); the server goes on by itself"
    assert all(text in str(one) for one in states if one)
    for _ in range(3):
        with pytest.raises(Unavailable):
            writer.ask(lambda site: site.submit(ANN, request(999))).result(30)
    assert len([one for one in caplog.records if "disk is full" in one.message]) == 1
    pages[0] = 1_000_000
    wait_for(lambda: writer.ask(lambda site: site.now).exception(30) is None, "the site has room again")
    assert len(writer.ask(lambda site: site.views.listed().runs).result(30)) == kept
    assert writer.ask(partial(submitted, 999, 1)).result(30).state == "waiting"
    writer.close()
    assert "takes changes" in caplog.records[-1].message


def test_requests_that_wait_share_a_commit() -> None:
    """Group commit: what came in while nothing was taken is one transaction."""
    commits: list[int] = []

    class Counting(MemoryStore):
        def commit(self, batch: Batch) -> None:
            commits.append(len(batch.runs))
            super().commit(batch)

    writer = Writer(run_with(Counting()), lambda _: None)
    asked = [writer.ask(partial(submitted, n, 1)) for n in range(1, 41)]
    writer.start()
    assert {one.result(30).state for one in asked} == {"granted", "waiting"}
    writer.close()
    assert commits == [0, 40]


def test_a_refusal_is_its_askers_alone() -> None:
    """The others of its batch are answered."""
    writer = Writer(run_with(MemoryStore()), lambda _: None)
    bad, good = writer.ask(lambda site: site.view(ANN, "7")), writer.ask(lambda site: site.submit(ANN, request(1)))
    writer.start()
    assert good.result(30).state == "granted"
    with pytest.raises(Refusal, match="there is no run '7'"):
        bad.result(30)
    writer.close()
