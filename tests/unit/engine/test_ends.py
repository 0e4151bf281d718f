"""Distributions of what is to come: conditioned on the time that has passed, added up, and the later of two."""

from __future__ import annotations

import random
import statistics

import pytest

from egs_core.time_estimates import Z95, after, early_quantile, latest, length_of, remaining


def test_a_length_is_its_median_and_how_early_it_may_end() -> None:
    """Log-normal: the 5 % quantile is as many times below the median as the 95 % quantile is above it."""
    assert length_of(10.0, 20.0) == (10.0, 5.0)
    assert length_of(10.0, 10.0) == (10.0, 0.0)
    assert length_of(0.0, 0.0) == (0.0, 0.0)


@pytest.mark.parametrize("elapsed", [0.0, 2.0, 6.0, 10.0, 15.0, 30.0])
def test_what_is_left_is_what_is_left_of_those_that_last_longer(elapsed: float) -> None:
    """Against drawn samples of the same law, of which those that ended before `elapsed` are thrown away."""
    rng, sigma = random.Random(1), 0.6931471805599453 / Z95  # p95 is twice the median
    drawn = [rng.lognormvariate(2.302585092994046, sigma) for _ in range(200_000)]
    left = sorted(x - elapsed for x in drawn if x > elapsed)
    median, early = remaining(10.0, 20.0, elapsed)
    assert median == pytest.approx(statistics.median(left), abs=0.15)
    assert median - early == pytest.approx(left[len(left) // 20], abs=0.15)


def test_what_outlived_its_distribution_is_not_about_to_end() -> None:
    """An exact estimate counts down; after that, and far beyond any spread, the longer it ran the longer it will."""
    assert remaining(10.0, 10.0, 4.0) == (6.0, 0.0)
    assert remaining(10.0, 10.0, 20.0)[0] == pytest.approx(20 * (2**0.5 - 1))
    assert remaining(10.0, 20.0, 1000.0)[0] == pytest.approx(1000 * (2**0.5 - 1))
    assert remaining(0.0, 0.0, 0.0) == (0.0, 0.0)


def test_one_after_the_other() -> None:
    """Medians add up; deviations add up as those of independent things do."""
    assert after((10.0, 3.0), (5.0, 4.0)) == (15.0, 5.0)
    assert after((10.0, 0.0), (5.0, 4.0)) == (15.0, 4.0)
    assert after((10.0, 3.0), (5.0, 0.0)) == (15.0, 3.0)


def test_the_later_of_two() -> None:
    """Clark's moments for two standard normals (mean 0.5642, variance 0.6817); far apart or certain: the later."""
    mean, early = latest((100.0, Z95), (100.0, Z95))
    assert mean == pytest.approx(100.56419, abs=1e-5)
    assert early / Z95 == pytest.approx(0.68169**0.5, abs=1e-5)
    assert latest((10.0, 1.0), (50.0, 2.0)) == latest((50.0, 2.0), (10.0, 1.0)) == (50.0, 2.0)
    assert latest((10.0, 0.0), (10.0, 0.0)) == (10.0, 0.0)
    assert latest((10.0, 0.0), (12.0, 0.0)) == (12.0, 0.0)


def test_quantiles_in_units_of_the_fifth_percentile() -> None:
    assert early_quantile(0.05) == pytest.approx(1.0)
    assert early_quantile(0.5) == 0.0
    assert early_quantile(0.2) == pytest.approx(0.8416 / 1.6449, abs=1e-4)
