"""Run one variant on a Ray of its own and say what it took."""

from __future__ import annotations

import tempfile
from typing import Any

import msgspec

from egs_core.runlog.metrics import summarise
from egs_core.runlog.records import Header, Record
from egs_ray.demo.log import header_of, read_marks, records_of
from egs_ray.demo.variants import DemoRun, find_variant, local_ray


class Measured(msgspec.Struct, frozen=True):
    """A variant's reports, and its run log."""

    run: DemoRun
    header: Header
    records: list[Record]


def measure_variant(name: str) -> Measured:
    """Run a variant from start to end. Its files live in a folder that is removed again."""
    variant = find_variant(name)
    with tempfile.TemporaryDirectory(prefix="egs-demo-") as folder:
        with local_ray(variant.environment):
            run = variant.run(folder)
        records = records_of(read_marks(folder), run.submitted)
    return Measured(run, header_of(variant, run.submitted), records)


def figures_of(records: list[Record]) -> dict[str, Any]:
    """The figures of one run, each as defined in `egs_core.runlog.metrics`; times in seconds."""
    metrics = summarise(records)
    return {
        "makespan_s": round(metrics.makespan_s, 3),
        "wastage_effective": metrics.wastage_effective,
        "gpu_held_s": round(metrics.gpu_held_s, 3),
        "gpu_used_s": round(metrics.gpu_used_s, 3),
        "cold_starts": metrics.cold_starts,
    }
