"""What a forecast knows of: category, labels, numbers, run; how it follows a shift, and what its quantiles hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

import pytest

from egs_core.errors import InputError
from egs_core.predict import Forecast, Forecaster, Traits

TRAIN = Traits("train")
NORMAL_90 = 1.2816  # 90 % quantile of the normal distribution


def trained(count: int, make: Callable[[Random, int], tuple[Traits, float]]) -> Forecaster:
    forecaster, rng = Forecaster(), Random(3)
    for i in range(count):
        forecaster.learn(*make(rng, i))
    return forecaster


def test_before_anything_was_seen_there_is_an_answer() -> None:
    """An unknown category gets a wide prior, then what is usual among all categories."""
    forecaster = Forecaster()
    assert forecaster.predict(TRAIN).n == 0
    for _ in range(50):
        forecaster.learn(Traits("other"), 500.0)
    assert forecaster.predict(TRAIN).p50_s == pytest.approx(500.0, rel=0.05)


def test_a_stationary_category_gets_its_quantiles() -> None:
    """After 800 log-normal durations median and P90 are within 15 % of the true ones."""
    forecaster = trained(800, lambda rng, _: (TRAIN, 20 * rng.lognormvariate(0, 0.3)))
    found = forecaster.predict(TRAIN)
    assert found.n == 800
    assert found.p50_s == pytest.approx(20.0, rel=0.15)
    assert found.p90_s == pytest.approx(20 * 2.71828 ** (0.3 * NORMAL_90), rel=0.15)


@pytest.mark.parametrize("sigma", [0.1, 1.0])
def test_quantiles_hold_what_they_promise(sigma: float) -> None:
    """On 3,000 log-normal durations of three categories: 48 to 52, 88 to 92 and 93 to 97 % lie below."""
    forecaster, rng = Forecaster(), Random(5)
    covered = [0, 0, 0]
    for i in range(3000):
        traits, seconds = Traits(f"c{i % 3}"), 10 ** (1 + i % 3) * rng.lognormvariate(0, sigma)
        found = forecaster.predict(traits)
        for at, quantile in enumerate((found.p50_s, found.p90_s, found.p95_s)):
            covered[at] += seconds <= quantile
        forecaster.learn(traits, seconds)
    p50, p90, p95 = (count / 3000 for count in covered)
    assert 0.48 <= p50 <= 0.52
    assert 0.88 <= p90 <= 0.92
    assert 0.93 <= p95 <= 0.97


@pytest.mark.parametrize("factor", [0.25, 1.6, 4.0])
def test_a_shift_is_followed_within_ten_durations(factor: float) -> None:
    """After 200 durations at one level, ten at another bring the median within 15 % of the new level."""
    forecaster = trained(200, lambda rng, _: (TRAIN, 100 * rng.lognormvariate(0, 0.1)))
    rng = Random(9)
    for _ in range(10):
        forecaster.learn(TRAIN, factor * 100 * rng.lognormvariate(0, 0.1))
    assert forecaster.predict(TRAIN).p50_s == pytest.approx(factor * 100, rel=0.15)


def test_larger_inputs_take_longer() -> None:
    """Durations proportional to bytes^0.8 with 20 % noise: a size never seen is predicted within 25 %."""

    def sized(rng: Random, _: int) -> tuple[Traits, float]:
        size = 10 ** rng.uniform(6, 9)
        return Traits("sort", numbers=(size,)), (size / 1e6) ** 0.8 * rng.lognormvariate(0, 0.2)

    forecaster = trained(600, sized)
    for size in (2e6, 3e7, 5e8):
        found = forecaster.predict(Traits("sort", numbers=(size,)))
        assert found.p50_s == pytest.approx((size / 1e6) ** 0.8, rel=0.25)


def test_labels_tell_apart_what_a_category_mixes() -> None:
    """Two models in one category, 10 and 40 s: each is predicted as its own."""
    forecaster = trained(
        400, lambda rng, i: (Traits("image", labels=("ab"[i % 2],)), (10, 40)[i % 2] * rng.lognormvariate(0, 0.1))
    )
    assert forecaster.predict(Traits("image", labels=("a",))).p50_s == pytest.approx(10.0, rel=0.15)
    assert forecaster.predict(Traits("image", labels=("b",))).p50_s == pytest.approx(40.0, rel=0.15)


def test_a_slow_run_is_slow_in_what_is_still_to_come() -> None:
    """When six tasks of a run took twice their usual time, another category of that run is expected to, too."""

    def usual(rng: Random, i: int) -> tuple[Traits, float]:
        factor = 2.0 if i // 40 % 2 else 1.0  # every second run is slow: so the run is what tells
        return Traits(f"c{i // 8 % 5}", f"run{i // 40}"), factor * 10 * rng.lognormvariate(0, 0.05)

    forecaster = trained(1600, usual)
    for _ in range(6):
        forecaster.learn(Traits("c0", "slow"), 20.0)
        forecaster.learn(Traits("c0", "quick"), 10.0)
    slow = forecaster.predict(Traits("c3", "slow")).p50_s
    quick = forecaster.predict(Traits("c3", "quick")).p50_s
    assert slow > 1.4 * quick


def test_impossible_durations_teach_nothing() -> None:
    """NaN, infinite and negative durations are refused without an exception."""
    forecaster = Forecaster()
    assert [forecaster.learn(TRAIN, s) for s in (float("nan"), float("inf"), -1.0)] == [False] * 3
    assert not forecaster.recent("train")


def test_a_category_may_change_what_is_known_of_it() -> None:
    """More labels, other numbers or none from one observation to the next: an answer every time."""
    forecaster = Forecaster()
    forms = [Traits("t"), Traits("t", labels=("a", "b")), Traits("t", "r", ("a",), (1.0,)), Traits("t", numbers=(1, 2))]
    for i in range(200):
        forecaster.learn(forms[i % 4], 10.0)
        assert forecaster.predict(forms[(i + 1) % 4]).p50_s > 0
    assert forecaster.predict(Traits("t", numbers=(float("nan"), -1.0))).p50_s == pytest.approx(10.0, rel=0.1)


def varied(rng: Random, i: int) -> tuple[Traits, float]:
    """A bit of everything."""
    traits = Traits(f"c{i % 4}", f"run{i // 30}", (str(rng.randrange(3)), "x"), (rng.uniform(1, 1e6),))
    return traits, rng.lognormvariate(2, 1)


def test_a_snapshot_survives_json() -> None:
    """Through JSON and back: the same answers, now and after further durations."""
    forecaster = trained(300, varied)
    restored = Forecaster.from_dict(json.loads(json.dumps(forecaster.to_dict())))
    rng = Random(11)
    for i in range(100):
        traits, seconds = varied(rng, i)
        assert restored.predict(traits) == forecaster.predict(traits)
        restored.learn(traits, seconds)
        forecaster.learn(traits, seconds)
    assert restored.to_dict() == forecaster.to_dict()


def test_asking_changes_nothing() -> None:
    """Two forecasters that learn the same give the same answers, however often one is asked."""
    asked, other = trained(100, varied), trained(100, varied)
    answers: set[Forecast] = {asked.predict(Traits("c1", "r", ("0", "x"), (5.0,))) for _ in range(50)}
    assert answers == {other.predict(Traits("c1", "r", ("0", "x"), (5.0,)))}


@pytest.mark.parametrize(
    "snapshot",
    [
        {},
        {"format": "egs-forecaster", "version": 99, "state": {}},
        {"format": "egs-predictor", "version": 1},
        {"format": "egs-forecaster", "version": 1},
        {"format": "egs-forecaster", "version": 1, "state": {"categories": {"c": {"n": "many"}}}},
    ],
)
def test_an_unreadable_snapshot_is_a_clear_error(snapshot: dict[str, object]) -> None:
    """Another format, a later version or a broken form is an InputError."""
    with pytest.raises(InputError, match="forecaster snapshot"):
        Forecaster.from_dict(snapshot)
