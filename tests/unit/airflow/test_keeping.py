"""Which slots are kept, as a catalogue; and that the gate can stop nothing."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egs_airflow import compat, config
from egs_airflow.executors import reading
from egs_airflow.executors.gangs import Gangs
from egs_airflow.executors.gate import Gate, Started
from egs_airflow.executors.keeping import Claim, Kept, Reason, compute_behind, compute_kept
from egs_airflow.executors.mixin import is_on
from egs_airflow.order.published import Turn


def waits(key: str, weight: int, slots: int = 1) -> Claim:
    """A task that waits in the pool."""
    return Claim(key, slots, (-weight, 0, 0))


def comes(key: str, weight: int, slots: int = 1, reason: Reason = "successor") -> Claim:
    """A task that slots may be kept for."""
    return Claim(key, slots, (-weight, 1, 0), reason)


@pytest.mark.parametrize(
    ("open_slots", "claims", "kept"),
    [
        pytest.param(1, [waits("leaf", 11), comes("fit", 90)], [("fit", 1)], id="a leaf would take the freed slot"),
        pytest.param(1, [comes("fit", 90)], [], id="nobody else wants it"),
        pytest.param(2, [waits("leaf", 11), comes("fit", 90)], [], id="there is room for both"),
        pytest.param(1, [waits("fit", 90), comes("leaf", 11)], [], id="the one that waits weighs more"),
        pytest.param(1, [waits("equal", 50), comes("fit", 50)], [], id="equal weights: Airflow's order"),
        pytest.param(2, [waits("first", 99), waits("leaf", 1), comes("fit", 50)], [("fit", 1)], id="in the middle"),
        pytest.param(
            3,
            [waits("small", 1), waits("other", 1), waits("third", 1), comes("big", 90, 4, "reservation")],
            [("big", 3)],
            id="small tasks would take what a large one collects",
        ),
        pytest.param(3, [waits("big", 90, 4), waits("small", 1)], [], id="a large one that has not waited long"),
        pytest.param(1, [waits("leaf", 1), comes("wide", 90, 2)], [], id="a successor that does not fit anyway"),
        pytest.param(0, [waits("leaf", 1), comes("fit", 90)], [], id="nothing is open"),
    ],
)
def test_what_is_kept(open_slots: int, claims: list[Claim], kept: list[tuple[str, int]]) -> None:
    """Slots are kept where the wrong task would get them in this pass, and nowhere else."""
    assert [(one.key, one.slots) for one in compute_kept(open_slots, claims)] == kept


claim = st.builds(
    Claim,
    key=st.integers(),
    slots=st.integers(1, 5),
    place=st.tuples(st.integers(-9, 9), st.integers(0, 1), st.integers(0, 9)),
    reason=st.sampled_from(("", "", "successor", "reservation")),
)


@settings(deadline=None)
@given(st.integers(0, 12), st.lists(claim, max_size=12))
def test_never_more_is_kept_than_is_open(open_slots: int, claims: list[Claim]) -> None:
    """And only for claims that something may be kept for, each once."""
    kept: list[Kept] = compute_kept(open_slots, claims)
    assert sum(one.slots for one in kept) <= open_slots
    assert all(one.slots > 0 for one in kept)
    assert len(kept) <= sum(1 for one in claims if one.reason)


@pytest.mark.parametrize(
    ("mode", "keep_slots", "expected"),
    [("on", "", True), ("on", "no", False), ("on", " Off ", False), ("observe", "yes", False), ("off", "", False)],
)
def test_the_executor_is_its_parent_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, mode: str, keep_slots: str, expected: bool
) -> None:
    """It keeps slots in mode on only, and not with `keep_slots = no`."""
    monkeypatch.setenv("EGS_MODE", mode)
    monkeypatch.setenv("EGS_KEEP_SLOTS", keep_slots)
    config.settings.cache_clear()
    try:
        assert is_on() is expected
    finally:
        config.settings.cache_clear()


@pytest.mark.parametrize(("text", "seconds"), [("", 30.0), ("2m", 120.0), ("5", 5.0), ("soon", 30.0)])
def test_how_long_a_large_task_waits_first(monkeypatch: pytest.MonkeyPatch, text: str, seconds: float) -> None:
    """A text that means nothing is one warning, and the default."""
    monkeypatch.setenv("EGS_RESERVE_AFTER", text)
    assert config.seconds_of("reserve_after") == seconds


def test_the_scheduler_is_kept_awake_and_celery_forgets_nothing() -> None:
    """It hears again of a task that has ended; CeleryExecutor goes on asking for that task's result, without which its
    place would never be free again."""
    reason = "apache-airflow-providers-celery is not installed"
    pytest.importorskip("airflow.providers.celery.executors.celery_executor", reason=reason)
    from egs_airflow.executors.celery import EgsCeleryExecutor

    executor = EgsCeleryExecutor()
    executor.gate = Gate(lambda **_: None)
    executor.gate.awaited = Started("key", "version", "external")
    executor.workloads["key"] = "result"
    executor._keep_awake()
    assert executor.event_buffer == {"key": ("running", "external")}
    assert executor.workloads == {"key": "result"}


@pytest.mark.parametrize(
    ("ends", "waits", "follows", "may"),
    [
        ([True], "gpus", "cpus", True),
        ([True], "gpus", "gpus", False),  # for it slots are to be kept, once the scheduler has made it ready
        ([True], "", "cpus", False),
        ([True, False], "gpus", "cpus", False),  # whom a failure makes ready is not known
        ([], "gpus", "cpus", False),
    ],
)
def test_when_slots_are_handed_out_before_dag_runs_are_looked_at(
    ends: list[bool], waits: str, follows: str, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody waits in the pool of what has ended, and no successor of it does: of one whose DAG is not known yet
    nobody can say that."""
    monkeypatch.setattr(compat, "connect", nullcontext)
    monkeypatch.setattr(reading, "contended", lambda *_: {waits} - {""})
    monkeypatch.setattr(reading, "just_ready", lambda *_: [reading.Ready("second", follows, 1, 90)])
    gate = Gate(lambda **_: None, clock=lambda: 0.0)
    over = [reading.End(number, is_success, None) for number, is_success in enumerate(ends)]
    gate.started[0] = Started("first", "version", None)
    assert not gate.may_hand_out(over)
    gate.shapes["version"] = reading.Shape({"first": ["second"]})
    assert gate.may_hand_out(over) == may


def test_a_look_before_the_end_was_written_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler looks at a run between the task's own end date and the moment at which that is written: it has seen
    a task that runs, so the successor's slot is kept in that pass. A look after it ends that."""
    looked = datetime.now(UTC)  # after the end date, which is older, and before the gate sees the end
    ready = reading.Ready("second", "gpus", 2, 90)
    monkeypatch.setattr(reading, "ended", lambda *_: [reading.End(1, True, looked)])
    monkeypatch.setattr(reading, "just_ready", lambda *_: [ready])
    gate = Gate(lambda **_: None, clock=lambda: 0.0)
    gate.started[1] = Started("first", "version", None)
    gate.shapes["version"] = reading.Shape({"first": ["second"]})
    assert gate._just_ready(None, 0.0) == [ready]
    assert gate._just_ready(None, 0.1) == [ready]
    looked = datetime.now(UTC) + timedelta(seconds=1)
    assert gate._just_ready(None, 0.2) == []
    assert gate.started == {}


def test_a_slot_is_kept_for_a_successor_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass, however long passes take; or as many as there are in LONGEST_S, where the scheduler never looks."""
    ready = reading.Ready("second", "gpus", 2, 90)
    monkeypatch.setattr(reading, "ended", lambda *_: [reading.End(1, True, None)])
    monkeypatch.setattr(reading, "just_ready", lambda *_: [ready])
    for gap_s, passes in ((0.3, 3), (2.0, 1)):
        gate = Gate(lambda **_: None)
        gate.started[1] = Started("first", "version", None)
        gate.shapes["version"] = reading.Shape({"first": ["second"]})
        kept = []
        for number in range(6):
            kept.append(gate._just_ready(None, number * gap_s) == [ready] if gate.started else False)
            gate.last_pass_s = number * gap_s
        assert kept == [number < passes for number in range(6)]


def has_turn(
    key: str, weight: int, rank: int, slots: int = 1, *, may_start: bool = False, keeps: bool = False
) -> Claim:
    """A task that waits, and of which the engine says something."""
    turn = Turn(key, may_start, keeps, rank=rank)
    return Claim(key, slots, (-weight, 0, 0), "reservation" if keeps else "", key, turn)


@pytest.mark.parametrize(
    ("open_slots", "claims", "first", "behind"),
    [
        pytest.param(
            1,
            [has_turn("long", 90, 1), has_turn("short", 20, 0, may_start=True)],
            {"short"},
            {"long"},
            id="the engine's",
        ),
        pytest.param(
            1, [has_turn("long", 90, 1), has_turn("short", 20, 0)], {"short"}, {"long"}, id="between two looks"
        ),
        pytest.param(
            2, [has_turn("long", 90, 1), has_turn("short", 20, 0)], {"long", "short"}, set(), id="room for both"
        ),
        pytest.param(
            1, [waits("other", 99), has_turn("a", 90, 1), has_turn("b", 1, 0)], {"b"}, {"a"}, id="others stay"
        ),
        pytest.param(1, [waits("other", 99), waits("more", 9)], set(), set(), id="nobody hosts the engine"),
        pytest.param(0, [has_turn("a", 90, 1), has_turn("b", 1, 0)], set(), set(), id="nothing is open"),
        pytest.param(
            2,
            [has_turn("big", 90, 0, 4, keeps=True), has_turn("a", 50, 1), has_turn("b", 9, 2, may_start=True)],
            {"b"},
            {"big", "a"},
            id="only what the engine lets pass what it keeps slots for",
        ),
    ],
)
def test_who_is_seen(open_slots: int, claims: list[Claim], first: set[str], behind: set[str]) -> None:
    """In a pass the scheduler sees the first in the engine's order that fit, whatever they weigh, and all of which the
    engine says nothing."""
    assert compute_behind(open_slots, claims, ()) == (first, behind)


def test_one_that_airflow_does_not_start_keeps_nobody_waiting() -> None:
    """A limit that the engine does not know: after two passes the next one goes, and then Airflow's order holds."""
    gate, pools = Gate(lambda **_: None), {"p": {"open": 1}}
    claims = {"p": [has_turn("a", 90, 2), has_turn("b", 50, 1), has_turn("c", 10, 0)]}
    assert [gate._behind(pools, claims) for _ in range(5)] == [{"a", "b"}] * 2 + [{"a", "c"}] * 2 + [{"b", "c"}]
    claims = {"p": claims["p"][:2]}
    assert gate._behind(pools, claims) == {"b"}
    assert gate._behind(pools, claims) == set()


def test_after_a_pass_in_vain_everything_is_seen_but_what_was() -> None:
    """Where those that were seen alone did not start, the next ones in the order go at once."""
    gate, pools = Gate(lambda **_: None), {"p": {"open": 2}}
    gate.gangs = gangs = Gangs(8, lambda: 8, lambda **_: None, 30.0, lambda: 0.0)
    claims = {"p": [has_turn(name, 0, rank) for rank, name in enumerate("abcd")]}
    assert gate._behind(pools, claims) == {"c", "d"}
    gangs.in_vain = True
    assert gate._behind(pools, claims) == {"a", "b"}


def test_slots_are_kept_but_for_what_the_engine_lets_pass() -> None:
    """Backfill: a task that will have ended in time starts beside what slots are kept for."""
    big = has_turn("big", 90, 0, 4, keeps=True)
    small = [has_turn("a", 50, 1), has_turn("b", 9, 2, may_start=True)]
    assert [(one.key, one.slots) for one in compute_kept(3, [big, *small])] == [("big", 2)]
    assert [(one.key, one.slots) for one in compute_kept(3, [big, small[0]])] == [("big", 3)]
