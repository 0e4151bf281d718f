"""What the page's script draws, as plain JSON: compact, because a run may have tens of thousands of phases."""

from __future__ import annotations

from typing import Any

import numpy as np

from egs_core.report.lanes import Bar, Lane, lay_out
from egs_core.runlog.flow import build_flow
from egs_core.runlog.intervals import Hold, Timeline
from egs_core.runlog.labels import label_of
from egs_core.runlog.steps import Floats, Steps, subtract

BINS = 480
UNUSED, COLD, LOADING = 0, 1, 2

Item = list[Any]


def run_chart(line: Timeline, title: str) -> dict[str, Any]:
    """One run: lanes with bars, and the averages over time. Times are seconds from the first submission."""
    names = _Names()
    workloads = {w: number for number, w in enumerate(_workloads(line))}
    lanes = [_lane(lane, line, names, workloads) for lane in lay_out(line)]
    end_s = line.window[1] - line.window[0]
    return {
        "title": title,
        "end": _ms(end_s),
        "lanes": lanes,
        "names": names.all,
        "pipelines": pipelines_of(line),
        "flows": {kind: _flow(line, kind) for kind in ("gpu", "cpu")} if end_s > 0 else {},
    }


def pipelines_of(line: Timeline) -> list[str]:
    """The readable name of every workload, in the order of their colours."""
    return [_workload_name(line, workload) for workload in _workloads(line)]


def _workloads(line: Timeline) -> list[str]:
    """Every workload, in order of submission, then those only phases name."""
    return list(dict.fromkeys([*line.workloads, *(hold.workload for hold in line.holds)]))


def _workload_name(line: Timeline, workload: str) -> str:
    span = line.workloads.get(workload)
    return workload if span is None or span.name in ("", workload) else f"{span.name} ({workload})"


class _Names:
    """Texts by number, so that a name shared by thousands of phases is sent once."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._number: dict[str, int] = {}

    def of(self, text: str) -> int:
        if text not in self._number:
            self._number[text] = len(self.all)
            self.all.append(text)
        return self._number[text]


def _lane(lane: Lane, line: Timeline, names: _Names, workloads: dict[str, int]) -> dict[str, Any]:
    items = [_item(bar, lane, line, names, workloads) for bar in lane.bars]
    return {"name": lane.name, "group": lane.group, "bars": items}


def _item(bar: Bar, lane: Lane, line: Timeline, names: _Names, workloads: dict[str, int]) -> Item:
    """[start, end, pipeline, kind, task, outcome, parts]; parts: [what, start, end], parts only where there are any."""
    start = line.window[0]
    head = [_ms(bar.start_s - start), _ms(bar.end_s - start)]
    if bar.preload is not None:
        p = bar.preload
        parts = [[LOADING, _ms(p.start_s - start), _ms(p.work_end_s - start)]]
        name = names.of(_task_name(p.workload, p.task, line))
        return [*head, workloads.get(p.workload, 0), "preload", name, names.of(p.outcome or "open"), parts]
    assert bar.hold is not None
    hold = bar.hold
    item = [*head, workloads[hold.workload], hold.demand.kind, names.of(_phase_name(hold, line))]
    item.append(names.of(hold.outcome or "unfinished"))
    parts = [[what, _ms(a - start), _ms(b - start)] for what, a, b in _parts(hold, lane.group)]
    return [*item, parts] if parts else item


def _phase_name(hold: Hold, line: Timeline) -> str:
    added = line.tasks.get((hold.workload, hold.task))
    many = added is not None and len(added.phases) > 1
    attempt = f", attempt {hold.attempt}" if hold.attempt > 1 else ""
    return _task_name(hold.workload, hold.task, line) + (f" [{hold.phase}]" if many else "") + attempt


def _task_name(workload: str, task: str, line: Timeline) -> str:
    added = line.tasks.get((workload, task))
    return task if added is None else label_of(added)


def _parts(hold: Hold, group: str) -> list[tuple[int, float, float]]:
    """Cold starts of any hold; of a GPU also what was held and not used."""
    cold = [(COLD, a, b) for a, b in hold.cold]
    if group != "gpu":
        return cold
    rest = subtract(subtract([(hold.start_s, hold.end_s)], hold.useful), hold.cold)
    return cold + [(UNUSED, a, b) for a, b in rest]


def _ms(seconds: float) -> float:
    """Rounded to milliseconds: finer is not seen, and every digit is sent thousands of times."""
    return round(seconds, 3)


def _flow(line: Timeline, kind: str) -> dict[str, Any] | None:
    """Exact averages over equal bins; None for a kind that the run has none of."""
    flow = build_flow(line, kind)
    edges = np.linspace(line.window[0], line.window[1], BINS + 1)
    most = max(flow.capacity.averages(edges).max(), flow.held.averages(edges).max())
    if most <= 0:
        return None
    return {
        "most": round(float(most), 3),
        "capacity": _values(flow.capacity, edges),
        "held": _values(flow.held, edges),
        "useful": _values(flow.useful, edges),
        "wasted": _values(flow.wasted, edges),
    }


def _values(steps: Steps, edges: Floats) -> list[float]:
    return [round(float(value), 3) for value in steps.averages(edges)]
