"""Where the GPUs' time of a run went, from its run log."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable

from egs_core.runlog.intervals import Hold, Timeline
from egs_core.runlog.records import Record
from egs_core.runlog.timeline import build_timeline


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
