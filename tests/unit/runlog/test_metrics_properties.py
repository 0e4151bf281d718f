"""What holds for the metrics of every run, and that they are quick."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egs_core.runlog.metrics import summarise
from egs_core.runlog.records import (
    Capacity,
    ColdStart,
    Ended,
    Held,
    Ready,
    Record,
    Started,
    TaskAdded,
    Used,
    WorkloadSubmitted,
)
from egs_core.runlog.steps import Steps, combine, subtract, union

HOLDS = ("", "capacity", "order", "quota", "reservation", "paused", "limit")
seconds = st.integers(0, 12).map(lambda quarter: quarter / 4)


@st.composite
def phase_records(draw: st.DrawFn, number: int) -> list[Record]:
    """One task: any demand, any waiting, any parts of it cold or used, perhaps never started or ended."""
    task, gpus = f"t{number}", draw(st.sampled_from([0.0, 0.3, 0.5, 1.0, 2.0]))
    ready = draw(seconds)
    start, hold = ready + draw(seconds), draw(st.sampled_from(HOLDS))
    end = start + draw(seconds)
    kind = draw(st.sampled_from(["cpu", "gpu"]))
    out: list[Record] = [TaskAdded(0, "w", task, phases=((kind, 1.0, gpus, 0),)), Ready(ready, "w", task)]
    if hold:
        out.append(Held(min(start, ready + 0.25), "w", task, 0, hold))
    if draw(st.booleans()):
        out.append(Started(start, "w", task, node="n", devices=(0,), cpus=1.0, gpus=gpus))
        for stretch in (Used, ColdStart):
            if draw(st.booleans()):
                a = start + draw(seconds)
                out.append(stretch(a, a + draw(seconds), "w", task))
        if draw(st.booleans()):
            out.append(Ended(end, "w", task))
    return out


@st.composite
def runs(draw: st.DrawFn) -> list[Record]:
    records: list[Record] = [WorkloadSubmitted(0, "w")]
    for t in sorted(draw(st.lists(seconds, max_size=3))):
        node = draw(st.sampled_from(["n", "m"]))
        records.append(Capacity(t, node, cpus=draw(st.integers(0, 3)), gpus=draw(st.integers(0, 2))))
    for number in range(draw(st.integers(0, 6))):
        records += draw(phase_records(number))
    return records


@settings(max_examples=150, deadline=None)
@given(runs())
def test_ratios_are_shares_and_effective_is_never_below_nominal(records: list[Record]) -> None:
    """Every ratio lies in [0, 1]; useful <= held; more idle and more blocked can only raise a ratio."""
    for kind in summarise(records).kinds.values():
        assert kind.useful_s <= kind.held_s + 1e-9
        pairs = [
            (kind.nominal.by_time, kind.effective.by_time),
            (kind.nominal.by_volume, kind.effective.by_volume),
        ]
        for nominal, effective in pairs:
            assert (nominal is None) == (effective is None) == (kind.capacity_s == 0)
            if nominal is not None and effective is not None:
                assert 0 <= nominal <= effective + 1e-12
                assert effective <= 1
        for wastage in (kind.nominal, kind.effective):
            if wastage.by_volume is not None and wastage.withheld_by_volume is not None:
                assert -1e-12 <= wastage.withheld_by_volume <= 1 - wastage.by_volume + 1e-12


@settings(max_examples=60, deadline=None)
@given(runs())
def test_ratio_agrees_with_looking_at_every_moment(records: list[Record]) -> None:
    """The sweep equals a plain count over quarter-second slices, in which nothing in these runs changes."""
    metrics = summarise(records)
    gpu = metrics.kinds["gpu"]
    slices = [0.125 + n / 4 for n in range(round(metrics.makespan_s * 4))]
    capacity_s = sum(_capacity_at(records, t) for t in slices) / 4
    assert gpu.capacity_s == pytest.approx(capacity_s)
    wasted_s = sum(
        min(max(0.0, _capacity_at(records, t) - _held_at(records, t)), _blocked_at(records, t)) for t in slices
    )
    if gpu.nominal.by_volume is not None:
        assert gpu.nominal.by_volume == pytest.approx(wasted_s / 4 / capacity_s, abs=1e-9)


def _nodes_at(records: list[Record], t: float) -> dict[str, Capacity]:
    return {r.node: r for r in records if isinstance(r, Capacity) and r.t <= t}


def _capacity_at(records: list[Record], t: float) -> float:
    return sum(node.gpus for node in _nodes_at(records, t).values())


def _moments(records: list[Record], task: str) -> tuple[float, float | None, float]:
    """(ready, start or None, end or never) of a task."""
    ready = next(r.t for r in records if isinstance(r, Ready) and r.task == task)
    start = next((r.t for r in records if isinstance(r, Started) and r.task == task), None)
    end = next((r.t for r in records if isinstance(r, Ended) and r.task == task), float("inf"))
    return ready, start, end


def _held_at(records: list[Record], t: float) -> float:
    total = 0.0
    for added in (r for r in records if isinstance(r, TaskAdded)):
        _, start, end = _moments(records, added.task)
        total += added.phases[0][2] if start is not None and start <= t < end else 0.0
    return total


def _blocked_at(records: list[Record], t: float) -> float:
    total = 0.0
    for added in (r for r in records if isinstance(r, TaskAdded)):
        ready, start, _ = _moments(records, added.task)
        held = [r.kind for r in records if isinstance(r, Held) and r.task == added.task and r.t <= t]
        _, cpus, gpus, _ = added.phases[0]
        fits = any(cpus <= node.cpus and gpus <= node.gpus for node in _nodes_at(records, t).values())
        counted = (held or [""])[-1] in ("", "capacity", "order")
        total += gpus if ready <= t and (start is None or t < start) and fits and counted else 0.0
    return total


def test_steps_averages_are_exact() -> None:
    """2 from 0 to 1 and 1 from 1 to 4: bins of 2 s average 1.5 and 1; the minimum with 1 is 1 from 0 to 4."""
    steps = Steps.of_intervals([(0, 1, 1.0), (0, 4, 1.0)])
    assert steps.averages(np.array([0.0, 2.0, 4.0])).tolist() == [1.5, 1.0]
    one = Steps.of_intervals([(0, 9, 1.0)])
    assert combine(np.minimum, steps, one).integral((0.0, 9.0)) == 4.0


def test_interval_arithmetic() -> None:
    """Touching and overlapping parts join; holes cut, also across parts."""
    assert union([(3, 4), (0, 1), (1, 2), (1.5, 1.75), (5, 5)]) == [(0, 2), (3, 4)]
    assert subtract([(0, 4), (6, 8)], [(1, 2), (3, 7)]) == [(0, 1), (2, 3), (7, 8)]
