"""The gate of mode `on`: in which order GPU tasks that the script has already submitted become ready for Ray.

    .remote() ─► arrival ─► engine ─► grant ─► ticket kept ─► Ray queues the task and runs it
                               ▲                                   │
                               └───── its reference has a value ◄──┘

Each task waits in Ray for a *ticket*, a reference without a value so far. The engine decides whose ticket comes next,
as many at a time as there are GPUs: who runs where is Ray's decision, and so is everything when the gate fails.

What else the script submits is told to the engine only where it waits for a task at the gate, so that this one's
remaining path is known; it needs nothing of the engine's capacity. A task that Ray waits for on other grounds (an
actor's method, a task of another worker) is told as soon as a GPU task takes its result.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import ray

from egs_core.driver.embedded import EmbeddedDriver
from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.lifecycle import ENDED, HOLDS_LEASE, READY
from egs_core.graph.columns import CPU, GPU, Graph, Shape
from egs_ray import compat
from egs_ray.promises import Promises
from egs_ray.room import Room
from egs_ray.submission import Arrival, Needs, Ordered, is_driver

WORKLOAD = "script"
NOTHING = Shape(0)
PULSE_S = 1.0
PATIENCE_S = 20.0  # without a sign of life from this process for so long, the tickets open by themselves

Estimate = Callable[[Needs], float | None]


class Job(msgspec.Struct):
    """A task in the engine until it has ended. needs: None for what is outside of the gate; also: engine numbers that
    end with it."""

    number: int
    ref: Any
    task_id: str = ""
    key: str = ""
    needs: Needs | None = None
    opened_s: float | None = None
    also: tuple[int, ...] = ()


class Gate:
    """One Ray session's gate. `ticket`, `add`, `waits_for` and `give_back` are for the submitting threads, from any
    thread and without blocking; everything below runs on the driver's thread but where it says so.

    estimate: seconds that a task is believed to take, if anything is; told: what went when, for the log.
    """

    def __init__(
        self, estimate: Estimate, told: Callable[[Ordered], None], on_failure: Callable[[BaseException], None]
    ) -> None:
        if not compat.is_plain_driver():
            raise RuntimeError("this kind of connection to Ray (client, local mode) has no tickets")
        self._estimate, self._told, self._on_failure = estimate, told, on_failure
        self._engine = Engine(EngineConfig(preload=False))
        self._state = self._engine.state
        self._room = Room(ray.nodes())
        self._promises = Promises(PATIENCE_S, self._board_lost)
        self._lock = threading.Lock()
        self._unopened: set[str] = set()
        self._is_open = False
        self._made = 0
        self._awaited: set[str] = set()  # ids of tasks in the engine, from their submission on
        self._arrivals: deque[Arrival] = deque()
        self._jobs: dict[int, Job] = {}
        self._numbers: dict[str, int] = {}  # task id, or an outside reference's, -> number, until it has ended
        self._closing = threading.Event()
        self._driver = EmbeddedDriver(self._engine, self._perform, on_death=self._fail)
        self._wall_s = time.time() - self._driver.now()
        self._driver.do(compat.submit_directly)
        self._driver.post(m.WorkloadSubmitted(WORKLOAD))
        self._driver.do(self._offer_room)
        self._driver.start()
        threading.Thread(target=self._pulse, name="egs-pulse", daemon=True).start()

    # --- for submitting threads ---

    def admits(self, needs: Needs) -> bool:
        """Whether the gate is there for a task with these needs: some node must be able to run it, else it would wait
        for ever with a GPU counted as its, and Ray could not tell the autoscaler or the user."""
        return not self._is_open and self._room.fits(needs.cpus, needs.gpus, needs.memory_bytes)

    def ticket(self) -> tuple[str, Any] | None:
        """A key and the reference to hand to the task; None when all may pass."""
        with self._lock:
            if self._is_open:
                return None
            self._made += 1
            key = str(self._made)
            self._unopened.add(key)
        return key, self._promises.new(key)

    def give_back(self, key: str) -> None:
        """The ticket was not used."""
        self._driver.do(lambda: self._open(key))

    def waits_for(self, task_ids: list[str]) -> bool:
        """Whether one of these is a task whose end the gate waits for."""
        return not self._awaited.isdisjoint(task_ids)

    def add(self, arrival: Arrival) -> None:
        self._awaited.add(arrival.task_id)
        self._arrivals.append(arrival)
        self._driver.do(self._admit)

    def close(self) -> None:
        """Ray is about to disconnect; what still waits ends with it."""
        self._closing.set()
        self._driver.close()

    def learned(self) -> None:
        """`estimate` knows more now."""
        self._driver.do(self._estimate_again)

    # --- arrivals ---

    def _admit(self) -> None:
        block, jobs = Graph(), list[Job]()
        while self._arrivals:
            self._describe(self._arrivals.popleft(), block, jobs)
        if jobs:
            self._handle(m.TasksAdded(WORKLOAD, block))
            for job in jobs:
                self._await_end(job)

    def _describe(self, arrival: Arrival, block: Graph, jobs: list[Job]) -> None:
        nested = tuple(dict.fromkeys(self._numbers[task] for task in arrival.nested if task in self._numbers))
        if arrival.key:
            parents = [self._producer(ref, block, jobs) for ref in arrival.direct if not is_driver(_task(ref))]
            shape = Shape(0, max(1, round(arrival.needs.gpus * 1000)))
        else:
            known = (self._numbers.get(_task(ref)) for ref in arrival.direct)
            parents = [number for number in known if number is not None] + list(nested)
            shape, nested = NOTHING, ()
        seconds = self._estimate(arrival.needs)
        number = self._append(block, arrival.task_id, parents, shape, seconds, arrival.needs.name)
        job = Job(number, arrival.ref, arrival.task_id, arrival.key, arrival.needs)
        if nested:
            # Ray does not wait for these, so the gate must not; but they are worth as much as the path through here.
            job.also = (self._append(block, f"{arrival.task_id}+", nested, NOTHING, seconds, arrival.needs.name),)
        self._take_in(job, jobs)

    def _take_in(self, job: Job, jobs: list[Job]) -> None:
        self._jobs[job.number] = job
        self._numbers[job.task_id] = job.number
        jobs.append(job)

    def _producer(self, ref: Any, block: Graph, jobs: list[Job]) -> int:
        """The engine's number for what makes this argument; something outside of the gate is taken in for it."""
        number = self._numbers.get(_task(ref), self._numbers.get(ref.hex()))
        if number is None:
            number = self._append(block, ref.hex(), (), NOTHING, 0.0, "outside")
            self._take_in(Job(number, ref, ref.hex()), jobs)
        return number

    def _append(self, block: Graph, name: str, parents: Any, shape: Shape, seconds: float | None, task: str) -> int:
        """Append a task of one phase; what follows from a parent follows from all that ends with it."""
        known = [self._jobs[parent] for parent in parents if parent in self._jobs]
        after = dict.fromkeys((*parents, *(number for job in known for number in job.also)))
        kind = GPU if shape.gpu_milli else CPU
        return len(self._state.task_ids) + block.add_task(name, tuple(after), ((kind, shape, seconds),), task)

    def _await_end(self, job: Job) -> None:
        number = job.number
        compat.on_ready(job.ref, lambda: self._driver.do(lambda: self._ended(number)))

    # --- decisions, and what became of them ---

    def _handle(self, event: m.Event) -> None:
        now = self._driver.now()
        for decision in self._engine.handle(event, now):
            self._perform(decision, now)

    def _perform(self, decision: m.Decision, now: float) -> None:
        job = self._jobs.get(decision.task) if isinstance(decision, m.Grant) else None
        if job is None or not job.key or not isinstance(decision, m.Grant):
            return
        self._open(job.key)
        job.opened_s = now
        state, phase = self._state, decision.phase
        p50_s, p95_s = state.estimate_s[phase], state.estimate_p95_s[phase]
        ready_s = self._wall_s + state.ready_at[phase]
        self._told(Ordered(job.task_id, ready_s, self._wall_s + now, decision.id, decision.reason, p50_s, p95_s))

    def _open(self, key: str) -> None:
        with self._lock:
            self._unopened.discard(key)
        self._promises.keep(key, None)

    def _ended(self, number: int) -> None:
        """The task's value is there, or an error: to Ray both are values, and what waits for it may run."""
        job = self._jobs.pop(number, None)
        if job is None:
            return
        self._numbers.pop(job.task_id, None)
        self._awaited.discard(job.task_id)
        if job.key and job.opened_s is None:
            self._open(job.key)  # cancelled at the gate: nobody is left to take the ticket
        elif job.opened_s is not None and self._room.learn(self._driver.now() - job.opened_s):
            self._offer_room()
        for ended in (number, *job.also):
            self._finish(ended)

    def _finish(self, number: int) -> None:
        state, phase = self._state, self._state.cursor[number]
        if state.status[phase] in HOLDS_LEASE:
            self._handle(m.PhaseEnded(phase, state.attempt[number]))
        elif state.status[phase] not in ENDED:
            self._handle(m.BranchSkipped(number))

    def _estimate_again(self) -> None:
        values: list[tuple[int, float, float]] = []
        for number, job in self._jobs.items():
            seconds = self._estimate(job.needs) if job.needs is not None else None
            if seconds is not None:
                values += [(self._state.cursor[n], seconds, seconds) for n in (number, *job.also)]
        if values:
            self._handle(m.Estimates(tuple(values)))

    # --- room ---

    def _offer_room(self) -> None:
        """Tell the engine how many tickets may be open on each node."""
        for node, devices in self._room.changes():
            self._handle(m.NodeAdded(node, gpus=devices))

    def _review(self, nodes: list[dict[str, Any]], free_gpus: float) -> None:
        state = self._state
        waiting = (job for job in self._jobs.values() if job.needs and state.status[state.cursor[job.number]] == READY)
        self._room.review(nodes, free_gpus, min((job.needs.gpus for job in waiting if job.needs), default=math.inf))
        self._offer_room()

    def _pulse(self) -> None:
        """A thread of its own, because asking Ray may block: signs of life, and what Ray's books say."""
        compat.submit_directly()
        while not self._closing.wait(PULSE_S):
            if self._is_open or not self._driver.is_alive:
                return
            try:
                self._driver.do(self._promises.live)  # by the driver's thread: its life is what the tickets depend on
                if self._jobs:
                    nodes, free = ray.nodes(), ray.available_resources().get("GPU", 0.0)
                    self._driver.do(lambda nodes=nodes, free=free: self._review(nodes, free))  # type: ignore[misc]
            except Exception as error:
                self._fail(error)
                return

    # --- failures ---

    def _board_lost(self, _call: Any) -> None:
        """From a thread of Ray's. The tickets opened so far may be lost with the process that kept them."""
        self._driver.do(self._open_again)

    def _open_again(self) -> None:
        self._promises.keep_all([job.key for job in self._jobs.values() if job.opened_s is not None])

    def _fail(self, error: BaseException) -> None:
        """From any thread. The engine decides no more: every ticket opens, and what comes passes."""
        if self._closing.is_set():
            return
        with self._lock:
            was_open, self._is_open = self._is_open, True
            keys = list(self._unopened)
        if not was_open:
            self._promises.keep_all(keys)
            self._on_failure(error)
        if not self._driver.is_alive:  # nobody is left to hear of ends: let go of the references
            self._jobs.clear()
            self._arrivals.clear()


def _task(ref: Any) -> str:
    return str(ref.task_id().hex())
