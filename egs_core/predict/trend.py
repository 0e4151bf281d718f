"""How a category's durations follow from numbers known before it starts: a line in logarithms, learned one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

import msgspec

from egs_core.predict.window import Triple, Window

_SLOPE_VARIANCE = 0.25  # before any data a slope is within ±1 (a duration proportional to the number) in 95 %
_LEVEL_VARIANCE = 100.0
_MEMORY = 0.995  # weight of an observation against the next one, so about 200 count
_CLIP = 3.0  # an outlier moves the line no more than a residual of three times the usual size
_LABEL_COUNT = 3.0
_LABEL_MEMORY = 50
_RESIDUALS = 100


class Offset(msgspec.Struct):
    """A label's mean distance from the line, drawn towards zero as far as it was seen rarely."""

    value: float = 0.0
    n: int = 0


class Trend(msgspec.Struct):
    """log(duration) = level + slopes · log(1 + numbers) + offsets of labels, and the residuals' quantiles.

    Recursive least squares with forgetting; `covariance` is that of the coefficients in units of the noise. Numbers
    are counted from `centre`, the first ones seen, so that level and slopes hardly depend on each other.
    """

    centre: list[float]
    theta: list[float]
    covariance: list[list[float]]
    spread: float = 0.5  # running mean of the absolute residual
    offsets: dict[str, Offset] = {}
    residuals: Window = msgspec.field(default_factory=lambda: Window(_RESIDUALS))

    @classmethod
    def starting(cls, logs: Sequence[float], value: float) -> Trend:
        """The trend of a category whose first observation this is."""
        d = len(logs) + 1
        variances = [_LEVEL_VARIANCE] + [_SLOPE_VARIANCE] * (d - 1)
        covariance = [[variances[i] if i == j else 0.0 for j in range(d)] for i in range(d)]
        return cls(list(logs), [value] + [0.0] * (d - 1), covariance)

    def quantiles(self, logs: Sequence[float], labels: Sequence[str]) -> Triple | None:
        """None before there are residuals to say how far off it is."""
        if len(self.residuals.recent) < 2 or len(logs) != len(self.centre):
            return None
        at = self._line(logs) + self._offset(labels)
        p50, p90, p95 = self.residuals.quantiles
        return at + p50, at + p90, at + p95

    def learn(self, logs: Sequence[float], labels: Sequence[str], value: float) -> None:
        """One observation, after it was predicted."""
        offset = self._offset(labels)
        residual = value - self._line(logs) - offset
        self.residuals.add(residual)
        limit = _CLIP * self.spread + 1e-3
        clipped = min(max(residual, -limit), limit)
        self.spread += (min(abs(residual), 4 * limit) - self.spread) * 0.05
        self._update(logs, clipped)
        for number, label in enumerate(labels):
            self._learn_label(f"{number}={label}", clipped)

    def _line(self, logs: Sequence[float]) -> float:
        at = self.theta[0]
        for slope, x, c in zip(self.theta[1:], logs, self.centre, strict=False):
            at += slope * (x - c)
        return at

    def _offset(self, labels: Sequence[str]) -> float:
        total = 0.0
        for number, label in enumerate(labels):
            known = self.offsets.get(f"{number}={label}")
            if known is not None:
                total += known.value
        return total

    def _learn_label(self, key: str, residual: float) -> None:
        offset = self.offsets.get(key)
        if offset is None:
            offset = self.offsets[key] = Offset()
        offset.n = min(offset.n + 1, _LABEL_MEMORY)
        offset.value += residual / (offset.n + _LABEL_COUNT)

    def _update(self, logs: Sequence[float], residual: float) -> None:
        x = [1.0, *(v - c for v, c in zip(logs, self.centre, strict=True))]
        p, d = self.covariance, range(len(x))
        px = [sum(map(mul, row, x)) for row in p]
        gain = 1.0 / (_MEMORY + sum(map(mul, px, x)))
        for i in d:
            self.theta[i] += px[i] * gain * residual
            row, scaled = p[i], px[i] * gain
            for j in d:
                row[j] = (row[j] - scaled * px[j]) / _MEMORY
        for i in d:  # without news about a slope forgetting would let its variance grow without end
            limit = _SLOPE_VARIANCE if i else _LEVEL_VARIANCE
            if p[i][i] > limit:
                shrink = math.sqrt(limit / p[i][i])
                for j in d:
                    p[i][j] *= shrink
                    p[j][i] *= shrink
