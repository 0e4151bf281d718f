"""From the marks of a run to its run log: the same rules for every way to run it.

What held a GPU is taken from Ray's own books (the resources assigned to the task), not from what a variant meant:

    Ray gave the function a GPU     one phase that holds CPU and GPU from its held start to the function's end
    it gave it nothing              its phases are leased: each holds what the graph says, while it lasts
    it asked for a GPU inside       CPU phase, GPU phase while it was held, CPU phase; as often as it asked
    none of these                   one CPU phase

**Held start.** Ray takes a GPU from its books before it starts the process that will use it, and does not publish when
(its timeline begins with the function). So: when the process was created after the task was ready and after the device
was last in use, it was created for this task, which holds the GPU since then; else since the function began. What a
process takes to end, still holding the GPU, is not counted. Both make native runs look better, never worse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from egs_core.graph.columns import GPU, Graph
from egs_core.runlog.added import added_task
from egs_core.runlog.marks import MARKS_FILE
from egs_core.runlog.records import (
    Capacity,
    ColdStart,
    Ended,
    Ready,
    Record,
    Started,
    Used,
    WorkloadEnded,
    WorkloadSubmitted,
    in_order,
    phase_needs,
)

NODE = "local"
LEAST_COLD_S = 0.05  # importing what is imported already takes microseconds; less than this is no cold start

Interval = tuple[float, float]
Task = tuple[str, str]  # workload, task


class Mark(msgspec.Struct, frozen=True):
    """One line of the marks file: see `marks.marking`. All times are Unix times."""

    workload: str
    task: str
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
    def gpus(self) -> float:
        return self.resources.get("GPU", 0.0)

    @property
    def device_indices(self) -> tuple[int, ...]:
        return tuple(int(device) for device in self.devices.split(",") if device.isdigit())

    def of_kind(self, kind: str) -> list[Interval]:
        return [(start, end) for name, start, end in self.stretches if name == kind]


class MarkedWorkload(msgspec.Struct, frozen=True):
    """A workload that was run. submitted: Unix time. graph: its tasks, each in the phases that were leased for it."""

    id: str
    name: str
    submitted: float
    graph: Graph


class HeldPhase(msgspec.Struct):
    """A stretch in which a task held resources, and what it did with them."""

    mark: Mark
    start: float
    end: float
    cpus: float
    gpus: float
    cold: list[Interval]

    @property
    def used(self) -> list[Interval]:
        return [part for part in self.mark.of_kind("gpu") if self.gpus and self.start <= part[0] <= self.end]


def read_marks(folder: str | Path) -> list[Mark]:
    """All marks of a run, by the start of the task; none when no task noted anything."""
    path = Path(folder) / MARKS_FILE
    lines = path.read_bytes().splitlines() if path.exists() else []
    return sorted((msgspec.json.decode(line, type=Mark) for line in lines), key=lambda mark: mark.start)


def records_of(
    marks: Iterable[Mark],
    workloads: Sequence[MarkedWorkload],
    cpus: float,
    gpus: int,
    least_cold_s: float = LEAST_COLD_S,
) -> list[Record]:
    """The run log's records, by time, on one node with that capacity; t = 0 is the first submission."""
    return _Log(workloads, list(marks), least_cold_s).records(cpus, gpus)


class _Log:
    """The books of one run: when tasks were ready, what they held, and what became of it."""

    def __init__(self, workloads: Sequence[MarkedWorkload], marks: list[Mark], least_cold_s: float) -> None:
        self._workloads = workloads
        self._origin = min((workload.submitted for workload in workloads), default=0.0)
        self._least_cold_s = least_cold_s
        self._ends: dict[Task, float] = {}
        self._at = {(w.id, task): (w, number) for w in workloads for number, task in enumerate(w.graph.ids)}
        self._phases = self._held_phases(marks)

    def records(self, cpus: float, gpus: int) -> list[Record]:
        out: list[Record] = [Capacity(t=0.0, node=NODE, cpus=cpus, gpus=gpus)]
        for workload in self._workloads:
            out += self._workload_records(workload)
        for task, held in self._phases.items():
            ready = self._ready_at(task)
            for number, phase in enumerate(held):
                out += self._phase_records(phase, number, ready)
                ready = phase.end
        return in_order(out)

    # --- what was held ---

    def _held_phases(self, marks: list[Mark]) -> dict[Task, list[HeldPhase]]:
        """What each task held, phase by phase in order of time. A task split by hand has several marks."""
        phases: dict[Task, list[HeldPhase]] = {}
        free_at: dict[int, float] = {}  # device -> when a task last ended on it
        seen: set[int] = set()
        for mark in marks:  # by start: whoever a task waited for, or followed on a device, has ended before
            task = mark.workload, mark.task
            parts = phases.setdefault(task, [])
            if mark.gpus:
                ready = parts[-1].end if parts else self._ready_at(task)
                since = max([ready, *(free_at.get(device, 0.0) for device in mark.device_indices)])
                parts.append(_whole_phase(mark, held_start(mark, since, first_of_process=mark.pid not in seen)))
                free_at.update(dict.fromkeys(mark.device_indices, mark.end))
            else:
                parts.extend(self._phases_inside(mark))
            self._ends[task] = mark.end
            seen.add(mark.pid)
        return phases

    def _ready_at(self, task: Task) -> float:
        """When all parents of a task had ended, or its workload was submitted."""
        workload, number = self._at[task]
        parents = workload.graph.parents[number]
        ends = (self._ends.get((workload.id, workload.graph.ids[parent]), 0.0) for parent in parents)
        return max([workload.submitted, *ends])

    def _phases_inside(self, mark: Mark) -> list[HeldPhase]:
        """The phases of a task to which Ray gave no GPU: cut where it held one that it asked for inside."""
        workload, number = self._at[mark.workload, mark.task]
        cpus, gpu_cpus, gpus = _leased_amounts(workload.graph, number)
        if mark.resources:
            cpus, gpu_cpus = mark.resources.get("CPU", 0.0), 0.0
        cold = mark.of_kind("cold")
        held = mark.of_kind("held")
        if not mark.resources and all(workload.graph.phase_kind[p] == GPU for p in workload.graph.phases_of(number)):
            return [HeldPhase(mark, mark.start, mark.end, gpu_cpus, gpus, cold)]
        phases, since = [], mark.start
        for start, end in held:
            before = [at for _, begin, at in mark.stretches if begin >= since and at <= start]
            if before:
                phases.append(HeldPhase(mark, since, max(before), cpus, 0.0, cold))
            phases.append(HeldPhase(mark, start, end, gpu_cpus, gpus, cold))
            since = end
        after = [begin for kind, begin, _ in mark.stretches if kind == "cpu" and begin >= since]
        if after or not held:
            phases.append(HeldPhase(mark, min(after) if held else mark.start, mark.end, cpus, 0.0, cold))
        return phases

    # --- records ---

    def _workload_records(self, workload: MarkedWorkload) -> Iterator[Record]:
        t, graph = workload.submitted - self._origin, workload.graph
        yield WorkloadSubmitted(t=t, workload=workload.id, name=workload.name)
        for number, task in enumerate(graph.ids):
            held = self._phases.get((workload.id, task), [])
            phases = [phase_needs(phase.cpus, phase.gpus) for phase in held]
            yield added_task(t, workload.id, graph, number, phases=phases)
        ends = [self._ends[task] for task in ((workload.id, task) for task in graph.ids) if task in self._ends]
        if ends:
            yield WorkloadEnded(t=max(ends) - self._origin, workload=workload.id)

    def _phase_records(self, phase: HeldPhase, number: int, ready: float) -> Iterator[Record]:
        mark, origin = phase.mark, self._origin
        phase_of = mark.workload, mark.task, number
        inside = [(max(start, phase.start), min(end, phase.end)) for start, end in phase.cold]
        cold = [(start, end) for start, end in inside if end - start >= self._least_cold_s]
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


def held_start(mark: Mark, since: float, first_of_process: bool) -> float:
    """When the GPU was taken, where the task could have had it from `since` on: see *Held start* above."""
    created = mark.process_start
    if first_of_process and created is not None and since <= created <= mark.start:
        return created
    return mark.start


def _whole_phase(mark: Mark, start: float) -> HeldPhase:
    cold = [(start, mark.start), *mark.of_kind("cold")]
    return HeldPhase(mark, start, mark.end, mark.resources.get("CPU", 0.0), mark.gpus, cold)


def _leased_amounts(graph: Graph, task: int) -> tuple[float, float, float]:
    """CPUs of the CPU phases, CPUs of the GPU phases and GPUs of a task: the most that any of these phases holds."""
    cpus = gpu_cpus = gpus = 0
    for phase in graph.phases_of(task):
        shape = graph.shapes[graph.phase_shape[phase]]
        if graph.phase_kind[phase] == GPU:
            gpu_cpus, gpus = max(gpu_cpus, shape.cpu_milli), max(gpus, shape.gpu_milli)
        else:
            cpus = max(cpus, shape.cpu_milli)
    return cpus / 1000, gpu_cpus / 1000, gpus / 1000
