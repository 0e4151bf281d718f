"""Sums of GPU hours and money by team, pipeline, task and user: as many as there are names, whatever is added.

For people they are shown in hundredths that add up: of a column to its total, and in a row, used and wasted to held.

    sums        0.335 + 0.335 + 0.335 = 1.005        rounded down, and what is then missing
    shown       0.34  + 0.33  + 0.33  = 1.00         goes to the largest remainders
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from egs_core.cost.prices import HOUR_S, Prices
from egs_core.cost.uses import Use
from egs_core.errors import InputError
from egs_core.runlog.steps import Interval, clip, subtract

BY = ("team", "pipeline", "task", "user")
NONE, OTHERS = "(none)", "(others)"
MOST_NAMES = 20_000  # of each kind; what more there is comes together
NOISE = 1e-6  # of a hundredth, by which a sum of binary fractions may be short of a whole one
LITTLE = 1e-9  # is written as less than a hundredth, and adds nothing to a sum


class Amounts(msgspec.Struct):
    """GPU hours and money. cost: of all that was held; cost_wasted: of that, what was not used; both None without
    prices."""

    gpu_h_held: float = 0.0
    gpu_h_used: float = 0.0
    gpu_h_wasted: float = 0.0
    cost: float | None = None
    cost_wasted: float | None = None

    def add(self, held_h: float, used_h: float, cost: float | None, cost_wasted: float | None) -> None:
        self.gpu_h_held += held_h
        self.gpu_h_used += used_h
        self.gpu_h_wasted += held_h - used_h
        if cost is not None and cost_wasted is not None:
            self.cost = (self.cost or 0.0) + cost
            self.cost_wasted = (self.cost_wasted or 0.0) + cost_wasted


Rows = list[tuple[str, Amounts]]


class Ledger:
    """prices: None where none are known. month: only what lies in this stretch, in seconds since 1970."""

    def __init__(self, prices: Prices | None = None, month: Interval | None = None) -> None:
        self._prices, self._month = prices, month
        self.total = self._new()
        self.by: dict[str, dict[str, Amounts]] = {kind: {} for kind in BY}

    def add(self, use: Use) -> None:
        """Count it in. Raises InputError where it has no price, or no date and a month is asked for."""
        held = [use.held]
        if self._month is not None:
            if not use.is_dated:
                raise InputError("--month", "a log without a date, of a simulation, is of no month", "leave it out")
            held = clip(held, *self._month)
        if not held:
            return
        used = clip(use.used, *held[0])
        hours = use.gpus * _length(held) / HOUR_S, use.gpus * _length(used) / HOUR_S
        cost = self._cost(use, held), self._cost(use, subtract(held, used))
        self.total.add(*hours, *cost)
        for kind in BY:
            self._row(kind, getattr(use, kind)).add(*hours, *cost)

    def rows(self, kind: str) -> Rows:
        """The most held first."""
        return sorted(self.by[kind].items(), key=lambda row: (-row[1].gpu_h_held, row[0]))

    def shown(self, kind: str) -> Rows:
        """The same in hundredths that add up to those of `shown_total`."""
        return in_hundredths(self.total, self.rows(kind))

    @property
    def shown_total(self) -> Amounts:
        """See the module."""
        return in_hundredths(self.total, [("", self.total)])[0][1]

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        found: dict[str, Any] = _told(self.total)
        found["currency"] = self._prices.currency if self._prices is not None else None
        return found | {f"by_{kind}": {name: _told(row) for name, row in self.rows(kind)} for kind in BY}

    def table(self) -> Iterator[Mapping[str, Any]]:
        """One line for the total and for each name, as `--csv` writes them."""
        yield {"by": "total", "name": "", **_told(self.total)}
        for kind in BY:
            for name, row in self.rows(kind):
                yield {"by": kind, "name": name, **_told(row)}

    def _new(self) -> Amounts:
        return Amounts() if self._prices is None else Amounts(cost=0.0, cost_wasted=0.0)

    def _row(self, kind: str, name: str) -> Amounts:
        rows = self.by[kind]
        name = name or NONE
        if name not in rows and len(rows) >= MOST_NAMES:
            name = OTHERS
        return rows.setdefault(name, self._new())

    def _cost(self, use: Use, times: list[Interval]) -> float | None:
        return None if self._prices is None else use.gpus * self._prices.of(use.node, times, is_dated=use.is_dated)


def in_hundredths(total: Amounts, rows: Rows) -> Rows:
    """Rows, which add up to the total, as they are shown beside it; see the module. What is less than a hundredth stays
    more than nothing, and nothing wasted, or used, stays so."""
    every = [row for _, row in rows]
    used = _cents(total.gpu_h_used, [row.gpu_h_used for row in every])
    wasted = _cents(total.gpu_h_wasted, [row.gpu_h_wasted for row in every])
    useful = _cents(_useful(total), [_useful(row) for row in every])
    cost_wasted = _cents(total.cost_wasted or 0.0, [row.cost_wasted or 0.0 for row in every])
    return [
        (
            name,
            Amounts(
                _shown(used[n] + wasted[n], row.gpu_h_held),
                _shown(used[n], row.gpu_h_used),
                _shown(wasted[n], row.gpu_h_wasted),
                None if row.cost is None else _shown(useful[n] + cost_wasted[n], row.cost),
                None if row.cost_wasted is None else _shown(cost_wasted[n], row.cost_wasted),
            ),
        )
        for n, (name, row) in enumerate(rows)
    ]


def _useful(row: Amounts) -> float:
    """Money for what was used."""
    return (row.cost or 0.0) - (row.cost_wasted or 0.0)


def _cents(total: float, parts: Sequence[float]) -> list[int]:
    """Hundredths of each that add up to those of the total (Hamilton's method)."""
    found = [math.floor(part * 100 + NOISE) for part in parts]
    missing = round(total * 100) - sum(found)
    for n in sorted(range(len(parts)), key=lambda n: found[n] - parts[n] * 100)[: max(0, missing)]:
        found[n] += 1
    return found


def _shown(cents: int, amount: float) -> float:
    return cents / 100 if cents else LITTLE if amount > LITTLE else 0.0


def _told(row: Amounts) -> dict[str, Any]:
    values = msgspec.structs.asdict(row)
    return {name: None if value is None else round(value, 9) for name, value in values.items()}


def _length(times: list[Interval]) -> float:
    return sum(end - start for start, end in times)
