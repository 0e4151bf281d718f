"""Laws of forecasts, over random histories."""

from __future__ import annotations

import math

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
