"""The audit of one history: everything that `egs audit` prints, as plain data."""

from __future__ import annotations

from typing import Any

import msgspec

from egs_core.audit.accounts import GpuTime, gpu_time, gpu_time_by_job, gpu_time_by_task
from egs_core.audit.forecast import MOST_TASKS, SEEDS, Forecast, forecast
from egs_core.audit.items import FIGURES, items_of
from egs_core.audit.observed import Observed
from egs_core.audit.waits import ExplainedWait, longest_waits
from egs_core.runlog.intervals import Timeline
from egs_core.runlog.metrics import KindMetrics, metrics_of
from egs_core.runlog.timeline import build_timeline

WITH_EGS = (
    "no forecast: EGS was on in this run, and a forecast says what it would change in one without: audit a run log of "
    "EGS_MODE=observe, or what ran without EGS, keep its forecast with --forecast-out, and hold this log against that "
    "with --compare"
)


class Audit(msgspec.Struct, frozen=True):
    """capacity_gpu_s and idle_blocked_gpu_s: GPU seconds offered, and of them idle while work waited for a GPU.

    unit: what the accounts are of: GPUs where any is known, else CPUs by the framework's name for them; offered_s: of
    that. costs are in the currency of the price, None without one. unknown: what the history cannot tell.
    """

    source: str
    jobs: int
    tasks: int
    unfinished: int
    tasks_lost: int
    window_s: float
    wastage_kind: str
    wastage_by_volume: float | None
    wastage_by_time: float | None
    capacity_gpu_s: float
    idle_blocked_gpu_s: float
    unit: str
    offered_s: float
    total: GpuTime
    by_job: list[GpuTime]
    by_task: list[GpuTime]
    waits: list[ExplainedWait]
    wait_gpu_mean_s: float | None
    cost_held: float | None
    cost_wasted: float | None
    forecast: Forecast | None
    unknown: list[str]

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        built: dict[str, Any] = msgspec.to_builtins(self)
        rows = [built["total"], *built["by_job"], *built["by_task"]]
        for row, account in zip(rows, [self.total, *self.by_job, *self.by_task], strict=True):
            row["taken_s"], row["wasted_s"] = account.taken_s, account.wasted_s
        if self.forecast is not None:
            for name in FIGURES:
                built["forecast"][name]["saved_share"] = getattr(self.forecast, name).saved
        return built


def audit(
    observed: Observed, gpu_hour: float = 0.0, seeds: int = SEEDS, most_tasks: int = MOST_TASKS, simulated: bool = True
) -> Audit:
    """Account for a history and forecast what EGS would have saved. gpu_hour: price of a GPU for an hour."""
    line = build_timeline(observed.records)
    metrics = metrics_of(line)
    gpu = metrics.kinds["gpu"]
    main = metrics.kinds[metrics.wastage_kind]
    kind = "gpu" if gpu.capacity_s or gpu.held_s else "cpu"
    total, items = gpu_time(line, kind), items_of(line)
    expected = None
    if simulated and not _is_with_egs(observed):
        expected = forecast(line, items, observed.edges_known, seeds, most_tasks, observed.pinned, observed.may_split)
    return Audit(
        source=observed.header.label or observed.header.run_id,
        jobs=metrics.workloads,
        tasks=len(line.tasks),
        unfinished=sum(not hold.outcome for hold in line.holds),
        tasks_lost=observed.tasks_lost,
        window_s=metrics.makespan_s,
        wastage_kind=metrics.wastage_kind,
        wastage_by_volume=main.effective.by_volume,
        wastage_by_time=main.effective.by_time,
        capacity_gpu_s=gpu.capacity_s,
        idle_blocked_gpu_s=(gpu.effective.by_volume or 0.0) * gpu.capacity_s,
        unit="GPU" if kind == "gpu" else observed.cpu_name,
        offered_s=metrics.kinds[kind].capacity_s,
        total=total,
        by_job=gpu_time_by_job(line, kind),
        by_task=gpu_time_by_task(line, kind),
        waits=longest_waits(
            line, cpu_name=observed.cpu_name, pinned=observed.pinned, by_egs=observed.header.mode == "on"
        ),
        wait_gpu_mean_s=metrics.wait_gpu.mean_s,
        cost_held=_cost(total.taken_s, gpu_hour) if kind == "gpu" else None,
        cost_wasted=_cost(total.wasted_s, gpu_hour) if kind == "gpu" else None,
        forecast=expected,
        unknown=[*observed.notes, *_unknown(observed, line, gpu, expected, simulated)],
    )


def _is_with_egs(observed: Observed) -> bool:
    """EGS has ordered, split or loaded ahead what ran: then there is no native run, and no saving that is to come. A
    simulation by plain order of arrival is as a framework alone."""
    header = observed.header
    return header.mode == "on" and (header.driver, header.policy) != ("sim", "fifo")


def _cost(gpu_s: float, gpu_hour: float) -> float | None:
    return gpu_s / 3600 * gpu_hour if gpu_hour else None


def _unknown(
    observed: Observed, line: Timeline, gpu: KindMetrics, expected: Forecast | None, simulated: bool
) -> list[str]:
    """What the history cannot tell, in the words of a report."""
    said = []
    if observed.tasks_lost:
        said.append(f"{observed.tasks_lost} tasks are missing from the answers of the framework and are in no figure")
    if not observed.edges_known:
        said.append("what a task waited for is guessed from times: the forecast's band covers both extremes")
    if not line.capacities:
        said.append("what the nodes offer is not known: no wastage ratio and no forecast")
    elif not gpu.capacity_s and not observed.pinned:
        said.append("no node offers a GPU")
    if expected is not None:
        said.extend(expected.notes)
    elif simulated and line.holds and _is_with_egs(observed):
        said.append(WITH_EGS)
    elif simulated and line.capacities and line.holds:
        said.append("no forecast: these times cannot be simulated natively, as of a run that was split or ordered")
    return said
