"""A framework of threads with EGS built in, small enough to be broken in one way at a time: a bench for the suite's own
test. Its processes are numbers, its GPUs are counted, and its order, phases and gangs are a few lines each."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from egs_core.adapter import CAPABILITIES
from egs_core.errors import InputError
from egs_core.runlog.records import Ended, Record, TaskAdded
from egs_core.testing.conformance import bench as b
from egs_core.testing.conformance import body
from egs_core.testing.conformance.pipeline import Phase, Pipeline, Task

FASTER = 3.0  # than the pipelines say
SAYS = "egs: something broke, the framework goes on alone"


class Stopped(Exception):
    """Its process was killed."""


class Request:
    """A task that waits for the GPUs of a phase."""

    def __init__(self, run: EmulatedRun, task: Task, gpus: float) -> None:
        self.run, self.task, self.gpus = run, task, gpus
        self.given = threading.Event()


class Emulated:
    """See `egs_core.testing.conformance.bench.Bench`. mutant: the one thing that is broken in it, "" for nothing."""

    name, gpus, ahead = "emulated", 2, 0
    shows_devices = True

    def __init__(self, folder: Path, mutant: str = "") -> None:
        self.folder, self.mutant = folder, mutant
        self.lock = threading.RLock()
        self.free = float(self.gpus)
        self.alive: set[int] = set()
        self.pids = itertools.count(1)
        self.held_s: dict[str, float] = {}
        self._waiting: list[Request] = []
        self._runs: list[EmulatedRun] = []

    def is_mutant(self, *names: str) -> bool:
        return self.mutant in names

    def capabilities(self) -> Mapping[str, str]:
        return dict.fromkeys(CAPABILITIES, "yes")

    def breakages(self) -> Mapping[str, str]:
        return dict.fromkeys(b.BREAKAGES, "yes")

    def start(self, pipeline: Pipeline, mode: b.Mode, broken: str = "") -> EmulatedRun:
        folder = self.folder / str(len(self._runs))
        folder.mkdir()
        run = EmulatedRun(self, pipeline, mode, folder, broken)
        self._runs.append(run)
        run.begin()
        return run

    def refusals(self) -> Sequence[tuple[str, Callable[[], object]]]:
        def refuse() -> object:
            if self.is_mutant("converts everything"):
                return "a graph"
            raise InputError("pipeline", "an error" if self.is_mutant("names nothing") else "loop 'again' is no task")

        return [("again", refuse)]

    def held_gpus(self) -> float:
        return self.gpus - self.free

    def is_alive(self, mark: b.Mark) -> bool:
        return mark.pid in self.alive

    def audit(self, outcome: b.Outcome) -> Mapping[str, float]:
        share = 0.5 if self.is_mutant("audits half") else 1.0
        return {task: share * self.held_s[task] for task in outcome.values}

    def close(self) -> None:
        for run in self._runs:
            run.end_all()

    # --- who gets GPUs ---

    def ask(self, request: Request) -> None:
        with self.lock:
            self._waiting.append(request)
            self.grant()

    def give_back(self, gpus: float) -> None:
        with self.lock:
            self.free += gpus
            self.grant()

    def withdraw(self, request: Request) -> None:
        with self.lock:
            if request in self._waiting:
                self._waiting.remove(request)

    def grant(self) -> None:
        """The first in order gets its GPUs, or the whole gang does; what does not fit keeps all behind it waiting."""
        while (unit := next(self._units(), None)) is not None:
            for request in unit:
                self._waiting.remove(request)
                self.free -= request.gpus
                request.given.set()

    def _units(self) -> Iterator[list[Request]]:
        for request in sorted(self._waiting, key=lambda r: -r.run.rank(r.task)):
            unit = [request]
            if request.task.gang and not self.is_mutant("gang in parts"):
                size = sum(task.gang == request.task.gang for task in request.run.pipeline.tasks)
                unit = [r for r in self._waiting if r.run is request.run and r.task.gang == request.task.gang]
                if len(unit) < size:
                    continue
            if sum(r.gpus for r in unit) <= self.free:
                yield unit
            elif not self.is_mutant("starves gangs"):
                return


class EmulatedRun:
    """See `egs_core.testing.conformance.bench.Running`."""

    def __init__(self, framework: Emulated, pipeline: Pipeline, mode: b.Mode, folder: Path, broken: str) -> None:
        self.framework, self.pipeline, self.mode, self.folder = framework, pipeline, mode, folder
        self.said: list[str] = []
        if mode == "native" and framework.is_mutant("speaks when off"):
            self.said = [SAYS]
        self.broken = broken
        if broken and broken not in b.LATER:
            self._say()
        self.records: list[Record] = []
        self._values: dict[str, str] = {}
        self._error = ""
        self._ended: dict[str, threading.Event] = {task.name: threading.Event() for task in pipeline.tasks}
        self._stop: dict[str, threading.Event] = {task.name: threading.Event() for task in pipeline.tasks}
        self._requests = {task.name: Request(self, task, self._needs(task, task.phases[0])) for task in pipeline.tasks}

    def begin(self) -> None:
        for task in self.pipeline.tasks:
            parents = task.after[1:] if self.framework.is_mutant("drops an edge") else task.after
            self.records.append(TaskAdded(0.0, "w", task.name, task.name, parents))
            if not task.after:
                self.framework.ask(self._requests[task.name])
        for task in self.pipeline.tasks:
            threading.Thread(target=self._live, args=(task,), daemon=True).start()

    def rank(self, task: Task) -> float:
        """How much waits for the task; nothing where the framework orders by itself."""
        if self.mode != "on" or self.framework.is_mutant("fifo"):
            return 0.0
        children = [other for other in self.pipeline.tasks if task.name in other.after]
        return 1.0 + max((self.rank(child) for child in children), default=0.0)

    def wait(self) -> b.Outcome:
        for event in self._ended.values():
            assert event.wait(b.LIMIT_S), "the pipeline does not end"
        framework, is_native = self.framework, self.mode == "native"
        values = {} if self._error else {name: self._values.get(name, "") for name in self.pipeline.leaves}
        if framework.is_mutant("loses values") and not is_native:
            values = dict.fromkeys(values, "")
        more = ["an actor"] if framework.is_mutant("adds an actor") and not is_native else []
        submitted = (*(str(task) for task in self.pipeline.tasks), *more)
        records = [] if is_native or framework.is_mutant("keeps no log") else self.records
        return b.Outcome(values, self._error, tuple(self.said), tuple(records), submitted)

    def abort(self, task: str = "") -> None:
        self._error = "TaskCancelledError: aborted"
        if self.framework.is_mutant("aborts nothing"):
            for event in self._ended.values():
                event.set()
        elif self.framework.is_mutant("aborts too much"):
            for run in self.framework._runs:
                run.end_all()
            self._ended[task or "running"].wait(b.LIMIT_S)
            time.sleep(0.1)  # so that none of them outlives the others
        else:
            for name in [task] if task else self._stop:
                self._stop[name].set()

    def break_now(self, how: str) -> None:
        assert how in b.LATER
        self._say()

    def _say(self) -> None:
        if not self.framework.is_mutant("is silent"):
            self.said = [SAYS] * (5 if self.framework.is_mutant("chatters") else 1)

    def end_all(self) -> None:
        for event in self._stop.values():
            event.set()

    # --- one task ---

    def _needs(self, task: Task, phase: Phase) -> float:
        return task.gpus if self.framework.is_mutant("no split") else phase.gpus

    def _live(self, task: Task) -> None:
        framework, held = self.framework, 0.0
        pid = next(framework.pids)
        outcome = "succeeded"
        try:
            if task.loads and not framework.is_mutant("no preload"):
                held = 1.0 if framework.is_mutant("holds for preload") else 0.0
                framework.give_back(-held)
                self._mark(pid, task, "load", 0, ())
            pid = next(framework.pids) if framework.is_mutant("another process") else pid
            self._wait(task, [self._ended[parent] for parent in task.after])
            framework.give_back(held)
            held = 0.0
            if not all(parent in self._values for parent in task.after) and not framework.is_mutant("goes on"):
                raise Stopped
            self._run_phases(task, pid)
        except Stopped:
            outcome = "aborted"
        except Exception as error:
            outcome = "failed"
            self._error = self._error or f"{type(error).__name__}: {error}"
        self._finish(task, pid, outcome, held)

    def _run_phases(self, task: Task, pid: int) -> None:
        framework = self.framework
        for number, phase in enumerate(task.phases):
            gpus = self._needs(task, phase)
            request = self._requests[task.name] if number == 0 else Request(self, task, gpus)
            if number:
                framework.ask(request)
            began = time.monotonic()
            try:
                self._wait(task, [request.given])
                framework.alive.add(pid)
                self._do_phase(task, number, pid, gpus)
            finally:
                framework.withdraw(request)
                framework.held_s[task.name] = time.monotonic() - began
                if request.given.is_set() and number < len(task.phases) - 1:
                    framework.give_back(gpus)
        if task.fails and not (framework.is_mutant("swallows errors") and self.mode == "on"):
            raise ValueError(f"{task.name} fails")
        if self.broken and framework.is_mutant("fails closed"):
            raise RuntimeError("EGS is broken")
        self._values[task.name] = body.value(task.name, tuple(self._values.get(parent, "") for parent in task.after))

    def _do_phase(self, task: Task, number: int, pid: int, gpus: float) -> None:
        phase, limit_s = task.phases[number], task.max_runtime_s
        self._mark(pid, task, "begin", number, [str(i) for i in range(int(gpus))])
        body.signal(str(self.folder), f"{task.name}.{number}")
        deadline = time.monotonic() + (limit_s or 1e9) / FASTER
        for name in phase.until:
            while not (self.folder / f"signal-{name}").exists():
                if self._stop[task.name].is_set():
                    raise Stopped
                if time.monotonic() > deadline and not self.framework.is_mutant("no limits"):
                    raise TimeoutError(f"{task.name} over its limit of {limit_s:g} s")
                time.sleep(0.005)
        time.sleep(phase.seconds / FASTER)
        self._mark(pid, task, "end", number, ())

    def _wait(self, task: Task, events: list[threading.Event]) -> None:
        for event in events:
            while not event.wait(0.005):
                if self._stop[task.name].is_set():
                    raise Stopped

    def _finish(self, task: Task, pid: int, outcome: str, held: float) -> None:
        """What the task frees goes to who is first in order, its successors among them."""
        framework, name = self.framework, task.name
        if not framework.is_mutant("leaves processes") or outcome == "succeeded":
            framework.alive.discard(pid)
        request = self._requests[name]
        keeps = framework.is_mutant("keeps GPUs") and self.broken
        freed = held + (self._needs(task, task.phases[-1]) if request.given.is_set() and not keeps else 0.0)
        with framework.lock:
            if framework.is_mutant("successors later"):
                framework.give_back(freed)
                freed = 0.0
            self._ended[name].set()
            for child in self.pipeline.tasks:
                is_over = self._ended[child.name].is_set()  # stopped while it waited
                if name in child.after and not is_over and all(self._ended[parent].is_set() for parent in child.after):
                    framework._waiting.append(self._requests[child.name])
            framework.give_back(freed)
        if request.given.is_set():
            self.records.append(Ended(0.0, "w", name, outcome=outcome))

    def _mark(self, pid: int, task: Task, what: str, phase: int, devices: Sequence[str]) -> None:
        entry = {"at": time.time(), "task": task.name, "what": what, "phase": phase, "pid": pid, "devices": devices}
        with self.framework.lock, (self.folder / body.MARKS).open("a") as file:
            file.write(json.dumps(entry) + "\n")
