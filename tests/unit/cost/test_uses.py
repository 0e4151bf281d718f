"""From run logs to uses of GPUs, record by record: the same as from all of a log at once, with little of it held."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egs_core.cost import uses as module
from egs_core.cost.ledger import Ledger
from egs_core.cost.uses import _Log, uses_of
from egs_core.runlog.by_time import by_time
from egs_core.runlog.past import Attempt, Needs, Past, PastRun, PastTask
from egs_core.runlog.records import (
    ColdStart,
    Ended,
    Header,
    Record,
    Started,
    TaskAdded,
    Used,
    WorkloadEnded,
    WorkloadSubmitted,
    time_of,
)
from egs_core.runlog.timeline import build_timeline
from tests.unit.runlog.test_metrics_properties import runs

DATED = Header(started_at=1e9)


def ledger_of(header: Header, records: Iterable[Record]) -> Ledger:
    found = Ledger()
    for use in uses_of(header, records, lambda queue: queue):
        found.add(use)
    return found


@settings(max_examples=200, deadline=None)
@given(runs(), st.randoms(use_true_random=False))
def test_hours_are_those_of_the_report(records: list[Record], shuffle: random.Random) -> None:
    """Held and used as `runlog.timeline` has them, which reads all at once: of phases that were cut off, that overlap,
    that nobody declared; whatever the order in which they were written."""
    shuffle.shuffle(records)
    line = build_timeline(records)
    held_s = sum(hold.demand.gpus * (hold.end_s - hold.start_s) for hold in line.holds)
    used_s = sum(hold.demand.gpus * sum(b - a for a, b in hold.useful) for hold in line.holds)
    total = ledger_of(DATED, records).total
    assert total.gpu_h_held * 3600 == pytest.approx(held_s, abs=1e-4)
    assert total.gpu_h_used * 3600 == pytest.approx(used_s, abs=1e-4)
    assert total.gpu_h_wasted * 3600 == pytest.approx(held_s - used_s, abs=1e-4)


def test_each_hour_has_a_name_in_every_table() -> None:
    """Team, pipeline, task and user; a task without a name is called by its id, an unknown workload too."""
    records: list[Record] = [
        WorkloadSubmitted(0.0, "w", "train", "ann", "images"),
        TaskAdded(0.0, "w", "t1", "fit", phases=(("cpu", 1.0, 0.0, 0), ("gpu", 1.0, 2.0, 0))),
        TaskAdded(0.0, "w", "t2", phases=(("gpu", 1.0, 0.5, 0),)),
        Started(0.0, "w", "t1", 0, cpus=1.0),
        Ended(10.0, "w", "t1", 0),
        Started(10.0, "w", "t1", 1, node="n"),  # without amounts: as declared
        Used(20.0, 40.0, "w", "t1"),
        ColdStart(10.0, 25.0, "w", "t1", 1),
        Ended(46.0, "w", "t1", 1),
        Started(46.0, "w", "t2", node="n", gpus=0.5, cpus=1.0),
        Ended(82.0, "w", "t2"),
        WorkloadEnded(82.0, "w"),
        Started(90.0, "other", "x", gpus=1.0, cpus=1.0),
        Ended(126.0, "other", "x"),
    ]
    found = ledger_of(DATED, records).to_dict()
    rows = {
        kind: {name: row["gpu_h_held"] * 100 for name, row in found[f"by_{kind}"].items()} for kind in ("team", "task")
    }
    assert rows["task"] == {"fit": pytest.approx(2.0), "t2": pytest.approx(0.5), "x": pytest.approx(1.0)}
    assert rows["team"] == {"images": pytest.approx(2.5), "(none)": pytest.approx(1.0)}
    assert set(found["by_user"]) == {"ann", "(none)"}
    assert set(found["by_pipeline"]) == {"train", "other"}
    fit = found["by_task"]["fit"]
    assert (fit["gpu_h_used"] * 3600, fit["gpu_h_wasted"] * 3600) == pytest.approx((30.0, 42.0))


def test_a_history_that_a_framework_tells_is_read_too() -> None:
    """Natively run tasks, of which nobody knows when their GPUs were at work: held is used; a failed attempt counts."""
    attempts = [
        Attempt("fit", 1, 100.0, 110.0, ended_s=146.0, outcome="failed", needs=Needs(1.0, 1.0)),
        Attempt("fit", 2, 150.0, 160.0, ended_s=196.0, outcome="succeeded", needs=Needs(1.0, 1.0)),
    ]
    run = PastRun(
        "r1", "daily", 90.0, 200.0, tenant="ben", tasks=[PastTask("fit", "fit", Needs(1.0, 1.0))], attempts=attempts
    )
    past = Past("airflow", 300.0, runs=[run])
    found = ledger_of(past.header(), past.records())
    assert (found.total.gpu_h_held, found.total.gpu_h_used) == pytest.approx((0.02, 0.02))
    assert found.by["user"].keys() == {"ben"}
    assert found.by["pipeline"].keys() == {"daily"}


@pytest.mark.parametrize("most_held", [1, 3, 7, 10_000])
def test_pieces_are_merged_in_order(most_held: int) -> None:
    """Of one moment what was written first comes first, in whichever piece it lies."""
    numbers = [random.Random(5).randrange(9) for _ in range(40)]
    records = [Ended(float(t), "w", f"t{n}") for n, t in enumerate(numbers)]
    assert list(by_time(iter(records), most_held)) == sorted(records, key=time_of)


def test_what_has_ended_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty thousand tasks one after the other, each with a name of its own, in workloads that end: of none is much
    kept."""
    monkeypatch.setattr(module, "MOST_TEXTS", 100)
    most = 0

    def records() -> Iterator[Record]:
        for number in range(20_000):
            t, place = float(number), (f"w{number // 100}", f"t{number}")
            if number % 100 == 0:
                yield WorkloadSubmitted(t, place[0])
            yield TaskAdded(t, *place, phases=(("gpu", 1.0, 1.0, 0),))
            yield Started(t, *place, gpus=1.0)
            yield Used(t, t + 0.5, *place)
            yield Ended(t + 0.5, *place, outcome="succeeded" if number % 3 else "failed")
            if number % 100 == 99:
                yield WorkloadEnded(t + 0.5, place[0])

    log, count = _Log(DATED, str), 0
    for record in log.relevant(records()):
        count += len(list(log.take(record)))
        tasks = sum(len(one) for one in log._tasks.values())
        most = max(most, tasks + len(log._open) + len(log._used) + len(log._cold))
        assert len(log._names) <= 100
    assert count == 20_000
    assert most <= 103, "at most the failed ones of one workload, which might start again"


def test_a_simulation_has_no_date() -> None:
    records = [Started(0.0, "w", "t", gpus=1.0), Ended(1.0, "w", "t")]
    assert [use.is_dated for use in uses_of(Header(), records, str)] == [False]
    (dated,) = uses_of(DATED, records, str)
    assert (dated.is_dated, dated.held) == (True, (1e9, 1e9 + 1))
    assert msgspec.structs.asdict(dated)["used"] == ((1e9, 1e9 + 1),)
