"""A site elsewhere: one engine for all drivers of a pool. It fails open: where that is lost, it ends the site only.

    holder's thread ── items ──► sender ── one batch after the other ──► `Line`: to a server (`over_http`), an actor …
           ▲                                                               │
           └── told, run log, operators' requests ◄── poller: long polls ──┘

A batch has all that waits when the last one is answered, and its answer what that causes for the holder; a poll brings
what others cause. What is not answered for LOST_S is lost with the site.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import msgspec

from egs_core.engine import messages as m
from egs_core.graph.columns import Graph
from egs_core.progressed import Later
from egs_core.runlog import records as r
from egs_core.site import messages as s
from egs_core.site import wire
from egs_core.site.holder_thread import HolderThread
from egs_core.site.protocol import Control, Holder

T = TypeVar("T")
LOST = "the site is lost"
LOST_S = 2.0
AGAIN_S = 0.2
POLL_S = 5.0
MOST_BYTES = 4 * 1024 * 1024  # of a batch
ANSWER_S = 10.0


class Line(Protocol):
    """The way to a site that several share, for a holder that has joined. `batch` and `poll` are for a thread each, and
    are asked again for LOST_S where they raise one of `silences`: the site knows what it has seen before."""

    @property
    def silences(self) -> tuple[type[Exception], ...]: ...
    def batch(self, body: bytes) -> bytes:
        """The encoded `Answers` to an encoded `Batch`."""
        ...

    def poll(self, ack: int, wait_s: float) -> bytes:
        """Encoded `Messages` behind number `ack`, after at most that long."""
        ...

    def leave(self) -> None:
        """The holder needs the site no more; the last call but for polls."""
        ...

    def close_poll(self) -> None:
        """There will be no more polls."""
        ...


class RemoteSite:
    """A `Site`, see the module. driver: as that knows the holder. own: the holder's thread, where that is another's
    to start and to end."""

    def __init__(self, line: Line, driver: wire.Joined, holder: Holder, own: HolderThread | None = None) -> None:
        self.driver = driver
        self._line, self._holder = line, holder
        self._origin = time.monotonic() - driver.now
        self._items: queue.SimpleQueue[tuple[bytes, Future[wire.Answer] | None] | None] = queue.SimpleQueue()
        self._marks: dict[int, r.Record] = {}  # lines of the holder's own, until what is before them has come back
        self._numbers = itertools.count(1)
        self._told: dict[int, tuple[s.Where, float]] = {}  # by task: the latest, and when
        self._placed: dict[int, s.Placed] = {}
        self._telling, self._tell_later = threading.Lock(), Later(self._tell)
        self._got = 0  # number of the last message that has been given to the holder's thread
        self._getting = threading.Lock()
        self._is_lost = self._is_closed = self._is_leaving = False
        self._has_own = own is None
        self._own = own or HolderThread(lambda: self._is_lost, self._lose)
        self._sender = threading.Thread(target=self._send, name="egs-send", daemon=True)
        self._poller = threading.Thread(target=self._poll, name="egs-poll", daemon=True)

    # --- the holder's thread ---

    def start(self) -> None:
        if self._has_own:
            self._own.start()
        self._sender.start()
        self._poller.start()

    @property
    def is_alive(self) -> bool:
        return self._own.is_alive and not self._is_lost

    @property
    def is_shared(self) -> bool:
        return True

    def now(self) -> float:
        return time.monotonic() - self._origin

    def do(self, action: Callable[[], None]) -> None:
        self._own.do(action)

    def call(self, action: Callable[[], T], timeout_s: float = 10.0) -> T:
        return self._own.call(action, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """What was given before is sent; then the server is told that the holder has gone."""
        until = time.monotonic() + timeout_s
        with contextlib.suppress(TimeoutError):
            self.call(lambda: None, timeout_s)
        self._is_leaving = True
        self._tell_later.close()
        self._items.put(None)
        if self._sender.is_alive():
            self._sender.join(max(0.1, until - time.monotonic()))
        self._own.do(self._end)
        if self._has_own:
            self._own.close(max(0.1, until - time.monotonic()))

    def retire(self) -> None:
        """On the holder's thread: it is lost, or never was started, and nobody waits for its end."""
        self._is_closed = True
        self._tell_later.close()
        self._items.put(None)

    def _end(self) -> None:
        self._is_closed = True

    def _lose(self, error: BaseException) -> None:
        """On the holder's thread."""
        if not (self._is_lost or self._is_closed):
            self._is_lost = True
            for record in self._marks.values():
                self._holder.record(record)
            self._holder.site_lost(error)

    # --- work ---

    def submit(self, workload: m.WorkloadSubmitted) -> None:
        self.report(workload)

    def control(self, *requests: Control) -> None:
        self.report(*requests)

    def report(self, *events: m.Event) -> None:
        for event in events:
            if isinstance(event, m.FlavorsAllowed) and not self.driver.takes_flavors:
                continue  # it would refuse the whole batch
            self._put(wire.Reported(event))  # type: ignore[arg-type]  # every event is one of them

    def note(self, *notes: s.Note | r.Record) -> None:
        for note in notes:
            if not isinstance(note, r.Record):
                self._put(wire.Noted(note))  # type: ignore[arg-type]  # every note is one of them
            elif self._own.is_here:
                self._keep(note)
            else:
                self._own.do(lambda record=note: self._keep(record))  # type: ignore[misc]  # one each

    def _keep(self, record: r.Record) -> None:
        """A line of the holder's own: it is written behind what has been sent by now."""
        if self._is_lost:
            self._holder.record(record)
            return
        number = next(self._numbers)
        self._marks[number] = record
        self._put(wire.Mark(number))

    def progressed(self, where: s.Where) -> None:
        """See `Site.progressed`. From any thread; what several tasks tell in a second goes together."""
        if self.driver.wants_progress and not self._is_lost:
            with self._telling:
                self._told[where.task] = where, self.now()
            self._tell_soon()

    def has_devices(self, task: int, devices: tuple[str, ...]) -> None:
        """See `Site.has_devices`. From any thread."""
        if self.driver.wants_progress and not self._is_lost:
            with self._telling:
                self._placed[task] = s.Placed(task, devices)
            self._tell_soon()

    def _tell_soon(self) -> None:
        with contextlib.suppress(RuntimeError):  # no thread can be started now: with what is told next
            self._tell_later.call()

    def _tell(self) -> None:
        with self._telling:
            told, self._told = self._told, {}
            placed, self._placed = self._placed, {}
        now = self.now()
        tasks = [msgspec.structs.replace(one, ago_s=one.ago_s + now - at) for one, at in told.values()]
        self._put(wire.Told(tuple(tasks), tuple(placed.values())))

    def here(self) -> None:
        """The holder has come back, and has told all that it has."""
        self._put(wire.Here())

    def grow(self, workload: str, at: int, graph: Graph, begun: tuple[m.Begun, ...] = ()) -> s.Grown:
        """See `Site.grow`. begun: how far the tasks are already."""
        try:
            found: s.Grown = self._ask(wire.Growing(workload, at, graph, begun), s.Grown)
            return found
        except TimeoutError as error:
            raise ConnectionError(str(error)) from None

    def _put(self, item: wire.Item) -> None:
        if not self._is_lost:
            self._items.put((msgspec.json.encode(item), None))

    # --- questions ---

    def why(self, task: int) -> m.Reason:
        found: m.Reason = self._ask(wire.Why(task), m.Reason)
        return found

    def tasks(self, numbers: Sequence[int]) -> tuple[s.TaskStatus, ...]:
        found: tuple[s.TaskStatus, ...] = self._ask(wire.Tasks(tuple(numbers)), tuple[s.TaskStatus, ...])
        return found

    def workload(self, workload: str) -> s.WorkloadStatus:
        found: s.WorkloadStatus = self._ask(wire.Workload(workload), s.WorkloadStatus)
        return found

    def order(self) -> s.Order:
        found: s.Order = self._ask(wire.Order(), s.Order)
        return found

    def _ask(self, item: wire.Asking, kind: Any) -> Any:
        """The answer, of that kind."""
        if self._is_lost:
            raise TimeoutError(LOST)
        future: Future[wire.Answer] = Future()
        self._items.put((msgspec.json.encode(item), future))
        answer = future.result(ANSWER_S)
        if answer.is_unknown:
            raise KeyError(answer.problem)
        if answer.problem:
            raise ValueError(answer.problem)
        return msgspec.json.decode(answer.value, type=kind)

    # --- the sender ---

    def _send(self) -> None:
        """Batch after batch, until the site is closed or lost."""
        try:
            for seq in itertools.count(1):
                batch, is_last = self._next_batch()
                if batch:
                    self._send_batch(seq, batch)
                if is_last:
                    break
        except Exception as error:
            self._is_lost_by(error)
            self._fail_all()
        with contextlib.suppress(Exception):
            self._line.leave()

    def _next_batch(self) -> tuple[list[tuple[bytes, Future[wire.Answer] | None]], bool]:
        found: list[tuple[bytes, Future[wire.Answer] | None]] = []
        size = 0
        while not found or (size < MOST_BYTES and not self._items.empty()):
            item = self._items.get()
            if item is None:
                return found, True
            found.append(item)
            size += len(item[0])
        return found, False

    def _send_batch(self, seq: int, batch: list[tuple[bytes, Future[wire.Answer] | None]]) -> None:
        encoded = wire.Encoded(self.driver.epoch, seq, [msgspec.Raw(item) for item, _ in batch], self._got)
        futures = [future for _, future in batch if future is not None]
        try:
            body = self._answered(lambda: self._line.batch(msgspec.json.encode(encoded)))
            found = msgspec.json.decode(body, type=wire.Answers)
            for future, answer in zip(futures, found.answers, strict=True):
                future.set_result(answer)
            self._get(found.messages)
        except Exception as error:
            for future in futures:
                if not future.done():
                    future.set_exception(TimeoutError(f"{LOST}: {error}"))
            raise

    def _fail_all(self) -> None:
        """Nobody will send what comes now."""
        while (item := self._items.get()) is not None:
            if item[1] is not None:
                item[1].set_exception(TimeoutError(LOST))

    def _answered(self, ask: Callable[[], bytes]) -> bytes:
        """The answer, asked for again for a while where nobody answers."""
        until = time.monotonic() + LOST_S
        while True:
            try:
                return ask()
            except self._line.silences:
                if time.monotonic() > until or self._is_lost or self._is_closed:
                    raise
                time.sleep(AGAIN_S)

    def _is_lost_by(self, error: BaseException) -> None:
        """From any thread."""
        self._own.do(lambda: self._lose(error))

    # --- the poller ---

    def _poll(self) -> None:
        """What the server tells, for as long as there is one; each poll says what has arrived."""
        try:
            while not (self._is_lost or self._is_closed):
                body = self._answered(lambda: self._line.poll(self._got, POLL_S))
                self._get(msgspec.json.decode(body, type=wire.Messages).messages)
        except Exception as error:
            if not self._is_leaving:  # else the answer is that the site knows the holder no more
                self._is_lost_by(error)
        self._line.close_poll()

    def _get(self, messages: Sequence[wire.Message]) -> None:
        """From the sender or the poller: each of them once, and in order. Both are told all behind what they say is
        here, so neither brings one before another that is missing."""
        with self._getting:
            for message in messages:
                if message.number > self._got:
                    self._got = message.number
                    self._own.do(lambda message=message: self._take(message))  # type: ignore[misc]  # one each

    def _take(self, message: wire.Message) -> None:
        """On the holder's thread."""
        if self._is_lost or self._is_closed:
            return
        if message.told is not None:
            self._holder.perform(message.told, message.now)
        elif message.record is not None:
            self._holder.record(message.record)
        elif message.mark:
            self._holder.record(self._marks.pop(message.mark))
        elif message.asked is not None:
            self._holder.asked(message.asked)
