"""GPU jobs by team, and how waits and completion times are distributed: what `gpu_jobs` shows beside its table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.plots import drawing_library

HOUR_S = 3600.0


class Hold(msgspec.Struct, frozen=True):
    """A team had so many GPUs from start to end, in seconds."""

    team: str
    start_s: float
    end_s: float
    gpus: int


def rows_by_team(
    teams: Sequence[str],
    wait_s: Sequence[float],
    jct_s: Sequence[float],
    work_gpu_s: Sequence[float],
    holds: Sequence[Hold],
    nominal: Mapping[str, float],
) -> list[dict[str, Any]]:
    """A line a team; the first four by job. lost_gpu_h: held beyond the jobs' own work, so redone or spent on starting
    again. borrowed_gpu_h: held beyond nominal quota, none where there are no quotas."""
    return [
        {
            "team": team,
            "jobs": sum(t == team for t in teams),
            "nominal_gpus": round(nominal[team], 1) if nominal else None,
            **_statistics("jct_s", [x for x, t in zip(jct_s, teams, strict=True) if t == team]),
            **_statistics("wait_s", [x for x, t in zip(wait_s, teams, strict=True) if t == team]),
            "lost_gpu_h": _lost_gpu_h(team, teams, work_gpu_s, holds),
            "borrowed_gpu_h": round(borrowed_gpu_h([h for h in holds if h.team == team], nominal[team]), 1)
            if nominal
            else None,
        }
        for team in sorted(set(teams))
    ]


def _statistics(name: str, values: Sequence[float]) -> dict[str, int]:
    mean, p95, p99, most = np.mean(values), *np.quantile(values, (0.95, 0.99)), max(values)
    return {f"{key}_{name}": round(float(x)) for key, x in (("mean", mean), ("p95", p95), ("p99", p99), ("max", most))}


def _lost_gpu_h(team: str, teams: Sequence[str], work_gpu_s: Sequence[float], holds: Sequence[Hold]) -> float:
    held = sum((h.end_s - h.start_s) * h.gpus for h in holds if h.team == team)
    worked = sum(work for work, t in zip(work_gpu_s, teams, strict=True) if t == team)
    return round((held - worked) / HOUR_S, 1)


def borrowed_gpu_h(holds: Sequence[Hold], nominal: float) -> float:
    """GPU hours that one team held beyond its nominal quota."""
    changes = sorted([(h.start_s, h.gpus) for h in holds] + [(h.end_s, -h.gpus) for h in holds])
    used, borrowed_gpu_s = 0, 0.0
    for (at, change), (until, _) in pairwise(changes):
        used += change
        borrowed_gpu_s += max(0.0, used - nominal) * (until - at)
    return borrowed_gpu_s / HOUR_S


def draw_cdfs(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], path: Path) -> None:
    """The share of jobs that waited, and took, at most so long: one line a variant."""
    figure = drawing_library().Figure(figsize=(16, 7))
    axes = figure.subplots(1, 2, sharey=True)
    for number, axis in enumerate(axes):
        for place, (name, values) in enumerate(curves.items()):
            ordered = np.sort(np.maximum(np.asarray(values[number]), 1.0))
            share = np.arange(1, len(ordered) + 1) / len(ordered)
            axis.plot(ordered, share, label=name, linewidth=1.2, linestyle=("-", "--", ":", "-.")[place // 10 % 4])
        axis.set_xscale("log")
        axis.set_xlabel(("waited at most, s", "completed within, s")[number])
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of jobs")
    axes[1].legend(fontsize=6, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
