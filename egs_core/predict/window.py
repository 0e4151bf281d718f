"""The last durations of one key, as logarithms, and their quantiles; a watched window forgets all before a shift."""

from __future__ import annotations

from bisect import bisect_left, insort

import msgspec

from egs_core.predict.shift import Shift

LEVELS = (0.50, 0.90, 0.95)
Triple = tuple[float, float, float]  # quantiles of a logarithm at LEVELS

# How many values of its own a window needs to count as much as what is known from elsewhere: little for the level,
# more for the distance of the tail from it.
_LEVEL_COUNT = 0.5
_TAIL_COUNT = 4.0


class Window(msgspec.Struct):
    """At most `size` values. Invariant: `ranked` holds exactly the values of `recent`, sorted."""

    size: int
    shift: Shift | None = None  # None: not watched
    recent: list[float] = []
    ranked: list[float] = []
    quantiles: Triple = (0.0, 0.0, 0.0)

    @classmethod
    def watched(cls, size: int) -> Window:
        """A window that forgets what is before a shift."""
        return cls(size, Shift())

    def add(self, value: float) -> None:
        """Learn a finite value."""
        keep = self.shift.watch(value, self.ranked, self._newest) if self.shift is not None else 0
        self.recent.append(value)
        insort(self.ranked, value)
        if keep:
            self.recent = self.recent[-keep:]
            self.ranked = sorted(self.recent)
        elif len(self.recent) > self.size:
            del self.ranked[bisect_left(self.ranked, self.recent.pop(0))]
        self.quantiles = quantiles_of(self.ranked)

    def _newest(self, count: int) -> list[float]:
        return self.recent[max(0, len(self.recent) - count) :]


def quantiles_of(ranked: list[float]) -> Triple:
    """Of sorted values, at LEVELS: interpolated between the positions k / (n + 1) (Weibull's rule, type 6)."""
    n = len(ranked)
    if n == 1:
        return ranked[0], ranked[0], ranked[0]
    p50, p90, p95 = (_between(ranked, min(max(level * (n + 1) - 1, 0.0), n - 1.0)) for level in LEVELS)
    return p50, p90, p95


def _between(ranked: list[float], position: float) -> float:
    at = int(position)
    low = ranked[at]
    return low + (ranked[at + 1] - low) * (position - at) if position > at else low


def blended(window: Window | None, known: Triple) -> Triple:
    """The window's quantiles, drawn towards `known` as far as its values are few; `known` without a window."""
    if window is None:
        return known
    n = len(window.recent)
    p50, p90, p95 = window.quantiles
    k50, k90, k95 = known
    level = k50 + (p50 - k50) * (n / (n + _LEVEL_COUNT))
    own = n / (n + _TAIL_COUNT)
    return (
        level,
        level + (k90 - k50) * (1 - own) + (p90 - p50) * own,
        level + (k95 - k50) * (1 - own) + (p95 - p50) * own,
    )
