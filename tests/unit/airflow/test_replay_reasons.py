"""Why tasks of a replay or a demo waited for slots, from when each had them: what `egs why` then says."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

from egs_airflow.history.seen import KeptSlots, Pool, Run, Seen, Try
from egs_airflow.replay.notes import records_of
from egs_airflow.replay.reasons import reasons_of
from egs_core.cli.why import waits_in_log
from egs_core.runlog.metrics import summarise
from egs_core.runlog.records import Granted, Held, Record
from egs_core.runlog.standing import standing

BEGIN_S = 1000.0


def tried(task: str, ready: float, queued: float, ended: float, weight: int = 1, run: str = "r", **more: object) -> Try:
    """A task of pool `gpu` that was ready, had its slot and ended then, in seconds of the run log."""
    times = {"scheduled_s": ready, "queued_s": queued, "started_s": queued + 0.1, "ended_s": ended}
    own = {"map_index": -1, "number": 1, "state": "success", "pool": "gpu", "slots": 1, "weight": weight}
    stated = {name: BEGIN_S + seconds for name, seconds in times.items()} | own | more
    return Try(dag_id="d", run_id=run, task_id=task, **stated)  # type: ignore[arg-type]  # fields of several types


def seen(*tries: Try, slots: int = 1, kept: tuple[KeptSlots, ...] = ()) -> Seen:
    runs = [Run("d", "r", "success", BEGIN_S, BEGIN_S + 60), Run("d", "s", "success", BEGIN_S + 0.5, BEGIN_S + 60)]
    return Seen(BEGIN_S + 60, pools={"gpu": Pool("gpu", slots)}, runs=runs, tries=list(tries), kept=list(kept))


def told(found: Seen, known_s: Mapping[str, Mapping[str, float]] | None = None) -> list[Record]:
    return sorted(reasons_of(found, BEGIN_S, known_s), key=lambda one: (getattr(one, "t", 0.0), str(one)))


ONE_SLOT = (
    tried("first", 0.0, 0.0, 5.0),
    tried("light", 1.0, 9.0, 12.0, weight=11),
    tried("heavy", 2.0, 5.5, 8.5, weight=66),
    tried("alike", 3.0, 12.5, 15.0, weight=11, run="s"),
)


def test_who_held_the_slots_and_who_went_first() -> None:
    """When it was ready the pool was full; then another one, which weighed more, or came first, had the slot."""
    full = "pool gpu: needs 1 of 1 slots, 0 open"
    holds = [one for one in told(seen(*ONE_SLOT)) if isinstance(one, Held)]
    assert [(one.t, one.task, one.reason, one.waiting_for) for one in holds] == [
        (1.0, "light", full, ("first",)),
        (2.0, "heavy", full, ("first",)),
        (3.0, "alike", full, ("first",)),
        (5.5, "light", "pool gpu: heavy went first by its weight: 66, this one's is 11", ("heavy",)),
        (9.0, "alike", "pool gpu: light went first; both weigh the same", ("light",)),
    ]
    assert not [one for one in told(seen(*ONE_SLOT)) if isinstance(one, Granted)]


def test_with_egs_it_is_told_by_what_each_went_first() -> None:
    """And how long it was believed to take; with nobody behind it there is nothing to tell."""
    grants = [one for one in told(seen(*ONE_SLOT), {"d": {"heavy": 3.0}}) if isinstance(one, Granted)]
    assert [(one.t, one.task, one.reason, one.estimate_p50_s) for one in grants] == [
        (0.0, "first", "", None),
        (5.5, "heavy", "its weight: 66, the next one's is 11", 3.0),
        (9.0, "light", "its run, which came first; both weigh the same", None),
        (12.5, "alike", "", None),
    ]


def test_who_has_room_waits_for_nobody() -> None:
    """Nor is a task told of that had its slots at once, that was ready when there were some, or that ended at once."""
    assert told(seen(tried("a", 1.0, 1.0, 1.0), tried("b", 1.5, 2.0, 3.0), tried("c", 2.5, 2.6, 9.0), slots=2)) == []


def test_of_those_that_got_their_slots_at_one_moment_none_went_first() -> None:
    """Nor does one of them count as the next of another."""
    tries = (
        tried("first", 0.0, 0.0, 4.0),
        tried("a", 1.0, 5.0, 7.0, weight=11),
        tried("b", 1.0, 5.0, 7.0, weight=66),
        tried("c", 1.0, 7.5, 9.0, weight=5),
    )
    found = told(seen(*tries, slots=2), {})
    holds = [(one.t, one.task, one.reason) for one in found if isinstance(one, Held)]
    assert holds == [(5.0, "c", "pool gpu: b went first by its weight: 66, this one's is 5")]
    grants = {one.task: one.reason for one in found if isinstance(one, Granted)}
    assert grants["a"] == "its weight: 11, the next one's is 5"
    assert grants["b"] == "its weight: 66, the next one's is 5"


def test_after_slots_were_kept_for_others_it_is_told_who_holds_them() -> None:
    """In between the log has the hold by which they were kept."""
    kept = KeptSlots("d", "r", "large", -1, "gpu", 1, "reservation", BEGIN_S + 2, BEGIN_S + 4)
    tries = tried("first", 0.0, 0.0, 5.0), tried("small", 1.0, 5.5, 6.0)
    holds = [(one.t, one.kind) for one in told(seen(*tries, kept=(kept,))) if isinstance(one, Held)]
    assert holds == [(1.0, "capacity"), (4.0, "capacity")]


def test_egs_why_and_the_dashboard_say_it_and_no_figure_changes() -> None:
    """The words of a run log, of a task that has started; waits and ratios are those without reasons."""
    found = seen(*ONE_SLOT)
    _, records = records_of(found, "gpu", [], {})
    (answer,) = waits_in_log(records, ["light"], "log")
    (row,) = answer["phases"]
    assert row["waited_s"] == pytest.approx(8.1)
    for words in ("0 open", "heavy went first by its weight: 66", "it started ahead of the next by its run"):
        assert words in row["reason"]["text"], row
    assert row["reason"]["kind"] == "capacity"
    assert standing(records).tasks["d/r"]["heavy"].decided == "its weight: 66, the next one's is 11"
    without = [one for one in records if not isinstance(one, (Granted, Held)) or getattr(one, "kind", "") == "executor"]
    assert summarise(records).wastage_effective == summarise(without).wastage_effective
    assert summarise(records).wait_gpu == summarise(without).wait_gpu


def test_a_pool_of_thousands_is_quick() -> None:
    """A replay may have that many: each record is found in one pass."""
    many = [tried(f"t{n}", 0.0, 1.0 + n * 0.001, 1.001 + n * 0.001, weight=n % 7) for n in range(5000)]
    began = time.process_time()
    assert len(told(seen(*many), {})) >= 5000
    assert time.process_time() - began < 10.0
