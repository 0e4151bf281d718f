"""Step functions over time, exact: what every metric integrates.

    amount
      3 |        ┌───┐            times  = [0, 2, 4, 5]
      2 |    ┌───┘   └──┐         values = [0, 2, 3, 2, 0]   (one more: before the first time, and from each on)
      0 |────┘          └────

Amounts are whole ten-thousandths (`UNITS`), so adding and taking away a share of a GPU leaves no residue, and
"idle > 0" means what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

UNITS = 10_000

Floats = NDArray[np.float64]
Units = NDArray[np.int64]
Interval = tuple[float, float]


class Steps:
    """A right-continuous step function: `values[0]` before `times[0]`, `values[i + 1]` from `times[i]` on."""

    __slots__ = ("times", "values")

    def __init__(self, times: Floats, values: Units) -> None:
        self.times, self.values = times, values

    @classmethod
    def of_changes(cls, times: Iterable[float], changes: Iterable[float]) -> Steps:
        """The running sum of `changes` (in whole resources) at `times`, in any order. O(n log n)."""
        at = np.fromiter(times, dtype=np.float64)
        by = np.rint(np.fromiter(changes, dtype=np.float64) * UNITS).astype(np.int64)
        unique, where = np.unique(at, return_inverse=True)
        total = np.zeros(len(unique) + 1, dtype=np.int64)
        np.add.at(total, where + 1, by)
        return cls(unique, np.cumsum(total))

    @classmethod
    def of_intervals(cls, parts: Iterable[tuple[float, float, float]]) -> Steps:
        """The sum of (start, end, amount) parts; empty parts count nothing."""
        rows = np.array([part for part in parts if part[1] > part[0]], dtype=np.float64).reshape(-1, 3)
        starts, ends, amounts = rows[:, 0], rows[:, 1], rows[:, 2]
        return cls.of_changes(np.concatenate([starts, ends]), np.concatenate([amounts, -amounts]))

    def at(self, times: Floats) -> Units:
        """The value from each of `times` on."""
        return self.values[np.searchsorted(self.times, times, side="right")]

    def integral(self, window: Interval) -> float:
        """Resource-seconds over the window."""
        grid, widths = grid_of(window, self)
        return float(np.dot(self.at(grid), widths)) / UNITS

    def averages(self, edges: Floats) -> Floats:
        """The mean over each bin between consecutive `edges`, exact (not sampled)."""
        points = np.unique(np.concatenate([edges, self.times]))
        points = points[(points >= edges[0]) & (points <= edges[-1])]
        areas = self.at(points[:-1]) * np.diff(points)
        total = np.concatenate([[0.0], np.cumsum(areas)])
        at_edges = total[np.searchsorted(points, edges)]
        averages: Floats = np.diff(at_edges) / np.diff(edges) / UNITS
        return averages


def grid_of(window: Interval, *functions: Steps) -> tuple[Floats, Floats]:
    """Where any of `functions` may change inside the window: (start of each piece, width of each piece)."""
    start, end = window
    inner = np.concatenate([f.times for f in functions]) if functions else np.empty(0)
    inner = np.unique(inner[(inner > start) & (inner < end)])
    points = np.concatenate([[start], inner, [end]])
    return points[:-1], np.diff(points)


def combine(operation: Callable[..., Units], *functions: Steps) -> Steps:
    """Apply an elementwise numpy operation to step functions, for example `combine(np.minimum, idle, blocked)`."""
    times = np.unique(np.concatenate([f.times for f in functions]))
    before = operation(*(f.values[:1] for f in functions))
    return Steps(times, np.concatenate([before, operation(*(f.at(times) for f in functions))]))


def union(parts: Iterable[Interval]) -> list[Interval]:
    """The same points in time as disjoint intervals in order."""
    merged: list[Interval] = []
    for start, end in sorted(parts):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return merged


def clip(parts: Iterable[Interval], start: float, end: float) -> list[Interval]:
    """The parts inside [start, end]."""
    cut = ((max(a, start), min(b, end)) for a, b in parts)
    return [(a, b) for a, b in cut if b > a]


def subtract(parts: list[Interval], holes: list[Interval]) -> list[Interval]:
    """What of `parts` lies in none of `holes`; both disjoint and in order, as `union` returns them."""
    left: list[Interval] = []
    for start, end in parts:
        for hole_start, hole_end in holes:
            if hole_end <= start or hole_start >= end:
                continue
            if hole_start > start:
                left.append((start, hole_start))
            start = max(start, hole_end)
        if end > start:
            left.append((start, end))
    return left
