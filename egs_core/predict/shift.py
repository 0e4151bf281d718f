"""Noticing that the level of a series has shifted, whatever its distribution.

Each value's rank among the values before it is a score between -1 (below all) and 1 (above all). A one-sided cumulative
sum of the scores on each side (Page 1954) adds up what exceeds DRIFT, and is a shift at THRESHOLD.

    durations   10 11 10  9 11 10 10 11 | 21 20 22 21
    upward sum   0 .4  0  0 .3  0  0 .3   .8 1.3 1.8 2.3     four values beyond all others; the eight before it go

With independent values the scores are uniform, and there is a false alarm about once in some thousand values.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

import msgspec

DRIFT = 0.5
THRESHOLD = 2.0
MIN_REFERENCE = 8  # fewer values than these cannot be told from one more that is merely the largest


class Shift(msgspec.Struct, array_like=True):
    """The two sums of one series. rising, falling: how many of the newest values they are over."""

    up: float = 0.0
    down: float = 0.0
    rising: int = 0
    falling: int = 0

    def watch(self, value: float, ranked: Sequence[float], newest: Callable[[int], Sequence[float]]) -> int:
        """How many of the newest values to keep, this one included; 0 when there is no shift.

        ranked: the values before this one, sorted; newest(n): the last n of them.
        """
        if len(ranked) < MIN_REFERENCE:
            return 0
        self.up = max(0.0, self.up + _score(value, ranked, newest(self.rising)) - DRIFT)
        self.down = max(0.0, self.down - _score(value, ranked, newest(self.falling)) - DRIFT)
        self.rising = self.rising + 1 if self.up > 0 else 0
        self.falling = self.falling + 1 if self.down > 0 else 0
        if max(self.up, self.down) < THRESHOLD:
            return 0
        keep = self.rising if self.up >= THRESHOLD else self.falling
        self.up, self.down, self.rising, self.falling = 0.0, 0.0, 0, 0
        return keep


def _score(value: float, ranked: Sequence[float], newest: Sequence[float]) -> float:
    """Rank among all values but the newest ones, which may already be beyond the shift: from -1 to 1."""
    below, upto = bisect_left(ranked, value), bisect_right(ranked, value)
    for other in newest:
        below -= other < value
        upto -= other <= value
    n = len(ranked) - len(newest)
    return (below + upto) / n - 1 if n > 0 else 0.0
