"""Nodes that are pools: a task can run on its own only, and what was admitted has its place before it runs."""

from __future__ import annotations

import msgspec
import pytest

from egs_core.audit.build import audit
from egs_core.audit.observed import Observed
from egs_core.runlog.records import (
    Capacity,
    Ended,
    Header,
    Held,
    Ready,
    Record,
    Started,
    TaskAdded,
    Used,
    WorkloadSubmitted,
)


def ran(*tasks: tuple[str, str, float, float, float], **options: object) -> Observed:
    """Tasks of one slot: name, pool, admitted, started, ended; all ready at 0, in pools `a` and `b` of one slot."""
    records: list[Record] = [WorkloadSubmitted(0.0, "w")]
    for task, pool, admitted_s, started_s, ended_s in tasks:
        records += [
            TaskAdded(0.0, "w", task, task, (), (("cpu", 1.0, 0.0, 0),)),
            Ready(0.0, "w", task),
            Held(admitted_s, "w", task, 0, "executor"),
            Started(started_s, "w", task, node=pool, cpus=1.0),
            Ended(ended_s, "w", task),
        ]
    end_s = max(task[-1] for task in tasks)
    records += [Capacity(t, pool, 1.0) for pool in "ab" for t in (0.0, end_s)]
    made = Observed(Header(label="made"), tuple(records), edges_known=True, cpu_name="slot", pinned=True)
    return msgspec.structs.replace(made, **options)


def test_waits_are_for_their_own_node() -> None:
    """Room on another node explains a wait where tasks may run anywhere, and not where they are pinned."""
    tasks = ("first", "a", 0.0, 0.0, 8.0), ("second", "a", 8.0, 8.0, 9.0)
    (wait,) = audit(ran(*tasks), simulated=False).waits
    assert (wait.no_cpu_s, wait.reason) == (8.0, "no free slot")
    (wait,) = audit(ran(*tasks, pinned=False), simulated=False).waits
    assert (wait.no_cpu_s, wait.free_s) == (0.0, 8.0)


def test_what_was_admitted_has_its_place() -> None:
    """While an executor has not started an admitted task, others miss its slot, and its own wait is the executor's."""
    told = audit(ran(("slow", "a", 0.0, 6.0, 7.0), ("next", "a", 7.0, 7.0, 8.0)), simulated=False)
    reasons = {wait.task: (wait.no_cpu_s, wait.reason) for wait in told.waits}
    assert reasons["next"] == (7.0, "no free slot")
    assert reasons["slow"][1] == "admitted, but no worker or process of the executor had taken it yet"


def test_what_was_admitted_counts_in_the_accounts_too() -> None:
    """A slot that a task has taken and not started on is wasted in the accounts, as in the waits and in the ratio."""
    told = audit(ran(("slow", "a", 0.0, 6.0, 7.0), ("next", "a", 7.0, 7.0, 8.0)), simulated=False)
    rows = {row.name: (row.queued_s, row.held_s, row.used_s, row.wasted_s) for row in told.by_task}
    assert rows == {"slow": (6.0, 1.0, 1.0, 6.0), "next": (0.0, 1.0, 1.0, 0.0)}
    for total in (told.total, *told.by_job):
        assert (total.queued_s, total.held_s, total.taken_s, total.wasted_s) == (6.0, 2.0, 8.0, 6.0)
    assert told.to_dict()["total"]["taken_s"] == 8.0
    assert told.wastage_by_volume is not None
    assert told.wastage_by_volume * told.offered_s >= told.total.wasted_s


def test_the_forecast_pins_tasks() -> None:
    """Four seconds of work in one of two pools are simulated as such; where tasks may move they would take two."""
    tasks = [(f"t{n}", "a", float(n), float(n), n + 1.0) for n in range(4)]
    forecasts = [audit(ran(*tasks, pinned=pinned)).forecast for pinned in (True, False)]
    assert [forecast.native_error for forecast in forecasts if forecast] == pytest.approx([0.0, 0.5], abs=0.01)


def mixed(cpu_slots: float) -> Observed:
    """Two tasks, one after the other in a GPU pool of one slot, each for 4 s; both use the GPU in their last 2 s."""
    records: list[Record] = [WorkloadSubmitted(0.0, "w")]
    for task, start_s in (("one", 0.0), ("two", 4.0)):
        records += [
            TaskAdded(0.0, "w", task, task, (), (("gpu", 0.0, 1.0, 0),)),
            Ready(0.0, "w", task),
            Started(start_s, "w", task, node="gpu", gpus=1.0),
            Used(start_s + 2.0, start_s + 4.0, "w", task),
            Ended(start_s + 4.0, "w", task),
        ]
    records += [Capacity(t, "gpu", 0.0, 1) for t in (0.0, 8.0)]
    records += [Capacity(t, "cpu", cpu_slots) for t in (0.0, 8.0) if cpu_slots]
    return Observed(Header(label="made"), tuple(records), edges_known=True, cpu_name="slot", pinned=True)


def test_with_hints_the_parts_of_a_task_are_in_pools_of_their_own() -> None:
    """The CPU part of one task beside the GPU part of the other: 6 s of 8; with two CPU slots both parts at once."""
    for cpu_slots in (1.0, 2.0):
        told = audit(mixed(cpu_slots)).forecast
        assert told is not None
        assert told.hinted is not None
        assert (told.makespan_s.observed, told.hinted.makespan_s) == pytest.approx((8.0, 6.0))
        assert told.hinted.gpu_held_s == pytest.approx(4.0)
        assert told.hinted.wait_s == pytest.approx(0.0 if cpu_slots == 1.0 else 1.0)


def test_without_a_cpu_pool_nothing_can_be_split() -> None:
    """Where a CPU part could go is not known, so nothing is forecast of it."""
    told = audit(mixed(0.0)).forecast
    assert told is not None
    assert told.hinted is None


def test_without_gpus_cpus_are_accounted_for() -> None:
    """Held time by task and in all, of what the framework calls a CPU; no cost, for a price is of GPUs."""
    told = audit(ran(("t", "a", 0.0, 0.0, 3.0)), gpu_hour=1.0, simulated=False)
    assert (told.unit, told.offered_s, told.total.held_s, told.capacity_gpu_s) == ("slot", 6.0, 3.0, 0.0)
    assert [(row.name, row.used_s) for row in told.by_task] == [("t", 3.0)]
    assert told.cost_held is None
