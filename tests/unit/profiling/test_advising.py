"""The advice for many tasks at once: sizes compare like flavors, and what is not known is said instead of guessed."""

from __future__ import annotations

import pytest

from egs_core.client.messages import RunView
from egs_core.client.outlines import Earlier
from egs_core.cost.served import uses_of_runs
from egs_core.graph.columns import Shape
from egs_core.history.rows import HistoryRow
from egs_core.profiling.advising import Advised, Kind, Seen, advise
from egs_core.profiling.known import Known
from egs_core.profiling.tiers import GIB, Measured, Tier
from egs_core.runlog.records import Ended, Header, Record, Started, TaskAdded, Used, WorkloadSubmitted
from tests.unit.run_views import run_view

TIERS = (Tier("A100", 3.0, 80 * GIB), Tier("T4", 0.5, 16 * GIB), Tier("V100", 1.2, 32 * GIB))
TRAIN, EVAL = Kind("dag", "train"), Kind("dag", "eval")


def runs(flavor: str, seconds: float, gpus: float = 1.0, count: int = 3, **more: object) -> list[Measured]:
    return [Measured(flavor, seconds, gpus, ended_at=float(number), **more) for number in range(count)]  # type: ignore[arg-type]  # its fields


def of_train(seen: dict[Kind, Seen], speeds: dict[str, float] | None = None) -> Advised:
    return next(one for one in advise(seen, TIERS, speeds or {}) if one.task == "train")


def test_a_number_of_gpus_is_compared_like_a_flavor() -> None:
    """Two T4s take 60 % of the time of one and cost 20 % more: one, where twice the fastest is allowed."""
    found = of_train({TRAIN: Seen(runs("T4", 150.0) + runs("T4", 90.0, 2.0))})
    assert (found.flavor, found.gpus, found.size, found.runs) == ("T4", 1.0, "T4", 6)
    found = of_train({TRAIN: Seen(runs("T4", 200.0) + runs("T4", 90.0, 2.0))})
    assert (found.flavor, found.gpus, found.size) == ("T4", 2.0, "2 x T4")
    assert found.gpu_h == pytest.approx((3 * 200.0 + 3 * 2 * 90.0) / 3600)


def test_what_was_never_tried_is_told_by_others_or_by_the_site_or_not_at_all() -> None:
    """`eval` takes 0.8 times as long on a V100 as on a T4, so `train` may; without it the site's speeds say it, for
    one GPU at the same number; without those nothing does. It is never advised."""
    both = {TRAIN: Seen(runs("T4", 100.0)), EVAL: Seen(runs("T4", 10.0) + runs("V100", 8.0))}
    (a100, v100) = of_train(both).untried
    assert (a100.flavor, a100.seconds) == ("A100", None)
    assert (v100.flavor, v100.others) == ("V100", 1)
    assert v100.seconds == pytest.approx(80.0)
    assert v100.cost == pytest.approx(1.2 * 80 / 3600)
    assert of_train(both).flavor == "T4"
    alone = of_train({TRAIN: Seen(runs("T4", 100.0))}, {"T4": 0.3, "A100": 1.0})
    assert [(one.flavor, one.seconds, one.others) for one in alone.untried] == [
        ("A100", pytest.approx(30.0), 0),
        ("V100", None, 0),
    ]


def test_what_is_not_known_is_said() -> None:
    found = of_train({TRAIN: Seen(runs("", 100.0))})
    assert (found.flavor, found.advice, found.untried) == ("", None, ())
    assert found.unknown == ("on which flavor it was in 3 runs (100 s in the middle)",)
    found = of_train({TRAIN: Seen(runs("T4", 100.0) + runs("", 90.0, count=1))})
    assert found.unknown == (
        "on which flavor it was in 1 run (90 s in the middle)",
        "how long it takes on anything but T4",
        "how much of a GPU's memory it uses, so whether a part of one, or one with less, would do",
    )
    found = of_train({TRAIN: Seen(runs("T4", 100.0, peak_bytes=GIB) + runs("K80", 300.0))})
    assert found.unknown == ("what an hour of K80 costs",)


LOG: list[Record] = [
    WorkloadSubmitted(0.0, "w", "dag"),
    TaskAdded(0.0, "w", "1", "train", phases=(("gpu", 1.0, 1.0, 0),)),
    Started(1.0, "w", "1", node="a", gpus=1.0, flavor="T4"),
    Ended(11.0, "w", "1", outcome="failed", reason="out of GPU memory: CUDA out of memory. Tried to allocate 2 GiB"),
    Started(12.0, "w", "1", attempt=2, node="b", gpus=1.0, flavor="V100"),
    Ended(52.0, "w", "1", attempt=2),
]


def test_where_memory_was_not_enough_is_not_advised_until_it_was_again() -> None:
    """T4 is cheapest and has ended `train` by lack of memory last: V100. Once it has succeeded there since, T4."""
    known = Known()
    known.add_rows([HistoryRow("dag", "train", 0, Shape(1000, 1000), 50.0, "T4", ended_at=5.0)])
    known.add_log(Header(driver="ray", started_at=1000.0), LOG, {})
    found = of_train(known.seen)
    assert (found.flavor, [(one.size, one.at) for one in found.died]) == ("V100", [("T4", 1011.0)])
    assert [one.flavor for one in found.untried] == ["A100"]
    known.add_rows([HistoryRow("dag", "train", 0, Shape(1000, 1000), 50.0, "T4", ended_at=2000.0)])
    assert of_train(known.seen).flavor == "T4"


def test_a_lack_of_main_memory_says_nothing_of_the_flavor() -> None:
    """T4 stays; twice the memory that was asked for is to be asked for, which is all that is known of the need."""
    known = Known()
    log = [
        *LOG[:2],
        Started(1.0, "w", "1", node="a", gpus=1.0, memory_bytes=4 * GIB, flavor="T4"),
        Ended(11.0, "w", "1", outcome="failed", reason="out of main memory: OOMKilled"),
    ]
    known.add_log(Header(started_at=1000.0), log, {})
    known.seen[TRAIN].measured += runs("T4", 50.0)
    found = of_train(known.seen)
    assert (found.flavor, found.died, found.memory_bytes) == ("T4", (), 8 * GIB)
    assert [(one.memory_bytes, one.at) for one in found.starved] == [(4 * GIB, 1011.0)]


def run_of(outcome: str, seconds: float, earlier: tuple[Earlier, ...] = ()) -> RunView:
    times = {"started_at": 100.0, "ended_at": 100.0 + seconds}
    had = {"queue": "default", "cpus": 1.0, "gpus": 2.0, "flavor": "T4"}
    return run_view(id=outcome, state="ended", outcome=outcome, earlier=earlier, **times, **had)


def test_what_attempts_held_that_did_not_succeed_counts_as_egs_cost_has_it() -> None:
    """One aborted after 10 s on two GPUs, as a user saw it: `egs cost` had 0.01 GPU hours, the advice none. One that
    was evicted after 5 s and succeeded then, too; the sums are those of the same runs there."""
    seen = [run_of("aborted", 10.0), run_of("succeeded", 20.0, (Earlier(started_at=50.0, ended_at=55.0, gpus=2.0),))]
    known = Known()
    known.add_runs(seen[:1])
    found = of_command(known)
    assert (found.runs, found.gpu_h, found.lost, found.advice) == (0, 0.0, 1, None)
    assert found.lost_gpu_h == pytest.approx(20.0 / 3600)
    assert found.unknown == ("how long it takes: no run of it has succeeded",)
    known = Known()
    known.add_runs(seen)
    found = of_command(known)
    assert (found.runs, found.lost) == (1, 2)
    held = sum(use.gpus * (use.held[1] - use.held[0]) for use in uses_of_runs(seen, 1000.0))
    assert (found.gpu_h + found.lost_gpu_h) * 3600 == pytest.approx(held) == 70.0


def test_smaller_memory_than_where_it_died_is_not_advised_either() -> None:
    known = Known()
    log = [one if not isinstance(one, Started) or one.attempt > 1 else _on(one, "V100") for one in LOG[:4]]
    known.add_log(Header(started_at=1000.0), log, {})
    known.seen[TRAIN].measured += runs("T4", 50.0) + runs("V100", 50.0)
    found = of_train(known.seen)
    assert (found.advice, found.flavor) == (None, "")
    assert found.unknown[0] == "where its memory is enough: it was not on T4, V100"


def _on(one: Started, flavor: str) -> Started:
    return Started(one.t, one.workload, one.task, node=one.node, gpus=one.gpus, flavor=flavor)


def test_a_log_that_names_no_flavor_has_that_of_its_nodes() -> None:
    """As of Airflow and of Kubeflow: pools and nodes, whose flavors the file of prices says."""
    plain = [_on(one, "") if isinstance(one, Started) else one for one in LOG[:2] + LOG[4:]]
    plain[-1] = Ended(52.0, "w", "1")
    known = Known()
    known.add_log(Header(driver="airflow", emulated_gpus=True), plain, {"b": "A100"})
    (one,) = known.seen[TRAIN].measured
    assert (one.flavor, one.seconds, one.is_emulated) == ("A100", 40.0, True)


def test_rows_of_a_split_that_never_was_do_not_count_twice() -> None:
    """A native run held its GPU for 40 s and used it for 10 s: one kind, of 40 s. Once it was split, both are there."""
    native = [
        WorkloadSubmitted(0.0, "w", "dag"),
        TaskAdded(0.0, "w", "1", "train", phases=(("gpu", 1.0, 1.0, 0),)),
        Started(0.0, "w", "1", gpus=1.0, flavor="T4"),
        Used(10.0, 20.0, "w", "1"),
        Ended(40.0, "w", "1"),
    ]
    known = Known()
    known.add_log(Header(started_at=1.0), native, {})
    assert {kind: [one.seconds for one in seen.measured] for kind, seen in known.seen.items()} == {TRAIN: [40.0]}
    known = Known()
    known.add_rows(
        [
            HistoryRow("dag", "train", 0, Shape(1000, 1000), 40.0, "T4", ended_at=9.0),
            HistoryRow("dag", "train", 1, Shape(1000, 1000), 10.0, "T4", ended_at=9.0),
            HistoryRow("dag", "train", 1, Shape(1000, 1000), 6.0, "V100", ended_at=19.0),
        ]
    )
    assert {kind.phase: [one.seconds for one in seen.measured] for kind, seen in known.seen.items()} == {
        0: [40.0],
        1: [10.0, 6.0],
    }


COMMAND = Kind("", "train.py")


def of_command(known: Known, gone: tuple[str, ...] = ()) -> Advised:
    return next(one for one in advise(known.seen, TIERS, {}, gone=gone) if one.task == "train.py")


def test_runs_with_another_batch_and_a_label_are_no_ground_of_advice() -> None:
    """Once measured with a batch where GPUs had no flavor, then on two flavors without one: the cheaper of those, in
    its own seconds. Of both kinds on as many flavors, what was measured last counts."""
    known = Known()
    batch = [Measured("emulated", 16.2, batch=16, ended_at=1.0)]
    plain = [Measured("A100", 1.0, ended_at=2.0), Measured("T4", 1.1, ended_at=3.0)]
    known.add_profile("train.py", batch + plain)
    found = of_command(known)
    assert (found.flavor, found.advice and found.advice.seconds) == ("T4", 1.1)
    assert found.advice is not None
    assert round(found.advice.saving or 0, 2) == 0.82
    assert found.unknown[0] == "on which flavor it was in 1 run (16.2 s in the middle)"
    later = [Measured("A100", 8.0, batch=16, ended_at=9.0), Measured("T4", 9.0, batch=16, ended_at=9.0)]
    known.add_profile("train.py", later)
    found = of_command(known)
    assert (found.flavor, found.advice and found.advice.seconds) == ("T4", 9.0)


def test_a_flavor_that_the_site_does_not_have_is_not_advised_for_a_command() -> None:
    """It is said; of a pipeline, which may run elsewhere, it still counts."""
    known = Known()
    known.add_profile("train.py", runs("T4", 100.0) + runs("V100", 90.0))
    known.seen[TRAIN] = Seen(runs("T4", 100.0))
    found = of_command(known, ("T4",))
    assert (found.flavor, [one.flavor for one in found.untried]) == ("V100", ["A100"])
    assert "how the site compares with T4, which it does not have (3 runs)" in found.unknown
    assert next(one for one in advise(known.seen, TIERS, {}, gone=("T4",)) if one.task == "train").flavor == "T4"
