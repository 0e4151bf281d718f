"""Laws of forecasts, over random histories."""

from __future__ import annotations

import math
import sys
import time
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egs_core.predict import Forecaster, Traits

words = st.sampled_from(["", "a", "b", "c\x1fd"])
numbers = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=2).map(tuple)
all_traits = st.builds(Traits, words, words, st.lists(words, max_size=2).map(tuple), numbers)
any_seconds = st.one_of(st.floats(0.0, 1e12), st.floats(allow_nan=True, allow_infinity=True))
histories = st.lists(st.tuples(all_traits, any_seconds), max_size=120)


@given(histories, all_traits)
def test_quantiles_are_ordered_positive_and_finite(history: list[tuple[Traits, float]], asked: Traits) -> None:
    """After any history, broken values and all: 0 < p50 <= p90 <= p95 < infinity, and nothing raises."""
    forecaster = Forecaster()
    for traits, seconds in history:
        forecaster.learn(traits, seconds)
    for traits in (asked, *(traits for traits, _ in history[:5])):
        found = forecaster.predict(traits)
        assert 0 < found.p50_s <= found.p90_s <= found.p95_s < math.inf


@given(histories, all_traits)
def test_the_same_history_gives_the_same_answer(history: list[tuple[Traits, float]], asked: Traits) -> None:
    """Nothing but what was learned decides: no clock, no hash order, no randomness; not even having been asked."""
    one, other = Forecaster(), Forecaster()
    for traits, seconds in history:
        one.predict(asked)
        one.learn(traits, seconds)
        other.learn(traits, seconds)
    assert one.predict(asked) == other.predict(asked)


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer, such as coverage, costs more")
def test_a_forecast_costs_at_most_50_microseconds() -> None:
    """With a run, three labels and three numbers, after 2,000 durations: the median question's best of seven times."""
    forecaster, rng = Forecaster(), Random(1)
    asked = []
    for i in range(2000):
        labels = (f"m{rng.randrange(9)}", f"g{rng.randrange(99)}", "x")
        traits = Traits(f"c{i % 20}", f"run{i // 50}", labels, (rng.uniform(1, 1e9), 30.0, float(rng.randrange(8))))
        forecaster.learn(traits, rng.lognormvariate(3, 1))
        asked.append(traits)
    best = [min(seconds_of(forecaster, traits) for _ in range(7)) for traits in asked[-200:]]
    assert median(best) <= 50e-6


def seconds_of(forecaster: Forecaster, traits: Traits) -> float:
    began = time.thread_time()  # others may want the processor too
    forecaster.predict(traits)
    return time.thread_time() - began
