"""GPU requests: GPUs for a while, held by the site, in which commands run. No clock, no network, no process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from egs_core.client import messages as c
from egs_core.client import requests as q
from egs_core.engine import Engine
from egs_core.server import requests
from egs_core.server.book import CONFIG
from egs_core.server.devices import working
from egs_core.server.logic import CLAIM_S, SILENT_S, Seen, SiteLogic
from egs_core.server.principals import Principal
from egs_core.server.runs import Refusal, SiteFacts
from egs_core.server.writer import Turns
from tests.unit.server.site_steps import ANN, BOB, ROOT, end, request, start
from tests.unit.server.site_world import OFFER, MemoryStore


@pytest.fixture
def site() -> SiteLogic:
    """Three devices, nothing on them."""
    logic = SiteLogic(SiteFacts("site", 1000.0), Engine(CONFIG))
    logic.offer(OFFER)
    return logic


def ask(site: SiteLogic, number: int, gpus: float = 2, who: Principal = ANN, **more: object) -> q.RequestView:
    fields = {"key": f"request-{number:04}", "gpus": gpus, "for_s": 1000.0, "name": f"lab{number}", **more}
    return requests.ask_for(site.book, who, q.GpuRequest.model_validate(fields))


def shown(site: SiteLogic, number: str) -> q.RequestView:
    return requests.view(site.book, ROOT, number)


def pass_time(site: SiteLogic, seconds: float) -> None:
    site.at(site.now + seconds)
    site.take()


def refused(what: Callable[[], object]) -> Refusal:
    with pytest.raises(Refusal) as found:
        what()
    return found.value


def test_commands_share_the_requests_gpus(site: SiteLogic) -> None:
    """Two at once, each with a token of its own and the same devices, which count as held once: by the request."""
    lab = ask(site, 1)
    assert (lab.state, lab.devices, lab.place) == ("ready", ("0", "1"), None)
    one, two = (start(site, number, 0, inside=lab.id) for number in (1, 2))
    assert one.lease is not None
    assert two.lease is not None
    assert one.lease.devices == two.lease.devices == lab.devices
    assert one.lease.mark != two.lease.mark
    assert (shown(site, lab.id).state, shown(site, lab.id).commands) == ("in use", (one.id, two.id))
    assert [device.runs for device in site.listed(ANN).devices] == [(lab.id,), (lab.id,), ()]
    assert (end(site, one).outcome, end(site, two, code=3).exit_code) == ("succeeded", 3)
    pass_time(site, 5)
    assert (shown(site, lab.id).state, shown(site, lab.id).idle_s) == ("idle", 5.0)
    site.validate()


def test_a_request_waits_like_a_run(site: SiteLogic) -> None:
    """It says its place and when it should begin; a command in it waits for it, and both start when there is room."""
    hog = start(site, 1, 2, expected_s=60.0)
    lab, next_one = ask(site, 1), ask(site, 2)
    assert (lab.state, lab.place, lab.starts_in_s) == ("queued", 1, 60.0)
    assert (next_one.place, next_one.starts_in_s) == (2, 1060.0)
    assert "GPUs are held by" in lab.reason
    waiting = site.submit(ANN, request(2, 0, inside=lab.id))
    assert (waiting.state, waiting.starts_in_s) == ("waiting", 60.0)
    assert waiting.reason.startswith(f"request {lab.id} (lab1): needs 2 GPUs")
    end(site, hog)
    site.take()
    assert site.view(ANN, waiting.id).state == "granted"
    assert shown(site, lab.id).started_at == 1000.0 + site.now
    assert [view.id for view in site.queue(ANN).runs] == [next_one.id]
    site.validate()


def test_its_end_is_announced_and_ends_its_commands(site: SiteLogic) -> None:
    """Soon before its time is over its commands are told; then they have to stop, and only when the last one is gone
    its devices are given on. What was in it when its time was over has succeeded, like what a time box ends."""
    lab = ask(site, 1, gpus=3)
    command = start(site, 1, 0, inside=lab.id)
    held = site.submit(ANN, request(2, 0, inside=lab.id, hold=True))
    after = site.submit(ANN, request(3, 3))
    pass_time(site, 899)
    assert site.view(ANN, command.id).ends_at is None
    assert site.next_wakeup() == 900.0
    pass_time(site, 1)
    assert (shown(site, lab.id).state, site.view(ANN, command.id).ends_at) == ("expiring", 2000.0)
    pass_time(site, 100)
    assert shown(site, lab.id).state == "stopping"
    told = site.view(ANN, command.id)
    assert (told.state, told.stop, told.grace_s) == (
        "stopping",
        f"request {lab.id} (lab1) ends: over its limit of 1000 s",
        CONFIG.grace_s,
    )
    assert site.view(ANN, held.id).outcome == "aborted"
    pass_time(site, 5000)
    assert site.view(ANN, after.id).state == "waiting"
    end(site, command, code=143)
    site.take()
    assert [site.view(ANN, run).outcome for run in (command.id, lab.id)] == ["succeeded", "succeeded"]
    assert site.view(ANN, after.id).state == "granted"
    assert refused(lambda: site.submit(ANN, request(4, 0, inside=lab.id))).status == 409
    site.validate()


def test_its_devices_are_kept_while_a_process_of_a_dead_command_lives(site: SiteLogic) -> None:
    """The supervisor of a command was killed: the request ends when its processes are gone, and not before."""
    lab = ask(site, 1)
    command = start(site, 1, 0, inside=lab.id)
    assert command.lease is not None
    requests.release(site.book, ANN, lab.id, c.Control())
    for _ in range(3):
        site.seen([Seen(command.id, command.lease.token, has_supervisor=False, living=(77,))])
        site.take()
    assert shown(site, lab.id).state == "stopping"
    assert [watch.run for watch in site.watched()] == [command.id]
    assert [watch.run for watch in site.holders()["0"]] == [command.id]
    for _ in range(2):
        site.seen([Seen(command.id, command.lease.token, has_supervisor=False)])
    site.take()
    assert (site.view(ANN, command.id).outcome, shown(site, lab.id).state) == ("lost", "ended")
    assert [device.state for device in site.listed(ANN).devices] == ["free"] * 3
    site.validate()


def test_it_is_extended_within_bounds(site: SiteLogic) -> None:
    """Its end and the warning move, and forecasts with them; seven days in all are the most, and not what waits."""
    lab, waiting = ask(site, 1, gpus=3), ask(site, 2)
    command = start(site, 1, 0, inside=lab.id)
    pass_time(site, 950)
    assert site.view(ANN, command.id).ends_at is not None
    assert requests.extend(site.book, ANN, lab.id, q.Extend(more_s=1000.0)).ends_at == 3000.0
    assert site.view(ANN, command.id).ends_at is None
    assert shown(site, waiting.id).starts_in_s == 1050.0
    pass_time(site, 1000)
    assert shown(site, lab.id).state == "expiring"
    assert refused(lambda: requests.extend(site.book, ANN, waiting.id, q.Extend(more_s=1.0))).status == 409
    too_long = refused(lambda: requests.extend(site.book, ANN, lab.id, q.Extend(more_s=6.99 * 86400)))
    assert (too_long.status, "7 days" in str(too_long)) == (422, True)
    assert refused(lambda: site.update(ANN, lab.id, c.Change(for_s=8 * 86400.0))).status == 422
    assert refused(lambda: ask(site, 3, for_s=8 * 86400.0)).status == 422
    pass_time(site, 50)
    assert refused(lambda: requests.extend(site.book, ANN, lab.id, q.Extend(more_s=9.0))).status == 409
    site.validate()


def test_an_idle_request_ends(site: SiteLogic) -> None:
    """No command in it and no work of its GPUs for so long; a command that runs, and measured work, each count. The
    server measures only where that can make a difference."""
    lab, forever = ask(site, 1, gpus=1, idle_timeout_s=60.0), ask(site, 2, gpus=1)
    command = start(site, 1, 0, inside=lab.id)
    assert requests.measured(site.book) == {}
    pass_time(site, 500)
    assert shown(site, lab.id).state == "in use"
    end(site, command)
    pass_time(site, 59)
    assert (requests.measured(site.book), site.next_wakeup()) == ({"0": lab.id}, 560.0)
    requests.worked(site.book, [lab.id])
    pass_time(site, 59)
    assert shown(site, lab.id).idle_s == 59.0
    pass_time(site, 1)
    ended = shown(site, lab.id)
    assert (ended.state, ended.outcome) == ("ended", "succeeded")
    assert ended.reason == "idle for 60 s: no command was in it, and no work of its GPUs was seen"
    assert shown(site, forever.id).state == "ready"
    site.validate()


def test_work_is_what_nvml_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a GPU that cannot tell it is taken for work: nothing ends because nobody knows. NVML is played."""

    class NotSupported(Exception):
        pass

    def rates(handle: str) -> SimpleNamespace:
        if handle == "GPU-mute":
            raise NotSupported
        return SimpleNamespace(gpu={"GPU-busy": 40, "GPU-idle": 0}[handle])

    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda one: one,
        nvmlDeviceGetUtilizationRates=rates,
        NVMLError_NotSupported=NotSupported,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert working(["GPU-busy", "GPU-idle", "GPU-mute"]) == ["GPU-busy", "GPU-mute"]


@pytest.mark.parametrize("state", ["queued", "held"])
@pytest.mark.parametrize("verb", ["release", "abort"])
def test_an_early_end(site: SiteLogic, state: str, verb: str) -> None:
    """Wherever it is; what waits in it ends too. A release of what was held is a success, and nothing else is."""
    hog = start(site, 9, 2) if state == "queued" else None
    lab = ask(site, 1)
    waiting = site.submit(ANN, request(1, 0, inside=lab.id, hold=True))
    if verb == "release":
        requests.release(site.book, ANN, lab.id, c.Control(reason="done"))
    else:
        site.control(ANN, lab.id, "abort", c.Control())
    site.take()
    outcome = {"release": "released" if hog else "succeeded", "abort": "aborted"}[verb]
    assert (shown(site, lab.id).state, shown(site, lab.id).outcome) == ("ended", outcome)
    assert site.view(ANN, waiting.id).outcome == "aborted"
    assert refused(lambda: requests.release(site.book, ANN, lab.id, c.Control())).status == 409
    assert site.book.commands == {}
    site.validate()


def test_a_command_in_a_request_is_a_run_like_others(site: SiteLogic) -> None:
    """It may be aborted, have a time box of its own, wait for others, and its grant is taken back when it is silent;
    what is the request's is not its own to change."""
    lab = ask(site, 1)
    first = start(site, 1, 0, inside=lab.id, for_s=50.0)
    second = site.submit(ANN, request(2, 0, inside=lab.id, after=({"run": first.id},)))
    assert second.state == "waiting"
    assert refused(lambda: site.update(ANN, first.id, c.Change(priority=3))).status == 409
    assert refused(lambda: site.update(ANN, second.id, c.Change(gpus=1))).status == 409
    pass_time(site, 51)
    assert site.view(ANN, first.id).stop == "over its limit of 50 s"
    end(site, first, code=143)
    site.take()
    granted = site.view(ANN, second.id).lease
    assert granted is not None
    pass_time(site, CLAIM_S + SILENT_S + 1)
    site.seen([Seen(second.id, granted.token, has_supervisor=True)])
    site.take()
    again = site.view(ANN, second.id).lease
    assert again is not None
    assert again.token > granted.token
    assert refused(lambda: site.claim(ANN, second.id, c.Claim(token=granted.token))).status == 409
    running = site.claim(ANN, second.id, c.Claim(token=again.token))
    site.control(ANN, second.id, "abort", c.Control())
    assert site.view(ANN, second.id).state == "stopping"
    assert end(site, running, code=143).outcome == "aborted"
    assert shown(site, lab.id).state == "idle"
    site.validate()


@pytest.mark.parametrize("field", [{"gpus": 1}, {"cpus": 2.0}, {"queue": "q"}, {"priority": 1}, {"deadline_s": 9.0}])
def test_what_is_the_requests_is_not_asked_for_again(site: SiteLogic, field: dict[str, object]) -> None:
    lab = ask(site, 1)
    found = refused(lambda: site.submit(ANN, request(1, **{"gpus": 0, "inside": lab.id, **field})))  # type: ignore[arg-type]  # any field
    assert (found.status, str(found).startswith(next(iter(field)))) == (422, True)


def test_whose_a_request_is(site: SiteLogic) -> None:
    """Others see it where they are of its team, and leave it alone: nothing runs in it but by its user and operators.
    To other teams it is not there."""
    vision, other = Principal("ann", teams=("vision",)), Principal("bob", teams=("vision",))
    stranger, viewer = Principal("carl", "operator", ("speech",)), Principal("v", "viewer", ("vision",))
    lab = ask(site, 1, who=vision)
    assert requests.view(site.book, other, lab.id).user == "ann"
    assert [one.id for one in requests.listed(site.book, viewer).requests] == [lab.id]
    assert requests.listed(site.book, stranger).requests == ()
    verbs: tuple[Callable[[Principal], object], ...] = (
        lambda who: requests.extend(site.book, who, lab.id, q.Extend(more_s=1.0)),
        lambda who: requests.release(site.book, who, lab.id, c.Control()),
        lambda who: site.submit(who, request(5, 0, inside=lab.id)),
        lambda who: site.control(who, lab.id, "abort", c.Control()),
    )
    assert {refused(lambda verb=verb: verb(other)).status for verb in verbs} == {403}  # type: ignore[misc]  # one each
    assert {refused(lambda verb=verb: verb(stranger)).status for verb in verbs} == {404}  # type: ignore[misc]  # one each
    assert refused(lambda: ask(site, 2, who=viewer)).status == 403
    agent = Principal("host", "agent")
    assert refused(lambda: requests.listed(site.book, agent)).status == 403
    assert refused(lambda: requests.view(site.book, agent, lab.id)).status == 403
    for verb, told in (("claim", c.Claim(token=1)), ("end", c.End(token=1, outcome="failed", exit_code=1))):
        assert refused(lambda verb=verb, told=told: getattr(site, verb)(vision, lab.id, told)).status == 409  # type: ignore[misc]  # one each
    assert refused(lambda: site.submit(BOB, request(7, 0, inside=start(site, 6, 1, BOB).id))).status == 422
    assert shown(site, lab.id).state == "ready"


def test_a_restart_keeps_it() -> None:
    """A server that is started again has the request, its devices, its end and its commands; its idle time begins anew.
    A repeated request is the same one."""
    store, now = MemoryStore(), [0.0]
    fields = {"key": "request-0001", "gpus": 2, "for_s": 1000.0, "idle_timeout_s": 50.0}
    wanted = q.GpuRequest.model_validate(fields)

    def served() -> Turns:
        return Turns(store, OFFER, clock=lambda: now[0])

    turns = served()
    (lab,), _ = turns.take([lambda logic: requests.ask_for(logic.book, ANN, wanted)])
    (command,), _ = turns.take([lambda logic: start(logic, 1, 0, inside=lab.id)])
    now[0] = 300.0
    turns = served()
    (again, kept), _ = turns.take(
        [lambda logic: requests.ask_for(logic.book, ANN, wanted), lambda logic: logic.view(ANN, command.id)]
    )
    assert (again.id, again.state, again.ends_at, again.devices) == (lab.id, "in use", 1000.0, lab.devices)
    assert kept.lease == command.lease
    turns.take([lambda logic: end(logic, command)])
    now[0] = 349.0
    turns.take([])
    now[0] = 900.0
    turns = served()
    assert shown(turns.logic, lab.id).idle_s == 0.0
    now[0] = 2000.0
    turns.take([])
    assert shown(turns.logic, lab.id).state == "ended"
    turns.logic.validate()


def evicted(site: SiteLogic, view: c.RunView) -> c.RunView:
    """Its supervisor has stopped it."""
    assert view.lease is not None
    return site.end(ANN, view.id, c.End(token=view.lease.token, outcome="evicted", exit_code=143))


def test_one_that_said_so_is_evicted_and_begins_again(site: SiteLogic) -> None:
    """Its commands are told to stop; when none has a lease its GPUs go to whom they are for, and it waits again, with a
    new time box. Of the commands one that said so starts again in it, one that did not has ended, and what waited waits
    on. One that did not say so is left alone, and takes no command that would."""
    lab = ask(site, 1, gpus=3, requeue=True)
    again, once = start(site, 1, 0, inside=lab.id, requeue=True), start(site, 2, 0, inside=lab.id)
    held = site.submit(ANN, request(3, 0, inside=lab.id, hold=True))
    pass_time(site, 950)
    assert site.view(ANN, again.id).ends_at is not None
    high = site.submit(ANN, request(4, 3, priority=5))
    site.take()
    stopping = shown(site, lab.id)
    assert (stopping.state, stopping.stop.startswith("preempted for ")) == ("stopping", True)
    told = [site.view(ANN, one.id) for one in (again, once)]
    assert [(one.state, one.requeue) for one in told] == [("stopping", True), ("stopping", False)]
    assert told[0].stop.startswith(f"request {lab.id} (lab1) is evicted: preempted for ")
    end(site, once, code=143)
    site.take()
    assert site.view(ANN, high.id).state == "waiting"
    assert evicted(site, again).state == "waiting"
    site.take()
    queued = shown(site, lab.id)
    assert (queued.state, queued.evictions, queued.ends_at, queued.commands) == ("queued", 1, None, (again.id, held.id))
    assert [site.view(ANN, one.id).outcome for one in (once, held)] == ["aborted", ""]
    lease = site.view(ANN, high.id).lease
    assert lease is not None
    running = site.claim(ANN, high.id, c.Claim(token=lease.token))
    site.validate()
    pass_time(site, 500)
    end(site, running)
    site.take()
    assert (shown(site, lab.id).state, shown(site, lab.id).ends_at) == ("in use", 1000.0 + site.now + 1000.0)
    second = site.view(ANN, again.id).lease
    assert second is not None
    assert again.lease is not None
    assert second.token > again.lease.token
    assert site.view(ANN, again.id).ends_at is None
    site.validate()
    requests.release(site.book, ANN, lab.id, c.Control())
    site.take()
    kept = ask(site, 2, gpus=3)
    assert refused(lambda: site.submit(ANN, request(6, 0, inside=kept.id, requeue=True))).status == 422
    site.submit(ANN, request(5, 1, priority=9))
    site.take()
    assert shown(site, kept.id).state == "ready"


@pytest.mark.parametrize("verb", ["release", "abort"])
def test_an_eviction_that_becomes_an_end(site: SiteLogic, verb: str) -> None:
    """Its user ends it while its commands stop: it does not come back, nor do they."""
    lab = ask(site, 1, gpus=3, requeue=True)
    command = start(site, 1, 0, inside=lab.id, requeue=True)
    high = site.submit(ANN, request(2, 3, priority=5))
    site.take()
    assert site.view(ANN, command.id).requeue
    if verb == "release":
        requests.release(site.book, ANN, lab.id, c.Control())
    else:
        site.control(ANN, lab.id, "abort", c.Control())
    site.take()
    assert not site.view(ANN, command.id).requeue
    evicted(site, command)  # its supervisor had heard of the eviction
    site.take()
    ended = shown(site, lab.id)
    assert (ended.state, ended.outcome) == ("ended", {"release": "succeeded", "abort": "aborted"}[verb])
    assert site.view(ANN, command.id).outcome == ended.outcome
    assert site.view(ANN, high.id).state == "granted"
    assert site.book.commands == {}
    site.validate()


def test_an_empty_one_is_evicted_at_once(site: SiteLogic) -> None:
    """No command is in it: what is more urgent does not wait for anything."""
    lab = ask(site, 1, gpus=3, requeue=True)
    high = site.submit(ANN, request(2, 3, priority=5))
    site.take()
    assert (site.view(ANN, high.id).state, shown(site, lab.id).state) == ("granted", "queued")
    site.validate()
