"""The benchmark of advice on the kind of GPU, on cases whose answer is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.heterogeneous import NAMES, Job, load_speeds
from benchmarks.tiers import advised, best, cost, drawn, measure, profile_of, seconds, trace_of, with_worth, worth_for
from egs_core.profiling.tiers import Wishes

SPEEDS = {("alike", 1): {"v100": 1.0, "p100": 1.0, "k80": 1.0}, ("keen", 1): {"v100": 1.0, "p100": 0.5, "k80": 0.1}}
KINDS = ("alike", "keen")


def job(kind: str, seconds_on_first: float = 3600.0) -> Job:
    rates = SPEEDS[kind, 1]
    times = {flavor: seconds_on_first / rate for flavor, rate in rates.items()}
    return Job("0", kind, 0.0, times, 1, 2.0 * min(times.values()))


def test_a_profile_without_error_leads_to_what_is_best() -> None:
    """What runs alike everywhere goes to the cheapest, what is slow elsewhere to the fast one."""
    profile = profile_of(SPEEDS, KINDS, 1, 0.0, seed=0)
    pick = advised(profile, lambda _: Wishes(hour_worth=1.0))
    assert [pick(job(kind)) for kind in ("alike", "keen")] == ["k80", "v100"]
    assert [best(with_worth(1.0))(job(kind)) for kind in ("alike", "keen")] == ["k80", "v100"]
    assert cost(job("alike"), "k80") == pytest.approx(0.45)
    assert seconds(job("keen"), "k80") == pytest.approx(36_000.0)


def test_the_worth_of_an_hour_brings_the_mean_time_down_to_what_is_wanted() -> None:
    """Two jobs: with the keen one on a V100 they take an hour each, with it on a P100 an hour and a half."""
    profile = profile_of(SPEEDS, KINDS, 1, 0.0, seed=0)
    jobs = [job("alike"), job("keen")]
    for wanted_s in (3600.0, 5400.0):
        worth = worth_for(jobs, profile, wanted_s)
        pick = advised(profile, lambda _, worth=worth: Wishes(hour_worth=worth))  # type: ignore[misc]  # its default
        assert sum(one.seconds[pick(one)] for one in jobs) / 2 <= wanted_s


def test_a_profile_has_each_type_on_each_flavor_and_is_the_same_each_time() -> None:
    speeds = load_speeds(None)
    kinds = {kind for kind, _ in speeds}
    profile = profile_of(speeds, kinds, 2, 0.1, seed=1)
    assert profile == profile_of(speeds, kinds, 2, 0.1, seed=1)
    assert all({one.flavor for one in each} == set(NAMES) and len(each) == 6 for each in profile.values())


def test_no_regret_is_below_zero_and_without_error_there_is_none() -> None:
    """On the drawn table: exact profiles choose the best for each job; with an error nothing is better than it."""
    speeds = load_speeds(None)
    tuned, jobs = drawn(speeds, 40, range(3)), drawn(speeds, 40, range(10, 13))
    exact = measure(speeds, tuned, jobs, runs=3, noise=0.0)
    assert all(row["most_regret"] == pytest.approx(0.0, abs=1e-6) for row in exact["equal_time"])
    rough = measure(speeds, tuned, jobs, runs=1, noise=0.3)
    assert all(row["regret"] >= -1e-9 for row in [*rough["equal_time"], *rough["bounded"]])
    assert any(row["regret"] > 0 for row in rough["equal_time"])


def test_a_traces_jobs_are_of_its_sizes_and_cost_by_their_gpus(tmp_path: Path) -> None:
    """A row is a job where the table knows its type on so many GPUs; its profile has as many."""
    (tmp_path / "gpu").mkdir()
    rows = ["wide\ttrain\t-step\t1\t7200\t0.5\t4", "wide\ttrain\t-step\t1\t7200\t9.0\t1"]
    (tmp_path / "gpu" / "gavel_msr_seed0_103959.trace").write_text("\n".join(rows))
    speeds = {("wide", 4): {"v100": 2.0, "p100": 1.0, "k80": 0.5}}
    (only,) = trace_of(str(tmp_path), speeds)
    assert (only.type, only.gpus, only.arrival_s) == ("wide, 4 GPUs", 4, 0.5)
    assert only.seconds == {"v100": 3600.0, "p100": 7200.0, "k80": 14400.0}
    assert cost(only, "v100") == pytest.approx(4 * 2.48)
    profile = profile_of(speeds, {only.type}, 1, 0.0, seed=0)
    assert [(one.flavor, one.gpus) for one in profile[only.type]] == [("v100", 4), ("p100", 4), ("k80", 4)]
