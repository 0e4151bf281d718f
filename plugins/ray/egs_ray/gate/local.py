"""The local gate of mode `on`: in which order GPU tasks that the script has already submitted become ready for Ray.

    .remote() ─► arrival ─► engine ─► grant ─► ticket kept ─► Ray queues the task and runs it
                               ▲                                   │
                               └───── its reference has a value ◄──┘

Each task waits in Ray for a *ticket*, a reference without a value so far. The engine decides whose ticket comes next,
as many at a time as there are GPUs: who runs where is Ray's decision, and so is everything when the gate fails. What
the gate knows is in its books (`books`), which the cluster's gate (`actor`) has too.

A ticket costs some milliseconds of processor time in all, so the gate makes few. While there is room for all that has
not ended, a task that takes no result passes without one. Short tasks that are alike and come one after the other share
one, as many as the GPUs do in a tenth of a second (`room`): the first whose turn it is opens it for all of them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import ray

from egs_core.engine import Engine, EngineConfig
from egs_ray import submitting, waiting
from egs_ray.demand import DEMAND, bundles_of_tasks, cluster_grows, may_ask
from egs_ray.gate.books import Books, Estimate, Job
from egs_ray.gate.room import Room
from egs_ray.promises import Promises
from egs_ray.submission import Arrival, Needs, Ordered

WORKLOAD = "script"
PULSE_S = 1.0
CLOSE_S, HASTE_S = 5.0, 0.3  # to let its thread end; the latter where Ray has ended
HOPE_S = 120.0  # that an autoscaler has to add a node for a task that fits nowhere
REST_S = 0.01  # between two turns while Ray has enough to do: one for all that comes meanwhile
NO_TURN = "nothing_to_wait_for"
PATIENCE_S = 20.0  # without a sign of life from this process for so long, the tickets open by themselves


class Ticket(msgspec.Struct):
    """What lets tasks go that share it. refs: for those to come, one each; users: those that have it and have not
    ended; jobs: those of them in the books while it is not open; then opened: when, the decision and why."""

    name: str
    needs: Needs
    users: int = 1
    is_open: bool = False
    opened: tuple[float, int, str] = (0.0, 0, NO_TURN)
    refs: list[Any] = []
    jobs: list[Job] = []


class Gate:
    """One Ray session's gate. `ticket`, `add`, `waits_for` and `give_back` are for the submitting threads, from any
    thread and without blocking; everything below runs on the driver's thread but where it says so.

    estimate: seconds that a task is believed to take, if anything is; told: what went when, for the log.
    """

    def __init__(
        self, estimate: Estimate, told: Callable[[Ordered], None], on_failure: Callable[[BaseException], None]
    ) -> None:
        if not waiting.is_plain_driver():
            raise RuntimeError("this kind of connection to Ray (client, local mode) has no tickets")
        self._estimate, self._told, self._on_failure = estimate, told, on_failure
        grows = cluster_grows()
        if grows and not may_ask():
            raise RuntimeError("tasks at a gate would be no demand to the autoscaler (EGS_SCALING=off)")
        self._room = Room(ray.nodes(), grows=grows)
        self._demand: list[dict[str, float]] = []  # what the autoscaler is told
        self._promises = Promises(PATIENCE_S, self._board_lost)
        self._lock = threading.Lock()
        self._is_open = False
        self._lets_pass = True
        self.made = 0
        self._tickets: dict[str, Ticket] = {}  # by the keys of tasks that have not ended
        self._held_gpus = 0.0  # what these need
        self._last = Ticket("", Needs("", 0.0, 0.0, 0))  # that others may share
        self._opened: list[str] = []  # and not yet said so to whom it concerns
        self._awaited: set[str] = set()  # ids of tasks in the engine, from their submission on
        self.refs: dict[str, Any] = {}  # of what is in the books, by id
        self._arrivals: deque[tuple[Arrival, dict[str, Any]]] = deque()
        self._ends: deque[str] = deque()
        self._is_woken = False
        self._closing = threading.Event()
        engine = Engine(EngineConfig(preload=False))
        self.books = Books(engine, self._room, self._granted, self._fail, ended=self._ended)
        self.driver = self.books.driver
        self.driver.do(submitting.submit_directly)
        self.driver.do(self.books.offer_room)
        self.driver.start()
        threading.Thread(target=self._pulse, name="egs-pulse", daemon=True).start()

    # --- for submitting threads ---

    def admits(self, needs: Needs) -> bool:
        """Whether the gate is there for a task with these needs: some node must be able to run it, else it would wait
        for ever with a GPU counted as its, and Ray could not tell the autoscaler or the user."""
        return not self._is_open and self._room.fits(needs.cpus, needs.gpus, needs.memory_bytes)

    def ticket(self, needs: Needs, is_bare: bool) -> tuple[str, Any] | None:
        """A key and the reference to hand to the task, None where it needs none; None when all may pass.

        is_bare: the task takes no other's result.
        """
        with self._lock:
            if self._is_open:
                return None
            self.made += 1
            key = str(self.made)
            has_room = self._held_gpus + needs.gpus <= self._room.tickets
            self._held_gpus += needs.gpus
            last = self._last
            if is_bare and has_room and self._lets_pass:
                self._tickets[key] = Ticket("", needs, is_open=True, opened=(self.driver.now(), 0, NO_TURN))
                return key, None
            if is_bare and last.refs and not last.is_open and last.needs == needs:
                last.users += 1
                self._tickets[key] = last
                return key, last.refs.pop()
            ticket = self._tickets[key] = Ticket(key, needs)
        refs = self._promises.new_copies(key, self._room.together(needs, self._estimate(needs)) if is_bare else 1)
        ref = refs.pop()
        if refs:
            ticket.refs, self._last = refs, ticket
        return key, ref

    def give_back(self, key: str) -> None:
        """The ticket was not used, or nobody will hear of the end of who did."""
        self.driver.do(lambda: self._return(key))

    def hold_back(self, holds: bool) -> None:
        """Whether from now on no task passes or shares a ticket: each must be asked for by the engine."""
        self._lets_pass = not holds
        self._last = Ticket("", self._last.needs)

    def waits_for(self, task_ids: list[str]) -> bool:
        """Whether one of these is a task whose end the gate waits for."""
        return not self._awaited.isdisjoint(task_ids)

    def add(self, arrival: Arrival, refs: dict[str, Any]) -> None:
        """refs: the result and what Ray waits for, by id; kept until they have values, else nobody would hear of it."""
        self._awaited.add(arrival.task_id)
        self._arrivals.append((arrival, refs))
        self._wake()

    def settle(self) -> None:
        """What it has to tell was told at once."""

    def close(self) -> None:
        """Ray is about to disconnect; what still waits ends with it."""
        self._closing.set()
        DEMAND.withdraw("gate")
        self.driver.close(CLOSE_S if waiting.has_time_to_ask() else HASTE_S)

    def learned(self) -> None:
        """`estimate` knows more now."""
        self.driver.do(self._estimate_again)

    # --- arrivals, decisions and ends ---

    def _wake(self) -> None:
        """From any thread."""
        if not self._is_woken:
            self._is_woken = True
            self.driver.do(self._turn)

    def _turn(self) -> None:
        """All that has come by now; what was submitted is known before what follows from its end."""
        if self._room.ahead_s(self.books.line_gpus) > 2 * REST_S:
            time.sleep(REST_S)
        self._is_woken = False
        ends = len(self._ends)
        if self._arrivals:
            self._admit()
        for _ in range(ends):
            self.books.end(WORKLOAD, self._ends.popleft())

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
            self._join(job)
            self._await_end(job.task_id)

    def _join(self, job: Job) -> None:
        """Those that passed, or whose ticket is open by now, need no turn."""
        if (ticket := self._tickets.get(job.key)) is not None and not job.is_open:
            if ticket.is_open:
                self.books.let_go(job, *ticket.opened)
            else:
                ticket.jobs.append(job)

    def _await_end(self, task_id: str) -> None:
        def ended() -> None:
            self._ends.append(task_id)
            self._wake()

        waiting.on_ready(self.refs[task_id], ended)

    def _granted(self, job: Job, told: Ordered) -> None:
        self._told(told)
        if (ticket := self._tickets.get(job.key)) is not None:
            self._open(ticket, told.decision, told.reason)

    def _open(self, ticket: Ticket, decision: int = 0, reason: str = NO_TURN) -> None:
        with self._lock:
            if ticket.is_open:
                return
            ticket.is_open, ticket.opened = True, (self.driver.now(), decision, reason)
        self._opened.append(ticket.name)
        if len(self._opened) == 1:
            self.driver.do(self._keep)  # behind all that is queued by now: one call for all of it
        jobs, ticket.jobs = ticket.jobs, []
        for job in jobs:
            self.books.let_go(job, *ticket.opened)

    def _keep(self) -> None:
        opened, self._opened = self._opened, []
        self._promises.keep_all(opened)

    def _return(self, key: str) -> None:
        """Nobody has this ticket any more; who shares it goes."""
        if (ticket := self._forget(key)) is not None:
            self._open(ticket)

    def _forget(self, key: str) -> Ticket | None:
        """The ticket of who has ended."""
        with self._lock:
            ticket = self._tickets.pop(key, None)
            if ticket is not None:
                self._held_gpus -= ticket.needs.gpus
                ticket.users -= 1
                if not ticket.users:
                    ticket.refs = []
        return ticket

    def _ended(self, job: Job) -> None:
        self._awaited.discard(job.task_id)
        self.refs.pop(job.task_id, None)
        ticket = self._forget(job.key)
        if ticket is not None and not ticket.users:
            self._open(ticket)  # cancelled at the gate: nobody is left to take the ticket

    def _estimate_again(self) -> None:
        jobs = [(job.task_id, job.needs) for job in self.books.jobs.values() if job.needs is not None]
        believed = {task_id: self._estimate(needs) for task_id, needs in jobs}
        self.books.estimate(WORKLOAD, {task: seconds for task, seconds in believed.items() if seconds is not None})

    # --- room ---

    def _review(self, nodes: list[dict[str, Any]], free_gpus: float) -> None:
        self.books.review(nodes, free_gpus)
        if self._room.grows:
            for job in self.books.hopeless(HOPE_S):
                if (ticket := self._tickets.get(job.key)) is not None:
                    self._open(ticket)  # Ray says why no node can run it
            self._demand = bundles_of_tasks(*self.books.demand(nodes, free_gpus))

    def _pulse(self) -> None:
        """A thread of its own, because asking Ray may block: signs of life, and what Ray's books say."""
        submitting.submit_directly()
        while not self._closing.wait(PULSE_S):
            if self._is_open or not self.driver.is_alive:
                return
            try:
                self.driver.do(self._promises.live)  # by the driver's thread: its life is what the tickets depend on
                if self.books.jobs or self._demand:
                    nodes, free = ray.nodes(), ray.available_resources().get("GPU", 0.0)
                    self.driver.do(partial(self._review, nodes, free))
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
                raise RuntimeError("no nodes for tasks at the gate: another program sends requests to the autoscaler")

    # --- failures ---

    def _board_lost(self, _call: Any) -> None:
        """From a thread of Ray's. The tickets opened so far may be lost with the process that kept them."""
        self.driver.do(self._open_again)

    def _open_again(self) -> None:
        with self._lock:
            names = {ticket.name for ticket in self._tickets.values() if ticket.is_open and ticket.name}
        self._promises.keep_all(names)

    def _fail(self, error: BaseException) -> None:
        """From any thread. The engine decides no more: every ticket opens, and what comes passes."""
        if self._closing.is_set():
            return
        with self._lock:
            was_open, self._is_open = self._is_open, True
            names = {ticket.name for ticket in self._tickets.values() if not ticket.is_open}
        if not was_open:
            self._promises.keep_all(names)
            self._on_failure(error)
        if not self.driver.is_alive:  # nobody is left to hear of ends: let go of the references
            self.refs.clear()
            self._arrivals.clear()
