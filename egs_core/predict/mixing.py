"""One answer from several opinions, and quantiles that hold what they promise.

`Mixer`: for each quantile a weighted mean of the opinions, by what each would have saved so far in pinball loss.
`Calibration`: moves the upper quantiles until the promised share of durations is below them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

import msgspec

from egs_core.predict.window import LEVELS, Triple

_PRIOR_COUNT = 30.0  # observations after which a category's own weights count as much as those of all
_STEEPEST = 10.0  # of a loss, in usual errors: a quantile far above them says no more about the opinions than this
_RATE = 0.1  # of the first step of a calibration; later ones shrink with the root of their number, down to:
_LOWEST_RATE = 0.004
_LIMIT = 10.0  # in spreads; beyond it an offset says nothing more


def pinball(level: float, predicted: float, actual: float) -> float:
    """The loss of a quantile: expected least at the true one."""
    return (actual - predicted) * (level - (actual < predicted))


class Regrets(msgspec.Struct):
    """How much each opinion would have saved at one quantile: sums of the saving and of its square."""

    saved: list[float]
    squares: list[float]
    weights: list[float]

    @classmethod
    def of(cls, size: int) -> Regrets:
        """Equal weights for so many opinions."""
        return cls([0.0] * size, [1.0] * size, [1.0 / size] * size)

    def learn(self, slope: float, mixed: float, opinions: Sequence[float]) -> None:
        """ML-Poly (Gaillard, Stoltz and van Erven 2014): weights go by saving over variation; no rate to tune.

        slope: derivative of the loss, in units of its usual size, at what was answered.
        """
        new = [slope * (mixed - opinion) for opinion in opinions]
        self.saved = saved = [s + r for s, r in zip(self.saved, new, strict=True)]
        self.squares = squares = [q + r * r for q, r in zip(self.squares, new, strict=True)]
        raw = [s / q if s > 0 else 0.0 for s, q in zip(saved, squares, strict=True)]
        total = sum(raw)
        self.weights = [w / total for w in raw] if total > 0 else [1.0 / len(raw)] * len(raw)


class Mixer(msgspec.Struct):
    """Weights of a fixed list of opinions, one set for each of LEVELS. n: observations."""

    regrets: list[Regrets]
    n: int = 0

    @classmethod
    def of(cls, size: int) -> Mixer:
        """Equal weights for so many opinions."""
        return cls([Regrets.of(size) for _ in LEVELS])

    @property
    def size(self) -> int:
        """How many opinions it weighs."""
        return len(self.regrets[0].weights)

    def learn(self, mixed: Triple, opinions: Sequence[Triple], actual: float, scale_s: float) -> None:
        """All logarithms but `scale_s`, the usual error: an error counts in seconds, not in factors."""
        self.n += 1
        for at, values in enumerate(zip(*opinions, strict=True)):
            steep = min(math.exp(mixed[at]) / scale_s, _STEEPEST)
            self.regrets[at].learn(((actual < mixed[at]) - LEVELS[at]) * steep, mixed[at], values)


def mixed_by(own: Mixer | None, common: Mixer, opinions: Sequence[Triple]) -> Triple:
    """One number for each of LEVELS: by the common weights, and by the category's own the more it was seen."""
    share = own.n / (own.n + _PRIOR_COUNT) if own is not None else 0.0
    answer = []
    for at, values in enumerate(zip(*opinions, strict=True)):
        value = sum(map(mul, common.regrets[at].weights, values))
        if own is not None:
            value += share * (sum(map(mul, own.regrets[at].weights, values)) - value)
        answer.append(value)
    p50, p90, p95 = answer
    return in_order(p50, p90, p95)


class Calibration(msgspec.Struct):
    """Offsets of the upper quantiles, in spreads, that follow what was covered (Gibbs and Candès 2021).

    Each observation above a quantile pushes it up by rate * level, each below it down by rate * (1 - level), so the
    offset rests where the share below is `level`, whatever the distribution. The rate shrinks with the root of n
    (Angelopoulos, Barber and Bates 2024), but never to nothing, so that it follows a drift. The median stays as it is:
    no promise hangs on it, and each step would cost accuracy.
    """

    p90: float = 0.0
    p95: float = 0.0
    n: int = 0

    def learn(self, quantiles: Triple, value: float) -> None:
        """quantiles: what was answered, and the value that came; both as logarithms."""
        self.n += 1
        rate = max(_RATE / math.sqrt(self.n), _LOWEST_RATE)
        _, level_90, level_95 = LEVELS
        self.p90 = _limited(self.p90 + rate * (level_90 - (value <= quantiles[1])))
        self.p95 = _limited(self.p95 + rate * (level_95 - (value <= quantiles[2])))

    def moved(self, quantiles: Triple, spread: float) -> Triple:
        """The calibrated quantiles."""
        p50, p90, p95 = quantiles
        return in_order(p50, p90 + spread * self.p90, p95 + spread * self.p95)


def _limited(offset: float) -> float:
    return min(max(offset, -_LIMIT), _LIMIT)


def in_order(p50: float, p90: float, p95: float) -> Triple:
    """Quantiles that do not cross: each at least the one before."""
    p90 = max(p50, p90)
    return p50, p90, max(p90, p95)
