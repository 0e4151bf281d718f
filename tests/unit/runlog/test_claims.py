"""What pairs of runs allow to say, and whether two logs are of the same tasks."""

from __future__ import annotations

import random

import pytest

from egs_core.runlog.claims import LEAST_NOISE, claim_of, noise_between
from egs_core.runlog.records import Ended, Record, Started, TaskAdded, WorkloadSubmitted
from egs_core.runlog.same_tasks import task_difference, task_names
from egs_core.runlog.timeline import build_timeline

NAMES = ("before", "after")


def run_of(cpu_s: float, gpu_s: float) -> list[Record]:
    """A CPU task and then a GPU task, of so many seconds."""
    return [
        WorkloadSubmitted(0, "w"),
        TaskAdded(0, "w", "1", "load", phases=(("cpu", 1, 0, 0),)),
        TaskAdded(0, "w", "2", "train", phases=(("gpu", 1, 1, 0),)),
        Started(0, "w", "1", cpus=1),
        Ended(cpu_s, "w", "1"),
        Started(cpu_s, "w", "2", cpus=1, gpus=1),
        Ended(cpu_s + gpu_s, "w", "2"),
    ]


@pytest.mark.parametrize(
    ("before", "after", "is_claimed"),
    [(10.0, 5.0, True), (5.0, 10.0, True), (10.5, 10.0, False), (1.8, 1.0, False), (8.4, 9.6, True), (9.0, 8.4, False)],
)
def test_one_pair_is_claimed_beyond_a_tenth_and_a_second(before: float, after: float, is_claimed: bool) -> None:
    """Both ways: a slower run is said as well."""
    claim = claim_of([(before, after)])
    assert claim is not None
    assert (claim.is_claimed, claim.pairs) == (is_claimed, 1)
    assert claim.ratio == pytest.approx(before / after)


def test_no_claim_within_what_the_machine_did_to_the_same_tasks() -> None:
    """CPU tasks that took half as long again show a machine that was busier: 30 % are then noise. A GPU task that got
    shorter does not count, for loading ahead is meant to do that."""
    calm, busy = build_timeline(run_of(2.0, 8.0)), build_timeline(run_of(3.0, 10.0))
    assert noise_between(calm, busy) == pytest.approx(1.0)
    assert noise_between(calm, build_timeline(run_of(2.0, 2.0))) == LEAST_NOISE
    claim = claim_of([(13.0, 10.0)], noise_between(calm, busy))
    assert claim is not None
    assert not claim.is_claimed


def test_several_pairs_are_claimed_where_the_interval_excludes_one() -> None:
    """Pairs that agree are a claim, with a far smaller difference than one pair needs; those that scatter are none."""
    close = claim_of([(10.5, 10.0), (10.6, 10.1), (10.4, 9.95), (10.5, 9.9), (10.55, 10.0)])
    assert close is not None
    assert close.is_claimed
    assert 1 < close.low < close.ratio < close.high < 1.1
    wide = claim_of([(12.0, 10.0), (9.0, 10.0), (14.0, 10.0), (10.0, 11.0), (11.0, 10.0)])
    assert wide is not None
    assert not wide.is_claimed
    assert wide.low < 1 < wide.high


def test_pairs_without_a_difference_are_rarely_claimed() -> None:
    """Of 1,000 sets of five pairs that differ by chance alone at most 7 % are claimed (5 % are expected)."""
    numbers = random.Random(5)
    made = [
        claim_of([(numbers.lognormvariate(2, 0.1), numbers.lognormvariate(2, 0.1)) for _ in range(5)])
        for _ in range(1000)
    ]
    assert sum(claim is not None and claim.is_claimed for claim in made) <= 70


def test_nothing_is_said_of_runs_that_took_no_time() -> None:
    """An empty log has no ratio."""
    assert claim_of([]) is None
    assert claim_of([(0.0, 1.0)]) is None


def test_the_same_tasks_are_told_by_name_and_number() -> None:
    """Ids differ between frameworks and runs, names do not."""
    first = task_names(run_of(1, 1))
    assert first == {"load": 1, "train": 1}
    assert task_difference(first, {"train": 1, "load": 1}, NAMES) == ""
    assert task_difference(first, {"load": 3, "fit": 1}, NAMES) == (
        "2 tasks in before, 4 in after; only in before: 1 x train; only in after: 1 x fit, 2 x load"
    )


def test_the_parts_of_a_split_task_count_as_that_task() -> None:
    """A task that EGS splits keeps its name as the name of its parts' group; other names are other tasks."""
    whole, parts = {"load": 1, "train": 1}, {"load": 1, "train.decode": 1, "train.fit": 1}
    assert task_difference(whole, parts, NAMES) == task_difference(parts, whole, NAMES) == ""
    assert task_difference({"train": 1, "train.fit": 1}, {"train": 1}, NAMES) != ""
    assert task_difference({"load": 1}, parts, NAMES) != ""


def test_a_log_without_tasks_counts_those_that_started() -> None:
    """As logs of EGS before tasks were written."""
    assert task_names([Started(0, "w", "a"), Started(1, "w", "a", attempt=2), Started(1, "v", "a")]) == {"a": 2}
