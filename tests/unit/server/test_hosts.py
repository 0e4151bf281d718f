"""Hosts that join, over a simulated clock: where runs start, quotas over all hosts, silence and return, who may speak
for a host. The logic and its recovery are the shipped ones."""

from __future__ import annotations

import pytest

from egs_core.client import hosts as h
from egs_core.client import messages as c
from egs_core.engine import Engine
from egs_core.engine.specs import UNLIMITED, QueueSpec
from egs_core.server.book import CONFIG
from egs_core.server.hosts import SILENT_S
from egs_core.server.joining import ANSWERS_S
from egs_core.server.logic import RETURN_S, SiteLogic
from egs_core.server.principals import Principal
from egs_core.server.runs import Device, Offer, Refusal, SiteFacts
from egs_core.server.writer import Turns
from tests.unit.server.site_world import GIB, OFFER, MemoryStore

ANN, FAR_ANN, ROOT = Principal("ann"), Principal("ann", host="far"), Principal("root", "admin")
AGENT, OTHER = Principal("far", "agent", host="far"), Principal("third", "agent", host="third")


def offer(host: str = "far", gpus: int = 2, **more: object) -> h.HostOffer:
    devices = [{"id": f"{host}-{n}", "memory_bytes": 40 * GIB} for n in range(gpus)]
    return h.HostOffer.model_validate({"host": host, "devices": devices, "cpus": 4, "memory_bytes": 1 << 36, **more})


def request(number: int, gpus: float = 1, **more: object) -> c.RunRequest:
    supervisor = c.Process(pid=number, started=number)
    fields = {"key": f"key-{number:04}", "supervisor": supervisor, "name": f"job{number}", "gpus": gpus, **more}
    return c.RunRequest.model_validate(fields)


class Far:
    """The agent of host `far`: its session, and what it says lives there."""

    def __init__(self, site: SiteLogic, gpus: int = 2) -> None:
        self.site = site
        self.session = site.join_host(AGENT, offer(gpus=gpus)).session
        self.number = 0
        self.living: dict[str, bool] = {}  # runs -> whether a process of theirs lives beside the supervisor

    def look(self, *gone: str) -> h.Watches:
        """gone: runs whose supervisor and processes are not there any more."""
        self.number += 1
        watches = self.site.report(AGENT, h.Report(session=self.session, number=0)).watches
        found = [h.Found(run=one.run, token=one.token, supervisor=one.run not in gone) for one in watches]
        return self.site.report(AGENT, h.Report(session=self.session, number=self.number, found=tuple(found)))


@pytest.fixture
def site() -> SiteLogic:
    """Three devices of its own."""
    logic = SiteLogic(SiteFacts("site", 1000.0), Engine(CONFIG))
    logic.offer(OFFER)
    return logic


def start(site: SiteLogic, number: int, who: Principal = FAR_ANN, gpus: float = 1, **more: object) -> c.RunView:
    view = site.submit(who, request(number, gpus, **more))
    assert view.lease is not None, view.reason
    return site.claim(who, view.id, c.Claim(token=view.lease.token))


def end(site: SiteLogic, view: c.RunView, who: Principal = FAR_ANN) -> None:
    assert view.lease is not None
    site.end(who, view.id, c.End(token=view.lease.token, outcome="succeeded", exit_code=0))


def later(site: SiteLogic, seconds: float) -> None:
    site.at(site.now + seconds)
    site.validate()


def refused(status: int, words: str, what: object) -> None:
    assert callable(what)
    with pytest.raises(Refusal, match=words) as found:
        what()
    assert found.value.status == status


def test_a_run_starts_on_its_own_host_and_nowhere_else(site: SiteLogic) -> None:
    """Each waits for its own host while the other has free devices; what is said of it names the host, and what no
    device of the host could do is refused, though another host could."""
    far = Far(site)
    far.look()
    there = start(site, 1, gpus=2)
    assert there.lease is not None
    assert (there.host, there.lease.devices) == ("far", ("far-0", "far-1"))
    waits = site.submit(FAR_ANN, request(2))
    assert waits.state == "waiting"
    assert "far has 0 of 2 GPUs wholly free" in waits.reason
    assert "1 (job1, ann)" in waits.reason
    here = start(site, 3, ANN, gpus=3)
    assert here.lease is not None
    assert (here.host, here.lease.devices) == ("host", ("0", "1", "2"))
    blocked = site.submit(ANN, request(4))
    refused(422, "on host far", lambda: site.submit(FAR_ANN, request(5, gpus=3)))
    refused(422, "GPU memory", lambda: site.submit(FAR_ANN, request(6, gpus=1, gpu_memory_bytes=60 * GIB)))
    end(site, there)
    assert (site.view(FAR_ANN, waits.id).state, site.view(ANN, blocked.id).state) == ("granted", "waiting")
    site.validate()


def test_when_it_starts_is_told_for_its_own_host(site: SiteLogic) -> None:
    """One host's queue of unknown length says nothing of the other's."""
    Far(site).look()
    start(site, 1, gpus=2, expected_s=60.0)
    start(site, 2, ANN, gpus=3)
    site.submit(ANN, request(3))
    assert site.submit(FAR_ANN, request(4)).starts_in_s == pytest.approx(60.0)
    assert site.view(ANN, "3").starts_in_s is None


def test_what_waits_when_the_first_host_joins_keeps_its_host_and_its_order(site: SiteLogic) -> None:
    """Also what was granted and not claimed, and is taken back after that."""
    held = site.submit(ANN, request(1, gpus=3))
    first, second = site.submit(ANN, request(2)), site.submit(ANN, request(3))
    Far(site, gpus=4).look()
    assert [view.id for view in site.queue(ROOT).runs] == [first.id, second.id]
    run = site.runs[held.id]
    assert run.lease is not None
    site.book.take_back(run, run.lease)
    later(site, 120)
    site.validate()
    assert {device.run for device in site.listed(ROOT).devices if device.host == "far"} == {""}
    assert {site.runs[view.id].host for view in (held, first, second)} == {""}


def test_a_quota_counts_over_all_hosts() -> None:
    """Two GPUs for the queue: one on each host uses it up, and what ends on one lets the other start."""
    site = SiteLogic(SiteFacts("site", 0.0), Engine(CONFIG))
    fixed = (UNLIMITED, 0, UNLIMITED)
    site.offer(OFFER, (QueueSpec("q", nominal=(UNLIMITED, 2000, UNLIMITED), borrowing_limit=fixed),))
    Far(site).look()
    there, here = start(site, 1, queue="q"), start(site, 2, ANN, queue="q")
    waits = site.submit(FAR_ANN, request(3, queue="q"))
    assert (waits.state, waits.kind) == ("waiting", "quota")
    end(site, here, ANN)
    assert site.view(ANN, waits.id).state == "granted"
    assert there.state == "running"
    site.validate()


def test_nothing_new_is_granted_on_a_silent_host_and_what_runs_goes_on(site: SiteLogic) -> None:
    """Before its first report, and when its agent is silent for longer than its time to live; leases stay for as long
    as that lasts. When it comes back, what is gone may tell its end for some seconds; then it ends after two looks, and
    what waits starts."""
    far = Far(site)
    assert site.submit(FAR_ANN, request(1)).state == "waiting"
    far.look()
    view = site.view(ANN, "1")
    assert view.lease is not None
    site.claim(FAR_ANN, "1", c.Claim(token=view.lease.token))
    later(site, SILENT_S + 1)
    waits = site.submit(FAR_ANN, request(2))
    assert "nothing is heard of the agent of host far" in waits.reason
    assert site.submit(FAR_ANN, request(3, gpus=0)).state == "waiting"
    later(site, 7 * 86400)
    assert site.view(ANN, "1").state == "running"
    assert [(one.state, one.suspect) for one in site.listed(ROOT).devices][3:] == [("held", True), ("suspect", True)]
    assert [one.state for one in site.listed_hosts(ROOT).hosts] == ["own", "silent"]
    for _ in range(3):
        far.look("1")
        assert (site.view(ANN, "1").state, site.view(ANN, "1").lost) == ("running", True)
    later(site, RETURN_S)
    far.look("1")
    assert site.view(ANN, "1").state == "running"
    far.look("1")
    assert site.view(ANN, "1").outcome == "lost"
    assert [site.view(ANN, one).state for one in ("2", "3")] == ["granted", "granted"]
    site.validate()


def test_a_report_counts_once(site: SiteLogic) -> None:
    """A repeated one is no second look; one of an agent whose place another has taken is refused; what an agent says of
    another host's runs changes nothing."""
    far = Far(site)
    far.look()
    view, own = start(site, 1), start(site, 2, ANN)
    assert view.lease is not None
    assert own.lease is not None
    gone = h.Found(run=view.id, token=view.lease.token, supervisor=False)
    foreign = h.Found(run=own.id, token=own.lease.token, supervisor=False)
    for number in (5, 5, 4):
        site.report(AGENT, h.Report(session=far.session, number=number, found=(gone, foreign)))
    assert site.view(ANN, view.id).state == "running"
    site.report(AGENT, h.Report(session=far.session, number=6, found=(gone, foreign)))
    assert (site.view(ANN, view.id).outcome, site.view(ANN, own.id).state) == ("lost", "running")
    later(site, ANSWERS_S + 1)
    Far(site)
    refused(410, "not joined by this agent", lambda: far.look())


def test_who_speaks_for_a_host(site: SiteLogic) -> None:
    """Its own agent alone, whose users speak for runs there alone; nobody but an operator of no team forgets it."""
    far = Far(site)
    far.look()
    there, here = start(site, 1), start(site, 2, ANN)
    refused(403, "for host third, not for far", lambda: site.join_host(OTHER, offer()))
    refused(403, "needs the role agent", lambda: site.join_host(FAR_ANN, offer()))
    refused(409, "server's own host", lambda: site.join_host(Principal("host", "agent", host="host"), offer("host")))
    refused(410, "not joined", lambda: site.report(OTHER, h.Report(session=far.session, number=9)))
    refused(409, "answers already", lambda: site.join_host(AGENT, offer()))
    for who, run in ((FAR_ANN, here), (ANN, there)):
        assert run.lease is not None
        claim, beat = c.Claim(token=run.lease.token), c.Beat(token=run.lease.token)
        told = c.End(token=run.lease.token, outcome="succeeded", exit_code=0)
        refused(403, "is on host", lambda who=who, run=run, claim=claim: site.claim(who, run.id, claim))
        refused(403, "is on host", lambda who=who, run=run, beat=beat: site.beat(who, run.id, beat))
        refused(403, "is on host", lambda who=who, run=run, told=told: site.end(who, run.id, told))
    refused(403, "change it there", lambda: site.control(FAR_ANN, here.id, "abort", c.Control()))
    assert site.control(ANN, there.id, "abort", c.Control()).state == "stopping"
    refused(403, "role operator or admin", lambda: site.forget_host(ANN, "far"))
    refused(403, "bound to no team", lambda: site.forget_host(Principal("op", "operator", ("vision",)), "far"))
    refused(409, "answers: end it first", lambda: site.forget_host(ROOT, "far"))


def test_a_forgotten_host_is_gone_with_its_runs_and_may_join_again(site: SiteLogic) -> None:
    """Its runs end as lost, what waits there too; its devices leave the site, and its old agent is told."""
    far = Far(site)
    far.look()
    runs, waits = start(site, 1, gpus=2), site.submit(FAR_ANN, request(2))
    later(site, SILENT_S + 1)
    assert [one.state for one in site.forget_host(ROOT, "far").hosts] == ["own", "forgotten"]
    assert [site.view(ANN, one.id).outcome for one in (runs, waits)] == ["lost", "lost"]
    assert {one.host for one in site.listed(ROOT).devices} == {"host"}
    refused(410, "not joined", lambda: far.look())
    refused(409, "has not joined", lambda: site.submit(FAR_ANN, request(3)))
    site.validate()
    Far(site, gpus=1).look()
    assert start(site, 4).host == "far"
    site.validate()


def test_devices_stay_as_they_are_while_one_is_held(site: SiteLogic) -> None:
    far = Far(site)
    far.look()
    view = start(site, 1)
    later(site, ANSWERS_S + 1)
    refused(409, "start with the same devices", lambda: site.join_host(AGENT, offer(gpus=3)))
    far = Far(site)
    far.look()
    assert site.view(ANN, view.id).state == "running"
    end(site, view)
    later(site, ANSWERS_S + 1)
    assert site.join_host(AGENT, offer(gpus=3)).session == far.session + 1
    site.validate()


def test_a_drain_of_a_joined_host(site: SiteLogic) -> None:
    """By its name, or HOST/GPU; it stays over the agent's restart. A name that several hosts have is refused."""
    far = Far(site)
    far.look()
    site.drain(ROOT, c.Drain(target="far/far-1"))
    site.drain(ROOT, c.Drain(target="far-0"))
    assert site.submit(FAR_ANN, request(1)).state == "waiting"
    assert start(site, 2, ANN).host == "host"
    later(site, ANSWERS_S + 1)
    Far(site).look()
    assert [one.drained for one in site.listed(ROOT).devices] == [False] * 3 + [True] * 2
    site.drain(ROOT, c.Drain(target="far", drained=False))
    assert site.view(ANN, "1").state == "granted"
    site.join_host(OTHER, h.HostOffer(host="third", devices=(h.OfferedDevice(id="0"),)))
    refused(409, "host/0 or third/0", lambda: site.drain(ROOT, c.Drain(target="0")))
    site.validate()


def test_occupied_devices_of_a_joined_host(site: SiteLogic) -> None:
    session = site.join_host(AGENT, offer(watched=True)).session
    taken = h.Occupied(device="far-0", processes=(4711,))
    site.report(AGENT, h.Report(session=session, number=1, occupied=(taken,)))
    view = start(site, 1)
    assert view.lease is not None
    assert view.lease.devices == ("far-1",)
    assert (
        "occupied by processes that this server did not start: far-0 by 4711" in site.submit(FAR_ANN, request(2)).reason
    )
    site.report(AGENT, h.Report(session=session, number=2))
    assert site.view(ANN, "2").state == "granted"


def test_the_servers_restart_loses_nothing() -> None:
    """Hosts, their leases and sessions are in the store. After it, nothing new is granted there before a report."""
    store, now = MemoryStore(), [0.0]

    def server() -> Turns:
        return Turns(store, Offer("host", (Device("0"),), 8.0, 1 << 40), clock=lambda: now[0])

    turns = server()
    (joined,), _ = turns.take([lambda logic: logic.join_host(AGENT, offer())])
    report = h.Report(session=joined.session, number=1)
    turns.take([lambda logic: logic.report(AGENT, report), lambda logic: start(logic, 1)])
    turns = server()
    turns.logic.validate()
    run = turns.logic.view(ANN, "1")
    assert run.lease is not None
    assert (run.host, run.state, run.lease.devices) == ("far", "running", ("far-0",))
    (waits,), _ = turns.take([lambda logic: logic.submit(FAR_ANN, request(2))])
    assert waits.state == "waiting"
    turns.take([lambda logic: logic.report(AGENT, report)])
    assert turns.logic.view(ANN, "2").state == "granted"
    turns.logic.validate()
