"""The local gate of mode `on`: in which order GPU tasks that the script has already submitted become ready for Ray.

    .remote() ─► arrival ─► engine ─► grant ─► ticket kept ─► Ray queues the task and runs it
                               ▲                                   │
                               └───── its reference has a value ◄──┘

Each task waits in Ray for a *ticket*, a reference without a value so far. The engine decides whose ticket comes next,
as many at a time as there are GPUs: who runs where is Ray's decision, and so is everything when the gate fails. What
the gate knows is in its books (`books`), which the cluster's gate (`actor`) has too.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import ray

from egs_core.engine import Engine, EngineConfig
from egs_ray import compat
from egs_ray.demand import DEMAND, bundles_of_tasks, cluster_grows, may_ask
from egs_ray.gate.books import Books, Estimate, Job
from egs_ray.gate.room import Room
from egs_ray.promises import Promises
from egs_ray.submission import Arrival, Needs, Ordered

WORKLOAD = "script"
PULSE_S = 1.0
HOPE_S = 120.0  # that an autoscaler has to add a node for a task that fits nowhere
PATIENCE_S = 20.0  # without a sign of life from this process for so long, the tickets open by themselves


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
        grows = cluster_grows()
        if grows and not may_ask():
            raise RuntimeError("tasks at a gate would be no demand to the autoscaler (EGS_SCALING=off)")
        self._room = Room(ray.nodes(), grows=grows)
        self._demand: list[dict[str, float]] = []  # what the autoscaler is told
        self._promises = Promises(PATIENCE_S, self._board_lost)
        self._lock = threading.Lock()
        self._unopened: set[str] = set()
        self._is_open = False
        self.made = 0
        self._awaited: set[str] = set()  # ids of tasks in the engine, from their submission on
        self.refs: dict[str, Any] = {}  # of what is in the books, by id
        self._arrivals: deque[tuple[Arrival, dict[str, Any]]] = deque()
        self._closing = threading.Event()
        engine = Engine(EngineConfig(preload=False))
        self.books = Books(engine, self._room, self._granted, self._fail, ended=self._ended)
        self.driver = self.books.driver
        self.driver.do(compat.submit_directly)
        self.driver.do(self.books.offer_room)
        self.driver.start()
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
            self.made += 1
            key = str(self.made)
            self._unopened.add(key)
        return key, self._promises.new(key)

    def give_back(self, key: str) -> None:
        """The ticket was not used."""
        self.driver.do(lambda: self._open(key))

    def waits_for(self, task_ids: list[str]) -> bool:
        """Whether one of these is a task whose end the gate waits for."""
        return not self._awaited.isdisjoint(task_ids)

    def add(self, arrival: Arrival, refs: dict[str, Any]) -> None:
        """refs: the result and what Ray waits for, by id; kept until they have values, else nobody would hear of it."""
        self._awaited.add(arrival.task_id)
        self._arrivals.append((arrival, refs))
        self.driver.do(self._admit)

    def settle(self) -> None:
        """What it has to tell was told at once."""

    def close(self) -> None:
        """Ray is about to disconnect; what still waits ends with it."""
        self._closing.set()
        DEMAND.withdraw("gate")
        self.driver.close()

    def learned(self) -> None:
        """`estimate` knows more now."""
        self.driver.do(self._estimate_again)

    # --- arrivals, decisions and ends ---

    def _admit(self) -> None:
        arrivals, refs = list[Arrival](), dict[str, Any]()
        while self._arrivals:
            arrival, named = self._arrivals.popleft()
            arrivals.append(arrival)
            refs.update(named)
        jobs = self.books.admit(WORKLOAD, arrivals)
        self._awaited.difference_update({arrival.task_id for arrival in arrivals} - {job.task_id for job in jobs})
        for job in jobs:
            self.refs[job.task_id] = refs[job.task_id]
            self._await_end(job.task_id)

    def _await_end(self, task_id: str) -> None:
        compat.on_ready(self.refs[task_id], lambda: self.driver.do(lambda: self.books.end(WORKLOAD, task_id)))

    def _granted(self, job: Job, told: Ordered) -> None:
        self._open(job.key)
        self._told(told)

    def _open(self, key: str) -> None:
        with self._lock:
            self._unopened.discard(key)
        self._promises.keep(key, None)

    def _ended(self, job: Job) -> None:
        self._awaited.discard(job.task_id)
        self.refs.pop(job.task_id, None)
        if job.key and not job.is_open:
            self._open(job.key)  # cancelled at the gate: nobody is left to take the ticket

    def _estimate_again(self) -> None:
        jobs = [(job.task_id, job.needs) for job in self.books.jobs.values() if job.needs is not None]
        believed = {task_id: self._estimate(needs) for task_id, needs in jobs}
        self.books.estimate(WORKLOAD, {task: seconds for task, seconds in believed.items() if seconds is not None})

    # --- room ---

    def _review(self, nodes: list[dict[str, Any]], free_gpus: float) -> None:
        self.books.review(nodes, free_gpus)
        if self._room.grows:
            for job in self.books.hopeless(HOPE_S):
                self._open(job.key)  # Ray says why no node can run it
            self._demand = bundles_of_tasks(*self.books.demand(nodes, free_gpus))

    def _pulse(self) -> None:
        """A thread of its own, because asking Ray may block: signs of life, and what Ray's books say."""
        compat.submit_directly()
        while not self._closing.wait(PULSE_S):
            if self._is_open or not self.driver.is_alive:
                return
            try:
                self.driver.do(self._promises.live)  # by the driver's thread: its life is what the tickets depend on
                if self.books.jobs or self._demand:
                    nodes, free = ray.nodes(), ray.available_resources().get("GPU", 0.0)
                    self.driver.do(lambda nodes=nodes, free=free: self._review(nodes, free))  # type: ignore[misc]  # mypy has no types for such a lambda
                self._tell_autoscaler()
            except Exception as error:
                self._fail(error)
                return

    def _tell_autoscaler(self) -> None:
        """On the pulse's thread. An autoscaler shows itself some seconds after its cluster."""
        if not self._room.grows:
            self._room.grows = cluster_grows() and may_ask()
        if self._room.grows:
            DEMAND.want("gate", self._demand)
            if DEMAND.is_refused:
                raise RuntimeError("tasks at the gate are no demand to the autoscaler, which somebody else asks")

    # --- failures ---

    def _board_lost(self, _call: Any) -> None:
        """From a thread of Ray's. The tickets opened so far may be lost with the process that kept them."""
        self.driver.do(self._open_again)

    def _open_again(self) -> None:
        self._promises.keep_all([job.key for job in self.books.jobs.values() if job.is_open])

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
        if not self.driver.is_alive:  # nobody is left to hear of ends: let go of the references
            self.refs.clear()
            self._arrivals.clear()
