"""Run log records from what Airflow tells: who held which slots when, what waited for what, and what is not known."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from egs_airflow.audit import past_with_notes
from egs_airflow.history.kept import held_back
from egs_airflow.history.records import parents_of, past_of, pool_sizes
from egs_airflow.history.seen import Dag, KeptSlots, Pool, Run, Seen, Try
from egs_airflow.observe.lines import Line
from egs_core.audit.build import audit
from egs_core.audit.observed import Observed, observed_of
from egs_core.runlog.metrics import summarise
from egs_core.runlog.records import Capacity, Ended, Work
from egs_core.runlog.timeline import build_timeline


def tried(task: str, scheduled: float, queued: float, started: float, ended: float | None, **rest: Any) -> Try:
    """A try in pool `gpus` of one slot; times in seconds of the run."""
    fields = {"map_index": -1, "number": 1, "state": "success", "pool": "gpus", "slots": 1, **rest}
    return Try("dag", "run", task, scheduled_s=scheduled, queued_s=queued, started_s=started, ended_s=ended, **fields)


def skipped(task: str) -> Try:
    """A task that was never started."""
    return Try("dag", "run", task, -1, 0, "skipped", "gpus", 1, started_s=3.0, ended_s=3.0)


def seen_of(*tries: Try, parents: dict[str, tuple[str, ...]] | None = None, slots: int = 2, over: bool = True) -> Seen:
    """One run of `dag`, submitted at 0 and looked at after 100 s."""
    ended_s = max((one.ended_s or 0.0) for one in tries) if over else None
    run = Run("dag", "run", "success" if over else "running", 0.0, ended_s)
    return Seen(
        100.0, "3.3.2", {"gpus": Pool("gpus", slots)}, {"dag": Dag("dag", "me", 0, parents)}, [run], list(tries)
    )


def observed(*seen: Any) -> Observed:
    """What an audit takes of it."""
    return observed_of(past_with_notes(*seen))


def told(seen: Seen) -> Any:
    return audit(observed(seen, "here", ("gpus",)), simulated=False)


def test_waits_end_when_the_task_runs() -> None:
    """A task waits from scheduled to running; from queued on it has its slots, which others then miss."""
    first, second = tried("a", 1, 1, 5, 9, slots=2), tried("b", 1, 9, 10, 11, slots=2)
    waits = {wait.task: wait for wait in told(seen_of(first, second)).waits}
    assert {task: wait.wait_s for task, wait in waits.items()} == {"a": 4.0, "b": 9.0}
    assert waits["a"].reason == "admitted, but no worker or process of the executor had taken it yet"
    assert (waits["b"].no_gpu_s, waits["b"].free_s) == (8.0, 1.0)
    assert waits["b"].reason == "no free GPU while dag.a held 16.0 GPU·s, 8.0 of them unused"


def test_room_in_another_pool_is_no_room() -> None:
    """A task waits for its own pool; what is free in another one does not explain its wait."""
    seen = seen_of(tried("a", 0, 0, 0, 9), tried("b", 0, 9, 9, 10), slots=1)
    seen.pools["other"] = Pool("other", 4)
    (wait,) = audit(observed(seen, "here", ("gpus", "other")), simulated=False).waits
    assert (wait.task, wait.no_gpu_s) == ("b", 9.0)


def test_the_forecast_keeps_tasks_in_their_pools() -> None:
    """Two pools of one slot are no pool of two: eight tasks of one of them still take eight times as long."""
    tries = [tried(f"t{n}", 0, n, n, n + 1) for n in range(8)]
    seen = seen_of(*tries, parents={one.task_id: () for one in tries}, slots=1)
    seen.pools["other"] = Pool("other", 1)
    forecast = audit(observed(seen, "here", ("gpus", "other"))).forecast
    assert forecast is not None
    assert forecast.native_error < 0.01
    assert forecast.makespan_s.expected == pytest.approx(8.0, abs=0.1)


def test_parents_pass_through_what_had_no_slot() -> None:
    """An empty operator and a skipped task hold nothing: what follows them waited for what they waited for."""
    join = Try("dag", "run", "join", -1, 1, "success", "default_pool", 1, started_s=3.0, ended_s=3.0)
    tries = [tried("a", 0, 0, 0, 2), tried("b", 0, 0, 0, 3), skipped("gone"), join, tried("last", 3, 3, 3, 4)]
    parents = {"gone": ("a",), "join": ("b", "gone"), "last": ("join",)}
    found = parents_of(tries, Dag("dag", parents=parents))
    assert found["last"] == ("join", "b", "gone", "a")
    assert found["a"] == ()


def test_a_long_chain_of_skipped_tasks() -> None:
    """However many were skipped in a row, the first that ran is found."""
    names = [f"s{n}" for n in range(3000)]
    parents: dict[str, tuple[str, ...]] = {below: (above,) for above, below in pairwise(["a", *names, "last"])}
    tries = [tried("a", 0, 0, 0, 2), *(skipped(name) for name in names), tried("last", 3, 3, 3, 4)]
    assert parents_of(tries, Dag("dag", parents=parents))["last"][-1] == "a"


@pytest.mark.parametrize(("second_scheduled", "expected"), [(5.0, ("up[0]", "up[1]")), (1.5, ("up[0]",))])
def test_mapped_tasks_side_by_side(second_scheduled: float, expected: tuple[str, ...]) -> None:
    """In a mapped group each instance waits for its own; that shows when one was scheduled before all had ended."""
    ups = [tried("up", 0, 0, 0, 1, map_index=0), tried("up", 0, 0, 0, 5, map_index=1)]
    downs = [tried("down", second_scheduled, 5, 5, 6, map_index=0), tried("down", 5, 5, 5, 6, map_index=1)]
    found = parents_of([*ups, *downs], Dag("dag", parents={"down": ("up",)}))
    assert found["down[0]"] == expected


def test_retries_are_attempts() -> None:
    """Each try holds its slots for its own time; the failed one counts as failed."""
    tries = tried("a", 0, 0, 1, 2, state="failed"), tried("a", 2, 2, 3, 6, number=2)
    line = build_timeline(past_of(seen_of(*tries), ["gpus"]).records())
    assert [(h.attempt, h.end_s - h.start_s, h.outcome) for h in line.holds] == [(1, 1, "failed"), (2, 3, "succeeded")]


def test_what_is_still_open() -> None:
    """A running task holds its slots up to now, a scheduled one waits up to now, and neither has ended."""
    seen = seen_of(tried("a", 0, 0, 10, None, state="running", slots=2), over=False)
    seen.tries.append(Try("dag", "run", "b", -1, 1, "scheduled", "gpus", 1, scheduled_s=20.0))
    audited = told(seen)
    assert (audited.total.held_s, audited.unfinished) == (180.0, 1)
    assert [(wait.task, wait.wait_s, wait.started) for wait in audited.waits] == [("b", 80.0, False), ("a", 10.0, True)]


def test_deferred_tasks_are_said() -> None:
    """A task that was woken up was scheduled after its start: what it held before is not known, and is not counted, but
    in a pool in which a deferred task keeps its slots. The audit says so."""
    seen = seen_of(tried("a", 6, 7, 1, 9))
    assert (told(seen).total.held_s, told(seen).waits[0].wait_s) == (2.0, 1.0)
    assert "1 tasks were deferred" in " ".join(observed(seen, "here").notes)
    seen.pools["gpus"].keeps_deferred = True
    assert told(seen).total.held_s == 8.0


@pytest.mark.parametrize("state", ["deferred", "up_for_reschedule"])
def test_what_sleeps_holds_nothing(state: str) -> None:
    """A sensor or operator that is watched for by the triggerer, or is to look again later: no slot, and no wait for
    one, unless its pool includes deferred tasks."""
    seen = seen_of(tried("a", 0, 0, 1, None, state=state), over=False)
    audited = told(seen)
    assert (audited.total.held_s, audited.waits) == (0.0, [])
    seen.pools["gpus"].keeps_deferred = True
    assert told(seen).total.held_s == 99.0


@pytest.mark.parametrize("slots", [-1, None])
def test_pools_without_a_limit(slots: int | None) -> None:
    """Of a pool without a limit, or one that is gone, the most slots taken at once count as offered."""
    seen = seen_of(tried("a", 0, 0, 0, 4, slots=3), tried("b", 0, 1, 1, 2), tried("c", 0, 2, 2, 3))
    seen.pools = {} if slots is None else {"gpus": Pool("gpus", slots)}
    assert pool_sizes(seen) == {"gpus": 4}
    (offered, *_) = [r for r in past_of(seen, ["gpus"]).records() if isinstance(r, Capacity)]
    assert (offered.gpus, offered.cpus) == (4, 0.0)


def test_cold_starts_are_what_the_listener_noted() -> None:
    """From Airflow's start to the user's code it is a cold start; without a listener none is known."""
    one = tried("a", 0, 0, 1, 9)
    line = build_timeline(past_of(seen_of(one), ["gpus"], code_s={one.key: 3.5}).records())
    assert [hold.cold for hold in line.holds] == [[(1.0, 3.5)]]
    line = build_timeline(past_of(seen_of(one), ["gpus"]).records())
    assert [hold.cold for hold in line.holds] == [[]]


def test_nothing_is_promised_that_cannot_be_done() -> None:
    """What hints would save is not forecast where only the start of a task's code is known, and not its parts."""
    one = tried("a", 0, 0, 1, 9)
    noted = Line(1, "dag", "run", "a", -1, 1, "success", "gpus", 1, 1.0, 5.0, 9.0)
    told = audit(observed(seen_of(one, parents={"a": ()}), "here", ("gpus",), [noted]))
    assert (told.total.cold_s, told.total.used_s) == (4.0, 4.0)
    assert told.forecast is not None
    assert told.forecast.hinted is None


def kept(task: str, begin: float, end: float, **rest: Any) -> KeptSlots:
    """A slot of pool `gpus` kept for a task of the run."""
    fields = {"pool": "gpus", "slots": 1, "reason": "reservation", **rest}
    return KeptSlots("dag", "run", task, fields.pop("map_index", -1), from_s=begin, until_s=end, **fields)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        pytest.param([kept("large", 2, 4)], [(2, "reservation"), (4, "capacity")], id="in the middle of its wait"),
        pytest.param([kept("large", 0, 9)], [(1, "reservation")], id="all along"),
        pytest.param(
            [kept("large", 5, 6), kept("large", 2, 3)],
            [(2, "reservation"), (3, "capacity"), (5, "reservation"), (6, "capacity")],
            id="twice",
        ),
        pytest.param(
            [kept("large", 2, 4), kept("other", 3, 5)],
            [(2, "reservation"), (4, "reservation"), (5, "capacity")],
            id="for two at once",
        ),
        pytest.param([kept("small", 2, 4)], [], id="for itself"),
        pytest.param([kept("shard", 2, 4, reason="gang", gang=("shard", "small"))], [], id="for the gang it is in"),
        pytest.param([kept("small", 2, 4, map_index=3)], [(2, "reservation"), (4, "capacity")], id="for a sibling"),
        pytest.param([kept("large", 2, 4, pool="other")], [], id="in another pool"),
        pytest.param([kept("large", 0, 1), kept("large", 8, 9)], [], id="before and after its wait"),
    ],
)
def test_who_waits_for_kept_slots_is_held_by_a_reservation(
    times: list[KeptSlots], expected: list[tuple[float, str]]
) -> None:
    """As long as slots of its pool were kept for another, and no longer."""
    found = held_back(tried("small", 1, 8, 8, 9), 1.0, 8.0, times)
    assert [(at_s, kind) for at_s, kind, _ in found] == expected


@pytest.mark.parametrize(
    ("ready", "withheld"),
    [
        pytest.param(4, 3.0 / 16.0, id="for a successor, which is not ready yet"),
        pytest.param(0, 0.0, id="for a large task, for which the slot is idle anyway"),
    ],
)
def test_kept_slots_are_shown_apart(ready: float, withheld: float) -> None:
    """Of two slots one is kept for 3 s: what the small task that could have had it adds is in no ratio."""
    tries = [tried("first", 0, 0, 0, 4), tried("next", ready, 4, 4, 6, slots=2), tried("small", 1, 6, 6, 8)]
    seen = seen_of(*tries)
    seen.kept = [kept("next", 1, 4)]
    history = observed(seen, "here", ("gpus",))
    assert summarise(history.records).kinds["gpu"].effective.withheld_by_volume == pytest.approx(withheld)
    (wait,) = [one for one in told(seen).waits if one.task == "small"]
    assert wait.reason == "held back: reservation"
    assert any("1 times EGS kept open slots" in note and note.endswith("3.0") for note in history.notes)


def test_what_a_listener_noted_of_work_is_in_the_log() -> None:
    """Of the try that told it, at its end."""
    noted = Line(1, "dag", "run", "a", -1, 1, "success", "gpus", 1, 1.0, 5.0, 9.0, work={"tokens": 7.0})
    records = past_with_notes(
        seen_of(tried("a", 0, 0, 1, 9), tried("b", 0, 0, 1, 9)), "here", ("gpus",), [noted]
    ).records()
    (found,) = [record for record in records if isinstance(record, Work)]
    assert (found.task, found.attempt, found.amounts) == ("a", 1, {"tokens": 7.0})
    assert found.t == next(record.t for record in records if isinstance(record, Ended) and record.task == "a")
