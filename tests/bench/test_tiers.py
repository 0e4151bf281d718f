"""The benchmark of advice on the kind of GPU, on cases whose answer is known."""

from __future__ import annotations

import pytest

from benchmarks.heterogeneous import NAMES, Job, load_speeds
from benchmarks.tiers import advised, best, cost, measure, profile_of, seconds, with_worth, worth_for
from egs_core.profiling.tiers import Wishes

SPEEDS = {("alike", 1): {"v100": 1.0, "p100": 1.0, "k80": 1.0}, ("keen", 1): {"v100": 1.0, "p100": 0.5, "k80": 0.1}}


def job(kind: str, seconds_on_first: float = 3600.0) -> Job:
    rates = SPEEDS[kind, 1]
    times = {flavor: seconds_on_first / rate for flavor, rate in rates.items()}
    return Job("0", kind, 0.0, times, 1, 2.0 * min(times.values()))


def test_a_profile_without_error_leads_to_what_is_best() -> None:
    """What runs alike everywhere goes to the cheapest, what is slow elsewhere to the fast one."""
    profile = profile_of(SPEEDS, 1, 0.0, seed=0)
    pick = advised(profile, lambda _: Wishes(hour_worth=1.0))
    assert [pick(job(kind)) for kind in ("alike", "keen")] == ["k80", "v100"]
    assert [best(with_worth(1.0))(job(kind)) for kind in ("alike", "keen")] == ["k80", "v100"]
    assert cost(job("alike"), "k80") == pytest.approx(0.45)
    assert seconds(job("keen"), "k80") == pytest.approx(36_000.0)


def test_the_worth_of_an_hour_brings_the_mean_time_down_to_what_is_wanted() -> None:
    """Two jobs: with the keen one on a V100 they take an hour each, with it on a P100 an hour and a half."""
    profile = profile_of(SPEEDS, 1, 0.0, seed=0)
    jobs = [job("alike"), job("keen")]
    for wanted_s in (3600.0, 5400.0):
        worth = worth_for(jobs, profile, wanted_s)
        pick = advised(profile, lambda _, worth=worth: Wishes(hour_worth=worth))  # type: ignore[misc]  # its default
        assert sum(one.seconds[pick(one)] for one in jobs) / 2 <= wanted_s


def test_a_profile_has_each_type_on_each_flavor_and_is_the_same_each_time() -> None:
    speeds = load_speeds(None)
    profile = profile_of(speeds, 2, 0.1, seed=1)
    assert profile == profile_of(speeds, 2, 0.1, seed=1)
    assert all({one.flavor for one in each} == set(NAMES) and len(each) == 6 for each in profile.values())


def test_no_regret_is_below_zero_and_without_error_there_is_none() -> None:
    """On the drawn table: exact profiles choose the best for each job; with an error nothing is better than it."""
    exact = measure(load_speeds(None), 40, runs=3, noise=0.0)
    assert all(row["most_regret"] == pytest.approx(0.0, abs=1e-6) for row in exact["equal_time"])
    rough = measure(load_speeds(None), 40, runs=1, noise=0.3)
    assert all(row["regret"] >= -1e-9 for row in [*rough["equal_time"], *rough["bounded"]])
    assert any(row["regret"] > 0 for row in rough["equal_time"])
