"""The cluster's gate: one named actor that orders the GPU tasks of all drivers and of what their workers submit.

    driver ──┐  acquire(key): the ticket, answered when the engine says so         ┌─ engine, room (gate.books)
    driver ──┼► tell: what was submitted, what has ended ─► EgsGate ─► Desk ───────┤
    worker ──┘  ◄─ what was let go                          (actor)   (engine)     └─ journal in the GCS (kv_storage)

It holds no CPU, belongs to no job, and ends itself when nobody has been heard of for a while. A gate that has died is
started again by Ray, which asks it again for the tickets not given yet; it knows from its journal which ones were. Its
clients then tell what they have open, and what nobody claims is given up.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import ray

from egs_core.driver.journal import Journal
from egs_core.engine import Engine, EngineConfig
from egs_ray import waiting
from egs_ray.gate.books import Books, Job
from egs_ray.gate.kv_storage import KvStorage, TemporaryFiles, journal_path, make_storage
from egs_ray.gate.messages import (
    Answer,
    Arrived,
    Attached,
    Believed,
    Ended,
    GaveBack,
    Message,
    Node,
    Noted,
    asked,
    messages,
    pack,
)
from egs_ray.gate.room import Room
from egs_ray.gate.steering import Steering
from egs_ray.submission import Ordered, Submission

CLAIM_S = 10.0  # after a restart, for clients to say what they have open
SILENCE_S = 10.0  # a worker with something open says so every second
MOST_WAIT_S = 600.0  # after so long a task goes before longer paths: no driver's chains keep another's leaves for ever
RENEW_AT = 5000  # tasks in the engine, when most of them have ended
WHOLE_JOURNAL = 1 << 62  # entries: it is begun anew with each new engine instead


class Client(msgspec.Struct):
    """A driver or worker. watched: a reference of its own that gets a value when it dies; a worker has none, since Ray
    keeps a worker that owns something from ending."""

    workload: str
    is_driver: bool
    watched: Any = None
    heard_s: float = 0.0
    granted: deque[Ordered] = msgspec.field(default_factory=deque)
    nested: deque[Submission] = msgspec.field(default_factory=deque)
    cancelled: deque[str] = msgspec.field(default_factory=deque)


class Desk:
    """What the actor does its work with. `attach`, `tell` and `is_waiting` are for the actor's loop and never block,
    `pulse` for a thread of its own; the rest runs on the driver's thread.

    patience_s: without a sign of life from the engine for so long, the tickets open by themselves. open_ticket,
    close_ticket: may be called from any thread; a closed one has nobody behind it any more. failed: told
    once why nothing is ordered any more.
    """

    def __init__(
        self,
        open_ticket: Callable[[str], None],
        close_ticket: Callable[[str], None],
        failed: Callable[[str], None],
        patience_s: float,
    ) -> None:
        self._open_ticket, self._close_ticket, self._failed = open_ticket, close_ticket, failed
        self._patience_s = patience_s
        context = ray.get_runtime_context()
        self._storage: KvStorage | TemporaryFiles = make_storage()
        self._path: Path = journal_path(self._storage, context.gcs_address.replace(":", "-"))
        self.clients: dict[str, Client] = {}
        self._decided: list[tuple[Job, Ordered]] = []
        self._waiting: set[str] = set()  # keys of tickets that the engine has not granted yet
        self._began_s = self._beat_s = time.monotonic()
        journal = self._recovered() if context.was_current_actor_reconstructed else None
        self._later: list[tuple[str, str, list[Arrived]]] | None = None
        if journal is None:
            if context.was_current_actor_reconstructed:
                self._later = []  # first those whose tickets are open must be known again
            journal = self._new_journal(
                Engine(EngineConfig(preload=False, record=True, default_max_wait_s=MOST_WAIT_S))
            )
        nodes = ray.nodes()
        self._nodes = _nodes(nodes)
        room = Room(nodes, {node.name: node.gpus for node in journal.engine.state.nodes})
        self._journal = journal
        self._books = Books(journal.engine, room, self._granted, self._died, ended=self._ended, journal=journal)
        self._driver = self._books.driver
        self._books.take_over()
        for job in self._books.jobs.values():
            if job.is_open:
                open_ticket(job.key)
            elif job.key:
                self._waiting.add(job.key)
        self._unclaimed = {job.client for job in self._books.jobs.values()}
        self._steering = Steering(self._books, self.clients, self._write_journal)
        self._driver.do(self._books.offer_room)
        self._driver.start()

    # --- the journal ---

    def _new_journal(self, engine: Engine) -> Journal:
        return Journal(self._path, engine, compact_every=WHOLE_JOURNAL, storage=self._storage)

    def _recovered(self) -> Journal | None:
        """What the gate before this one has written; None when that cannot be read."""
        try:
            return Journal.resume(self._path, compact_every=WHOLE_JOURNAL, storage=self._storage)
        except Exception as error:
            print(f"egs: the gate's journal is lost: {type(error).__name__}: {error}")
            return None

    def close(self) -> None:
        """Nobody needs this gate any more."""
        self._driver.close()
        self._storage.remove(self._path)

    # --- for the actor's loop ---

    def attach(self, name: str, data: bytes, watched: Any) -> bytes:
        """A client is there, new or again; the answer is that of `tell`."""
        (message,) = messages(data)
        assert isinstance(message, Attached)
        client = Client(message.workload, message.is_driver, watched, time.monotonic())
        self.clients[name] = client
        self._driver.do(partial(self._take_client, name, client, message))
        if watched is not None:
            waiting.on_ready(watched, lambda: self._driver.do(partial(self._gone, name, client)))
        return pack(Answer(True, nodes=self._nodes))

    def tell(self, name: str, data: bytes) -> bytes:
        """What a client has to say, and what it should know."""
        client = self.clients.get(name)
        if client is None:
            return pack(Answer(False))
        client.heard_s = time.monotonic()
        if told := messages(data):
            self._driver.do(partial(self._take, name, client, told))
        news = _drained(client.granted), _drained(client.nested), _drained(client.cancelled)
        return pack(Answer(True, "", self._nodes, *news))

    def is_waiting(self, key: str) -> bool:
        """Whether the engine has this ticket to give."""
        return key in self._waiting

    def has_clients(self, also_workers: bool = True) -> bool:
        """Whether somebody is attached; of workers only `pulse` notices that they are gone."""
        return any(also_workers or client.is_driver for client in list(self.clients.values()))

    def ask(self, data: bytes) -> None:
        """Do what an operator asks; soon."""
        self._driver.do(partial(self._steering.carry_out, asked(data)))

    def tasks(self) -> bytes:
        """The GPU tasks that are here, for whoever asks; waits for the driver's thread. Raises TimeoutError."""
        return pack(self._driver.ask(lambda _: self._steering.described()))

    def pulse(self) -> None:
        """What Ray's books say. Raises TimeoutError when the engine gives no sign of life."""
        if time.monotonic() - self._beat_s > self._patience_s:
            raise TimeoutError(f"the engine has not been heard of for {self._patience_s:.0f} s")
        nodes, free = ray.nodes(), ray.available_resources().get("GPU", 0.0)
        self._nodes = _nodes(nodes)
        self._driver.do(partial(self._beat, nodes, free))

    # --- clients ---

    def _take_client(self, name: str, client: Client, message: Attached) -> None:
        self._unclaimed.discard(name)
        listed = {told.arrival.task_id for told in message.open} | set(message.outside)
        known = [job for job in self._books.jobs.values() if job.client == name]
        self._books.give_up([job for job in known if job.task_id not in listed])
        self._admit(name, client.workload, [told for told in message.open if told.is_open])
        for job in [job for job in self._books.jobs.values() if job.client == name and not job.is_open]:
            if any(told.is_open and told.arrival.key == job.key for told in message.open):
                job.is_open = True  # by an engine whose journal is lost
                self._waiting.discard(job.key)
        self._admit_later(name, client.workload, [told for told in message.open if not told.is_open])
        self._steering.attached(client.workload, message.is_aborted)

    def _take(self, name: str, client: Client, told: list[Message]) -> None:
        arrived: list[Arrived] = []
        for message in told:
            if isinstance(message, Arrived):
                arrived.append(message)
                continue
            self._admit_later(name, client.workload, arrived)
            arrived = []
            if isinstance(message, Ended):
                self._books.end(client.workload, message.id)
            elif isinstance(message, GaveBack):
                self._close_ticket(message.key)
            elif isinstance(message, Believed):
                self._books.estimate(client.workload, message.seconds)
            elif isinstance(message, Noted):
                self._pass_on(client.workload, message.submission)
        self._admit_later(name, client.workload, arrived)

    def _admit_later(self, name: str, workload: str, arrived: list[Arrived]) -> None:
        if self._later is not None:
            self._later.append((name, workload, arrived))
        else:
            self._admit(name, workload, arrived)

    def _admit(self, name: str, workload: str, arrived: list[Arrived]) -> None:
        if arrived:
            self._waiting.update(told.arrival.key for told in arrived if told.arrival.key and not told.is_open)
            new = self._books.admit(workload, [told.arrival for told in arrived], name)
            self._steering.admitted(workload, new)

    def _pass_on(self, workload: str, submission: Submission) -> None:
        for client in list(self.clients.values()):
            if client.is_driver and client.workload == workload:
                client.nested.append(submission)

    def _gone(self, name: str, client: Client) -> None:
        if self.clients.get(name) is client:
            del self.clients[name]
            self._books.give_up([job for job in self._books.jobs.values() if job.client == name])

    # --- decisions and ends ---

    def _granted(self, job: Job, told: Ordered) -> None:
        self._waiting.discard(job.key)
        self._decided.append((job, told))
        if len(self._decided) == 1:
            self._driver.do(self._commit)  # behind all that is queued by now: one write for all of it

    def _commit(self) -> None:
        """What was decided is in the GCS before anybody hears of it: it stays decided, whoever dies."""
        decided, self._decided = self._decided, []
        self._write_journal()
        for job, told in decided:
            self._open_ticket(job.key)
            if (client := self.clients.get(job.client)) is not None:
                client.granted.append(told)

    def _write_journal(self) -> None:
        try:
            self._journal.flush()
        except Exception as error:  # a gate without a journal is better than none
            print(f"egs: the gate's journal cannot be written: {type(error).__name__}: {error}")

    def _ended(self, job: Job) -> None:
        if job.key:
            self._waiting.discard(job.key)
            self._close_ticket(job.key)

    def _died(self, error: BaseException) -> None:
        self._failed(f"{type(error).__name__}: {error}".splitlines()[0])

    # --- once a second ---

    def _beat(self, nodes: list[dict[str, Any]], free_gpus: float) -> None:
        self._beat_s = now = time.monotonic()
        self._books.review(nodes, free_gpus)
        for name, client in list(self.clients.items()):
            if not client.is_driver and now - client.heard_s > SILENCE_S:
                self._gone(name, client)
        if now - self._began_s > CLAIM_S:
            if self._unclaimed:
                self._books.give_up([job for job in self._books.jobs.values() if job.client in self._unclaimed])
                self._unclaimed = set()
            later, self._later = self._later or [], None
            for name, workload, arrived in later:
                self._admit(name, workload, arrived)
        if self._books.tasks_ever > max(RENEW_AT, 4 * len(self._books.jobs)):
            self._books.renew(self._begin_journal)

    def _begin_journal(self, engine: Engine) -> Journal:
        self._journal = self._new_journal(engine)
        return self._journal


def gate_class() -> type:
    """The actor's class. It is made here, in a function, so that Ray sends it by value: where this package cannot be
    imported the actor still answers, with open tickets."""

    import asyncio

    class EgsGate:
        def __init__(self, patience_s: float, idle_s: float) -> None:
            self._patience_s, self._idle_s = patience_s, idle_s
            self._loop: Any = None
            self._tickets: dict[str, Any] = {}  # key -> future, while somebody waits for it
            self._opened: set[str] = set()
            self._off = ""
            self._heard_s = time.monotonic()
            self._desk: Any = None
            try:
                from egs_ray.gate.actor import Desk

                self._desk = Desk(self._open, self._close, self._switch_off, patience_s)
            except BaseException as error:
                self._off = f"{type(error).__name__}: {error}".splitlines()[0]

        # --- calls ---

        async def hello(self, version: int) -> dict[str, Any]:  # noqa: ARG002  # for versions to come
            """Who answers. This call stays as it is in every version."""
            self._begin()
            return {"version": 2, "off": self._off}

        async def watch(self) -> None:
            """Never answers: its reference gets a value when either side dies."""
            await asyncio.Event().wait()

        async def acquire(self, key: str) -> None:
            """A ticket: answers when the task may go."""
            self._begin()
            ticket = self._tickets.setdefault(key, asyncio.get_running_loop().create_future())
            while not (self._off or key in self._opened or ticket.done()):
                await asyncio.wait([ticket], timeout=self._patience_s)
                if not self._desk.is_waiting(key):
                    break  # nobody has told of the task, or it has ended
            self._tickets.pop(key, None)

        async def attach(self, name: str, data: bytes, boxed: list[Any]) -> bytes:
            """A client is there; boxed: what tells of its death."""
            self._begin()
            return b"" if self._off else bytes(self._desk.attach(name, data, boxed[0] if boxed else None))

        async def tell(self, name: str, data: bytes) -> bytes:
            """What a client has to say; the answer is what it should know."""
            self._begin()
            return b"" if self._off else bytes(self._desk.tell(name, data))

        async def ask(self, data: bytes) -> None:
            """What an operator wants."""
            self._begin()
            if not self._off:
                self._desk.ask(data)

        async def tasks(self) -> bytes:
            """What is here."""
            self._begin()
            return b"" if self._off else bytes(await self._loop.run_in_executor(None, self._desk.tasks))

        async def why_off(self) -> str:
            """Why nothing is ordered."""
            return self._off

        # --- from the desk, on any thread ---

        def _open(self, key: str) -> None:
            self._opened.add(key)
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._wake, key)

        def _close(self, key: str) -> None:
            self._open(key)
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._opened.discard, key)

        def _switch_off(self, reason: str) -> None:
            self._off = self._off or reason
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._wake_all)

        # --- on the loop ---

        def _wake(self, key: str) -> None:
            ticket = self._tickets.get(key)
            if ticket is not None and not ticket.done():
                ticket.set_result(None)

        def _wake_all(self) -> None:
            for key in list(self._tickets):
                self._wake(key)

        def _begin(self) -> None:
            self._heard_s = time.monotonic()
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
                self._running = self._loop.create_task(self._run())

        async def _run(self) -> None:
            while not self._is_idle():
                await asyncio.sleep(1.0)
                if not self._off:
                    try:
                        await self._loop.run_in_executor(None, self._desk.pulse)
                    except Exception as error:
                        self._switch_off(f"{type(error).__name__}: {error}".splitlines()[0])
            if self._desk is not None:
                await self._loop.run_in_executor(None, self._desk.close)
            ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

        def _is_idle(self) -> bool:
            """A client that has heard of the gate lately counts on it; without a desk nobody does."""
            is_used = self._tickets or (self._desk is not None and self._desk.has_clients(not self._off))
            return not is_used and time.monotonic() - self._heard_s > (5.0 if self._desk is None else self._idle_s)

    return EgsGate


def _nodes(rows: list[dict[str, Any]]) -> list[Node]:
    offers = (row["Resources"] for row in rows if row["Alive"])
    return [Node(o.get("CPU", 0.0), o.get("GPU", 0.0), int(o.get("memory", 0))) for o in offers if o.get("GPU")]


def _drained(noted: deque[Any]) -> list[Any]:
    return [noted.popleft() for _ in range(len(noted))]
