"""Normalised rating: what a million units of work took, in GPU minutes, CPU minutes and money, on each hardware.

                     sum of what the tasks held                          resampled 1,000 times from the tasks:
    per million  =  ──────────────────────────── * 1,000,000             5th to 95th percentile is the 90 % interval
                     sum of what they told

A ratio of sums, not a mean of ratios: a task that did little weighs little. The interval is the percentile bootstrap
(Efron, 1979) over tasks; of very many tasks over blocks of them, which has the same spread. It says how much the rating
would differ with other tasks like these, no more; of fewer than `LEAST_TASKS` nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from egs_core.cost.prices import Prices
from egs_core.cost.work import Worked
from egs_core.runlog.steps import Interval

PER = 1_000_000
LEAST_TASKS = 5
BLOCKS = 500
RESAMPLES = 1000
LOW, HIGH = 0.05, 0.95
SEED = 0
MOST_ROWS = 2000
MINUTE_S = 60.0

Sums = list[float]  # amount, GPU minutes, CPU minutes, money


class Kind(NamedTuple):
    """What is rated together. flavor, provider, bought: "" where no file of prices says them."""

    unit: str
    pipeline: str
    task: str
    flavor: str = ""
    provider: str = ""
    bought: str = ""


class Measured(NamedTuple):
    """Per million units; low, high: the interval, None where there are too few tasks for one."""

    value: float
    low: float | None
    high: float | None


class Rated(NamedTuple):
    """One row. tasks: how many; amount: of units; cost: None without prices."""

    kind: Kind
    tasks: int
    amount: float
    gpu_min: Measured
    cpu_min: Measured
    cost: Measured | None


class Rating:
    """Adds up tasks. prices: None where none are known. month: only tasks that told last in this stretch, in seconds
    since 1970."""

    def __init__(self, prices: Prices | None = None, month: Interval | None = None) -> None:
        self._prices, self._month = prices, month
        self._blocks: dict[Kind, list[Sums]] = {}
        self._tasks: dict[Kind, int] = {}
        self.has_more = False

    def add(self, one: Worked) -> None:
        """Raises InputError where what it held has no price."""
        if self._month is not None and not self._month[0] <= one.at_s < self._month[1]:
            return
        held = [sum(_minutes(part.times) * getattr(part, kind) for part in one.held) for kind in ("gpus", "cpus")]
        cost, hardware = 0.0, ("", "", "")
        for part in one.held if self._prices is not None else ():
            if self._prices is not None and part.gpus:
                cost += part.gpus * self._prices.of(part.node, [part.times], is_dated=one.is_dated)
                hardware = self._prices.hardware_of(part.node)
        for unit, amount in one.amounts.items():
            if amount > 0:
                self._count(Kind(unit, one.pipeline, one.task, *hardware), [amount, *held, cost])

    def _count(self, kind: Kind, sums: Sums) -> None:
        blocks = self._blocks.get(kind)
        if blocks is None:
            if len(self._blocks) >= MOST_ROWS:
                self.has_more = True
                return
            blocks, self._tasks[kind] = self._blocks.setdefault(kind, []), 0
        number = self._tasks[kind]
        self._tasks[kind] += 1
        if number < BLOCKS:
            blocks.append(sums)
        else:
            block = blocks[number % BLOCKS]
            for place, value in enumerate(sums):
                block[place] += value

    def rows(self) -> Iterator[Rated]:
        """In the order of units, then of names."""
        for kind in sorted(self._blocks):
            blocks, tasks = self._blocks[kind], self._tasks[kind]
            gpu_min, cpu_min, cost = rated(blocks, has_interval=tasks >= LEAST_TASKS)
            amount = sum(block[0] for block in blocks)
            yield Rated(kind, tasks, amount, gpu_min, cpu_min, cost if self._prices is not None else None)

    def to_dicts(self) -> list[dict[str, Any]]:
        """As `--json` prints them."""
        return [
            {**row.kind._asdict(), "per": PER, "tasks": row.tasks, "amount": row.amount}
            | {name: one._asdict() for name, one in (("gpu_min", row.gpu_min), ("cpu_min", row.cpu_min))}
            | {"cost": None if row.cost is None else row.cost._asdict()}
            for row in self.rows()
        ]


def rated(blocks: Sequence[Sums], *, has_interval: bool, seed: int = SEED) -> list[Measured]:
    """For each sum but the first how much of it there is for a million of the first. The same for the same blocks."""
    import numpy as np  # takes a tenth of a second to import: only where somebody has told of work

    table = np.asarray(blocks, dtype=float)
    totals = table.sum(axis=0)
    values = [float(value) for value in totals[1:] / totals[0] * PER]
    if not has_interval:
        return [Measured(value, None, None) for value in values]
    drawn = np.random.default_rng(seed).integers(len(table), size=(RESAMPLES, len(table)))
    sums = table[drawn].sum(axis=1)
    low, high = np.quantile(sums[:, 1:] / sums[:, :1] * PER, [LOW, HIGH], axis=0)
    return [Measured(value, float(a), float(b)) for value, a, b in zip(values, low, high, strict=True)]


def _minutes(times: Interval) -> float:
    return (times[1] - times[0]) / MINUTE_S
