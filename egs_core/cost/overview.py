"""Several histories in one report: GPU time by source, framework, team, user and week, and the changes that would save
most. Record by record, so that a history of any length needs the memory of its names.

held = used + cold starts + idle + lost       lost: all that attempts held which failed, or were stopped
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec

from egs_core.cost.prices import HOUR_S, Prices
from egs_core.cost.uses import TeamOf, Use, uses_of
from egs_core.runlog.records import Capacity, Header, Record, time_of
from egs_core.runlog.steps import Interval, clip, subtract

BY = ("source", "framework", "team", "user", "week")
Kind = Literal["cold", "idle", "lost"]
KINDS: tuple[Kind, ...] = ("cold", "idle", "lost")
NONE, OTHERS, UNDATED = "(none)", "(others)", "(no date)"
MOST_NAMES = 20_000  # of each kind; what more there is comes together
CHANGES = 3
LEAST_SHARE = 0.001  # of the GPU hours held
LOST = ("failed", "preempted", "aborted")
WEEK_S = 7 * 86400.0
MONDAY_S = 4 * 86400.0  # the first one after the beginning of 1970


class Row(msgspec.Struct):
    """GPU hours, and money where prices are known. attempts: phases that held GPUs; lost_attempts: those that failed or
    were stopped. cost_wasted: of cold, idle and lost hours."""

    attempts: int = 0
    lost_attempts: int = 0
    held_h: float = 0.0
    used_h: float = 0.0
    cold_h: float = 0.0
    idle_h: float = 0.0
    lost_h: float = 0.0
    cost: float | None = None
    cost_wasted: float | None = None

    @property
    def wasted_h(self) -> float:
        return self.cold_h + self.idle_h + self.lost_h

    def add(self, part: Part) -> None:
        self.attempts += part.begins
        self.lost_attempts += part.begins and part.is_lost
        self.held_h += part.held_h
        self.used_h += part.used_h
        self.cold_h += part.cold_h
        self.idle_h += part.idle_h
        self.lost_h += part.lost_h
        if part.cost is not None:
            self.cost = (self.cost or 0.0) + part.cost
            self.cost_wasted = (self.cost_wasted or 0.0) + sum(part.costs)


class Part(NamedTuple):
    """What one phase held in one week. begins: it is the first such part. costs: of cold, idle and lost hours."""

    week: str
    begins: bool
    is_lost: bool
    held_h: float
    used_h: float
    cold_h: float
    idle_h: float
    lost_h: float
    cost: float | None
    costs: tuple[float, float, float]


class Change(NamedTuple):
    """One that would save at most so much: in a task of a pipeline, what is wasted in this way."""

    kind: Kind
    pipeline: str
    task: str
    gpu_h: float
    cost: float | None
    attempts: int
    lost_attempts: int

    @property
    def words(self) -> str:
        called = f"{self.task} of {self.pipeline}" if self.task != self.pipeline else self.task
        if self.kind == "cold":
            return f"load ahead what {called} loads (`preload`): GPUs waited for process starts, imports and loading"
        if self.kind == "idle":
            return f"let {called} hold its GPUs only while it uses them (`with egs.gpu():`): they did nothing meanwhile"
        failed = f"{self.lost_attempts:,} of {self.attempts:,} attempts failed or were stopped"
        return f"find out what ends {called}, and let it go on from a checkpoint (`egs.checkpoint`): {failed}"


class Overview:
    """See the module. prices: None where none are known; gpu_price: of an hour, where there are no `prices`."""

    def __init__(self, team_of: TeamOf, prices: Prices | None = None, gpu_price: float = 0.0) -> None:
        self._team_of, self._prices, self._gpu_price = team_of, prices, gpu_price
        self.total = Row()
        self.offered_h = 0.0
        self.by: dict[str, dict[str, Row]] = {kind: {} for kind in BY}
        self._tasks: dict[tuple[str, str], Row] = {}
        self._costs: dict[tuple[str, str], list[float]] = {}
        self._untold_h = 0.0

    def add(self, source: str, header: Header, records: Iterable[Record]) -> None:
        """One more history. records: in any order. Raises InputError where something has no price."""
        offers = _Offers()
        for use in uses_of(header, offers.noting(records), self._team_of):
            self._add(source, header.driver, use)
        self.offered_h += offers.hours()

    def _add(self, source: str, framework: str, use: Use) -> None:
        named = {"source": source, "framework": framework, "team": use.team, "user": use.user}
        for part in self._parts(use):
            self.total.add(part)
            for kind, name in named.items():
                _row(self.by[kind], name or NONE, OTHERS).add(part)
            _row(self.by["week"], part.week, OTHERS).add(part)
            key = use.pipeline, use.task
            if key not in self._tasks and len(self._tasks) >= MOST_NAMES:
                key = OTHERS, OTHERS
            self._tasks.setdefault(key, Row()).add(part)
            sums = self._costs.setdefault(key, [0.0, 0.0, 0.0])
            for number, cost in enumerate(part.costs):
                sums[number] += cost
            self._untold_h += 0.0 if use.tells else part.held_h

    def _parts(self, use: Use) -> Iterator[Part]:
        begins = True
        for week, begin, end in _weeks(use):
            held = [(max(begin, use.held[0]), min(end, use.held[1]))]
            used, cold = clip(use.used, *held[0]), clip(use.cold, *held[0])
            idle, lost = subtract(subtract(held, used), cold), list[Interval]()
            if is_lost := use.outcome in LOST:
                used, cold, idle, lost = [], [], [], held
            held_h, used_h, cold_h, idle_h, lost_h = [
                use.gpus * _length(times) / HOUR_S for times in (held, used, cold, idle, lost)
            ]
            cost = self._cost(use, held)
            costs = (0.0, 0.0, 0.0)
            if cost is not None:
                costs = self._cost(use, cold) or 0.0, self._cost(use, idle) or 0.0, self._cost(use, lost) or 0.0
            yield Part(week, begins, is_lost, held_h, used_h, cold_h, idle_h, lost_h, cost, costs)
            begins = False

    def _cost(self, use: Use, times: list[Interval]) -> float | None:
        if self._prices is not None:
            return use.gpus * self._prices.of(use.node, times, is_dated=use.is_dated)
        return use.gpus * _length(times) / HOUR_S * self._gpu_price if self._gpu_price else None

    # --- what came of it ---

    def rows(self, kind: str) -> list[tuple[str, Row]]:
        """The most wasted first; weeks in their order."""
        rows = self.by[kind].items()
        return sorted(rows) if kind == "week" else sorted(rows, key=lambda row: (-row[1].wasted_h, row[0]))

    def changes(self, most: int = CHANGES) -> list[Change]:
        """Those that would save most money, or where there are no prices GPU time; the most first. What is less than
        a thousandth of all is not worth a word."""
        least_h = LEAST_SHARE * self.total.held_h
        found = []
        for (pipeline, task), row in self._tasks.items():
            if task == OTHERS:
                continue
            for kind, hours, cost in zip(
                KINDS, (row.cold_h, row.idle_h, row.lost_h), self._costs[pipeline, task], strict=True
            ):
                money = None if row.cost is None else cost
                if hours > least_h:
                    found.append(Change(kind, pipeline, task, hours, money, row.attempts, row.lost_attempts))
        return sorted(found, key=lambda one: (-(one.cost or 0.0), -one.gpu_h, one))[:most]

    def notes(self) -> list[str]:
        """What a reader must know."""
        found = ["what a change would save is the most that it could: all that is wasted in this way"]
        if self.total.held_h and self._untold_h / self.total.held_h >= 0.005:
            share = f"{self._untold_h / self.total.held_h:.0%} of the GPU time was held by tasks"
            found.append(f"{share} that do not say when they use their GPUs: what was idle of it is not known")
        return found

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        changes = [{**one._asdict(), "text": one.words} for one in self.changes()]
        by = {f"by_{kind}": {name: _told(row) for name, row in self.rows(kind)} for kind in BY}
        currency = self._prices.currency if self._prices is not None else None
        total = {"offered_h": round(self.offered_h, 9), **_told(self.total)}
        return {"currency": currency, "total": total, **by, "changes": changes, "notes": self.notes()}


class _Offers:
    """What the nodes offer, of records that pass."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, str, int]] = []
        self._last_s = 0.0

    def noting(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            self._last_s = max(self._last_s, time_of(record))
            if isinstance(record, Capacity):
                self._seen.append((record.t, record.node, record.gpus))
            yield record

    def hours(self) -> float:
        total_s, at = 0.0, dict[str, tuple[float, int]]()
        for t, node, gpus in sorted(self._seen, key=lambda one: one[0]):
            since, had = at.get(node, (t, 0))
            total_s, at[node] = total_s + (t - since) * had, (t, gpus)
        return (total_s + sum((self._last_s - since) * had for since, had in at.values())) / HOUR_S


def _row(rows: dict[str, Row], name: str, others: str) -> Row:
    if name not in rows and len(rows) >= MOST_NAMES:
        name = others
    return rows.setdefault(name, Row())


def _weeks(use: Use) -> Iterator[tuple[str, float, float]]:
    """Each week, by UTC, in which it held its GPUs: its Monday, begin and end."""
    if not use.is_dated:
        yield UNDATED, *use.held
        return
    number, last = ((at - MONDAY_S) // WEEK_S for at in use.held)
    while number <= last:
        begin = MONDAY_S + number * WEEK_S
        if begin < use.held[1]:
            yield _monday(number), begin, begin + WEEK_S
        number += 1


@lru_cache
def _monday(number: float) -> str:
    """
    >>> _monday(2969)
    '2026-11-30'
    """
    return f"{datetime(1970, 1, 5, tzinfo=UTC) + timedelta(weeks=number):%Y-%m-%d}"


def _length(times: Iterable[Interval]) -> float:
    return sum(end - start for start, end in times)


def _told(row: Row) -> dict[str, Any]:
    values = {**msgspec.structs.asdict(row), "wasted_h": row.wasted_h}
    return {name: round(value, 9) if isinstance(value, float) else value for name, value in values.items()}
