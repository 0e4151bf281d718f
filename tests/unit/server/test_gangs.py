"""`egs run --gang`: runs that start together, or not at all. No clock, no network, no process."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from egs_core.client import messages as c
from egs_core.engine import Engine
from egs_core.engine.specs import QueueSpec
from egs_core.server.book import CONFIG
from egs_core.server.logic import CLAIM_S, SILENT_S, Seen, SiteLogic
from egs_core.server.runs import Refusal, SiteFacts
from egs_core.server.writer import Turns
from tests.unit.server.site_steps import ANN, BOB, ROOT, end, request, start
from tests.unit.server.site_world import OFFER, MemoryStore
from tests.unit.server.test_hosts import FAR_ANN, Far


@pytest.fixture
def site() -> SiteLogic:
    """Three devices, nothing on them."""
    logic = SiteLogic(SiteFacts("site", 1000.0), Engine(CONFIG))
    logic.offer(OFFER)
    return logic


def member(number: int, gpus: float = 1, size: int = 3, name: str = "train", **more: Any) -> c.RunRequest:
    return request(number, gpus, gang=c.Gang(name=name, size=size, wait_s=60.0), **more)


def whole(site: SiteLogic, size: int = 3, first: int = 1, **more: Any) -> list[c.RunView]:
    """A gang of which all have come, as they are then."""
    views = [site.submit(ANN, member(first + n, size=size, **more)) for n in range(size)]
    return [site.view(ANN, view.id) for view in views]


def claimed(site: SiteLogic, view: c.RunView) -> c.RunView:
    assert view.lease is not None
    return site.claim(ANN, view.id, c.Claim(token=view.lease.token))


def states(site: SiteLogic, views: list[c.RunView]) -> list[str]:
    site.validate()
    return [site.view(ANN, view.id).state for view in views]


def test_nothing_starts_before_all_have_come(site: SiteLogic) -> None:
    """Devices are free, and are kept for nobody: what comes meanwhile starts. Each member says who has come, and until
    when the others have to. With the last all have devices, at one moment."""
    first, second = site.submit(ANN, member(1)), site.submit(ANN, member(2))
    assert (first.state, second.state, second.kind) == ("waiting", "waiting", "gang")
    expected = "starts together with gang 'train': 2 of 3 have come: 1 (job1), 2 (job2); it is given up at "
    assert second.reason == expected + "1970-01-01 00:17:40 UTC unless the others come"
    assert second.gang == c.GangView(name="train", size=3, runs=("1", "2"))
    other = start(site, 10)
    end(site, other)
    third = site.submit(ANN, member(3))
    assert states(site, [first, second, third]) == ["granted"] * 3
    leases = [site.runs[view.id].lease for view in (first, second, third)]
    assert sorted(lease.devices for lease in leases if lease) == [(0,), (1,), (2,)]


def test_what_is_drained_comes_back(site: SiteLogic) -> None:
    """A gang that needs a drained GPU waits for it, and starts when it is there again."""
    site.drain(ROOT, c.Drain(target="0"))
    views = whole(site)
    assert states(site, views) == ["waiting"] * 3
    assert "host has 2 of 3 GPUs wholly free" in site.view(ANN, views[0].id).reason
    site.drain(ROOT, c.Drain(target="0", drained=False))
    assert states(site, views) == ["granted"] * 3


def test_they_wait_together_and_each_says_for_what(site: SiteLogic) -> None:
    """Two devices are free, and three are wanted at once: none is taken, and the reason and the forecast are those of
    all three. They start in one decision."""
    busy = start(site, 9, expected_s=100.0)
    views = whole(site)
    assert states(site, views) == ["waiting"] * 3
    site.at(site.now + 40.0)  # long enough for the engine to keep what comes free for it
    other = site.submit(ANN, request(20, expected_s=500.0))
    assert "kept for gang train" in other.reason
    site.control(ANN, other.id, "abort", c.Control())
    for view in [site.view(ANN, one.id) for one in views]:
        assert (view.kind, view.starts_in_s) == ("capacity", 60.0)
        assert view.reason.startswith(
            "needs 1 GPU, and its gang train 3 GPUs at once: host has 2 of 3 GPUs wholly free"
        )
        assert f"GPUs are held by {busy.id} (job9, ann)" in view.reason
    assert [view.id for view in site.queue(ANN).runs] == [view.id for view in views]
    assert [view.starts_in_s for view in site.queue(ANN).runs][:3] == [60.0] * 3
    end(site, busy)
    assert states(site, views) == ["granted"] * 3


def test_two_gangs_do_not_hold_each_other_up(site: SiteLogic) -> None:
    """Of two gangs of two on three devices one runs, then the other: neither has a part of what it needs."""
    first = [site.submit(ANN, member(n, size=2, name="red")) for n in (1, 2)]
    second = [site.submit(ANN, member(n, size=2, name="blue")) for n in (3, 4)]
    assert (states(site, first), states(site, second)) == (["granted"] * 2, ["waiting"] * 2)
    for view in first:
        end(site, claimed(site, site.view(ANN, view.id)))
    assert states(site, second) == ["granted"] * 2


@pytest.mark.parametrize("how", ["failed", "lost", "aborted", "aborted by another"])
def test_one_that_does_not_succeed_ends_the_others(site: SiteLogic, how: str) -> None:
    """What runs is told to stop, what has not started ends: whether one failed, was lost, or was aborted."""
    views = whole(site)
    running = [claimed(site, view) for view in views[:2]]
    if how == "failed":
        end(site, running[0], code=1)
    elif how == "lost":
        assert running[0].lease is not None
        for _ in range(2):
            site.seen([Seen(running[0].id, running[0].lease.token, has_supervisor=False)])
    else:
        site.control(ANN, (running[0] if how == "aborted" else views[2]).id, "abort", c.Control())
    now = [site.view(ANN, view.id) for view in views]
    assert [view.state for view in now[1:]] == ["stopping", "ended"]
    assert now[2].outcome == "aborted"
    ended = 2 if how == "aborted by another" else 0
    words = {"failed": "ended with exit code 1", "lost": "was lost"}.get(how, "was aborted by ann")
    why = f"its gang has ended: run {views[ended].id} ({views[ended].name}) {words}"
    assert now[1].stop == why, "what and who, once"
    assert how.startswith("aborted") or f"run {views[0].id} (job1) of its gang has ended: {how}" in now[2].reason
    for view in running:
        if site.runs[view.id].is_open:
            end(site, view, code=1)
    after = site.view(ANN, views[1].id)
    assert (after.outcome, after.reason) == ("aborted", why)
    site.validate()
    assert {run.outcome for run in site.runs.values()} <= {"failed", "lost", "aborted"}
    assert start(site, 9, 3).state == "running", "nothing is held any more"


def test_one_that_succeeds_ends_nobody(site: SiteLogic) -> None:
    """Also one whose time box is over: it has had what it asked for."""
    views = [claimed(site, view) for view in whole(site, for_s=50.0)]
    end(site, views[0])
    site.at(site.now + 50.0)
    assert states(site, views) == ["ended", "stopping", "stopping"]
    assert [end(site, view, code=1).outcome for view in views[1:]] == ["succeeded"] * 2
    site.validate()


def test_a_gang_that_stays_in_part_is_given_up(site: SiteLogic) -> None:
    """A minute after the first came, not before; all that have come say why. One that came and went is not missed by
    the others: its place is taken by another, and a gang begun anew has its full time."""
    first, gone = site.submit(ANN, member(1)), site.submit(ANN, member(2))
    site.control(ANN, gone.id, "abort", c.Control())
    assert states(site, [first]) == ["waiting"], "one that goes before all have come ends nobody"
    site.at(30.0)
    second = site.submit(ANN, member(3))
    assert site.next_wakeup() == 60.0
    site.at(59.9)
    assert states(site, [first, second]) == ["waiting"] * 2
    site.at(60.0)
    for view in (site.view(ANN, first.id), site.view(ANN, second.id)):
        assert (view.state, view.outcome) == ("ended", "aborted")
        assert view.reason == "gang 'train' was not whole in time: 2 of 3 have come: 1 (job1), 3 (job3)"
    assert states(site, [site.submit(ANN, member(4))]) == ["waiting"]
    site.at(119.0)
    assert [view.state for view in whole(site, size=3, first=5)][:2] == ["granted", "granted"]


def test_who_joins_is_like_the_others(site: SiteLogic) -> None:
    """Another size, queue, priority or eviction is refused, and says what was named first; another user's gang of the
    same name is another gang; the fourth of three begins a new one."""
    queues = tuple(QueueSpec(name) for name in ("fast", "slow"))
    site.offer(OFFER, queues)
    first = site.submit(ANN, member(1, queue="fast"))
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"queue": "slow"}, f"run {first.id} of gang 'train' was started with another --queue"),
        ({"queue": "fast", "priority": 3}, "another --priority"),
        ({"queue": "fast", "requeue": True}, "another --requeue"),
        ({"queue": "fast", "size": 2}, f"'train' was begun by run {first.id} with size 3"),
    )
    for number, (more, text) in enumerate(wrong):
        with pytest.raises(Refusal, match=text):
            site.submit(ANN, member(20 + number, **more))
    other = site.submit(BOB, member(2, queue="fast"))
    assert site.view(BOB, other.id).gang == c.GangView(name="train", size=3, runs=(other.id,))
    rest = [site.submit(ANN, member(n, queue="fast")) for n in (3, 4)]
    assert states(site, [first, *rest]) == ["granted"] * 3
    fourth = site.submit(ANN, member(5, queue="fast"))
    assert (fourth.state, fourth.gang) == ("waiting", c.GangView(name="train", size=3, runs=(fourth.id,)))


def test_a_gang_that_can_never_fit_is_refused(site: SiteLogic) -> None:
    """Each fits, their sum does, and all at once still cannot be placed: the last is refused with the numbers, and the
    others end with the same."""
    views = [site.submit(ANN, member(n, gpus=0.6, size=4)) for n in (1, 2, 3)]
    with pytest.raises(Refusal, match="at once; the nodes never have room for that"):
        site.submit(ANN, member(4, gpus=0.6, size=4))
    for ended in [site.view(ANN, view.id) for view in views]:
        assert (ended.state, ended.outcome) == ("ended", "refused")
        assert "at once" in ended.reason
    site.validate()


@pytest.mark.parametrize("size", [4, 9])
def test_a_member_with_which_a_gang_needs_more_than_there_is_is_refused(site: SiteLogic, size: int) -> None:
    """Whether it is the last or others are to come: it alone, and the others wait on for one that is smaller."""
    views = [site.submit(ANN, member(n, size=size)) for n in (1, 2, 3)]
    text = "with this run 4 members of gang 'train' need 4 GPUs at once, and host has 8 CPUs, 3 GPUs"
    with pytest.raises(Refusal, match=text):
        site.submit(ANN, member(4, size=size))
    assert states(site, views) == ["waiting"] * 3
    assert f"3 of {size} have come" in site.view(ANN, views[0].id).reason
    small = [site.submit(ANN, member(10 + n, gpus=0, size=size)) for n in range(size - 3)]
    assert states(site, [*views, *small]) == ["granted"] * size


def test_a_gang_may_need_all_that_its_hosts_have_together(site: SiteLogic) -> None:
    """What there is counts for each host by itself."""
    Far(site).look()
    views = [site.submit(ANN, member(n, size=4)) for n in (1, 2, 3)]
    with pytest.raises(Refusal, match="need 4 GPUs at once"):
        site.submit(ANN, member(4, size=4))
    views.append(site.submit(FAR_ANN, member(5, size=4)))
    assert states(site, views) == ["granted"] * 4


def test_one_that_is_held_or_waits_for_another_run_keeps_the_others(site: SiteLogic) -> None:
    """And they say for what it waits. When it might start, all do; when it never will, all end."""
    before = start(site, 9)
    views = [
        site.submit(ANN, member(1)),
        site.submit(ANN, member(2, hold=True)),
        site.submit(ANN, member(3, after=[{"run": before.id}])),
    ]
    told = [site.view(ANN, view.id) for view in views]
    assert [view.kind for view in told] == ["gang", "paused", "dependency"]
    assert f"of which run {views[1].id} (job2) is held until `egs resume {views[1].id}`" in told[0].reason
    site.control(ANN, views[1].id, "resume", c.Control())
    assert f"of which run {views[2].id} (job3) waits for run {before.id}" in site.view(ANN, views[0].id).reason
    end(site, before)
    assert states(site, views) == ["granted"] * 3
    for view in views:
        end(site, claimed(site, site.view(ANN, view.id)))
    bad = start(site, 10)
    again = [site.submit(ANN, member(11, size=2)), site.submit(ANN, member(12, size=2, after=[{"run": bad.id}]))]
    end(site, bad, code=1)
    assert states(site, again) == ["ended"] * 2
    assert f"run {again[1].id} (job12) of its gang has ended: aborted" in site.view(ANN, again[0].id).reason


def test_a_gang_that_would_wait_for_itself_is_refused(site: SiteLogic) -> None:
    """Directly, and through a run and another gang between."""
    first = site.submit(ANN, member(1, size=2))
    between = [
        site.submit(ANN, member(2, size=2, name="other", after=[{"run": first.id}])),
        site.submit(ANN, member(3, size=2, name="other")),
    ]
    for after in (first.id, between[1].id):
        with pytest.raises(Refusal, match="of which this run is to be: neither would ever start"):
            site.submit(ANN, member(4, size=2, after=[{"run": after}]))
    site.validate()


def test_a_pause_of_one_holds_all(site: SiteLogic) -> None:
    """While they wait in the queue."""
    busy = start(site, 9)
    views = whole(site)
    site.control(ANN, views[1].id, "pause", c.Control())
    end(site, busy)
    assert states(site, views) == ["waiting", "paused", "waiting"]
    assert f"still waits for {views[1].id} (job2)" in site.view(ANN, views[0].id).reason
    site.control(ANN, views[1].id, "resume", c.Control())
    assert states(site, views) == ["granted"] * 3


def test_what_is_not_claimed_is_taken_back_from_all(site: SiteLogic) -> None:
    """A supervisor stands still: no member has started, so all give back what they have, and get it again together.
    Where another has started its devices stay, as those of a command that stands still do, and it is said."""
    views = whole(site)
    site.at(SILENT_S + CLAIM_S + 1)
    for view in views[1:]:
        site.beat(ANN, view.id, c.Beat())
    lease = site.runs[views[0].id].lease
    assert lease is not None
    site.seen([Seen(views[0].id, lease.token, has_supervisor=True)])
    assert states(site, views) == ["waiting"] * 3
    with pytest.raises(Refusal, match="does not hold lease"):
        claimed(site, views[1])
    while states(site, views) != ["granted"] * 3:
        due = site.next_wakeup()
        assert due is not None
        site.at(due)
    now = [site.view(ANN, view.id) for view in views]
    claimed(site, now[1])
    site.at(site.now + SILENT_S + CLAIM_S + 1)
    assert now[0].lease is not None
    site.seen([Seen(now[0].id, now[0].lease.token, has_supervisor=True)])
    assert states(site, views) == ["granted", "running", "granted"]
    assert site.view(ANN, views[0].id).lost
    site.beat(ANN, views[0].id, c.Beat())
    assert not site.view(ANN, views[0].id).lost
    assert claimed(site, now[0]).state == "running"


def test_a_gang_is_evicted_as_a_whole_and_starts_again_together(site: SiteLogic) -> None:
    """Only one device is wanted: all three stop, also one that had not started yet, and wait until all may start."""
    views = whole(site, requeue=True)
    running = [claimed(site, view) for view in views[:2]]
    high = site.submit(ANN, request(9, 1, priority=5))
    assert states(site, views) == ["stopping", "stopping", "waiting"]
    for view in running:
        assert view.lease is not None
        site.end(ANN, view.id, c.End(token=view.lease.token, outcome="evicted", exit_code=143))
    assert states(site, [*views, high]) == ["waiting"] * 3 + ["granted"]
    end(site, claimed(site, site.view(ANN, high.id)))
    assert states(site, views) == ["granted"] * 3
    for view in views:
        assert end(site, claimed(site, site.view(ANN, view.id))).outcome == "succeeded"


def test_a_member_of_a_gang_can_be_changed_while_it_waits(site: SiteLogic) -> None:
    """The priority changes for all, what it holds for itself; and they still start together."""
    busy = start(site, 9)
    views = whole(site)
    site.update(ANN, views[1].id, c.Change(priority=7))
    assert [site.view(ANN, view.id).priority for view in views] == [7, 7, 7]
    site.update(ANN, views[0].id, c.Change(gpus=0.5))
    assert [site.view(ANN, view.id).gpus for view in views] == [0.5, 1, 1]
    with pytest.raises(Refusal, match="at once"):
        site.update(ANN, views[0].id, c.Change(gpus=2))
    assert states(site, views) == ["waiting"] * 3
    end(site, busy)
    assert states(site, views) == ["granted"] * 3


def test_check_tells_of_all_of_them(site: SiteLogic) -> None:
    """As if the others came now and were like it; nothing is asked for."""
    assert site.check(ANN, member(1)).state == "granted"
    start(site, 9, expected_s=100.0)
    view = site.check(ANN, member(1))
    assert (view.state, view.kind, view.starts_in_s) == ("waiting", "capacity", 100.0)
    assert [run.id for run in site.listed(ANN).runs] == ["1"]
    with pytest.raises(Refusal, match="at once"):
        site.check(ANN, member(1, gpus=2, size=2))


def test_no_gang_is_given_up_for_want_of_a_server() -> None:
    """The others could not come while none was there: they may for a while after its start."""
    store = MemoryStore()
    turns = Turns(store, OFFER, clock=lambda: 5.0)
    turns.take([lambda logic: logic.submit(ANN, member(1, size=2))])
    again = Turns(store, OFFER, clock=lambda: 5000.0).logic
    again.at(again.now + 29.0)
    assert again.view(ANN, "1").state == "waiting"
    assert again.next_wakeup() == 5030.0
    again.at(again.now + 2.0)
    assert again.view(ANN, "1").outcome == "aborted"


def test_a_gang_is_not_starved_by_what_is_smaller(site: SiteLogic) -> None:
    """Single runs come without end, and take each device that comes free; after a while none does, until it starts."""
    running = [start(site, n) for n in (1, 2, 3)]
    views = whole(site, first=10)
    for number in range(20, 60):
        site.at(site.now + 1.0)
        end(site, running.pop(0))
        site.submit(ANN, request(number))
        granted = [run for run in site.open_runs() if run.lease is not None and not run.is_claimed]
        running += [claimed(site, site.view(ANN, run.id)) for run in granted]
        if site.runs[views[0].id].is_claimed:
            break
    assert states(site, views) == ["running"] * 3


def test_gangs_are_known_after_a_restart() -> None:
    """A server that starts again with what is durable: one gang runs, one waits, of one some are still to come."""
    store = MemoryStore()
    turns = Turns(store, OFFER, clock=lambda: 5.0)
    asked = [
        *(member(n, size=2, name="runs") for n in (1, 2)),
        *(member(n, size=2, name="waits") for n in (3, 4)),
        member(5, size=2, name="comes"),
    ]
    answers, _ = turns.take([partial(SiteLogic.submit, who=ANN, ask=one) for one in asked])
    ids = [view.id for view in answers]
    turns.take([lambda logic: claimed(logic, logic.view(ANN, ids[0]))])
    store.compact(turns.logic.snapshot())
    again = Turns(store, OFFER, clock=lambda: 6.0).logic
    again.validate()
    assert [again.view(ANN, one).state for one in ids] == ["running", "granted", "waiting", "waiting", "waiting"]
    assert msgspec.structs.asdict(again.runs[ids[4]]) == msgspec.structs.asdict(turns.logic.runs[ids[4]])
    again.control(ANN, ids[1], "abort", c.Control())
    assert again.view(ANN, ids[0]).state == "stopping"
    end(again, again.view(ANN, ids[0]), code=1)
    assert [again.view(ANN, one).state for one in ids[2:4]] == ["granted"] * 2
    again.submit(ANN, member(6, size=2, name="comes"))
    for one in ids[2:4]:
        end(again, claimed(again, again.view(ANN, one)))
    assert again.view(ANN, ids[4]).state == "granted"
    again.validate()


def test_each_knows_its_rank(site: SiteLogic) -> None:
    """By the order of their numbers, once all have come, and for good: also when another one has ended, and after a
    restart. Before that nobody has one."""
    first = site.submit(ANN, member(1))
    assert first.gang == c.GangView(name="train", size=3, runs=("1",))
    views = [site.view(ANN, one.id) for one in (first, site.submit(ANN, member(2)), site.submit(ANN, member(3)))]
    told = [view.gang for view in views if view.gang]
    assert [(one.rank, one.number, one.hosts) for one in told] == [(n, 1, ("host",) * 3) for n in range(3)]
    end(site, claimed(site, views[0]))
    again = SiteLogic(site.facts, Engine.restore(site.snapshot(), CONFIG), site.runs.values())
    again.offer(OFFER)
    for logic in (site, again):
        gang = logic.view(ANN, views[2].id).gang
        assert gang == c.GangView(name="train", size=3, runs=("2", "3"), number=1, rank=2, hosts=("host",) * 3)


def test_a_gang_may_be_on_several_hosts(site: SiteLogic) -> None:
    """Each member on the host where it was asked for; all or none, and the forecast is that of the last host."""
    Far(site).look()
    busy = start(site, 9, 2, who=FAR_ANN, expected_s=100.0)
    views = [site.submit(ANN, member(1)), site.submit(FAR_ANN, member(2)), site.submit(FAR_ANN, member(3))]
    assert states(site, views) == ["waiting"] * 3
    assert [view.starts_in_s for view in site.queue(ANN).runs] == [100.0] * 3
    end(site, busy, who=FAR_ANN)
    assert states(site, views) == ["granted"] * 3
    told = [site.view(ANN, view.id).lease for view in views]
    assert [lease.devices for lease in told if lease] == [("0",), ("far-0",), ("far-1",)]
    gangs = [site.view(ANN, view.id).gang for view in views]
    assert {gang.hosts for gang in gangs if gang} == {("host", "far", "far")}


def test_a_gang_from_before_the_first_host_joined(site: SiteLogic) -> None:
    """It was granted, and is not claimed: what is taken back from it waits for devices of its own host, together."""
    views = whole(site)
    far = Far(site, gpus=4)
    site.at(SILENT_S + CLAIM_S + 1)
    far.look()
    lease = site.runs[views[0].id].lease
    assert lease is not None
    site.seen([Seen(views[0].id, lease.token, has_supervisor=True)])
    while states(site, views) != ["granted"] * 3:
        due = site.next_wakeup()
        assert due is not None
        site.at(due)
        far.look()
    told = [site.view(ANN, view.id).lease for view in views]
    assert sorted(lease.devices for lease in told if lease) == [("0",), ("1",), ("2",)]
