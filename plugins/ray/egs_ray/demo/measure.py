"""Run one variant on a Ray of its own and say what it took."""

from __future__ import annotations

import atexit
import hashlib
import itertools
import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from egs_core.runlog.figures import figures_of
from egs_core.runlog.intervals import Hold, Timeline
from egs_core.runlog.marks import watched
from egs_core.runlog.records import Header, Record
from egs_core.runlog.timeline import build_timeline
from egs_ray.demo import pipelines as demo
from egs_ray.demo.bound import ideal_bound_s
from egs_ray.demo.log import demo_records, header_of
from egs_ray.demo.variants import DemoRun, Variant, find_variant
from egs_ray.local import local_ray

__all__ = ["Measured", "figures_of", "gpu_time_of", "measure_variant", "summary_of"]

TASKS = demo.PIPELINES * (demo.TRAININGS + 4)


class Measured(msgspec.Struct, frozen=True):
    """A variant's reports, and its run log. folder: what the run left, until this process ends."""

    folder: str
    variant: str
    run: DemoRun
    header: Header
    records: list[Record]

    @property
    def digest(self) -> str:
        """Equal for runs with equal results: accuracies, and every prediction."""
        return hashlib.sha256(json.dumps(self.run.reports, sort_keys=True).encode()).hexdigest()


def measure_variant(name: str, progress: Callable[[int, int], None] | None = None) -> Measured:
    """Run a variant from start to end; what it leaves is gone when this process ends.

    progress: told now and then how many tasks have ended, and of how many.
    """
    variant = find_variant(name)
    folder = tempfile.mkdtemp(prefix="egs-demo-")
    # Registered before the hook's own last act, so that it comes after it: that one still writes its run log.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with local_ray(demo.CPUS, demo.GPUS, _environment(variant, folder)), watched(folder, TASKS, progress):
        run = variant.run(folder)
    records = demo_records(folder, run.submitted, split=variant.split)
    return Measured(folder, name, run, header_of(variant, run.submitted), records)


def _environment(variant: Variant, folder: str) -> dict[str, str]:
    """The variant's own variables; a hook learns from nothing, and leaves nothing in the user's folders."""
    if not variant.environment:
        return {}
    own = {"EGS_RUNLOG": f"{folder}/hook.jsonl", "EGS_HISTORY": f"sqlite:///{folder}/hook.sqlite"}
    return {**variant.environment, **own, "XDG_DATA_HOME": folder}


def summary_of(measured: Measured) -> dict[str, Any]:
    """One run as `python -m egs_ray.demo --json` prints it."""
    return {
        "variant": measured.variant,
        "emulated_gpus": measured.header.emulated_gpus,
        "ideal_bound_s": round(ideal_bound_s(), 3),
        **figures_of(measured.records),
        "gpu_time": gpu_time_of(measured.records),
        "digest": measured.digest,
        "reports": list(measured.run.reports),
    }


def gpu_time_of(records: Iterable[Record]) -> dict[str, float]:
    """Where the GPUs' time went, in GPU-seconds that add up to the run's whole capacity.

    used; held_cold: held while a process starts, imports or loads; held_else: held in CPU phases; idle before each
    device's first phase, between phases, and after its last.
    """
    line = build_timeline(records)
    start, end = line.window
    devices: dict[int, list[Hold]] = defaultdict(list)
    for hold in line.holds:
        if hold.demand.gpus:
            devices[hold.devices[0] if hold.devices else 0].append(hold)
    out = dict.fromkeys(("used", "held_cold", "held_else", "idle_before", "idle_between", "idle_after"), 0.0)
    out["idle_before"] = (_gpus(line) - len(devices)) * (end - start)
    for holds in devices.values():
        holds.sort(key=lambda hold: hold.start_s)
        out["idle_before"] += holds[0].start_s - start
        out["idle_after"] += end - max(hold.end_s for hold in holds)
        out["idle_between"] += sum(max(0.0, b.start_s - a.end_s) for a, b in itertools.pairwise(holds))
        for hold in holds:
            used, cold = (sum(b - a for a, b in parts) for parts in (hold.useful, hold.cold))
            out["used"] += used
            out["held_cold"] += cold
            out["held_else"] += hold.end_s - hold.start_s - used - cold
    return {name: round(seconds, 3) for name, seconds in out.items()}


def _gpus(line: Timeline) -> int:
    return max((record.gpus for record in line.capacities), default=0)
