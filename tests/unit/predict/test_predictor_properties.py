"""Laws of the predictor, over random histories."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from egs_core.graph.columns import Shape
from egs_core.predict import Estimate, Predictor, signature_of

SIGNATURE = signature_of("p", "t", 0, Shape(1000, 1000))
UNSEEN = signature_of("q", "u", 0, Shape(1000, 1000))
seconds = st.floats(0.0, 1e6)
histories = st.lists(seconds, min_size=1, max_size=260)
ROUNDING = 1 + 1e-9


def trained(durations: list[float]) -> Predictor:
    predictor = Predictor()
    for duration in durations:
        predictor.observe(SIGNATURE, duration)
    return predictor


def quantiles(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.p50_s, estimate.p90_s, estimate.p95_s


@given(histories, seconds, st.floats(0.0, 1e7))
def test_quantiles_are_ordered_and_never_negative(durations: list[float], hint_s: float, elapsed_s: float) -> None:
    """0 <= p50 <= p90 <= p95, from any source, before and while it runs."""
    predictor = trained(durations)
    known = [predictor.estimate(SIGNATURE), predictor.estimate(UNSEEN), predictor.estimate(UNSEEN, hint_s=hint_s)]
    left = [predictor.remaining(k, elapsed_s) for k in known]
    left += [predictor.remaining(k, elapsed_s) for k in (SIGNATURE, UNSEEN)]
    for estimate in [*known, *left]:
        p50_s, p90_s, p95_s = quantiles(estimate)
        assert 0 <= p50_s <= p90_s * ROUNDING <= p95_s * ROUNDING**2


@given(histories, st.floats(0.0, 1e7), st.floats(0.0, 1e7), st.floats(1e-3, 1e5))
def test_the_predicted_end_never_moves_back(durations: list[float], a: float, b: float, hint_s: float) -> None:
    """Time passing without an end is evidence of a later end: elapsed + remaining never goes down."""
    predictor = trained(durations)
    early_s, late_s = sorted((a, b))
    for known in (SIGNATURE, predictor.estimate(UNSEEN), predictor.estimate(UNSEEN, hint_s=hint_s)):
        early = quantiles(predictor.remaining(known, early_s))
        late = quantiles(predictor.remaining(known, late_s))
        assert all(early_s + e <= (late_s + x) * ROUNDING + 1e-9 for e, x in zip(early, late, strict=True))


@given(histories, seconds)
def test_what_is_left_at_the_start_is_everything(durations: list[float], hint_s: float) -> None:
    """At zero seconds the remaining time is the estimate."""
    predictor = trained(durations)
    assert predictor.remaining(SIGNATURE, 0.0) == predictor.estimate(SIGNATURE)
    hint = predictor.estimate(UNSEEN, hint_s=hint_s)
    assert predictor.remaining(hint, 0.0) == hint
