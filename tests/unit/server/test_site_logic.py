"""What requests, time and processes mean to a site: no clock, no network, no process."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from egs_core.client import messages as c
from egs_core.engine.specs import UNLIMITED, QueueSpec
from egs_core.server import logic
from egs_core.server.logic import Batch, SiteLogic
from egs_core.server.principals import Principal
from egs_core.server.runs import Device, Offer, Refusal
from tests.unit.server.site_steps import ANN, BOB, ROOT, behind, end, request, start, three_devices
from tests.unit.server.site_world import GIB, OFFER


@pytest.fixture
def site() -> SiteLogic:
    return three_devices()


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


def test_the_first_is_told_what_may_start_before_it(site: SiteLogic) -> None:
    """Fewer GPUs than it needs are free, and one that came later has them. After four times what there was to do when
    it came, what comes starts only where it delays nothing, and room is kept: from when on is said while that is ahead.
    """
    busy = start(site, 1, gpus=2, expected_s=600.0)
    waits = site.submit(BOB, request(2, gpus=3, expected_s=600.0))
    until = "what needs fewer GPUs may start before it until about 1970-01-01 01:23:20 UTC, then room is kept for it; "
    assert f"it is first in the queue; {until}GPUs are held by 1 (job1, ann)" in waits.reason
    small = start(site, 3, expected_s=60.0)
    end(site, small)
    site.at(4001.0)
    assert site.submit(ANN, request(4, expected_s=6000.0)).kind == "reservation"
    reason = site.view(BOB, waits.id).reason
    kept = "others start there only where that should not delay it; GPUs are held by 1 (job1, ann)"
    assert reason.endswith(f"; room on host is kept for it from 1970-01-01 02:30:02 UTC on: {kept}")
    end(site, busy)
    assert site.view(BOB, waits.id).state == "granted"


def test_the_last_that_ended_are_told_alone(site: SiteLogic) -> None:
    """The latest last, then what is open; how many more there are, of those that the asker sees. Without a number all
    of them are told."""
    busy = start(site, 1)
    for number in range(2, 6):
        end(site, start(site, number))
    end(site, start(site, 6, who=BOB), who=BOB)
    told = site.listed(ROOT, with_ended=True, last=3)
    assert ([run.id for run in told.runs], told.more_ended) == (["4", "5", "6", busy.id], 2)
    blind = Principal("eve", teams=("other",))
    assert (site.listed(blind, with_ended=True, last=3).more_ended, site.listed(blind, with_ended=True).runs) == (0, ())
    every = site.listed(ROOT, with_ended=True, last=9)
    assert ([run.id for run in every.runs], every.more_ended) == (["2", "3", "4", "5", "6", "1"], 0)
    assert [run.id for run in site.listed(ROOT, with_ended=True).runs] == list("123456")


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
    with pytest.raises(Refusal, match="its nominal quota is 1 GPU"):
        site.submit(ANN, request(2, gpus=2, queue="small"))
    with pytest.raises(Refusal, match="there is no queue 'smal'; there are small"):
        site.submit(ANN, request(3, queue="smal"))
    assert site.open_runs() == []
    site.validate()


def test_a_queue_at_a_site_without_queues_is_refused(site: SiteLogic) -> None:
    """Asked for, or changed to; the refusal says what to do. Without a name the run is in none."""
    site.offer(OFFER, ())
    says = "there is no queue 'typo'; this site has none: leave --queue out"
    with pytest.raises(Refusal, match=says) as refused:
        site.submit(ANN, request(1, queue="typo"))
    assert refused.value.status == 422
    start(site, 2, gpus=3)
    waiting = site.submit(ANN, request(3, gpus=1))
    with pytest.raises(Refusal, match=says):
        site.update(ANN, waiting.id, c.Change(queue="typo"))
    assert {run.queue for run in site.open_runs()} == {""}
    site.validate()


def test_whoever_names_no_queue_uses_the_only_one(site: SiteLogic) -> None:
    """Where there are several for all it has to be chosen, and the refusal says how."""
    site.offer(OFFER, (QueueSpec("common"),))
    assert site.submit(ANN, request(1)).queue == "common"
    site.offer(OFFER, (QueueSpec("common"), QueueSpec("other")))
    with pytest.raises(Refusal, match="none is named; there are common, other: choose by --queue"):
        site.submit(ANN, request(2))


def test_the_queue_of_an_admin_who_names_none(site: SiteLogic) -> None:
    """That of the team that the file has this admin in, else the first for all; where each is a team's it has to be
    chosen."""
    queues = tuple([QueueSpec(name) for name in ("sounds", "common", "other", "images")])
    site.offer(OFFER, queues, {"sounds": "speech", "images": "vision"})
    at_home = Principal("ann", "admin", home="vision")
    found = [site.submit(who, request(n, gpus=0)) for n, who in enumerate((ROOT, at_home), 1)]
    assert [(run.queue, run.team) for run in found] == [("common", ""), ("images", "vision")]
    site.offer(OFFER, queues[::3], {"sounds": "speech", "images": "vision"})
    with pytest.raises(Refusal, match="none is named; there are sounds, images"):
        site.submit(ROOT, request(3))


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
