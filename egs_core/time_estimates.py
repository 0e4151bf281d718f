"""When phases and tasks are expected to end, as small distributions. Pure arithmetic.

Estimates are (median, 95th percentile), read as log-normal. What counts for starting something *in time* is how much
earlier than its median a thing may happen, so a moment in the future is two numbers:

    TimeEstimate = (at_s, early_s)     at_s: the median; at_s - early_s: the 5 % quantile

           5 % ├── early_s ──┤ at_s
    ───────────┴─────────────┴──────────────────► seconds from now

Sums add medians, and add `early_s` as independent deviations do. Maxima follow Clark, "The greatest of a finite set of
random variables", Operations Research 9(2), 1961, on normal distributions with these medians and deviations.
"""

from __future__ import annotations

from functools import lru_cache
from math import erf, exp, hypot, log, pi, sqrt
from statistics import NormalDist

TimeEstimate = tuple[float, float]

_NORMAL = NormalDist()
Z95 = _NORMAL.inv_cdf(0.95)
NOW: TimeEstimate = (0.0, 0.0)
_SURELY = 3.0  # standard deviations apart: the later one is the maximum
_TAIL_BEGINS = 0.999  # a phase that outlived this share of its distribution is not of that distribution
# Then its total follows a Pareto tail with exponent 2: these shares of what it took already are still to come.
_TAIL_MEDIAN, _TAIL_EARLIEST = 0.5**-0.5 - 1, 0.95**-0.5 - 1


def length_of(p50_s: float, p95_s: float) -> TimeEstimate:
    """A duration that has not begun."""
    return p50_s, (p50_s - p50_s * p50_s / p95_s if p95_s > p50_s > 0 else 0.0)


def any_moment(at_s: float) -> TimeEstimate:
    """Believed to be then, but nothing is known of it."""
    return at_s, at_s


def remaining(p50_s: float, p95_s: float, elapsed_s: float) -> TimeEstimate:
    """What is left of a duration of which elapsed_s have passed: the law of those that last longer than that."""
    if p95_s <= p50_s or p50_s <= 0:
        if elapsed_s < p50_s:
            return p50_s - elapsed_s, 0.0
    else:
        lowest = p50_s * p50_s / p95_s
        if elapsed_s <= lowest / 2:  # hardly anything has ended by then: knowing that it has not says nothing
            return p50_s - elapsed_s, p50_s - lowest
        mu, sigma = _law(p50_s, p95_s)
        passed = _NORMAL.cdf((log(elapsed_s) - mu) / sigma)
        if passed < _TAIL_BEGINS:
            median = exp(mu + sigma * _NORMAL.inv_cdf(passed + 0.5 * (1 - passed)))
            return median - elapsed_s, median - exp(mu + sigma * _NORMAL.inv_cdf(passed + 0.05 * (1 - passed)))
    return elapsed_s * _TAIL_MEDIAN, elapsed_s * (_TAIL_MEDIAN - _TAIL_EARLIEST)


@lru_cache(maxsize=4096)
def _law(p50_s: float, p95_s: float) -> tuple[float, float]:
    return log(p50_s), log(p95_s / p50_s) / Z95


def after(first: TimeEstimate, second: TimeEstimate) -> TimeEstimate:
    """One after the other."""
    if not first[1]:
        return first[0] + second[0], second[1]
    return first[0] + second[0], hypot(first[1], second[1]) if second[1] else first[1]


def latest(one: TimeEstimate, other: TimeEstimate) -> TimeEstimate:
    """The later of two independent moments."""
    apart = one[0] - other[0]
    spread = hypot(one[1], other[1]) / Z95
    if abs(apart) >= _SURELY * spread:
        return one if apart > 0 or (apart == 0 and one[1] >= other[1]) else other
    ratio = apart / spread
    share, density = (1 + erf(ratio / sqrt(2))) / 2, exp(-ratio * ratio / 2) / sqrt(2 * pi)
    mean = apart * share + spread * density  # both measured from `other`
    first, second = one[1] / Z95, other[1] / Z95
    square = (apart * apart + first * first) * share + second * second * (1 - share) + apart * spread * density
    return other[0] + mean, sqrt(max(0.0, square - mean * mean)) * Z95


def early_quantile(share: float) -> float:
    """How many `early_s` before the median the quantile `share` (at most one half) lies: 1 for 5 %, 0 for 50 %."""
    return -_NORMAL.inv_cdf(share) / Z95
