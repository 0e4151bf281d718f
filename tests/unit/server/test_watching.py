"""What rules make of what is measured: conditions, hysteresis, steps, the bound of an hour. No clock, network, process.

The property test runs a site with rules that only say what they would do beside one without any."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egs_core.client import hosts as h
from egs_core.client import messages as c
from egs_core.client.watching import DeviceHealth
from egs_core.server.book import CONFIG, Book, LogLine
from egs_core.server.hosts import SILENT_S
from egs_core.server.logic import SiteLogic
from egs_core.server.principals import Principal
from egs_core.server.runs import Refusal
from egs_core.server.store import StoreError
from egs_core.server.watching.rules import Alert, SiteRules
from egs_core.server.watching.watcher import Watcher
from egs_core.server.writer import Turns, Unavailable
from egs_core.watch_rules import parse_rules
from tests.unit.server.site_steps import ANN, BOB, ROOT, request, start
from tests.unit.server.site_world import OFFER, MemoryStore
from tests.unit.server.test_hosts import AGENT, offer
from tests.unit.server.watched_site import ALERTS, WATCHED, Site, ok

HOT = "[{name: hot, when: {temperature_above: 88}, for: 60s, do: [alert, drain]}]"


def test_a_condition_has_to_hold_for_a_while_and_fires_once() -> None:
    """A peak does nothing, nor does a time without a measurement count; what holds for a minute is drained, told and in
    the log under the rule's name, once; after a minute without it, it counts as new."""
    site = Site(HOT)
    for seconds in (0, 30, 30):
        assert site.see(seconds, temperature_c=90 if seconds else 80) == []
    assert (site.see(5, temperature_c=85), site.drained) == ([], ())
    site.see(1, temperature_c=93)
    site.see(30, [])  # nothing new is measured: what is known is too old
    assert site.see(30, temperature_c=93) == []
    (alert,) = site.see(60, temperature_c=93)
    assert (site.drained, alert.rule, alert.subject) == ((0,), "hot", "host/0")
    assert alert.text == "GPU host/0 has 93 °C, above 88, for 1m"
    assert site.logged() == [("rule hot", "alert", "host/0"), ("rule hot", "drain", "host/0")]
    assert site.did() == [("alert", "host/0", "done"), ("drain", "host/0", "done")]
    for temperature in (93, 80, 93):  # gone for too short
        assert site.see(50, temperature_c=temperature) == []
    site.see(1, temperature_c=80)
    site.see(60, temperature_c=80)
    site.see(1, temperature_c=93)
    assert len(site.see(60, temperature_c=93)) == 1
    assert site.did()[-1] == ("drain", "host/0", "left")
    assert "is drained already" in site.rules.view(site.logic.book, ROOT).done[-1].text


def test_each_measurement_has_its_condition() -> None:
    """And what a device does not tell holds for none."""
    told: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
        "temperature_above: 88": ({"temperature_c": 89}, {"temperature_c": 88}, "temperature_c"),
        "power_limit_below: 600": ({"power_limit_w": 500}, {"power_limit_w": 600}, "power_limit_w"),
        "memory_above: 0.9": ({"memory_used": 0.95}, {"memory_used": 0.9}, "memory_used"),
        "ecc_errors: 2": ({"ecc_errors": 2}, {"ecc_errors": 1}, "ecc_errors"),
        "throttled: [heat]": ({"throttled": ("power", "heat")}, {"throttled": ("power",)}, "throttled"),
        "xid: [79]": ({"xids": (31, 79)}, {"xids": (31,)}, ""),
        "xid: any": ({"xids": (31,)}, {}, ""),
    }
    for condition, (bad, good, field) in told.items():
        site = Site(f"[{{name: it, when: {{{condition}}}, {'' if 'xid' in condition else 'for: 0, '}do: [drain]}}]")
        site.see(**good)
        assert site.drained == (), condition
        if field:
            unknown: dict[str, Any] = {field: None}
            site.see(**unknown)
            assert (site.drained, site.rules.view(site.logic.book, ROOT).rules[0].unknown) == ((), 1)
        site.see(**bad)
        assert [*site.drained] == [0], condition


def test_an_xid_counts_once_and_for_ten_minutes() -> None:
    site = Site("[{name: xid, when: {xid: any}, do: [alert]}]")
    assert len(site.see(xids=(79,))) == 1
    assert site.see(300) == []
    assert site.see(1, xids=(79,)) == []  # it is the same trouble still
    site.see(601)
    site.see(61)
    assert len(site.see(xids=(79,))) == 1


def test_what_is_requeued_gets_another_gpu() -> None:
    """The device is drained first; the run stops with its grace, and starts again elsewhere. A run that did not say
    that it may start again is left alone, and so is a GPU request: what runs there is said."""
    site = Site("[{name: bad, when: {ecc_errors: 1}, for: 0, do: [drain, requeue]}]")
    first = start(site.logic, 1, 1, requeue=True)
    other = start(site.logic, 2, 1)
    assert first.lease is not None
    assert first.lease.devices == ("0",)
    site.see(found=[ok("0", ecc_errors=3), ok("1", ecc_errors=1), ok("2")])
    told = site.logic.view(ANN, first.id)
    assert (told.state, told.requeue, told.grace_s) == ("stopping", True, CONFIG.grace_s)
    assert told.stop == "requeued by rule bad: GPU host/0 has had 3 uncorrected ECC errors, at least 1"
    assert site.logic.view(ANN, other.id).state == "running"
    assert site.did() == [
        ("drain", "host/0", "done"),
        ("requeue", first.id, "done"),
        ("drain", "host/1", "done"),
        ("requeue", other.id, "left"),
    ]
    evicted = c.End(token=first.lease.token, outcome="evicted", exit_code=143)
    again = site.logic.end(ANN, first.id, evicted)
    assert again.lease is not None
    assert (again.state, again.lease.devices, again.evictions) == ("granted", ("2",), 1)
    site.logic.validate()


def test_a_gang_is_requeued_whole() -> None:
    """All members stop, and start again together, though one of their GPUs only is bad."""
    site = Site("[{name: bad, when: {ecc_errors: 1}, for: 0, do: [drain, requeue]}]")
    gang = {"gang": c.Gang(name="g", size=2), "requeue": True}
    for number in (1, 2):
        site.logic.submit(ANN, request(number, 1, **gang))
    leases = {}
    for run in ("1", "2"):
        lease = site.logic.view(ANN, run).lease
        assert lease is not None
        leases[run] = site.logic.claim(ANN, run, c.Claim(token=lease.token)).lease
    site.see(ecc_errors=1)
    assert [site.logic.view(ANN, run).state for run in ("1", "2")] == ["stopping", "stopping"]
    for run, lease in leases.items():
        assert lease is not None
        site.logic.end(ANN, run, c.End(token=lease.token, outcome="evicted", exit_code=143))
        site.logic.validate()
    held = [site.logic.view(ANN, run).lease for run in ("1", "2")]
    assert sorted(one.devices[0] for one in held if one) == ["1", "2"]


def test_a_device_that_is_not_heard_of() -> None:
    """Its driver hangs: it is drained. Of a joined host's devices nothing is heard when its agent has gone; the host
    comes back drained. What is emulated is never silent."""
    site = Site("[{name: silent, when: {silent_for: 30s}, do: [drain]}]")
    site.see()
    site.see(20, [ok("0"), ok("1")])
    site.see(20, [ok("0"), ok("1", answers=False)])
    assert site.drained == (2,)
    joined = Site("[{name: silent, when: {silent_for: 30s}, do: [drain_host]}]")
    session = joined.logic.join_host(AGENT, offer()).session
    joined.logic.report(AGENT, h.Report(session=session, number=1))
    joined.see()
    joined.see(SILENT_S + 5)
    assert joined.logic.book.drained_of("far") == ()
    joined.see(15)
    assert joined.logic.book.drained_of("far") == (0, 1)
    assert (joined.drained, joined.did()[0]) == ((), ("drain_host", "far", "done"))
    emulated = Site("[{name: silent, when: {silent_for: 30s}, do: [drain]}]")
    emulated.logic.offer(OFFER)
    emulated.see(100, [])
    assert emulated.drained == ()


def test_no_more_than_so_many_firings_in_an_hour() -> None:
    """All three devices get too hot: two are drained, the third waits until the hour is over. Its alert does not."""
    site = Site(HOT.replace("60s", "0"), "dry_run: false\nmost_an_hour: 2\n")
    hot = [ok(one, temperature_c=99) for one in "012"]
    assert len(site.see(found=hot)) == 3
    assert [*site.drained] == [0, 1]
    site.see(100, hot)
    assert [one for one in site.did() if one[2] == "waits"] == [("drain", "host/2", "waits")]
    for _ in range(35):
        assert site.see(100, hot) == []
    assert [*site.drained] == [0, 1, 2]


def test_a_dry_run_is_apart_from_what_acts() -> None:
    """What it would have done is told, is in no log, and uses up nothing of the bound."""
    rules = HOT.replace("60s", "0").replace(
        "}]", ", dry_run: true}, {name: ecc, when: {ecc_errors: 1}, for: 0, do: [drain]}]"
    )
    site = Site(rules, "dry_run: false\nmost_an_hour: 1\n")
    assert site.see(temperature_c=99) == []
    assert (site.drained, site.logged()) == ((), [])
    assert site.did() == [("alert", "host/0", "would"), ("drain", "host/0", "would")]
    site.see(ecc_errors=1)
    assert site.drained == (0,)


def test_what_is_not_durable_is_done_again() -> None:
    """The disk fails when a GPU is drained: nothing was done, nobody is told that it was, and the next look does it. A
    site that is not looked at for a while takes nothing from before for granted."""
    store = MemoryStore()
    now = [0.0]
    turns = Turns(store, WATCHED, clock=lambda: now[0])
    rules = SiteRules(parse_rules(f"dry_run: false\n{ALERTS}rules: {HOT.replace('60s', '30s')}"))

    def look(after_s: float) -> list[Alert]:
        now[0] += after_s
        (alerts,), _ = turns.take([lambda logic: rules.look(logic.book, [ok("0", temperature_c=95)])])
        assert isinstance(alerts, list)
        return alerts

    look(1)
    for _ in range(2):
        look(10)
    look(100)  # nobody looked: it has not been seen to be hot all the time
    for _ in range(2):
        assert look(10) == []
    store.fails = "before"
    with pytest.raises(StoreError):
        look(10)
    rules.forget()
    turns.recover()
    assert (turns.logic.book.drained, rules.view(turns.logic.book, ROOT).done) == ((), ())
    for _ in range(3):
        assert look(10) == []
    assert len(look(10)) == 1
    assert turns.logic.book.drained == (0,)
    assert [one.outcome for one in rules.view(turns.logic.book, ROOT).done] == ["done", "done"]
    assert not any(rules.steps.values())  # they count from the next look on: then they are known to be durable
    look(1)
    assert rules.steps == {("hot", "alert", "done"): 1, ("hot", "drain", "done"): 1}


def test_a_bug_turns_the_rules_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has begun is thrown away, as after any bug; the server goes on without rules, and says so."""
    turns = Turns(MemoryStore(), OFFER)
    watcher = Watcher(parse_rules(f"{ALERTS}rules: {HOT}"), OFFER)
    asked = 0

    def broken(book: Book, _own: object, _tasks: object) -> list[Alert]:
        book.lines.append(LogLine(book.now, ROOT, "half", "done"))
        raise ZeroDivisionError("a rule")

    async def ask(question: Callable[[SiteLogic], object]) -> object:
        nonlocal asked
        asked += 1
        with pytest.raises(ZeroDivisionError):
            turns.take([question])
        turns.recover()
        raise Unavailable("a bug")

    monkeypatch.setattr(watcher.site_rules, "look", broken)
    monkeypatch.setattr("egs_core.server.watching.watcher.LOOK_S", 0.0)
    asyncio.run(watcher.follow(SimpleNamespace(ask=ask)))  # it ends by itself
    assert asked == 1
    assert turns.logic.take().log == []
    assert watcher.site_rules.view(turns.logic.book, ROOT).problem == "ZeroDivisionError: a rule"
    assert turns.take([lambda logic: logic.submit(ANN, request(1)).state])[0] == ["granted"]


def test_a_team_sees_its_own_runs() -> None:
    """Devices are everybody's."""
    site = Site(
        "[{name: idle, when: {idle_for: 5s}, do: [stop]}, {name: hot, when: {temperature_above: 9}, do: [drain]}]"
    )
    theirs = Principal("cem", "viewer", ("vision",))
    start(site.logic, 1, 1, who=ANN)
    for _ in range(8):
        site.see(1, busy=0.0)
    assert site.did() == [("stop", "1", "done")]
    assert site.did(theirs) == []
    told = site.rules.view(site.logic.book, theirs)
    assert {one.rule for one in told.seen} == {"hot"}
    assert [rule.looked_at for rule in told.rules] == [None, 3]
    with pytest.raises(Refusal, match="reads nothing"):
        site.did(AGENT)


ALL = """[
  {name: a, when: {temperature_above: 60}, for: 0, do: [alert, drain, stop]},
  {name: b, when: {ecc_errors: 1}, for: 3s, do: [drain_host, requeue]},
  {name: c, when: {xid: any}, do: [drain, requeue]},
  {name: d, when: {idle_for: 4s}, do: [alert, stop]},
  {name: e, when: {no_progress_for: 3s}, do: [requeue]},
  {name: f, when: {over_learned: 1}, do: [stop]},
  {name: g, when: {silent_for: 6s}, do: [drain]},
  {name: h, when: {memory_above: 0.5}, for: 1s, do: [drain, stop]},
  {name: i, when: {temperature_above: 60}, for: 0, do: [checkpoint, hook]},
]"""
HEALTH = st.builds(
    ok,
    st.sampled_from("012"),
    temperature_c=st.sampled_from([None, 50, 70]),
    busy=st.sampled_from([None, 0.0, 0.0, 0.7]),
    ecc_errors=st.sampled_from([0, 0, 2]),
    memory_used=st.sampled_from([None, 0.2, 0.9]),
    xids=st.sampled_from([(), (), (79,)]),
)
SAVING = c.Saving(signal="USR1")
STEPS = st.lists(
    st.tuples(
        st.floats(0.5, 5.0),
        st.lists(HEALTH, max_size=3),
        st.sampled_from(["", "run", "run", "end", "drain"]),
    ),
    min_size=3,
    max_size=20,
)


def test_in_a_dry_run_nothing_ever_changes() -> None:
    """Whatever is measured and happens, a site with rules that only say what they would do has the same engine, runs,
    log and journal as one without rules; and they say that they would do each thing that there is."""
    would: Counter[str] = Counter()

    @settings(max_examples=60, deadline=None)
    @given(STEPS)
    def same(steps: list[tuple[float, list[DeviceHealth], str]]) -> None:
        site, plain = Site(ALL, ""), Site(ALL, "")
        for number, (after_s, found, what) in enumerate(steps, 1):
            for one in (site, plain):
                one.logic.at(one.logic.now + after_s)
                _happens(one.logic, number, what)
            if number % 3 == 1:
                for run in site.logic.runs:
                    site.rules.health(site.logic.now).told(run, site.logic.now)
            assert site.rules.look(site.logic.book, found) == []
            assert site.logic.snapshot() == plain.logic.snapshot()
            assert msgspec.json.encode(list(site.logic.runs.values())) == msgspec.json.encode(
                list(plain.logic.runs.values())
            )
            assert site.logic.take() == plain.logic.take()
        would.update(action for action, _, outcome in site.did() if outcome == "would")
        assert not [one for one in site.did() if one[2] in ("done", "failed")]

    same()
    assert would.keys() == {"alert", "drain", "drain_host", "checkpoint", "requeue", "stop", "hook"}


def _happens(logic: SiteLogic, number: int, what: str) -> None:
    if what == "run":
        view = logic.submit(BOB, request(number, 1, name="fit", requeue=number % 2 == 0, saving=SAVING))
        if view.lease is not None:
            logic.claim(BOB, view.id, c.Claim(token=view.lease.token))
    elif what == "end" and (held := [run for run in logic.open_runs() if run.is_claimed]) and held[0].lease:
        logic.end(BOB, held[0].id, c.End(token=held[0].lease.token, outcome="succeeded", exit_code=0))
    elif what == "drain":
        logic.drain(ROOT, c.Drain(target="1", drained=number % 2 == 0))
