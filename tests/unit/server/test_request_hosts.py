"""GPU requests over several hosts, over a simulated clock: where they are, that they start together or not at all, what
runs in them on each host, and how the whole is extended, released, idle and lost. The logic is the shipped one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from egs_core.client import hosts as h
from egs_core.client import messages as c
from egs_core.client import requests as q
from egs_core.engine import Engine
from egs_core.engine.specs import UNLIMITED, QueueSpec
from egs_core.server import requests
from egs_core.server.book import CONFIG
from egs_core.server.hosts import SILENT_S
from egs_core.server.logic import SiteLogic
from egs_core.server.principals import Principal
from egs_core.server.runs import Refusal, SiteFacts
from egs_core.server.writer import Turns
from tests.unit.server.site_steps import end, start
from tests.unit.server.site_world import OFFER, MemoryStore
from tests.unit.server.test_hosts import ANN, FAR_ANN, OTHER, ROOT, Far, offer, request


@pytest.fixture
def site() -> SiteLogic:
    """Three devices of its own, two on `far`."""
    logic = SiteLogic(SiteFacts("site", 1000.0), Engine(CONFIG))
    logic.offer(OFFER)
    Far(logic).look()
    return logic


OWN = OFFER.host


def ask(site: SiteLogic, number: int = 1, who: Principal = ANN, **more: object) -> q.RequestView:
    fields = {"key": f"request-{number:04}", "gpus": 4, "hosts": 2, "for_s": 1000.0, "name": "lab", **more}
    return requests.ask_for(site.book, who, q.GpuRequest.model_validate(fields))


def shown(site: SiteLogic, number: str) -> q.RequestView:
    return requests.view(site.book, ROOT, number)


def pass_time(site: SiteLogic, seconds: float) -> None:
    """The agent of `far` is heard all the while."""
    site.book.hosts.heard["far"] = site.now + seconds
    site.at(site.now + seconds)
    site.take()


def begin(site: SiteLogic, who: Principal, number: int, inside: str) -> c.RunView:
    """A command that starts at once."""
    view = site.submit(who, request(number, 0, inside=inside))
    assert view.lease is not None
    return site.claim(who, view.id, c.Claim(token=view.lease.token))


def over(site: SiteLogic, who: Principal, view: c.RunView, code: int = 0) -> c.RunView:
    assert view.lease is not None
    outcome = "succeeded" if code == 0 else "failed"
    return site.end(who, view.id, c.End(token=view.lease.token, outcome=outcome, exit_code=code))


def refused(what: Callable[[], object]) -> Refusal:
    with pytest.raises(Refusal) as found:
        what()
    return found.value


def test_each_command_has_the_gpus_of_the_host_where_it_is_started(site: SiteLogic) -> None:
    """Two GPUs on each of two hosts, at once. A command has those of its host, and knows which host that is of how
    many; any of the parts' numbers means the whole request."""
    lab = ask(site)
    assert (lab.state, lab.gpus, [part.host for part in lab.parts]) == ("ready", 4.0, [OWN, "far"])
    assert [part.devices for part in lab.parts] == [("0", "1"), ("far-0", "far-1")]
    here, there = begin(site, ANN, 1, lab.id), begin(site, FAR_ANN, 2, lab.id)
    assert (here.lease and here.lease.devices, there.lease and there.lease.devices) == (("0", "1"), ("far-0", "far-1"))
    assert [(one.gang.rank, one.gang.size, one.gang.hosts) for one in (here, there) if one.gang] == [
        (0, 2, (OWN, "far")),
        (1, 2, (OWN, "far")),
    ]
    assert site.view(ROOT, there.id).reason == f"runs in request {lab.id} (lab)"
    assert over(site, ANN, here).outcome == "succeeded"
    assert [shown(site, part.id).state for part in lab.parts] == ["in use", "in use"]
    assert shown(site, lab.id).commands == (there.id,)
    assert over(site, FAR_ANN, there, code=3).exit_code == 3
    assert (shown(site, lab.id).state, [one.id for one in requests.listed(site.book, ROOT).requests]) == (
        "idle",
        [lab.id],
    )
    site.validate()


def test_it_starts_together_or_not_at_all(site: SiteLogic) -> None:
    """One of its hosts has no room: it holds nothing on the other, which goes to what is smaller, and says why."""
    hog = site.submit(FAR_ANN, request(1, 1))
    assert hog.lease is not None
    site.claim(FAR_ANN, hog.id, c.Claim(token=hog.lease.token))
    lab = ask(site)
    assert (lab.state, lab.place, [part.devices for part in lab.parts]) == ("queued", 1, [(), ()])
    assert lab.reason.startswith("starts on its 2 hosts together: needs 2 GPUs: far has 1 of 2 GPUs wholly free")
    assert lab.reason.endswith("GPUs are held by 1 (job1, ann)")
    assert [site.view(ANN, part.id).reason for part in lab.parts] == [lab.reason] * 2
    command = site.submit(ANN, request(2, 0, inside=lab.id))
    assert (command.state, command.lease) == ("waiting", None)
    end(site, start(site, 3, 3, ANN))
    over(site, FAR_ANN, site.view(FAR_ANN, hog.id))
    site.take()
    assert [len(part.devices) for part in shown(site, lab.id).parts] == [2, 2]
    assert site.view(ANN, command.id).state == "granted"
    site.validate()


def test_the_engine_keeps_its_parts_on_different_hosts(site: SiteLogic) -> None:
    """Whatever the server says of hosts: with room for both parts on one, the engine starts neither there, and the
    reason says that each is to have a host of its own."""
    hog = start(site, 1, 3, ANN)
    lab = ask(site, gpus=2)
    assert lab.state == "queued"
    parts = [site.runs[part.id] for part in lab.parts]
    options = [site.book.engine.state.options_of(part.task) for part in parts]
    assert [(one.gang != "", one.gang_apart) for one in options] == [(True, "node")] * 2
    site.book.rehost(parts, ("far", "far"))
    assert [(part.lease, part.outcome) for part in parts] == [(None, "refused")] * 2
    assert "each on a node of its own" in parts[0].why
    end(site, hog)
    site.validate()


def test_which_hosts(site: SiteLogic) -> None:
    """Those that have room now; those that are named; one alone that is not where it is asked for. What no host could
    ever have, and what is not shared evenly, is refused by its option, and nothing is left of it."""
    third = site.join_host(OTHER, offer("third", gpus=2))
    site.report(OTHER, h.Report(session=third.session, number=1))
    start(site, 1, 2)
    assert [part.host for part in ask(site).parts] == ["far", "third"]
    site.control(ROOT, "2", "abort", c.Control())
    named = ask(site, 2, gpus=2, hosts=None, on=["third", OWN])
    assert [(part.host, len(part.devices)) for part in named.parts] == [("third", 1), (OWN, 1)]
    alone = ask(site, 3, gpus=2, hosts=None, on=["far"])
    assert (alone.host, alone.parts, alone.devices) == ("far", (), ("far-0", "far-1"))
    before = list(site.runs)
    for words, told in (
        ({"gpus": 9, "hosts": 3}, "hosts: 1 host of the site can have 3 GPUs of it, and 3 are asked for"),
        (
            {"gpus": 3},
            "gpus: 3 cannot be as many whole ones on each of 2 hosts: it is the number for all of them together, as 4",
        ),
        ({"gpus": 0.5}, "gpus: 0.5 cannot be"),
        ({"on": ["far"]}, "hosts: 2 are asked for, and --on names 1"),
        ({"on": ["far", "far"]}, "on: a host is named twice"),
        ({"on": ["far", "none"]}, "on: there is no host 'none'; there are"),
        ({"gpus": 6, "on": ["far", OWN]}, "on host far"),
    ):
        assert told in str(refused(lambda words=words: ask(site, 9, **words))), words  # type: ignore[misc]  # one each
    assert list(site.runs) == before
    site.validate()


def test_a_joined_host_has_a_say_on_its_own_part_alone(site: SiteLogic) -> None:
    """Its root can be any of its users: it asks for GPUs of others as little as it ends what they have a part of. Users
    there run commands in it, and see it."""
    assert refused(lambda: ask(site, who=FAR_ANN)).status == 403
    assert refused(lambda: ask(site, who=FAR_ANN, hosts=None, on=[OWN])).status == 403
    own = ask(site, 2, who=FAR_ANN, gpus=1, hosts=1, on=["far"])
    assert requests.release(site.book, FAR_ANN, own.id, c.Control()).state in ("stopping", "ended")
    site.take()
    lab = ask(site)
    own_part, far_part = (part.id for part in lab.parts)
    more = q.Extend(more_s=1.0)
    for verb in (
        lambda: requests.release(site.book, FAR_ANN, own_part, c.Control()),
        lambda: requests.release(site.book, FAR_ANN, far_part, c.Control()),
        lambda: requests.extend(site.book, FAR_ANN, far_part, more),
        lambda: site.control(FAR_ANN, far_part, "abort", c.Control()),
        lambda: site.control(FAR_ANN, far_part, "pause", c.Control()),
        lambda: site.update(FAR_ANN, far_part, c.Change(for_s=9000.0)),
    ):
        assert refused(verb).status == 403
    assert requests.view(site.book, FAR_ANN, lab.id).state == "ready"
    third = Principal("ann", host="third")
    site.join_host(OTHER, offer("third"))
    text = str(refused(lambda: site.submit(third, request(5, 0, inside=lab.id))))
    assert text == f"request {lab.id} has no GPUs on host third: start it on {OWN}, far"


def test_it_is_extended_and_changed_as_a_whole(site: SiteLogic) -> None:
    """While it waits by `update`, which holds for all parts; when it has begun by `extend`: no part ends before."""
    hog = start(site, 1, 3)
    lab = ask(site)
    assert refused(lambda: requests.extend(site.book, ANN, lab.id, q.Extend(more_s=1.0))).status == 409
    assert "over several hosts" in str(refused(lambda: site.update(ANN, lab.id, c.Change(gpus=2))))
    site.update(ANN, lab.parts[1].id, c.Change(for_s=500.0, priority=3))
    assert [(run.for_s, run.priority) for run in (site.runs[part.id] for part in lab.parts)] == [(500.0, 3)] * 2
    end(site, hog)
    site.take()
    assert requests.extend(site.book, ANN, lab.parts[1].id, q.Extend(more_s=500.0)).ends_at == 2000.0
    pass_time(site, 899)
    assert shown(site, lab.id).state == "ready"
    pass_time(site, 1)
    assert shown(site, lab.id).state == "expiring"
    pass_time(site, 101)
    assert (shown(site, lab.id).state, shown(site, lab.id).outcome) == ("ended", "succeeded")
    site.validate()


def test_it_is_released_as_a_whole(site: SiteLogic) -> None:
    """The commands on all hosts are told to stop. A host whose commands have ended has its GPUs back; it has ended when
    none is left. One that waits is taken back."""
    lab = ask(site)
    there = begin(site, FAR_ANN, 2, lab.id)
    stopping = requests.release(site.book, ANN, lab.parts[1].id, c.Control(reason="done"))
    assert (stopping.state, stopping.outcome, stopping.stop) == ("stopping", "", "released by ann: done")
    assert [part.state for part in stopping.parts] == ["ended", "stopping"]
    assert site.view(ROOT, there.id).stop == f"request {lab.id} (lab) ends: released by ann: done"
    assert refused(lambda: requests.extend(site.book, ANN, lab.id, q.Extend(more_s=1.0))).status == 409
    over(site, FAR_ANN, there, code=143)
    site.take()
    assert (shown(site, lab.id).state, shown(site, lab.id).outcome) == ("ended", "succeeded")
    assert site.view(ROOT, there.id).outcome == "succeeded"
    start(site, 3, 3)
    waits = ask(site, 2)
    taken = requests.release(site.book, ANN, waits.id, c.Control())
    assert (taken.state, taken.outcome) == ("ended", "released")
    assert site.book.commands == {}
    site.validate()


def test_it_waits_for_a_host_that_is_away(site: SiteLogic) -> None:
    """Silent or drained, it is there again some day: what is asked for meanwhile waits and is not refused."""
    site.drain(ROOT, c.Drain(target="far"))
    lab = ask(site)
    site.drain(ROOT, c.Drain(target="far", drained=False))
    site.take()
    assert (lab.state, shown(site, lab.id).state) == ("queued", "ready")
    requests.release(site.book, ANN, lab.id, c.Control())
    site.at(site.now + SILENT_S + 1)
    assert ask(site, 2).state == "queued"
    pass_time(site, 0)


def test_egs_release_of_a_part_is_of_the_whole(site: SiteLogic) -> None:
    """Also where it is taken for a run, by the number of any part."""
    lab = ask(site)
    site.control(ANN, lab.parts[1].id, "release", c.Control())
    site.take()
    assert [site.view(ROOT, part.id).outcome for part in lab.parts] == ["succeeded", "succeeded"]


def test_it_is_idle_only_where_all_of_it_is(site: SiteLogic) -> None:
    """A command on one host keeps the GPUs of the other; when it has ended, all goes at once."""
    lab = ask(site, idle_timeout_s=60.0)
    there = begin(site, FAR_ANN, 2, lab.id)
    pass_time(site, 500)
    assert (shown(site, lab.id).state, shown(site, lab.id).idle_s) == ("in use", None)
    over(site, FAR_ANN, there)
    pass_time(site, 59)
    assert (shown(site, lab.id).idle_s, site.next_wakeup()) == (59.0, 560.0)
    pass_time(site, 1)
    assert (shown(site, lab.id).state, shown(site, lab.id).outcome) == ("ended", "succeeded")
    site.validate()


@pytest.mark.parametrize("how", ["abort", "forget"])
def test_what_ends_one_part_ends_all(site: SiteLogic, how: str) -> None:
    """`egs abort` of any part, or an operator says that a host is gone: the commands on the others are told why."""
    lab = ask(site)
    here = begin(site, ANN, 1, lab.id)
    if how == "abort":
        site.control(ANN, lab.parts[1].id, "abort", c.Control())
        site.take()
    else:
        site.at(site.now + SILENT_S + 1)
        assert shown(site, lab.id).state == "in use"
        site.forget_host(ROOT, "far")
        site.take()
    told = site.view(ANN, here.id).stop
    assert f"request {lab.id} (lab) ends: its gang has ended: run {lab.parts[1].id} (lab)" in told
    assert shown(site, lab.id).state == "stopping"
    over(site, ANN, here, code=143)
    site.take()
    ended = shown(site, lab.id)
    assert (ended.state, ended.outcome) == ("ended", {"abort": "aborted", "forget": "lost"}[how])
    assert site.book.commands == {}
    site.validate()


def test_a_restart_keeps_it() -> None:
    """A server that is started again has the parts and their commands; a repeated request is the same one."""
    store, now = MemoryStore(), [0.0]

    def served() -> Turns:
        return Turns(store, OFFER, clock=lambda: now[0])

    turns = served()
    Far(turns.logic).look()
    (lab,), _ = turns.take([lambda logic: ask(logic)])
    (command,), _ = turns.take([lambda logic: begin(logic, FAR_ANN, 1, lab.id)])
    now[0] = 300.0
    turns = served()
    (again, kept), _ = turns.take([lambda logic: ask(logic), lambda logic: logic.view(FAR_ANN, command.id)])
    assert (again.id, again.state, again.ends_at) == (lab.id, "in use", lab.ends_at)
    assert [part.devices for part in again.parts] == [part.devices for part in lab.parts]
    assert kept.state == "running"
    turns.logic.validate()


def test_it_is_evicted_as_a_whole(site: SiteLogic) -> None:
    """One host's GPUs are wanted for what goes first: both parts stop, wait, and begin again together."""
    lab = ask(site, requeue=True)
    there = site.submit(FAR_ANN, request(2, 0, inside=lab.id, requeue=True))
    assert there.lease is not None
    there = site.claim(FAR_ANN, there.id, c.Claim(token=there.lease.token))
    high = site.submit(ANN, request(3, 3, priority=5))
    site.take()
    assert shown(site, lab.id).state in ("stopping", "queued")
    assert site.view(ROOT, there.id).requeue
    assert there.lease is not None
    site.end(FAR_ANN, there.id, c.End(token=there.lease.token, outcome="evicted", exit_code=143))
    site.take()
    waits = shown(site, lab.id)
    assert (waits.state, waits.commands, [part.devices for part in waits.parts]) == ("queued", (there.id,), [(), ()])
    lease = site.view(ANN, high.id).lease
    assert lease is not None
    running = site.claim(ANN, high.id, c.Claim(token=lease.token))
    site.validate()
    over(site, ANN, running)
    site.take()
    assert [len(part.devices) for part in shown(site, lab.id).parts] == [2, 2]
    assert site.view(ROOT, there.id).state == "granted"
    site.validate()


def third_joins(site: SiteLogic, gpus: int = 2) -> None:
    session = site.join_host(OTHER, offer("third", gpus=gpus)).session
    site.report(OTHER, h.Report(session=session, number=1))
    site.take()


def test_what_waits_moves_to_where_it_starts(site: SiteLogic) -> None:
    """Its hosts were the site's choice: another one has room first, and it starts there; a repeated request is told so.
    Not where its hosts were named, nor away from a host where a command waits for it."""
    hog = site.submit(FAR_ANN, request(1, 2))
    assert hog.lease is not None
    site.claim(FAR_ANN, hog.id, c.Claim(token=hog.lease.token))
    named, kept = ask(site, 1, hosts=None, on=[OWN, "far"], gpus=2), ask(site, 2, gpus=2)
    command = site.submit(FAR_ANN, request(2, 0, inside=kept.id))
    lab = ask(site, 3, gpus=2)
    assert [[part.host for part in one.parts] for one in (named, kept, lab)] == [[OWN, "far"]] * 3
    third_joins(site)
    assert [(one.state, one.parts[1].host) for one in (shown(site, each.id) for each in (named, kept, lab))] == [
        ("queued", "far"),
        ("queued", "far"),
        ("ready", "third"),
    ]
    assert [part.devices for part in shown(site, lab.id).parts] == [("0",), ("third-0",)]
    assert site.runs[lab.id].gang.hosts == site.runs[lab.parts[1].id].gang.hosts == ("", "third")  # type: ignore[union-attr]  # they are of one
    assert ask(site, 3, gpus=2).parts[1].host == "third"
    site.validate()
    over(site, FAR_ANN, site.view(FAR_ANN, hog.id))
    site.take()
    assert [shown(site, one.id).state for one in (named, kept)] == ["ready", "in use"]
    assert site.view(ROOT, command.id).lease is not None
    site.validate()


def test_what_waits_leaves_a_host_that_is_forgotten(site: SiteLogic) -> None:
    """It was the site's choice: the part is for another host from now on, though that has no room yet. One whose hosts
    were named ends as lost."""
    third_joins(site)
    start(site, 1, 3)
    third = Principal("ann", host="third")
    hog = site.submit(third, request(2, 2))
    assert hog.lease is not None
    site.claim(third, hog.id, c.Claim(token=hog.lease.token))
    lab, named = ask(site, 1), ask(site, 2, hosts=None, on=[OWN, "far"])
    command = site.submit(FAR_ANN, request(3, 0, inside=lab.id))
    assert [part.host for part in lab.parts] == [OWN, "far"]
    site.at(site.now + SILENT_S + 1)
    site.forget_host(ROOT, "far")
    site.take()
    assert (shown(site, lab.id).state, [part.host for part in shown(site, lab.id).parts]) == ("queued", [OWN, "third"])
    assert (site.view(ROOT, command.id).outcome, shown(site, named.id).outcome) == ("lost", "lost")
    site.validate()
    third_joins(site)
    end(site, site.view(ANN, "1"))
    over(site, third, site.view(third, hog.id))
    site.take()
    assert [part.devices for part in shown(site, lab.id).parts] == [("0", "1"), ("third-0", "third-1")]
    site.validate()


def test_it_does_not_move_for_nothing(site: SiteLogic) -> None:
    """Another host has room, and it is kept by something else: it stays where it is, with its place."""
    queues = (QueueSpec("q", nominal=(UNLIMITED, 4000, UNLIMITED)),)
    site.offer(OFFER, queues)
    hog = site.submit(FAR_ANN, request(1, 2, queue="q"))
    assert hog.lease is not None
    site.claim(FAR_ANN, hog.id, c.Claim(token=hog.lease.token))
    lab = ask(site, queue="q")
    third_joins(site)
    assert [part.host for part in shown(site, lab.id).parts] == [OWN, "far"]
    assert [site.runs[part.id].changes for part in lab.parts] == [0, 0]
    assert (shown(site, lab.id).place, site.view(ANN, lab.id).kind) == (1, "quota")
    over(site, FAR_ANN, site.view(FAR_ANN, hog.id))
    site.take()
    assert shown(site, lab.id).state == "ready"
    site.validate()
