"""The five figures that every run is compared by, as `egs demo --json` and `egs replay --json` print them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from egs_core.runlog.metrics import RunMetrics, summarise
from egs_core.runlog.records import Record

FIGURES = ("makespan_s", "wastage_effective", "gpu_held_s", "gpu_used_s", "cold_starts")


def figures_of(records: Iterable[Record]) -> dict[str, Any]:
    """The figures of one run, each as defined in `egs_core.runlog.metrics`; times in seconds, to a millisecond."""
    return figures_from(summarise(records))


def figures_from(metrics: RunMetrics) -> dict[str, Any]:
    """The same from metrics that are already there."""
    figures = {name: getattr(metrics, name) for name in FIGURES}
    return {name: round(value, 3) if name.endswith("_s") else value for name, value in figures.items()}
