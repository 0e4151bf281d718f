"""Every metric of a run, computed from its records and nothing else. The same rules for every driver and policy.

**Window**: from the first submission of a task (`TaskAdded`; in a log without any: `WorkloadSubmitted`) to the last
end; see `runlog.window`. A log that breaks off while something is open is measured to its last record. A job's time
counts from the first submission of one of its own tasks.

**Held and useful**, per resource kind. A phase holds what its `Started` says, until it ends. `held(t)` sums that over
phases. `useful(t)` is, for CPUs, the same. For GPUs it leaves out the parts of a hold that are not a GPU phase's own
work: everything inside a `ColdStart`, and everything outside the task's `Used` stretches if any lie in this hold. A
hold without one counts as used from start to end, unless its phase was declared `cpu`: then the device is idle.

**Wastage ratio**, per kind, nominal and effective; `capacity(t)` is the sum over nodes.

    idle(t)     nominal:   max(0, capacity - held)      effective: max(0, capacity - useful)
    blocked(t)  nominal:   demand of the current phases that are ready, feasible and not started
                effective: the same, and the demand of each phase that holds a GPU and is in its cold start: it is what
                           the device waits for. (A GPU that is held in a CPU phase makes others blocked; the holder's
                           own GPU phase is not ready yet, so it does not count.)
    by time     share of the window with idle > 0 and blocked > 0
    by volume   ∫ min(idle, blocked) dt ÷ ∫ capacity dt; no capacity: null

*Demand* is what the phase took when it started, else what its task declared. *Feasible*: it fits one empty node of the
capacity at that moment (a node with memory_bytes 0 has not told, so memory is no obstacle). All demand of a kind
counts, also where the phase is kept by another kind: a phase that waits for a GPU is blocked CPU demand too.
The latest `Held` of a waiting phase says why it waits. Held as `paused`, `limit` or `infeasible` (nothing here can ever
run it) is nobody's waste: left out. Held as `quota` or `reservation` is in no ratio either, but shown apart: *withheld*
is what each ratio would rise by if it were blocked work. Preloads give way to phases, so the CPUs they take count as
idle; their cost is a figure of its own.

Effective is never below nominal: useful <= held, and the effective blocked demand contains the nominal one. For CPUs
the two are equal: a CPU that imports modules is at work.

**Cold start**: a started phase whose `warm` is false or that has a `ColdStart` stretch in its hold; counted once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from egs_core.runlog.flow import KINDS, Flow, build_flow
from egs_core.runlog.intervals import Timeline
from egs_core.runlog.records import Record
from egs_core.runlog.steps import Floats, Steps, combine, grid_of
from egs_core.runlog.timeline import build_timeline

GIB = 1024**3


class Wastage(msgspec.Struct, frozen=True):
    """Shares between 0 and 1, or None without capacity; withheld_*: what quota and reservations would add."""

    by_time: float | None
    by_volume: float | None
    withheld_by_time: float | None
    withheld_by_volume: float | None


class KindMetrics(msgspec.Struct, frozen=True):
    """One resource kind; *_s are resource-seconds, utilisations shares of capacity."""

    capacity_s: float
    held_s: float
    useful_s: float
    utilisation_nominal: float | None
    utilisation_useful: float | None
    nominal: Wastage
    effective: Wastage


UNTOLD = -1
"""A device that the log does not name."""


class DeviceMetrics(msgspec.Struct, frozen=True):
    """One device, over the part of the window in which its node offers it; UNTOLD for all that phases held of a node
    without the log saying on which device: shares are of all GPUs of the node then."""

    node: str
    device: int
    phases: int
    held_s: float
    useful_s: float
    utilisation_nominal: float | None
    utilisation_useful: float | None


class Quantiles(msgspec.Struct, frozen=True):
    """Of `n` values in seconds; all None when there are none. Percentiles interpolate linearly."""

    n: int
    mean_s: float | None = None
    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None


class PreloadCost(msgspec.Struct, frozen=True):
    """What look-ahead cost: CPU time until warm, memory until used or dropped. unused: also those the log ends on."""

    preloads: int
    used: int
    unused: int
    failed: int
    cpu_s: float
    memory_gib_s: float


class TenantMetrics(msgspec.Struct, frozen=True):
    workloads: int
    gpu_held_s: float
    gpu_used_s: float


class RunMetrics(msgspec.Struct, frozen=True):
    """All metrics of one run. `wastage_effective` is by volume, of GPUs, or of CPUs in a run without GPUs."""

    makespan_s: float
    mean_jct_s: float | None
    p50_jct_s: float | None
    p95_jct_s: float | None
    p99_jct_s: float | None
    wastage_kind: str
    wastage_effective: float | None
    wastage_nominal: float | None
    gpu_held_s: float
    gpu_used_s: float
    cold_starts: int
    cold_start_s: float
    workloads: int
    workloads_unfinished: int
    phases: int
    outcomes: dict[str, int]
    wait: Quantiles
    wait_gpu: Quantiles
    wait_s_by_hold: dict[str, float]
    kinds: dict[str, KindMetrics]
    devices: list[DeviceMetrics]
    preload: PreloadCost
    tenants: dict[str, TenantMetrics]

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built


def summarise(records: Iterable[Record]) -> RunMetrics:
    """All metrics of one run's records. O(n log n)."""
    return metrics_of(build_timeline(records))


def metrics_of(line: Timeline) -> RunMetrics:
    """The same from intervals that are already there."""
    kinds = {kind: _kind_metrics(line, build_flow(line, kind)) for kind in KINDS}
    main = kinds["gpu"] if kinds["gpu"].capacity_s > 0 else kinds["cpu"]
    jct = quantiles(_jcts(line))
    started = [w for w in line.waits if w.started]
    cold = [hold for hold in line.holds if hold.cold_started]
    return RunMetrics(
        makespan_s=line.window[1] - line.window[0],
        mean_jct_s=jct.mean_s,
        p50_jct_s=jct.p50_s,
        p95_jct_s=jct.p95_s,
        p99_jct_s=jct.p99_s,
        wastage_kind="gpu" if main is kinds["gpu"] else "cpu",
        wastage_effective=main.effective.by_volume,
        wastage_nominal=main.nominal.by_volume,
        gpu_held_s=kinds["gpu"].held_s,
        gpu_used_s=kinds["gpu"].useful_s,
        cold_starts=len(cold),
        cold_start_s=sum(end - start for hold in cold for start, end in hold.cold),
        workloads=len(line.workloads),
        workloads_unfinished=sum(w.end_s is None for w in line.workloads.values()),
        phases=len(line.holds),
        outcomes=_outcomes(line),
        wait=quantiles(w.wait_s for w in started),
        wait_gpu=quantiles(w.wait_s for w in started if w.demand.gpus > 0),
        wait_s_by_hold=_wait_by_hold(line),
        kinds=kinds,
        devices=_devices(line),
        preload=_preload_cost(line),
        tenants=_tenants(line),
    )


# --- kinds ------------------------------------------------------------------------------------------------------------


def _kind_metrics(line: Timeline, flow: Flow) -> KindMetrics:
    capacity_s = flow.capacity.integral(line.window)
    held_s, useful_s = flow.held.integral(line.window), flow.useful.integral(line.window)
    return KindMetrics(
        capacity_s=capacity_s,
        held_s=held_s,
        useful_s=useful_s,
        utilisation_nominal=_share(held_s, capacity_s),
        utilisation_useful=_share(useful_s, capacity_s),
        nominal=_wastage(line, flow, flow.idle_nominal, flow.blocked),
        effective=_wastage(line, flow, flow.idle_effective, flow.blocked_effective),
    )


def _wastage(line: Timeline, flow: Flow, idle: Steps, blocked: Steps) -> Wastage:
    capacity_s = flow.capacity.integral(line.window)
    if capacity_s <= 0:
        return Wastage(None, None, None, None)
    all_blocked = combine(np.add, blocked, flow.withheld)
    by_time, by_volume = _both(line, idle, blocked, capacity_s)
    all_by_time, all_by_volume = _both(line, idle, all_blocked, capacity_s)
    return Wastage(by_time, by_volume, all_by_time - by_time, all_by_volume - by_volume)


def _both(line: Timeline, idle: Steps, blocked: Steps, capacity_s: float) -> tuple[float, float]:
    wasted = combine(np.minimum, idle, blocked)
    grid, widths = grid_of(line.window, wasted)
    by_time = float(widths[wasted.at(grid) > 0].sum()) / (line.window[1] - line.window[0])
    return min(by_time, 1.0), min(wasted.integral(line.window) / capacity_s, 1.0)


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _devices(line: Timeline) -> list[DeviceMetrics]:
    """Every device that some node offers in the window or some phase held, in (node, index) order; where something held
    devices of a node that are not named, those of it of which nothing is told are left out: it may have been these."""
    held: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    useful: dict[tuple[str, int], float] = defaultdict(float)
    for hold in line.holds:
        devices = hold.devices or ((UNTOLD,) if hold.demand.gpus > 0 else ())
        share = hold.demand.gpus / max(1, len(devices))
        for device in devices:
            held[hold.node, device].append((share, hold.end_s - hold.start_s))
            useful[hold.node, device] += share * sum(b - a for a, b in hold.useful)
    offered = _offered_s(line)
    for node in {node for node, device in held if device == UNTOLD}:
        offered[node, UNTOLD] = sum(seconds for (where, _), seconds in offered.items() if where == node)
    out = []
    for node, device in sorted({*held, *offered}, key=lambda one: (one[0], one[1] == UNTOLD, one[1])):
        if (node, device) not in held and (node, UNTOLD) in held:
            continue
        held_s = sum(share * seconds for share, seconds in held[node, device])
        seconds = offered.get((node, device), 0.0)
        out.append(
            DeviceMetrics(
                node=node,
                device=device,
                phases=len(held[node, device]),
                held_s=held_s,
                useful_s=useful[node, device],
                utilisation_nominal=_share(held_s, seconds),
                utilisation_useful=_share(useful[node, device], seconds),
            )
        )
    return out


def _offered_s(line: Timeline) -> dict[tuple[str, int], float]:
    """Seconds of the window in which each device is there."""
    start, end = line.window
    out: dict[tuple[str, int], float] = defaultdict(float)
    last: dict[str, tuple[float, int]] = {}
    for record in [*line.capacities, None]:
        for node in [record.node] if record else list(last):
            since, gpus = last.get(node, (0.0, 0))
            until = min(record.t, end) if record else end
            for device in range(gpus):
                out[node, device] += max(0.0, until - max(since, start))
        if record:
            last[record.node] = (record.t, record.gpus)
    return {key: seconds for key, seconds in out.items() if seconds > 0}


# --- workloads, waiting, preloads -------------------------------------------------------------------------------------


def quantiles(values: Iterable[float]) -> Quantiles:
    """Mean and percentiles (numpy's linear interpolation)."""
    array: Floats = np.fromiter(values, dtype=np.float64)
    if not len(array):
        return Quantiles(0)
    p50, p95, p99 = (float(q) for q in np.percentile(array, [50, 95, 99]))
    return Quantiles(len(array), float(array.mean()), p50, p95, p99, float(array.max()))


def _jcts(line: Timeline) -> list[float]:
    """Job completion time of each finished workload: from the first submission of a task of it to its end."""
    spans = line.workloads.values()
    return [w.end_s - w.submitted_s for w in spans if w.end_s is not None and w.submitted_s is not None]


def _outcomes(line: Timeline) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for hold in line.holds:
        counts[hold.outcome or "unfinished"] += 1
    if line.skipped:
        counts["skipped"] = line.skipped
    return dict(sorted(counts.items()))


def _wait_by_hold(line: Timeline) -> dict[str, float]:
    """Phase-seconds waited by what held them; `unstated` where the log does not say."""
    seconds: dict[str, float] = defaultdict(float)
    for wait in line.waits:
        for start, end, kind in wait.pieces:
            seconds[kind or "unstated"] += end - start
    return dict(sorted(seconds.items()))


def _preload_cost(line: Timeline) -> PreloadCost:
    outcomes = [p.outcome for p in line.preloads]
    return PreloadCost(
        preloads=len(outcomes),
        used=outcomes.count("used"),
        unused=len(outcomes) - outcomes.count("used") - outcomes.count("failed"),
        failed=outcomes.count("failed"),
        cpu_s=sum(p.cpus * (p.work_end_s - p.start_s) for p in line.preloads),
        memory_gib_s=sum(p.memory_bytes * (p.end_s - p.start_s) for p in line.preloads) / GIB,
    )


def _tenants(line: Timeline) -> dict[str, TenantMetrics]:
    """GPU time per tenant; the key is empty where a workload named none."""
    held: dict[str, float] = defaultdict(float)
    used: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for span in line.workloads.values():
        count[span.tenant] += 1
    for hold in line.holds:
        tenant = line.workloads[hold.workload].tenant if hold.workload in line.workloads else ""
        held[tenant] += hold.demand.gpus * (hold.end_s - hold.start_s)
        used[tenant] += hold.demand.gpus * sum(b - a for a, b in hold.useful)
    return {t: TenantMetrics(count[t], held[t], used[t]) for t in sorted(set(count) | set(held))}
