"""When a level shift is noticed, when it is not, and what a window's quantiles are."""

from __future__ import annotations

from random import Random

import pytest

from egs_core.predict.window import Window, blended, quantiles_of


def watched(values: list[float]) -> Window:
    window = Window.watched(200)
    for value in values:
        window.add(value)
    return window


@pytest.mark.parametrize("step", [-1.0, 1.0])
def test_four_values_beyond_all_others_are_a_shift(step: float) -> None:
    """Up or down: the fourth value beyond all others leaves only the values since the shift; three are not enough."""
    before, after = [*[0.1, 0.2, 0.3] * 10, 0.2], [step + 0.01 * i for i in range(4)]
    assert len(watched(before + after[:3]).recent) == 34
    assert watched(before + after).recent == after


def test_a_single_outlier_is_no_shift() -> None:
    """One value far above all others, again and again but never twice running, forgets nothing."""
    values = [float(i % 9) for i in range(150)]
    values[20::10] = [1e6] * len(values[20::10])
    assert len(watched(values).recent) == 150


def test_constant_values_are_no_shift() -> None:
    """Ties score nothing."""
    assert len(watched([1.0] * 150).recent) == 150


def test_false_alarms_are_rare() -> None:
    """In 20,000 independent values, heavy-tailed or not, at most ten alarms."""
    for is_heavy in (False, True):
        rng, window, alarms, before = Random(7), Window.watched(200), 0, 0
        for _ in range(20_000):
            window.add(rng.paretovariate(1.0) if is_heavy else rng.gauss(0, 1))
            alarms += len(window.recent) < before
            before = len(window.recent)
        assert alarms <= 10


def test_unwatched_windows_keep_everything_that_fits() -> None:
    """The newest `size` values, sorted beside."""
    window = Window(5)
    for value in (9.0, 1.0, 8.0, 2.0, 7.0, 3.0):
        window.add(value)
    assert (window.recent, window.ranked) == ([1.0, 8.0, 2.0, 7.0, 3.0], [1.0, 2.0, 3.0, 7.0, 8.0])


def test_quantiles_are_at_k_of_n_plus_1() -> None:
    """Of 1 … 19: the 10th is the median, the 18th is P90, the 19th P95; a single value is all three."""
    assert quantiles_of([float(i) for i in range(1, 20)]) == pytest.approx((10.0, 18.0, 19.0))
    assert quantiles_of([4.0]) == (4.0, 4.0, 4.0)


def test_few_values_are_drawn_towards_what_is_known_elsewhere() -> None:
    """No window: as known. One value: two thirds of the way for the level, a fifth for the tail's distance."""
    assert blended(None, (1.0, 2.0, 3.0)) == (1.0, 2.0, 3.0)
    window = Window(5)
    window.add(4.0)
    assert blended(window, (1.0, 2.0, 3.0)) == pytest.approx((3.0, 3.8, 4.6))
