"""The metrics, each against a figure worked out by hand; the drawings show one character a second.

Legend: `.` ready, not started · `#` held and useful · `-` held, not useful · `c` held, cold start.
"""

from __future__ import annotations

import json

import pytest

from egs_core.runlog.metrics import GIB, UNTOLD, RunMetrics, quantiles, summarise
from egs_core.runlog.records import (
    Capacity,
    ColdStart,
    Ended,
    Granted,
    Held,
    PreloadEnded,
    PreloadStarted,
    Ready,
    Record,
    Started,
    TaskAdded,
    Used,
    WorkloadEnded,
    WorkloadSubmitted,
)
from egs_core.runlog.timeline import build_timeline

GPU_PHASE = (("gpu", 1.0, 1.0, 0),)
CPU_PHASE = (("cpu", 1.0, 0.0, 0),)


def capacity(cpus: float = 4.0, gpus: int = 1, t: float = 0.0, node: str = "n") -> Capacity:
    return Capacity(t, node, cpus=cpus, gpus=gpus)


def gpu_task(
    task: str, ready: float, start: float, end: float, device: int = 0, gpus: float = 1.0, added: float = 0.0
) -> list[Record]:
    return [
        TaskAdded(added, "w", task, phases=(("gpu", 1.0, gpus, 0),)),
        Ready(ready, "w", task),
        Started(start, "w", task, node="n", devices=(device,), cpus=1.0, gpus=gpus),
        Ended(end, "w", task),
    ]


def submitted(t: float = 0.0, end: float | None = None, workload: str = "w", tenant: str = "") -> list[Record]:
    out: list[Record] = [WorkloadSubmitted(t, workload, tenant=tenant)]
    return out if end is None else [*out, WorkloadEnded(end, workload)]


def gpu_shares(metrics: RunMetrics) -> tuple[float | None, ...]:
    gpu = metrics.kinds["gpu"]
    return gpu.nominal.by_time, gpu.nominal.by_volume, gpu.effective.by_time, gpu.effective.by_volume


def test_idle_device_beside_ready_work_is_waste() -> None:
    """a: `..########` on one GPU: 2 of 10 seconds idle while blocked, by time and by volume."""
    metrics = summarise([capacity(), *submitted(), *gpu_task("a", 0, 2, 10)])
    assert gpu_shares(metrics) == pytest.approx((0.2, 0.2, 0.2, 0.2))
    assert (metrics.makespan_s, metrics.wastage_kind) == (10, "gpu")
    assert (metrics.wastage_effective, metrics.wastage_nominal) == pytest.approx((0.2, 0.2))


def test_idle_device_without_ready_work_is_no_waste() -> None:
    """a: `##   ` b (ready at 5): `     #####`: the gap is idle, and nothing is blocked."""
    metrics = summarise([capacity(), *submitted(), *gpu_task("a", 0, 0, 2), *gpu_task("b", 5, 5, 10)])
    assert gpu_shares(metrics) == (0, 0, 0, 0)
    assert metrics.kinds["gpu"].utilisation_nominal == pytest.approx(0.7)


def test_busy_device_with_a_queue_is_no_waste() -> None:
    """a: `#####` b: `.....#####`: blocked, but nothing is idle."""
    metrics = summarise([capacity(), *submitted(), *gpu_task("a", 0, 0, 5), *gpu_task("b", 0, 5, 10)])
    assert gpu_shares(metrics) == (0, 0, 0, 0)


def test_volume_is_the_smaller_of_idle_and_blocked() -> None:
    """4 GPUs; a and b ready at 0, start at 5, end at 10: idle 4, blocked 2 → min 2 for 5 s of 4 x 10 = 1/4."""
    records = [capacity(gpus=4), *submitted(), *gpu_task("a", 0, 5, 10, 0), *gpu_task("b", 0, 5, 10, 1)]
    assert gpu_shares(summarise(records)) == pytest.approx((0.5, 0.25, 0.5, 0.25))


def test_gpu_held_outside_its_phase_counts_as_idle_in_effective() -> None:
    """a: `----###---` with `Used` 4 to 7, b waits from 0 to 10 and runs to 12.

    Nominal: never idle while b waits. Effective: idle 0-4 and 7-10 while b is blocked: 7 of 12.
    """
    a = [*gpu_task("a", 0, 0, 10), Used(4, 7, "w", "a")]
    metrics = summarise([capacity(), *submitted(), *a, *gpu_task("b", 0, 10, 12)])
    assert gpu_shares(metrics) == pytest.approx((0, 0, 7 / 12, 7 / 12))
    assert (metrics.gpu_held_s, metrics.gpu_used_s) == pytest.approx((12, 5))


def test_nobody_waits_for_a_gpu_held_in_a_cpu_phase() -> None:
    """a: `----###---` alone: idle in effective, but no work is behind it."""
    metrics = summarise([capacity(), *submitted(), *gpu_task("a", 0, 0, 10), Used(4, 7, "w", "a")])
    assert gpu_shares(metrics) == (0, 0, 0, 0)
    assert metrics.kinds["gpu"].utilisation_useful == pytest.approx(0.3)
    assert metrics.kinds["gpu"].utilisation_nominal == pytest.approx(1.0)


def test_cold_start_on_a_held_gpu_is_effective_waste() -> None:
    """a: `ccc#####` alone, no `Used` at all: its own demand is blocked for the 3 s that it loads: 3/8."""
    metrics = summarise([capacity(), *submitted(), *gpu_task("a", 0, 0, 8), ColdStart(0, 3, "w", "a")])
    assert gpu_shares(metrics) == pytest.approx((0, 0, 3 / 8, 3 / 8))
    assert metrics.gpu_used_s == pytest.approx(5)
    assert metrics.cold_starts == 1
    assert metrics.cold_start_s == pytest.approx(3)


def test_cold_start_inside_a_used_stretch_is_not_useful() -> None:
    """a: `##cc####` with `Used` over all: 6 of 8 s useful."""
    records = [*gpu_task("a", 0, 0, 8), Used(0, 8, "w", "a"), ColdStart(2, 4, "w", "a")]
    assert summarise([capacity(), *submitted(), *records]).gpu_used_s == pytest.approx(6)


def test_phase_declared_cpu_makes_no_use_of_a_gpu() -> None:
    """A native task that holds a GPU in a phase declared `cpu` uses it in no second of it."""
    records = [
        TaskAdded(0, "w", "a", phases=CPU_PHASE),
        Started(0, "w", "a", node="n", devices=(0,), cpus=1.0, gpus=1.0),
        Ended(4, "w", "a"),
    ]
    metrics = summarise([capacity(), *submitted(), *records])
    assert (metrics.gpu_held_s, metrics.gpu_used_s) == (4, 0)


def test_used_counts_only_inside_its_own_hold_and_attempt() -> None:
    """`Used` is clipped to the hold, and that of another attempt is not taken: attempt 1 counts as used whole."""
    records = [*gpu_task("a", 0, 0, 4), Used(2, 9, "w", "a", attempt=2), Used(3, 5, "w", "a", attempt=1)]
    assert summarise([capacity(), *submitted(), *records]).gpu_used_s == pytest.approx(1)
    del records[-1]
    assert summarise([capacity(), *submitted(), *records]).gpu_used_s == pytest.approx(4)


def test_share_of_a_gpu() -> None:
    """a holds half a GPU for 10 s, b (half) waits 4 s: idle and blocked 0.5 for 4 s of 10: 0.2 by volume."""
    metrics = summarise(
        [capacity(), *submitted(), *gpu_task("a", 0, 0, 10, gpus=0.5), *gpu_task("b", 0, 4, 10, gpus=0.5)]
    )
    assert gpu_shares(metrics) == pytest.approx((0.4, 0.2, 0.4, 0.2))


def test_ten_tenths_leave_nothing_idle() -> None:
    """Ten shares of 0.1 fill a device exactly: a waiting eleventh finds no idle rest from rounding."""
    tenths = [r for n in range(10) for r in gpu_task(f"t{n}", 0, 0, 10, gpus=0.1)]
    metrics = summarise([capacity(cpus=20), *submitted(), *tenths, *gpu_task("late", 0, 10, 11, gpus=0.1)])
    assert gpu_shares(metrics) == (0, 0, 0, 0)


@pytest.mark.parametrize("kind", ["paused", "limit"])
def test_paused_and_over_limit_work_is_left_out(kind: str) -> None:
    """a waits 0 to 6, of it 2 to 6 paused: only 2 s of 10 are waste, and nothing is shown apart."""
    records = [*gpu_task("a", 0, 6, 10), Held(2, "w", "a", 0, kind)]
    metrics = summarise([capacity(), *submitted(), *records])
    assert gpu_shares(metrics) == pytest.approx((0.2, 0.2, 0.2, 0.2))
    assert metrics.kinds["gpu"].effective.withheld_by_volume == 0
    assert metrics.wait_s_by_hold == {kind: 4, "unstated": 2}


@pytest.mark.parametrize("kind", ["quota", "reservation"])
def test_quota_and_reservation_are_shown_apart(kind: str) -> None:
    """a waits 0 to 6: 0-1 by order, 1-4 withheld, 4-6 by order again: waste 3/10, apart 3/10."""
    holds: list[Record] = [Held(0, "w", "a", 0, "order"), Held(1, "w", "a", 0, kind), Held(4, "w", "a", 0, "order")]
    metrics = summarise([capacity(), *submitted(), *gpu_task("a", 0, 6, 10), *holds])
    gpu = metrics.kinds["gpu"]
    assert gpu_shares(metrics) == pytest.approx((0.3, 0.3, 0.3, 0.3))
    assert (gpu.nominal.withheld_by_time, gpu.nominal.withheld_by_volume) == pytest.approx((0.3, 0.3))
    assert metrics.wait_s_by_hold == pytest.approx({"order": 3, kind: 3})


def test_infeasible_work_is_not_blocked() -> None:
    """A task of 2 GPUs on two nodes of one each can never start: its waiting is no waste."""
    nodes = [capacity(node="n"), capacity(node="m")]
    big: list[Record] = [
        TaskAdded(0, "w", "big", phases=(("gpu", 1.0, 2.0, 0),)),
        Ready(0, "w", "big"),
        Ended(8, "w", "big", outcome="aborted"),
    ]
    assert gpu_shares(summarise([*nodes, *submitted(), *big, *gpu_task("a", 0, 0, 10)])) == (0, 0, 0, 0)


def test_feasible_from_when_the_capacity_comes() -> None:
    """One GPU until 4, two from then: a task of 2, ready at 0 and started at 7, is blocked from 4 to 7.

    ∫ capacity = 1 x 4 + 2 x 6 = 16; idle is 2 from 4 to 7, blocked 2: 6/16 by volume, 3/10 by time.
    """
    records = [capacity(), capacity(gpus=2, t=4), *submitted(), *gpu_task("big", 0, 7, 10, gpus=2.0)]
    assert gpu_shares(summarise(records)) == pytest.approx((0.3, 6 / 16, 0.3, 6 / 16))


def test_memory_counts_only_where_the_node_tells_it() -> None:
    """2 GiB do not fit a node of 1 GiB, so waiting is no waste; on a node that says nothing, it is."""
    task: list[Record] = [
        TaskAdded(0, "w", "a", phases=(("gpu", 1.0, 1.0, 2 * GIB),)),
        Ready(0, "w", "a"),
        Ended(5, "w", "a", outcome="aborted"),
    ]
    small = Capacity(0, "n", cpus=4, gpus=1, memory_bytes=GIB)
    assert summarise([small, *submitted(), *task]).wastage_effective == 0
    assert summarise([capacity(), *submitted(), *task]).wastage_effective == 1


def test_without_capacity_there_is_no_ratio() -> None:
    """No `Capacity` record: null, not zero; without GPUs the headline is the CPUs'."""
    metrics = summarise([*submitted(), *gpu_task("a", 0, 1, 2)])
    assert metrics.wastage_effective is None
    assert gpu_shares(metrics) == (None, None, None, None)
    assert metrics.kinds["gpu"].utilisation_nominal is None
    cpu_only = summarise([capacity(cpus=1, gpus=0), *submitted(), *cpu_task("a", 0, 1, 4)])
    assert cpu_only.wastage_kind == "cpu"
    assert cpu_only.wastage_effective == pytest.approx(0.25)
    assert cpu_only.kinds["gpu"].effective.by_volume is None


def cpu_task(task: str, ready: float, start: float, end: float) -> list[Record]:
    return [
        TaskAdded(0, "w", task, phases=CPU_PHASE),
        Ready(ready, "w", task),
        Started(start, "w", task, node="n", cpus=1.0),
        Ended(end, "w", task),
    ]


def test_cpu_waste_and_cold_start_of_a_cpu_phase() -> None:
    """2 CPUs, a: `cc########`, b: `.....#####`: 1 CPU idle and 1 blocked for 5 of 10 s; importing is CPU work."""
    records = [*cpu_task("a", 0, 0, 10), ColdStart(0, 2, "w", "a"), *cpu_task("b", 0, 5, 10)]
    cpu = summarise([capacity(cpus=2, gpus=0), *submitted(), *records]).kinds["cpu"]
    assert (cpu.nominal.by_time, cpu.nominal.by_volume) == pytest.approx((0.5, 0.25))
    assert cpu.effective == cpu.nominal
    assert (cpu.held_s, cpu.useful_s, cpu.capacity_s) == pytest.approx((15, 15, 20))


def test_cold_starts_are_counted_once_a_phase() -> None:
    """warm=False with a stretch: one; a stretch alone: one; warm unknown or true without a stretch: none."""
    records: list[Record] = [capacity(gpus=8), *submitted()]
    for task, warm, stretch in [("a", False, True), ("b", None, True), ("c", None, False), ("d", True, False)]:
        records += [Started(0, "w", task, cpus=1.0, warm=warm), Ended(4, "w", task)]
        records += [ColdStart(0, 1, "w", task)] if stretch else []
    metrics = summarise(records)
    assert metrics.cold_starts == 2
    assert metrics.cold_start_s == pytest.approx(2)


def test_job_completion_times() -> None:
    """Four workloads take 1, 2, 3 and 10 s: mean 4, p50 2.5, p95 8.95, p99 9.79 by linear interpolation."""
    records = [capacity()]
    for number, seconds in enumerate((1, 2, 3, 10)):
        records += submitted(float(number), number + seconds, f"w{number}")  # type: ignore[arg-type]  # several kinds of record
    metrics = summarise(records)
    figures = (metrics.mean_jct_s, metrics.p50_jct_s, metrics.p95_jct_s, metrics.p99_jct_s)
    assert figures == pytest.approx((4, 2.5, 8.95, 9.79))
    assert metrics.makespan_s == 13


def test_job_ends_with_its_last_phase_when_the_log_says_no_more() -> None:
    """Without `WorkloadEnded` the last `Ended` counts; while something is open there is no completion time."""
    ended = [capacity(), *submitted(1.0), *gpu_task("a", 1, 1, 4, added=1.0)]
    assert summarise(ended).mean_jct_s == 3
    cut = summarise([*ended, Started(4, "w", "b"), Held(9, "w", "x", 0, "order")])
    assert (cut.mean_jct_s, cut.workloads_unfinished, cut.makespan_s) == (None, 1, 8)
    assert cut.outcomes == {"succeeded": 1, "unfinished": 1}


def test_window_starts_with_the_first_submission_of_a_task() -> None:
    """A session that is there from 2 on, its first task at 5: what the framework did before is in no figure. A log that
    writes a task only when it starts has it from when it was ready."""
    observed = summarise([capacity(), *submitted(2.0), *gpu_task("a", 5, 5, 10, added=5.0)])
    assert (observed.makespan_s, observed.mean_jct_s) == (5, 5)
    assert observed.kinds["gpu"].utilisation_nominal == pytest.approx(1)
    late = summarise([capacity(), *submitted(2.0), *gpu_task("a", 4, 6, 10, added=6.0)])
    assert (late.makespan_s, late.mean_jct_s) == (6, 6)
    unknown = [r for r in [capacity(), *submitted(2.0), *gpu_task("a", 5, 5, 10)] if not isinstance(r, TaskAdded)]
    assert summarise(unknown).makespan_s == 8


def test_wait_times() -> None:
    """GPU phases waited 1 and 3 s, a CPU phase 8 s: mean 4, of those that need a GPU 2."""
    records = [*gpu_task("a", 0, 1, 2), *gpu_task("b", 0, 3, 4), *cpu_task("c", 0, 8, 9)]
    metrics = summarise([capacity(), *submitted(), *records])
    assert (metrics.wait.n, metrics.wait.mean_s, metrics.wait.max_s) == (3, 4, 8)
    assert (metrics.wait_gpu.n, metrics.wait_gpu.mean_s) == (2, 2)


def test_utilisation_per_device() -> None:
    """Device 0: held 6 of 10 s, useful 4; device 1: half of it held for 10 s; a node that leaves at 5: full."""
    records = [
        capacity(gpus=2),
        Capacity(0, "m", gpus=1),
        Capacity(5, "m"),
        *submitted(),
        *gpu_task("a", 0, 0, 6),
        Used(0, 4, "w", "a"),
        *gpu_task("b", 0, 0, 10, device=1, gpus=0.5),
        Started(0, "w", "c", node="m", devices=(0,), gpus=1.0),
        Ended(5, "w", "c"),
    ]
    devices = {(d.node, d.device): d for d in summarise(records).devices}
    assert {key: d.utilisation_nominal for key, d in devices.items()} == pytest.approx(
        {("m", 0): 1.0, ("n", 0): 0.6, ("n", 1): 0.5}
    )
    assert devices["n", 0].utilisation_useful == pytest.approx(0.4)
    assert (devices["n", 0].phases, devices["n", 0].held_s) == (1, 6)


def test_what_is_held_on_devices_that_the_log_does_not_name() -> None:
    """Of node n's two GPUs one phase is on device 1 for 4 of 10 s, another on either for 6 s, of which it uses 3: as a
    share of both. A device of which nothing is told is left out there, not so on node m. All together is the whole."""
    records = [
        capacity(gpus=2),
        Capacity(0, "m", gpus=1),
        *submitted(),
        *gpu_task("a", 0, 0, 4, device=1),
        Started(0, "w", "b", node="n", cpus=1.0, gpus=1.0),
        Used(0, 3, "w", "b"),
        Ended(6, "w", "b"),
        Started(0, "w", "c", node="n", cpus=1.0),
        Ended(10, "w", "c"),
    ]
    metrics = summarise(records)
    found = [(d.node, d.device, d.phases, d.utilisation_nominal, d.utilisation_useful) for d in metrics.devices]
    assert found == [("m", 0, 0, 0.0, 0.0), ("n", 1, 1, 0.4, 0.4), ("n", UNTOLD, 1, 0.3, 0.15)]
    assert sum(d.useful_s for d in metrics.devices) == metrics.kinds["gpu"].useful_s == 7.0


def test_preload_cost() -> None:
    """used: 2 CPUs for 3 s, 1 GiB for 5 s; failed while loading: 1 CPU, 2 GiB for 1 s; never taken: 1 CPU for 2 s,
    1 GiB to the end of the log at 10: 9 CPU·s, 5 + 2 + 10 = 17 GiB·s."""
    records: list[Record] = [
        capacity(),
        *submitted(end=10.0),
        PreloadStarted(0, "w", "a", "n", cpus=2, memory_bytes=GIB),
        PreloadEnded(3, "w", "a", "warm"),
        PreloadEnded(5, "w", "a", "used"),
        PreloadStarted(0, "w", "b", "n", cpus=1, memory_bytes=2 * GIB),
        PreloadEnded(1, "w", "b", "failed"),
        PreloadStarted(0, "w", "c", "n", cpus=1, memory_bytes=GIB),
        PreloadEnded(2, "w", "c", "warm"),
    ]
    cost = summarise(records).preload
    assert (cost.preloads, cost.used, cost.unused, cost.failed) == (3, 1, 1, 1)
    assert (cost.cpu_s, cost.memory_gib_s) == pytest.approx((9, 17))


def test_gpu_seconds_per_tenant() -> None:
    """Team a held 2 GPU·s, team b 3 of which 1 useful; a workload without tenant stands under the empty name."""
    records: list[Record] = [capacity(gpus=4)]
    for workload, tenant, seconds in [("u", "a", 2.0), ("v", "b", 3.0), ("x", "", 1.0)]:
        records += submitted(workload=workload, tenant=tenant)
        records += [Started(0, workload, "t", gpus=1.0, devices=(0,)), Ended(seconds, workload, "t")]
    records.append(Used(1, 2, "v", "t"))
    tenants = summarise(records).tenants
    assert {name: (t.workloads, t.gpu_held_s, t.gpu_used_s) for name, t in tenants.items()} == {
        "": (1, 1, 1),
        "a": (1, 2, 2),
        "b": (1, 3, 1),
    }


def test_preempted_phase_waits_again() -> None:
    """a runs 0-3, is preempted, waits to 5 and runs to 8: two holds, 2 s blocked on an idle GPU of 8."""
    records: list[Record] = [
        Ready(0, "w", "a"),
        Started(0, "w", "a", gpus=1.0),
        Ended(3, "w", "a", outcome="preempted"),
        Ready(3, "w", "a", attempt=2),
        Started(5, "w", "a", attempt=2, gpus=1.0),
        Ended(8, "w", "a", attempt=2),
    ]
    metrics = summarise([capacity(), *submitted(), *records])
    assert gpu_shares(metrics) == pytest.approx((0.25,) * 4)
    assert metrics.outcomes == {"preempted": 1, "succeeded": 1}


def test_two_attempts_of_a_task_may_wait_at_once() -> None:
    """1: `...##`, 2: ` ....#`: each wait ends by itself, and what holds the phase from 2 on holds both."""
    records: list[Record] = [
        Ready(0, "w", "a"),
        Ready(1, "w", "a", attempt=2),
        Held(2, "w", "a", 0, "quota"),
        Started(3, "w", "a", gpus=1.0),
        Ended(5, "w", "a", outcome="failed"),
        Started(5, "w", "a", attempt=2, gpus=1.0),
        Ended(6, "w", "a", attempt=2),
    ]
    waits = build_timeline([capacity(), *submitted(), *records]).waits
    assert [(wait.attempt, wait.pieces, wait.started) for wait in waits] == [
        (1, [(0, 2, ""), (2, 3, "quota")], True),
        (2, [(1, 2, ""), (2, 5, "quota")], True),
    ]


def test_waiting_ends_with_an_aborted_workload() -> None:
    """A ready phase whose workload ended at 4 is blocked to 4, not to the end of the run at 8."""
    records = [TaskAdded(0, "v", "x", phases=GPU_PHASE), Ready(0, "v", "x"), WorkloadEnded(4, "v", "aborted")]
    metrics = summarise([capacity(gpus=2), *submitted(), *records, *gpu_task("a", 0, 0, 8)])
    assert gpu_shares(metrics) == pytest.approx((0.5, 0.25, 0.5, 0.25))


def test_skipped_phase_ends_its_waiting() -> None:
    """A skipped branch is counted, holds nothing and is blocked only until then."""
    records = [
        TaskAdded(0, "w", "x", phases=GPU_PHASE),
        Ready(0, "w", "x"),
        Ended(1, "w", "x", outcome="skipped"),
        *gpu_task("a", 0, 0, 4),
    ]
    metrics = summarise([capacity(gpus=2), *submitted(), *records])
    assert metrics.outcomes == {"skipped": 1, "succeeded": 1}
    assert gpu_shares(metrics) == pytest.approx((0.25, 0.125, 0.25, 0.125))


def test_a_start_without_amounts_takes_what_its_task_declared() -> None:
    """A driver that does not repeat the demand in `Started` loses nothing."""
    records = [TaskAdded(0, "w", "a", phases=GPU_PHASE), Started(0, "w", "a"), Ended(3, "w", "a")]
    assert summarise([capacity(), *submitted(), *records]).gpu_held_s == 3


def test_order_of_lines_does_not_matter() -> None:
    """A log whose lines were written late (or backwards, but for equal times) gives the same figures."""
    records = [
        capacity(),
        *submitted(),
        *gpu_task("a", 0.5, 1, 5),
        *gpu_task("b", 0.25, 5.5, 9),
        Used(2, 4, "w", "a"),
        Granted(0.75, "w", "a", 0, reason="rank"),
    ]
    assert summarise(reversed(records)) == summarise(records)


def test_empty_log_has_metrics() -> None:
    """A log that holds only its header: nothing happened, and no figure is invented."""
    metrics = summarise([])
    assert (metrics.makespan_s, metrics.mean_jct_s, metrics.wastage_effective) == (0, None, None)
    assert quantiles([]).mean_s is None
    assert json.loads(json.dumps(metrics.to_dict()))["kinds"]["gpu"]["held_s"] == 0
