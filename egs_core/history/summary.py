"""What a history says of tasks, for people: how often each ran, how long it took, and how that has changed. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from egs_core.history.rows import HistoryRow


class Week(NamedTuple):
    """A calendar week by UTC. monday: its first day, as 2026-11-23."""

    monday: str
    runs: int
    median_s: float


class Known(NamedTuple):
    """A phase of a task with so many GPUs. seconds are without cold starts; cold: in how many runs there was one,
    cold_median_s: how long it then took, None where there was none. last_at: Unix time. change: of the last week with
    runs against the one with runs before it, None with one week alone."""

    pipeline: str
    task: str
    phase: int
    framework: str
    gpus: float
    runs: int
    median_s: float
    p95_s: float
    cold: int
    cold_median_s: float | None
    last_at: float
    weeks: tuple[Week, ...]
    change: float | None


def summarise(rows: Iterable[HistoryRow], weeks: int = 0) -> list[Known]:
    """Each phase of each task by how many GPUs it held, by name: the first phase of a run in phases, on CPUs, is not
    the whole task as one GPU phase, which has the same number. weeks: the last so many with runs, of which trends are
    told; 0: none."""
    found: dict[tuple[str, str, int, int], list[HistoryRow]] = defaultdict(list)
    for row in rows:
        found[row.pipeline, row.task, row.phase, row.shape.gpu_milli].append(row)
    return [_known(found[key], weeks) for key in sorted(found)]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so many are not above; of an even number the median is between the two."""
    ordered = sorted(values)
    if share == 0.5:
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _known(rows: list[HistoryRow], weeks: int) -> Known:
    last, seconds = max(rows, key=lambda row: row.ended_at), [row.seconds for row in rows]
    colds, trend = [row.warmup_s for row in rows if row.warmup_s > 0], _weeks(rows)
    before = trend[-2].median_s if len(trend) > 1 else 0.0
    return Known(
        last.pipeline,
        last.task,
        last.phase,
        last.framework,
        last.shape.gpu_milli / 1000,
        len(rows),
        percentile(seconds, 0.5),
        percentile(seconds, 0.95),
        len(colds),
        percentile(colds, 0.5) if colds else None,
        last.ended_at,
        tuple(trend[-weeks:]) if weeks else (),
        trend[-1].median_s / before - 1 if before else None,
    )


def _weeks(rows: Iterable[HistoryRow]) -> list[Week]:
    by_monday: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        day = datetime.fromtimestamp(row.ended_at, UTC).date()
        by_monday[(day - timedelta(days=day.weekday())).isoformat()].append(row.seconds)
    return [Week(monday, len(found), percentile(found, 0.5)) for monday, found in sorted(by_monday.items())]
