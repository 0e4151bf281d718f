"""Reservations: GPUs that are kept for a queue at certain times. No clock, no network, no process."""

from __future__ import annotations

import random
from datetime import datetime
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from egs_core.calendar import Reservation, Window, windows
from egs_core.client import messages as c
from egs_core.client import requests as q
from egs_core.engine import Engine
from egs_core.engine.specs import QueueSpec
from egs_core.server import requests
from egs_core.server.book import CONFIG
from egs_core.server.keeping import Held, Wish, devices_of, keeps_out, lacking
from egs_core.server.logic import SiteLogic
from egs_core.server.runs import Device, Offer, Refusal, SiteFacts
from egs_core.server.writer import Turns
from tests.unit.server.site_steps import ANN, ROOT, end, request
from tests.unit.server.site_world import MemoryStore

BERLIN = "Europe/Berlin"
HOUR = 3600.0
QUEUES = (QueueSpec("class"), QueueSpec("other"))
NINE = datetime(2026, 12, 7, 9, tzinfo=ZoneInfo(BERLIN)).timestamp()  # a Monday
LESSON = Reservation("class", 3, 9 * 60, 11 * 60, BERLIN, days=(0,))


def offer(*reserved: Reservation, gpus: int = 4) -> Offer:
    devices = tuple([Device(str(n)) for n in range(gpus)])
    return Offer("host", devices, 32.0, 1 << 40, reserved=reserved)


def site_at(before_s: float, *reserved: Reservation) -> SiteLogic:
    """Four devices, so long before nine o'clock."""
    logic = SiteLogic(SiteFacts("site", NINE - before_s), Engine(CONFIG))
    logic.offer(offer(*(reserved or (LESSON,))), QUEUES)
    return logic


def ask(site: SiteLogic, number: int, gpus: float = 1, queue: str = "other", **more: Any) -> c.RunView:
    return site.submit(ANN, request(number, gpus, queue=queue, **more))


def state(site: SiteLogic, view: c.RunView) -> str:
    site.validate()
    return site.view(ANN, view.id).state


def claimed(site: SiteLogic, view: c.RunView) -> c.RunView:
    lease = site.view(ANN, view.id).lease
    assert lease is not None
    return site.claim(ANN, view.id, c.Claim(token=lease.token))


# --- the calendar ---


def test_a_week_has_its_windows_in_the_time_of_the_place() -> None:
    """Nine o'clock is nine o'clock in winter and in summer: the week in which the clocks change is an hour shorter."""
    since = datetime(2027, 3, 22, tzinfo=ZoneInfo(BERLIN)).timestamp()
    found = windows([LESSON], since, since + 14 * 86400)
    assert [one.text for one in found] == [
        "2027-03-22 09:00 to 11:00 (Europe/Berlin)",
        "2027-03-29 09:00 to 11:00 (Europe/Berlin)",
    ]
    assert found[1].begin - found[0].begin == 7 * 86400 - HOUR
    assert {one.end - one.begin for one in found} == {2 * HOUR}


def test_one_date_and_a_night() -> None:
    """What ends no later in the day than it begins ends the next day; what is over, or far, is not named."""
    night = Reservation("class", 1, 22 * 60, 60, "UTC", date="2026-12-31")
    begin = datetime(2026, 12, 31, 22, tzinfo=ZoneInfo("UTC")).timestamp()
    (one,) = windows([night], begin - 10 * 86400, begin + 1)
    assert (one.begin, one.end) == (begin, begin + 3 * HOUR)
    assert one.text == "2026-12-31 22:00 to 2027-01-01 01:00 (UTC)"
    assert windows([night], begin - 86400, begin) == windows([night], one.end, one.end + 86400) == []
    assert windows([night], one.end - 1, one.end) == [one]


@pytest.mark.parametrize("seed", range(200))
def test_whoever_starts_leaves_what_is_kept(seed: int) -> None:
    """Runs of three queues start as the rule says, at moments that move on, over windows that overlap: at every moment,
    as long as each ends when its time box says, each queue can have all that is kept for it. And the rule is no
    stricter than that: who is refused would take something that is kept."""
    rng = random.Random(seed)
    near = []
    for queue in ("a", "b"):
        begin = float(rng.randrange(0, 50))
        one = Reservation(queue, rng.randrange(1, 4), 0, 0, "UTC", lead_s=rng.choice((1000.0, 1000.0, 20.0)))
        near.append(Window(begin, begin + rng.randrange(1, 50), one))
    total, now, held = 6, 0.0, list[Held]()
    known = [one for one in near if one.of.lead_s > 100]  # of the others nobody may know soon enough
    while now < 100:
        now += rng.uniform(0, 5)
        held = [one for one in held if one.until > now]
        queue, free = rng.choice("abc"), sorted(set(range(total)) - devices_of(held))
        wish = Wish(queue, rng.randrange(1, 4), now + rng.uniform(1, 60))
        if wish.devices > len(free):
            continue
        if (window := keeps_out(near, held, total, wish, now)) is None:
            held.append(Held(queue, tuple(free[: wish.devices]), wish.until))
        else:
            assert window.of.queue != queue
            assert wish.until > window.begin
        for at in [now, *[one.begin for one in known if one.begin > now]]:
            active = [one for one in known if one.begin <= at < one.end]
            assert lacking(active, held, total, at, now) <= 0, (at, now, held, active)


# --- the site ---


def test_what_fits_before_starts_and_what_does_not_waits() -> None:
    """An hour before a lesson with three of four GPUs: one run without a time box has the fourth, a second one waits
    and says for what; one of half an hour starts. Then the lesson has its three; what waited starts when it is over."""
    site = site_at(HOUR)
    long = claimed(site, ask(site, 1))
    waits = ask(site, 2)
    assert (waits.state, waits.kind) == ("waiting", "reservation")
    kept = "3 GPUs are kept for another queue: 2026-12-07 09:00 to 11:00 (Europe/Berlin)"
    assert waits.reason == f"{kept}; what ends before, by its --for, may start"
    assert waits.starts_in_s is None, "as soon as the other one ends, which nobody knows"
    short = claimed(site, ask(site, 3, 2, for_s=HOUR / 2))
    assert state(site, ask(site, 4, 1, for_s=HOUR * 1.5)) == "waiting"
    site.at(HOUR / 2)
    end(site, short)
    site.at(HOUR)
    assert site.view(ANN, waits.id).reason == kept
    lesson = [claimed(site, ask(site, 10 + n, queue="class")) for n in range(3)]
    end(site, lesson[0])
    site.at(site.now + 2)
    assert state(site, waits) == "waiting", "what the lesson has given back is kept for its queue"
    assert state(site, ask(site, 20, queue="class")) == "granted"
    end(site, lesson[1])
    site.at(3 * HOUR)
    assert state(site, waits) == "granted"
    end(site, long)
    site.validate()


def test_long_before_nothing_is_held_back() -> None:
    """Four hours before, or as the reservation says: until then all devices are anybody's."""
    site = site_at(4 * HOUR + 1)
    runs = [claimed(site, ask(site, n)) for n in (1, 2, 3, 4)]
    end(site, runs[0])
    site.at(2.0)
    assert state(site, ask(site, 9)) == "waiting"
    later = site_at(2 * HOUR, Reservation("class", 3, 9 * 60, 11 * 60, BERLIN, days=(0,), lead_s=HOUR))
    assert [state(later, ask(later, n)) for n in (1, 2)] == ["granted"] * 2
    later.at(HOUR)
    assert state(later, ask(later, 3)) == "waiting"


def test_what_runs_goes_on_and_what_may_be_evicted_is() -> None:
    """Four started long before; at nine those that said --requeue are told to stop, the latest first, no more than are
    needed; the one that did not goes on. What was evicted waits until eleven."""
    site = site_at(5 * HOUR)
    kept = claimed(site, ask(site, 1, 1))
    given = []
    for number in (2, 3, 4):
        site.at(float(number))
        given.append(claimed(site, ask(site, number, requeue=True)))
    lesson = [ask(site, 10 + n, queue="class") for n in range(3)]
    site.at(5 * HOUR - 1)
    assert {state(site, view) for view in given} == {"running"}
    due = site.next_wakeup()
    assert due is not None
    assert due <= 5 * HOUR
    site.at(5 * HOUR)
    assert [state(site, view) for view in [kept, *given]] == ["running", *["stopping"] * 3]
    told = site.view(ANN, given[0].id)
    assert (told.stop, told.requeue) == ("the GPUs that it has are kept for another queue from now on", True)
    for view in given:
        assert view.lease is not None
        site.end(ANN, view.id, c.End(token=view.lease.token, outcome="evicted", exit_code=143))
    assert [state(site, view) for view in lesson] == ["granted"] * 3
    for view in lesson:
        end(site, claimed(site, view))
    site.at(site.now + 2)
    assert [site.view(ANN, view.id).kind for view in given] == ["reservation"] * 3
    site.at(7 * HOUR)
    assert [state(site, view) for view in given] == ["granted"] * 3


def test_no_more_are_evicted_than_needed() -> None:
    """Two of three GPUs that are kept are free already: one run stops, the one that began last."""
    site = site_at(5 * HOUR)
    runs = []
    for number in (1, 2):
        site.at(float(number))
        runs.append(claimed(site, ask(site, number, requeue=True)))
    site.at(5 * HOUR)
    assert [state(site, view) for view in runs] == ["running", "stopping"]


def test_a_gang_is_kept_out_as_a_whole() -> None:
    """One device would be free for it; it has none, and starts as a whole afterwards. A gang of the queue may."""
    site = site_at(HOUR)
    pair = [ask(site, n, gang=c.Gang(name="pair", size=2)) for n in (1, 2)]
    assert [state(site, view) for view in pair] == ["waiting"] * 2
    assert [site.view(ANN, view.id).kind for view in pair] == ["reservation"] * 2
    ours = [ask(site, n, queue="class", gang=c.Gang(name="ours", size=3)) for n in (3, 4, 5)]
    assert [state(site, view) for view in ours] == ["granted"] * 3
    for view in ours:
        end(site, claimed(site, view))
    site.at(3 * HOUR)
    assert [state(site, view) for view in pair] == ["granted"] * 2


def test_check_and_a_request_know_it() -> None:
    """`--check` answers what would come, and asks for nothing; GPUs for a while are kept out like a run."""
    site = site_at(HOUR)
    asked = partial(request, queue="other")
    assert site.check(ANN, asked(1, 2, for_s=HOUR / 2)).state == "granted"
    told = site.check(ANN, asked(1, 2, for_s=2 * HOUR))
    assert (told.state, told.kind, told.starts_in_s) == ("waiting", "reservation", 3 * HOUR)
    assert site.check(ANN, request(1, 2, queue="class", for_s=2 * HOUR)).state == "granted"
    wanted = q.GpuRequest(key="request-1", gpus=2, for_s=2 * HOUR, queue="other")
    view = requests.ask_for(site.book, ANN, wanted)
    assert (view.state, view.starts_in_s) == ("queued", 3 * HOUR)
    site.at(3 * HOUR)
    site.take()
    assert requests.view(site.book, ANN, view.id).state == "ready"
    assert not [run for run in site.open_runs() if run.id != view.id]


def test_what_is_kept_out_can_be_changed_held_and_ended() -> None:
    """With a time box that fits it starts; held it waits for that too; aborted it is over."""
    site = site_at(HOUR)
    runs = [ask(site, n, 2) for n in (1, 2, 3)]
    site.control(ANN, runs[0].id, "abort", c.Control())
    site.control(ANN, runs[1].id, "pause", c.Control())
    site.update(ANN, runs[2].id, c.Change(for_s=HOUR / 2))
    site.at(2.0)
    assert [state(site, view) for view in runs] == ["ended", "paused", "granted"]
    end(site, claimed(site, runs[2]))
    site.at(3 * HOUR)
    assert state(site, runs[1]) == "paused"
    site.control(ANN, runs[1].id, "resume", c.Control())
    assert state(site, runs[1]) == "granted"


def test_many_that_are_kept_out_are_looked_at_once() -> None:
    """Five hundred wait when a lesson is near: each is granted and taken back once, not one inside of the other, and
    what fits before it starts all the same."""
    site = site_at(HOUR)
    held = claimed(site, ask(site, 1, 4, for_s=60.0))
    waiting = [ask(site, 10 + n, 2) for n in range(500)]
    fits = ask(site, 600, 2, for_s=600.0)
    end(site, held)
    assert state(site, fits) == "granted"
    assert {site.view(ANN, view.id).kind for view in waiting} == {"reservation"}
    site.at(3 * HOUR)
    assert sum(run.lease is not None for run in site.open_runs()) == 2
    site.validate()


def test_a_reservation_holds_over_a_restart() -> None:
    """A server that starts again, with the same file: what was kept out is, until it may start."""
    store, now = MemoryStore(), [NINE - HOUR]
    clock = lambda: now[0]  # noqa: E731 - the clock of both
    store.facts = SiteFacts("site", NINE - HOUR)
    turns = Turns(store, offer(LESSON), QUEUES, clock=clock)
    turns.take([partial(SiteLogic.submit, who=ANN, ask=request(1, 2, queue="other"))])
    assert turns.logic.view(ANN, "1").kind == "reservation"
    again = Turns(store, offer(LESSON), QUEUES, clock=clock)
    again.logic.validate()
    assert again.logic.view(ANN, "1").kind == "reservation"
    without = Turns(store, offer(), QUEUES, clock=clock)
    assert without.logic.view(ANN, "1").state == "granted"


def test_what_is_drained_is_not_counted_as_free() -> None:
    """Three are kept of four, and one is drained: nothing is left for others."""
    site = site_at(HOUR)
    assert state(site, ask(site, 1)) == "granted"
    site = site_at(HOUR)
    site.drain(ROOT, c.Drain(target="3"))
    assert state(site, ask(site, 1)) == "waiting"


def test_refused_is_refused() -> None:
    """What could never start is refused as ever, whatever is kept."""
    site = site_at(HOUR)
    with pytest.raises(Refusal, match="no node has more than 4 GPUs"):
        ask(site, 1, 5)
