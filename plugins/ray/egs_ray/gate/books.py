"""What a gate knows, whichever process it lives in: the engine, the tasks in it, and the room on the nodes.

    arrivals ─► admit ─► engine ─► grant ─► `granted`: a ticket may be given out
                            ▲
    ends ──────► end ───────┘

What is submitted without a ticket is in the engine only where it waits for a task there, so that this one's remaining
path is known; it needs nothing of the engine's capacity. What Ray waits for on other grounds (an actor's method, a
task of another driver) is taken in with the first GPU task that takes its result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from egs_core.driver.embedded import EmbeddedDriver
from egs_core.driver.journal import Journal
from egs_core.engine import Engine
from egs_core.engine import messages as m
from egs_core.engine.state.lifecycle import ENDED, HOLDS_LEASE, READY
from egs_core.graph.columns import CPU, GPU, Graph, Shape
from egs_ray.gate.renewal import renewed
from egs_ray.gate.room import Room
from egs_ray.submission import Arrival, Needs, Ordered, is_driver

NOTHING = Shape(0)
OUTSIDE = "outside"
NOBODY = "-"
STARTING_S = 3.0  # for a worker's process and Ray's own news

Estimate = Callable[[Needs], float | None]


class Job(msgspec.Struct):
    """A task in the engine until it has ended. needs: None for what is outside of the gate; client: who tells of its
    end; line_gpus: of all tasks let go when it was, itself among them; also: engine numbers that end with it."""

    number: int
    workload: str
    task_id: str
    key: str = ""
    client: str = ""
    needs: Needs | None = None
    is_open: bool = False
    opened_s: float | None = None
    line_gpus: float = 0.0
    also: tuple[int, ...] = ()


class Books:
    """See the module. Everything runs on the driver's thread (`driver.do`), but `__init__`.

    granted: called with the job and what is to be told of it, once for each; ended: with each job that has.
    """

    def __init__(
        self,
        engine: Engine,
        room: Room,
        granted: Callable[[Job, Ordered], None],
        on_death: Callable[[BaseException], None],
        *,
        ended: Callable[[Job], None],
        journal: Journal | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.room = room
        self.jobs: dict[int, Job] = {}
        self.driver = EmbeddedDriver(engine, self._perform, on_death=on_death, journal=journal, clock=clock)
        self._granted, self._ended = granted, ended
        self._numbers: dict[
            tuple[str, str], int
        ] = {}  # workload, task id or an outside reference's, until it has ended
        self._index: dict[int, int] = {}  # engine's number -> number within its workload
        self.line_gpus = 0.0  # of tasks let go that have not ended
        self.wall_s = time.time() - self.driver.now()

    # --- arrivals ---

    def admit(self, workload: str, arrivals: Iterable[Arrival], client: str = "") -> list[Job]:
        """Take submissions of one workload in; returns what is new, whose ends the books must be told of."""
        state = self.driver.engine.state
        if workload not in state.workload_numbers:
            self.driver.handle(m.WorkloadSubmitted(workload))
        batch = _Batch(workload, client, len(state.task_ids), self._known(workload))
        for arrival in arrivals:
            if (workload, arrival.task_id) not in self._numbers:
                self._describe(arrival, batch)
        if batch.jobs:
            self.driver.handle(m.TasksAdded(workload, batch.block))
        return batch.jobs

    def _known(self, workload: str) -> int:
        state = self.driver.engine.state
        return len(state.workloads[state.workload_number(workload)].numbers)

    def _describe(self, arrival: Arrival, batch: _Batch) -> None:
        workload = batch.workload
        known = [self._numbers.get((workload, task)) for task in arrival.nested]
        nested = tuple(dict.fromkeys(number for number in known if number is not None))
        if arrival.key:
            parents = [self._producer(*named, batch) for named in arrival.direct if not is_driver(named[1])]
            shape = Shape(0, max(1, round(arrival.needs.gpus * 1000)))
        else:
            found = (self._numbers.get((workload, task)) for _, task in arrival.direct)
            parents = [number for number in found if number is not None] + list(nested)
            shape, nested = NOTHING, ()
            if not parents:
                return
        seconds, name = arrival.seconds, arrival.needs.name
        job = Job(0, workload, arrival.task_id, arrival.key, batch.client, arrival.needs)
        job.number = self._append(batch, job, parents, shape, seconds, name)
        if nested:
            # Ray does not wait for these, so the gate must not; but they are worth as much as the path through here.
            job.also += (self._append(batch, job, nested, NOTHING, seconds, name),)
        if arrival.parent:
            # Whoever has submitted it may wait for it, perhaps holding a GPU: what is left of that one follows it.
            running = self._numbers.get((workload, arrival.parent))
            rest_s = 0.0 if running is None else self.driver.engine.state.estimate_s[running]
            job.also += (self._append(batch, job, (job.number,), NOTHING, rest_s, name),)
        self._take_in(job, batch)

    def _take_in(self, job: Job, batch: _Batch) -> None:
        self.jobs[job.number] = job
        self._numbers[job.workload, job.task_id] = job.number
        batch.jobs.append(job)

    def _producer(self, reference: str, task: str, batch: _Batch) -> int:
        """The engine's number for what makes this argument; something outside of the gate is taken in for it."""
        number = self._numbers.get((batch.workload, task), self._numbers.get((batch.workload, reference)))
        if number is None:
            job = Job(0, batch.workload, reference, "", batch.client)
            number = job.number = self._append(batch, job, (), NOTHING, 0.0, OUTSIDE)
            self._take_in(job, batch)
        return number

    def _append(
        self, batch: _Batch, job: Job, parents: Iterable[int], shape: Shape, seconds: float | None, name: str
    ) -> int:
        """Append a task of one phase; what follows from a parent follows from all that ends with it."""
        known = [self.jobs[parent] for parent in parents if parent in self.jobs]
        after = dict.fromkeys((*parents, *(number for other in known for number in other.also)))
        kind = GPU if shape.gpu_milli else CPU
        local = tuple(self._index[number] for number in after)
        offset = batch.block.add_task(_label(job), local, ((kind, shape, seconds),), name)
        self._index[batch.first + offset] = batch.known + offset
        return batch.first + offset

    # --- decisions ---

    def _perform(self, decision: m.Decision, now: float) -> None:
        job = self.jobs.get(decision.task) if isinstance(decision, m.Grant) else None
        if job is None or not job.key or job.is_open or not isinstance(decision, m.Grant):
            return
        self._let_go(job, now, decision.id, decision.reason)

    def let_go(self, job: Job, at_s: float, decision: int, reason: str) -> None:
        """The task went to Ray at that time without a turn of its own: with others, or since nothing waited."""
        if not job.is_open and job.number in self.jobs:
            self._let_go(job, at_s, decision, reason)

    def _let_go(self, job: Job, now: float, decision: int, reason: str) -> None:
        self.line_gpus += job.needs.gpus if job.needs else 0.0
        job.is_open, job.opened_s, job.line_gpus = True, now, self.line_gpus
        state = self.driver.engine.state
        phase = state.cursor[job.number]
        p50_s, p95_s = state.estimate_s[phase], state.estimate_p95_s[phase]
        times = self.wall_s + min(now, state.ready_at[phase] or now), self.wall_s + now
        self._granted(job, Ordered(job.task_id, *times, decision, reason, p50_s, p95_s))

    # --- ends ---

    def end(self, workload: str, task_id: str) -> None:
        """The task's value is there, or an error: to Ray both are values, and what waits for it may run."""
        if (number := self._numbers.get((workload, task_id))) is not None:
            self._end(number)

    def give_up(self, jobs: Sequence[Job]) -> None:
        """Nobody will tell of these any more. Those that wait go first, so that none is let go on the way."""
        for job in sorted(jobs, key=lambda job: job.is_open):
            if job.number in self.jobs:
                self._end(job.number, is_known=False)

    def _end(self, number: int, is_known: bool = True) -> None:
        job = self.jobs.pop(number)
        del self._numbers[job.workload, job.task_id]
        self._ended(job)
        if job.opened_s is not None and job.needs is not None:
            self.line_gpus -= job.needs.gpus
            took_s = self.driver.now() - job.opened_s
            if is_known and self.room.learn(job.needs, took_s, job.line_gpus):
                self.offer_room()
        # The task itself last: what follows it must be ready when its turn is free, or a lower one slips in.
        for ended in (*job.also, number):
            del self._index[ended]
            self._finish(ended)

    def _finish(self, number: int) -> None:
        state = self.driver.engine.state
        phase = state.cursor[number]
        if state.status[phase] in HOLDS_LEASE:
            self.driver.handle(m.PhaseEnded(phase, state.attempt[number]))
        elif state.status[phase] not in ENDED:
            self.driver.handle(m.BranchSkipped(number))

    # --- beliefs and room ---

    def estimate(self, workload: str, seconds: dict[str, float]) -> None:
        """What tasks are believed to take now, by task id."""
        found = ((self.jobs.get(self._numbers.get((workload, task), -1)), s) for task, s in seconds.items())
        cursor = self.driver.engine.state.cursor
        values = [(cursor[n], s, s) for job, s in found if job is not None for n in (job.number, *job.also)]
        if values:
            self.driver.handle(m.Estimates(tuple(values)))

    def offer_room(self) -> None:
        """Tell the engine how many tickets may be open on each node."""
        for node, devices in self.room.changes():
            self.driver.handle(m.NodeAdded(node, gpus=devices))

    def review(self, nodes: list[dict[str, Any]], free_gpus: float) -> None:
        """What Ray's books say now. What a ticket was given for a moment ago is not idle but starting."""
        now = self.driver.now()
        opened = (job for job in self.jobs.values() if job.opened_s is not None and now - job.opened_s < STARTING_S)
        free_gpus -= sum(job.needs.gpus for job in opened if job.needs)
        self.room.review(
            nodes, free_gpus, min((job.needs.gpus for job in self._ready() if job.needs), default=math.inf)
        )
        self.offer_room()

    def hopeless(self, after_s: float) -> list[Job]:
        """Tasks that have been ready for so long while no node is there that could run them."""
        now, ready_at, cursor = self.driver.now(), self.driver.engine.state.ready_at, self.driver.engine.state.cursor
        late = [(job, job.needs) for job in self._ready() if now - ready_at[cursor[job.number]] > after_s]
        return [j for j, need in late if need and not self.room.fits_now(need.cpus, need.gpus, need.memory_bytes)]

    def demand(self, nodes: list[dict[str, Any]], free_gpus: float) -> tuple[list[Needs], float]:
        """What tasks here need that were let through or are ready, and how many GPUs others hold."""
        open_ = [job.needs for job in self.jobs.values() if job.key and job.needs and job.is_open]
        there = sum(row["Resources"].get("GPU", 0.0) for row in nodes if row["Alive"])
        others = there - free_gpus - sum(needs.gpus for needs in open_)
        return [*open_, *(job.needs for job in self._ready() if job.needs)], others

    def _ready(self) -> list[Job]:
        """Those that wait for their turn and for nothing else."""
        state, waiting = self.driver.engine.state, [job for job in self.jobs.values() if job.key and not job.is_open]
        return [job for job in waiting if state.status[state.cursor[job.number]] == READY]

    # --- after a restart, and as the engine grows ---

    @property
    def tasks_ever(self) -> int:
        """How many tasks the engine keeps, ended ones included."""
        return len(self.driver.engine.state.task_ids)

    def renew(self, make_journal: Callable[[Engine], Journal | None]) -> None:
        """Go on with an engine that knows only what has not ended, and a journal that begins with it."""
        engine = self.driver.engine
        labels = {number: _label(job) for job in self.jobs.values() for number in (job.number, *job.also)}
        state, numbers = renewed(engine.state, labels)
        renewed_engine = Engine(engine.config, state)
        self.driver.go_on_with(
            renewed_engine, None
        )  # the old journal is whole: nothing happens before there is a new one
        self.driver.go_on_with(renewed_engine, make_journal(renewed_engine))
        for job in self.jobs.values():
            job.number, job.also = numbers[job.number], tuple(numbers[number] for number in job.also)
        self.jobs = {job.number: job for job in self.jobs.values()}
        self._numbers = {(job.workload, job.task_id): job.number for job in self.jobs.values()}
        self._index = {n: i for workload in state.workloads for i, n in enumerate(workload.numbers)}

    def take_over(self) -> None:
        """Know again the tasks of an engine that was recovered."""
        state = self.driver.engine.state
        jobs: dict[tuple[str, str], Job] = {}
        for workload in state.workloads:
            for index, number in enumerate(workload.numbers):
                if state.status[state.cursor[number]] not in ENDED:
                    self._index[number] = index
                    task_id, *_ = state.task_ids[number].split(" ")
                    if (job := jobs.get((workload.id, task_id))) is not None:
                        job.also += (number,)
                    else:
                        jobs[workload.id, task_id] = self._recovered(number, workload.id)
        for key, job in jobs.items():
            self.jobs[job.number], self._numbers[key] = job, job.number

    def _recovered(self, number: int, workload: str) -> Job:
        state = self.driver.engine.state
        task_id, key, client = ("" if field == NOBODY else field for field in state.task_ids[number].split(" "))
        phase, name = state.cursor[number], state.task_names[number]
        needs = None if name == OUTSIDE else Needs(name, 0.0, state.shapes[state.shape[phase]].gpu_milli / 1000, 0)
        return Job(number, workload, task_id, key, client, needs, state.status[phase] in HOLDS_LEASE)


class _Batch(msgspec.Struct):
    """A block of tasks to be. first and known: what its first task will be called by the engine and its workload."""

    workload: str
    client: str
    first: int
    known: int
    block: Graph = msgspec.field(default_factory=Graph)
    jobs: list[Job] = []


def _label(job: Job) -> str:
    """All that is to be known of a job again after a restart, as its name in the engine."""
    return f"{job.task_id} {job.key or NOBODY} {job.client or NOBODY}"
