"""Two made-up runs for looking at the report: six pipelines on two GPUs, as a framework alone would run them, and as
EGS would. A seeded list scheduler with jitter; what a real run looks like, not a claim about one.
"""

from __future__ import annotations

import heapq
import itertools
import random

import msgspec

from egs_core.runlog.io import Run
from egs_core.runlog.records import (
    Capacity,
    ColdStart,
    Ended,
    Granted,
    Header,
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

GIB = 1024**3
Phase = tuple[str, float]


class Task(msgspec.Struct):
    """One task of a pipeline: phases (kind, seconds), and how long a cold start of it takes."""

    workload: str
    task: str
    parents: tuple[str, ...]
    phases: tuple[Phase, ...]
    cold_s: float
    next_phase: int = 0


def pipeline(workload: str, trainings: int) -> list[Task]:
    train: tuple[Phase, ...] = (("cpu", 1.0), ("gpu", 1.5), ("cpu", 0.3))
    tasks = [
        Task(workload, "load", (), (("cpu", 1.0),), 0.4),
        Task(workload, "preprocess", ("load",), (("cpu", 1.0),), 0.4),
    ]
    tasks += [Task(workload, f"train-{n}", ("preprocess",), train, 2.2) for n in range(trainings)]
    before = tuple(t.task for t in tasks[2:])
    return [
        *tasks,
        Task(workload, "evaluate", before, (("gpu", 0.7),), 1.8),
        Task(workload, "report", ("evaluate",), (("cpu", 0.3),), 0.4),
    ]


class Maker:
    """Runs pipelines on virtual CPUs and GPUs and writes down what happened."""

    def __init__(self, seed: int, *, egs: bool, pipelines: int = 6, trainings: int = 5, gpus: int = 2) -> None:
        self.random = random.Random(seed)
        self.egs = egs
        self.free_gpus, self.free_cpus = list(range(gpus)), 4.0
        self.records: list[Record] = [Capacity(0.0, "node-1", cpus=4.0, gpus=gpus)]
        self.ready: list[tuple[tuple[float, ...], int, Task]] = []
        self.agenda: list[tuple[float, int, str, Task, int]] = []
        self.sequence = itertools.count()
        self.warm_at: dict[tuple[str, str], float] = {}
        self.tasks: dict[str, dict[str, Task]] = {}
        self.done: dict[str, set[str]] = {}
        for number in range(pipelines):
            self.submit(f"wf-{number + 1}", float(number), trainings)

    def submit(self, workload: str, t: float, trainings: int) -> None:
        tasks = pipeline(workload, trainings)
        self.tasks[workload] = {task.task: task for task in tasks}
        self.done[workload] = set()
        tenant = "vision" if int(workload[3:]) % 2 else "search"
        self.records.append(WorkloadSubmitted(t, workload, name=f"digits-{workload[3:]}", tenant=tenant))
        for task in tasks:
            phases = tuple((kind, 1.0, 1.0 if kind == "gpu" else 0.0, 0) for kind, _ in self.phases_of(task))
            self.records.append(TaskAdded(t, workload, task.task, task.task, task.parents, phases))
        self.later(t, "ready", tasks[0])

    def phases_of(self, task: Task) -> tuple[Phase, ...]:
        """A framework alone sees one phase, on a GPU if any part needs one."""
        if self.egs or len(task.phases) == 1:
            return task.phases
        return (("gpu", sum(seconds for _, seconds in task.phases)),)

    def later(self, t: float, what: str, task: Task, device: int = -1) -> None:
        heapq.heappush(self.agenda, (t, next(self.sequence), what, task, device))

    def run(self) -> list[Record]:
        while self.agenda:
            t, _, what, task, device = heapq.heappop(self.agenda)
            if what == "ready":
                self.on_ready(t, task)
            else:
                self.on_ended(t, task, device)
            self.start_all(t)
        return self.records

    def on_ready(self, t: float, task: Task) -> None:
        self.records.append(Ready(t, task.workload, task.task, task.next_phase))
        rank = -float(len(task.phases) - task.next_phase) if self.egs else 0.0
        heapq.heappush(self.ready, ((rank, t), next(self.sequence), task))
        if self.egs and task.next_phase == 0 and task.cold_s > 1:
            self.warm_at.setdefault((task.workload, task.task), t)

    def start_all(self, t: float) -> None:
        waiting = []
        while self.ready:
            entry = heapq.heappop(self.ready)
            if not self.start(t, entry[2]):
                waiting.append(entry)
        self.ready = waiting
        heapq.heapify(self.ready)

    def start(self, t: float, task: Task) -> bool:
        kind, seconds = self.phases_of(task)[task.next_phase]
        if self.free_cpus < 1 or (kind == "gpu" and not self.free_gpus):
            why = "no GPU is free" if kind == "gpu" else "no CPU is free"
            self.records.append(Held(t, task.workload, task.task, task.next_phase, "capacity", why))
            return False
        device = self.free_gpus.pop(0) if kind == "gpu" else -1
        self.free_cpus -= 1
        seconds *= self.random.uniform(0.95, 1.15)
        cold_s = 0.0 if self.egs or task.next_phase else task.cold_s * self.random.uniform(0.9, 1.2)
        self.write_start(t, task, device, cold_s, seconds)
        self.later(t + cold_s + seconds, "ended", task, device)
        return True

    def write_start(self, t: float, task: Task, device: int, cold_s: float, seconds: float) -> None:
        w, name, phase = task.workload, task.task, task.next_phase
        devices, gpus = ((device,), 1.0) if device >= 0 else ((), 0.0)
        if self.egs:
            self.records.append(Granted(t, w, name, phase, reason="upward rank"))
        self.records.append(Started(t, w, name, phase, 1, "node-1", devices, 1.0, gpus, warm=not cold_s))
        if cold_s:
            self.records.append(ColdStart(t, t + cold_s, w, name, phase))
        if device >= 0 and not self.egs and len(task.phases) > 1:
            before, used = task.phases[0][1], task.phases[1][1]
            whole = sum(length for _, length in task.phases)
            begin = t + cold_s + seconds * before / whole
            self.records.append(Used(begin, begin + seconds * used / whole, w, name, phase))

    def on_ended(self, t: float, task: Task, device: int) -> None:
        w, name = task.workload, task.task
        self.records.append(Ended(t, w, name, task.next_phase))
        self.free_cpus += 1
        if device >= 0:
            self.free_gpus.append(device)
        task.next_phase += 1
        if task.next_phase < len(self.phases_of(task)):
            self.later(t, "ready", task)
            return
        self.done[w].add(name)
        for child in self.tasks[w].values():
            if name in child.parents and self.done[w].issuperset(child.parents):
                self.preload(t, child)
                self.later(t, "ready", child)
        if len(self.done[w]) == len(self.tasks[w]):
            self.records.append(WorkloadEnded(t, w))

    def preload(self, t: float, task: Task) -> None:
        if not self.egs or task.cold_s < 1:
            return
        begin = max(0.0, t - task.cold_s)
        self.records.append(PreloadStarted(begin, task.workload, task.task, "node-1", 1.0, GIB))
        self.records.append(PreloadEnded(t - 0.1, task.workload, task.task, "warm"))
        self.records.append(PreloadEnded(t + 0.05, task.workload, task.task, "used"))


def made_run(policy: str, seed: int = 7, **shape: int) -> Run:
    """A run under `native` or `egs`."""
    records = Maker(seed, egs=policy == "egs", **shape).run()
    mode = "on" if policy == "egs" else "observe"
    header = Header(driver="ray", policy=policy, mode=mode, emulated_gpus=True, started_at=1_700_000_000.0)
    return Run(header=header, records=records)
