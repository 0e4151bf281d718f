"""What ran, task by task, as a simulation needs it; and the figures of a run that forecasts are about."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from egs_core.audit.accounts import name_of
from egs_core.runlog.intervals import Hold, Timeline
from egs_core.runlog.window import makespan_of


class Item(msgspec.Struct):
    """One task that ran, in the last of its attempts, with all its phases as one. Times as in the run log.

    overhead_s: the end of its wait in which nobody was let go to make room for it: a process was started, an
    environment set up. before_s, gpu_s, after_s: its seconds on the CPU before, in, and after its use of the GPU, cold
    start left out; a task whose use is not known in parts has gpu_s only.
    """

    workload: str
    task: str
    name: str
    submitted_s: float
    ready_s: float
    start_s: float
    end_s: float
    seconds: float
    cpus: float
    gpus: float
    node: str = ""
    parents: tuple[str, ...] = ()
    overhead_s: float = 0.0
    cold_s: float = 0.0
    before_s: float = 0.0
    gpu_s: float = 0.0
    after_s: float = 0.0


class Figures(msgspec.Struct, frozen=True):
    """What a forecast is about. makespan_s: first submission to last end; wait_s: mean time of a task with a GPU (of
    any task in a run without GPUs) from ready to the first line of its own code; gpu_held_s: held from there on.
    So logs that count process starts as waiting and logs that count them as held come to the same."""

    makespan_s: float
    wait_s: float
    gpu_held_s: float


FIGURES = Figures.__struct_fields__


def items_of(line: Timeline) -> list[Item]:
    """The tasks that started and ended, in the order of their submission."""
    holds: dict[tuple[str, str], list[Hold]] = defaultdict(list)
    for hold in line.holds:
        if hold.outcome:
            holds[hold.workload, hold.task].append(hold)
    ready = {(w.workload, w.task, w.phase, w.attempt): w.pieces[0][0] for w in line.waits if w.pieces}
    items = [_item(line, key, found, ready) for key, found in holds.items()]
    _take_overheads(items)
    return sorted(items, key=lambda item: (item.submitted_s, item.ready_s, item.workload, item.task))


def figures_of_items(items: Sequence[Item]) -> Figures:
    """The figures of a run's items."""
    if not items:
        return Figures(0.0, 0.0, 0.0)
    span_s = makespan_of((item.submitted_s for item in items), (item.end_s for item in items))
    for_gpu = [item for item in items if item.gpus > 0]
    waits = [item.start_s + item.cold_s - item.ready_s for item in for_gpu or items]
    return Figures(span_s, statistics.fmean(waits), sum(item.gpus * (item.seconds - item.cold_s) for item in items))


def _item(
    line: Timeline, key: tuple[str, str], found: list[Hold], ready: dict[tuple[str, str, int, int], float]
) -> Item:
    workload, task = key
    last = max(hold.attempt for hold in found)
    phases = sorted((hold for hold in found if hold.attempt == last), key=lambda hold: hold.start_s)
    first, added = phases[0], line.tasks.get(key)
    ready_s = min(ready.get((workload, task, first.phase, first.attempt), first.start_s), first.start_s)
    item = Item(
        workload=workload,
        task=task,
        name=name_of(line, workload, task),
        submitted_s=min(added.t, ready_s) if added else ready_s,
        ready_s=ready_s,
        start_s=first.start_s,
        end_s=phases[-1].end_s,
        seconds=sum(hold.end_s - hold.start_s for hold in phases),
        cpus=max(hold.demand.cpus for hold in phases),
        gpus=max(hold.demand.gpus for hold in phases),
        node=first.node,
        parents=added.parents if added else (),
        cold_s=sum(end - start for hold in phases for start, end in hold.cold),
    )
    _take_parts(item, phases)
    return item


def _take_overheads(items: Iterable[Item]) -> None:
    """Since the last end of a task on its node that held what it needs, nothing but the framework kept it waiting."""
    ends: dict[tuple[str, bool], list[float]] = defaultdict(list)
    known = sorted(items, key=lambda item: item.end_s)
    for item in known:
        for for_gpu in {item.gpus > 0, False}:
            ends[item.node, for_gpu].append(item.end_s)
    for item in known:
        freed = ends[item.node, item.gpus > 0]
        before = bisect_right(freed, item.start_s) - 1
        since_s = max(item.ready_s, freed[before]) if before >= 0 else item.ready_s
        item.overhead_s = max(0.0, item.start_s - since_s)


def _take_parts(item: Item, phases: Iterable[Hold]) -> None:
    """The task's own work before, in and after its use of the GPU."""
    holds = list(phases)
    useful = [part for hold in holds if hold.demand.gpus > 0 for part in hold.useful]
    work_s = max(0.0, item.seconds - item.cold_s)
    if not useful:
        item.gpu_s = work_s
        return
    first, last = min(start for start, _ in useful), max(end for _, end in useful)
    for hold in holds:
        cold_before = sum(max(0.0, min(end, first) - start) for start, end in hold.cold if start < first)
        item.before_s += max(0.0, min(hold.end_s, first) - hold.start_s - cold_before)
        item.after_s += max(0.0, hold.end_s - max(hold.start_s, last))
    item.before_s = min(max(0.0, item.before_s), work_s)
    item.after_s = min(item.after_s, work_s - item.before_s)
    item.gpu_s = work_s - item.before_s - item.after_s
