"""From the marks of a demo run to its run log: the same rules for every variant.

What held a GPU is taken from Ray's own books (the resources assigned to the task), not from what a variant meant:

    Ray gave the function a GPU     one phase that holds CPU and GPU from its held start to the function's end
    it asked for one inside         CPU phase, GPU phase while it was held, CPU phase
    neither                         one CPU phase

**Held start.** Ray takes a GPU from its books before it starts the process that will use it, and does not publish when
(its timeline begins with the function). So: when the process was created after the task was ready and after the device
was last in use, it was created for this task, which holds the GPU since then; else since the function began. What a
process takes to end, still holding the GPU, is not counted. Both make native runs look better, never worse.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from egs_core.graph.columns import KIND_NAMES
from egs_core.runlog.records import (
    Capacity,
    ColdStart,
    Ended,
    Header,
    Ready,
    Record,
    Started,
    TaskAdded,
    Used,
    WorkloadEnded,
    WorkloadSubmitted,
)
from egs_ray.demo import pipelines as demo
from egs_ray.demo.graph import demo_graph, task_id
from egs_ray.demo.marks import MARKS_FILE
from egs_ray.demo.variants import Variant

NODE = "local"
LEAST_COLD_S = 0.05  # importing what is imported already takes microseconds; less than this is no cold start

Interval = tuple[float, float]


class Mark(msgspec.Struct, frozen=True):
    """One line of the marks file: see `marks.marking`. All times are Unix times."""

    task: str
    pipeline: int
    number: int
    part: int
    process_start: float | None
    start: float
    end: float
    stretches: list[tuple[str, float, float]]
    devices: str
    resources: dict[str, float]
    framework_id: str
    pid: int
    outcome: str

    @property
    def workload(self) -> str:
        return workload_id(self.pipeline)

    @property
    def task_id(self) -> str:
        return task_id(self.task, self.number)

    @property
    def gpus(self) -> float:
        return self.resources.get("GPU", 0.0)

    @property
    def device_indices(self) -> tuple[int, ...]:
        return tuple(int(device) for device in self.devices.split(",") if device.isdigit())

    def of_kind(self, kind: str) -> list[Interval]:
        return [(start, end) for name, start, end in self.stretches if name == kind]


class HeldPhase(msgspec.Struct):
    """A stretch in which a task held resources, and what it did with them."""

    mark: Mark
    start: float
    end: float
    cpus: float
    gpus: float
    cold: list[Interval]

    @property
    def kind(self) -> str:
        return KIND_NAMES[1 if self.gpus else 0]

    @property
    def used(self) -> list[Interval]:
        return [part for part in self.mark.of_kind("gpu") if self.gpus and self.start <= part[0] <= self.end]


Task = tuple[str, str]  # workload, task


def workload_id(pipeline: int) -> str:
    return f"pipeline-{pipeline}"


def read_marks(folder: str | Path) -> list[Mark]:
    """All marks of a run, by the start of the task."""
    lines = (Path(folder) / MARKS_FILE).read_bytes().splitlines()
    return sorted((msgspec.json.decode(line, type=Mark) for line in lines), key=lambda mark: mark.start)


def header_of(variant: Variant, submitted: Sequence[float]) -> Header:
    return Header(
        run_id=f"demo-{variant.name}",
        driver="ray",
        policy=variant.policy,
        mode=variant.mode,
        emulated_gpus=demo.EMULATED_GPUS,
        started_at=submitted[0],
        label=variant.name,
    )


def records_of(marks: Iterable[Mark], submitted: Sequence[float]) -> list[Record]:
    """The run log's records, by time; t = 0 is the first submission. submitted: Unix time, by pipeline."""
    origin = submitted[0]
    phases = held_phases(list(marks), submitted)
    ends = {task: held[-1].end for task, held in phases.items()}
    records: list[Record] = [Capacity(t=0.0, node=NODE, cpus=demo.CPUS, gpus=demo.GPUS)]
    for pipeline, at in enumerate(submitted):
        records += _workload_records(workload_id(pipeline), at - origin, phases)
    for (workload, task), held in phases.items():
        ready = ready_at(workload, task, submitted, ends)
        for number, phase in enumerate(held):
            records += _phase_records(phase, number, ready, origin)
            ready = phase.end
    for pipeline in range(len(submitted)):
        last = [end for (workload, _), end in ends.items() if workload == workload_id(pipeline)]
        if last:
            records.append(WorkloadEnded(t=max(last) - origin, workload=workload_id(pipeline)))
    return sorted(records, key=lambda record: record.t)  # type: ignore[attr-defined]  # all of these have one


def held_phases(marks: list[Mark], submitted: Sequence[float]) -> dict[Task, list[HeldPhase]]:
    """What each task held, phase by phase in order of time. A task split by hand has several marks."""
    phases: dict[Task, list[HeldPhase]] = {}
    free_at: dict[int, float] = {}  # device -> when a task last ended on it
    ends: dict[Task, float] = {}
    seen: set[int] = set()
    for mark in marks:  # by start: whoever a task waited for, or followed on a device, has ended before
        key = mark.workload, mark.task_id
        parts = phases.setdefault(key, [])
        if mark.gpus:
            ready = parts[-1].end if parts else ready_at(*key, submitted, ends)
            since = max([ready, *(free_at.get(device, 0.0) for device in mark.device_indices)])
            parts.append(_whole_phase(mark, held_start(mark, since, first_of_process=mark.pid not in seen)))
            free_at.update(dict.fromkeys(mark.device_indices, mark.end))
        else:
            parts.extend(_phases_inside(mark))
        ends[key] = mark.end
        seen.add(mark.pid)
    return phases


def held_start(mark: Mark, since: float, first_of_process: bool) -> float:
    """When the GPU was taken, where the task could have had it from `since` on: see *Held start* above."""
    created = mark.process_start
    if first_of_process and created is not None and since <= created <= mark.start:
        return created
    return mark.start


def ready_at(workload: str, task: str, submitted: Sequence[float], ends: dict[Task, float]) -> float:
    """When all parents of a task had ended, or its pipeline was submitted."""
    at = submitted[int(workload.removeprefix("pipeline-"))]
    return max([at, *(ends.get((workload, parent), at) for parent in parents_by_task()[task])])


@functools.cache
def parents_by_task() -> dict[str, tuple[str, ...]]:
    """The wiring of a pipeline, by task id."""
    graph = demo_graph()
    return {task: tuple(graph.ids[parent] for parent in graph.parents[i]) for i, task in enumerate(graph.ids)}


def _whole_phase(mark: Mark, start: float) -> HeldPhase:
    cold = [(start, mark.start), *mark.of_kind("cold")]
    return HeldPhase(mark, start, mark.end, mark.resources.get("CPU", 0.0), mark.gpus, cold)


def _phases_inside(mark: Mark) -> list[HeldPhase]:
    """The phases of a task to which Ray gave no GPU: cut where it held one that it asked for inside."""
    cpus, cold = mark.resources.get("CPU", 0.0), mark.of_kind("cold")
    held = mark.of_kind("held") or ([(mark.start, mark.end)] if mark.of_kind("gpu") else [])
    if not held:
        return [HeldPhase(mark, mark.start, mark.end, cpus, 0.0, cold)]
    start, end = held[0]
    before = [at for _, _, at in mark.stretches if at <= start]
    phases = [HeldPhase(mark, mark.start, max(before), cpus, 0.0, cold)] if before else []
    phases.append(HeldPhase(mark, start, end, 0.0, 1.0, cold))
    if any(at >= end for kind, at, _ in mark.stretches if kind == "cpu"):
        phases.append(HeldPhase(mark, end, mark.end, cpus, 0.0, cold))
    return phases


def _workload_records(workload: str, t: float, phases: dict[Task, list[HeldPhase]]) -> Iterable[Record]:
    yield WorkloadSubmitted(t=t, workload=workload, name="digits")
    for task, parents in parents_by_task().items():
        held = phases.get((workload, task), [])
        yield TaskAdded(
            t=t,
            workload=workload,
            task=task,
            name=task.partition("-")[0],
            parents=parents,
            phases=tuple((phase.kind, phase.cpus, phase.gpus, 0) for phase in held),
        )


def _phase_records(phase: HeldPhase, number: int, ready: float, origin: float) -> Iterable[Record]:
    mark, phase_of = phase.mark, (phase.mark.workload, phase.mark.task_id, number)
    inside = [(max(start, phase.start), min(end, phase.end)) for start, end in phase.cold]
    cold = [(start, end) for start, end in inside if end - start >= LEAST_COLD_S]
    yield Ready(min(ready, phase.start) - origin, *phase_of)
    yield Started(
        phase.start - origin,
        *phase_of,
        node=NODE,
        devices=mark.device_indices if phase.gpus else (),
        cpus=phase.cpus,
        gpus=phase.gpus,
        warm=not cold,
        framework_id=mark.framework_id,
        pid=mark.pid,
    )
    yield from (ColdStart(start - origin, end - origin, *phase_of) for start, end in cold)
    yield from (Used(start - origin, end - origin, *phase_of) for start, end in phase.used)
    yield Ended(phase.end - origin, *phase_of, outcome=mark.outcome)
