"""What is predicted (`Signature`), the answer (`Estimate`), and the arithmetic of distributions behind both."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from statistics import NormalDist

import msgspec

from egs_core.graph.columns import CPU, GPU, Shape

UNKNOWN_INPUT = -1

# z-values of the 90 % and 95 % quantiles of the normal distribution; P90_POWER turns p95/p50 into p90/p50.
_NORMAL = NormalDist()
_Z95 = _NORMAL.inv_cdf(0.95)
P90_POWER = _NORMAL.inv_cdf(0.90) / _Z95

QUANTILES = (0.50, 0.90, 0.95)
# With few samples the largest one says little about the tail: p90 and p95 are at least p50 * (1 + this / n).
_SMALL_SAMPLE = (0.0, 0.5, 1.0)
# Survivors of everything seen follow a Pareto tail with this exponent: the longer it ran, the longer it will.
_TAIL_EXPONENT = 2.0
_TAIL_FACTORS = tuple((1 - q) ** (-1 / _TAIL_EXPONENT) for q in QUANTILES)
_TAIL_BEGINS = 0.999
MAX_SPREAD = 10.0  # largest p95/p50 of a prior; above about 17 the step onto the Pareto tail would go down


class Signature(msgspec.Struct, frozen=True, array_like=True):
    """Phases with one signature are runs of the same code on the same hardware, so their durations are comparable.

    Make it with `signature_of`, which leaves out what does not change a duration.
    """

    pipeline: str
    task: str
    phase: int = 0
    shape: Shape = Shape()
    flavor: str = ""
    input_bucket: int = UNKNOWN_INPUT

    @property
    def kind(self) -> int:
        """CPU or GPU, as in `egs_core.graph.columns`."""
        return GPU if self.shape.gpu_milli else CPU


class Estimate(msgspec.Struct, frozen=True):
    """Quantiles of a duration in seconds, from n samples. source: history, hint or prior."""

    p50_s: float
    p90_s: float
    p95_s: float
    n: int = 0
    source: str = "prior"


def signature_of(
    pipeline: str, task: str, phase: int = 0, shape: Shape | None = None, flavor: str = "", input_bytes: int = -1
) -> Signature:
    """The signature of a phase. Reserved memory is left out: it decides where a phase fits, not how long it takes."""
    shape = shape or Shape()
    return Signature(
        pipeline, task, phase, Shape(shape.cpu_milli, shape.gpu_milli), flavor, input_size_bucket(input_bytes)
    )


def input_size_bucket(size_bytes: int) -> int:
    """Sizes in one bucket are within a factor of two; UNKNOWN_INPUT for a negative (unknown) size.

    >>> [input_size_bucket(n) for n in (-1, 0, 1, 1023, 1024)]
    [-1, 0, 1, 10, 11]
    """
    return UNKNOWN_INPUT if size_bytes < 0 else size_bytes.bit_length()


def spread_estimate(p50_s: float, spread: float, n: int, source: str) -> Estimate:
    """A log-normal distribution with this median and p95 = spread * p50."""
    return Estimate(p50_s, p50_s * spread**P90_POWER, p50_s * spread, n, source)


def sample_estimate(values: Sequence[float], cumulative: Sequence[int], above_s: float = 0.0) -> Estimate:
    """Quantiles of the total duration, given that it exceeds `above_s` (0: given nothing).

    values: sorted samples; cumulative: running sums of their whole-number weights. Beyond all samples the Pareto tail.
    """
    first = bisect_right(values, above_s) if above_s > 0 else 0
    n = len(values) - first
    if n == 0:
        p50_s, p90_s, p95_s = (above_s * factor for factor in _TAIL_FACTORS)
        return Estimate(p50_s, p90_s, p95_s, 0, "history")
    base = cumulative[first - 1] if first else 0
    p50_s, *tail = (_weighted_quantile(values, cumulative, first, base, q) for q in QUANTILES)
    p90_s, p95_s = (max(v, p50_s * (1 + k / n)) for v, k in zip(tail, _SMALL_SAMPLE[1:], strict=True))
    return Estimate(p50_s, p90_s, p95_s, n, "history")


def conditional_estimate(estimate: Estimate, elapsed_s: float) -> Estimate:
    """Quantiles of the total duration of a phase that already ran elapsed_s, knowing only the estimate.

    A log-normal distribution through p50 and p95, from its 99.9 % quantile on the Pareto tail.
    """
    if elapsed_s <= 0:
        return estimate
    spread = min(estimate.p95_s / estimate.p50_s, MAX_SPREAD) if estimate.p50_s > 0 else 1.0
    sigma = math.log(spread) / _Z95 if spread > 1 else 0.0
    if sigma:
        passed = _NORMAL.cdf((math.log(elapsed_s) - math.log(estimate.p50_s)) / sigma)
    else:
        passed = 1.0 if elapsed_s >= estimate.p50_s else 0.0
    if passed >= _TAIL_BEGINS:
        totals = [elapsed_s * factor for factor in _TAIL_FACTORS]
    elif not sigma:
        totals = [estimate.p50_s] * 3
    else:
        mass = (passed + q * (1 - passed) for q in QUANTILES)
        totals = [estimate.p50_s * math.exp(sigma * _NORMAL.inv_cdf(q)) for q in mass]
    p50_s, p90_s, p95_s = map(max, totals, (estimate.p50_s, estimate.p90_s, estimate.p95_s))
    return Estimate(p50_s, p90_s, p95_s, estimate.n, estimate.source)


def minus_elapsed(total: Estimate, elapsed_s: float) -> Estimate:
    """What is left of a total duration; never below zero."""
    p50_s, p90_s, p95_s = (max(0.0, q - elapsed_s) for q in (total.p50_s, total.p90_s, total.p95_s))
    return Estimate(p50_s, p90_s, p95_s, total.n, total.source)


def _weighted_quantile(values: Sequence[float], cumulative: Sequence[int], first: int, base: int, q: float) -> float:
    """Inverse of the weighted distribution of values[first:]; the mean of two where it is exactly between them."""
    target = base + q * (cumulative[-1] - base)
    at = bisect_left(cumulative, target, lo=first, hi=len(values) - 1)
    if cumulative[at] == target and at + 1 < len(values):
        return values[at] / 2 + values[at + 1] / 2
    return values[at]
