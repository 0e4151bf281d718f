"""The one thread that owns a site's logic: takes what waits as one batch, commits it, then answers (group commit).

    any thread ── ask(question) ──► queue ─► logic ─► one commit ─► the answers, and `changed(runs)`

A batch that the store does not take is answered with `Unavailable`; the logic, which is ahead of the store then, is
thrown away and made anew from it before anything else is asked.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from egs_core.engine.specs import QueueSpec
from egs_core.server import events
from egs_core.server.leader import NotActive
from egs_core.server.logic import Batch, SiteLogic
from egs_core.server.runs import Offer, Refusal
from egs_core.server.spending import Spending
from egs_core.server.store import Store, StoreError
from egs_core.server.tally import Tally
from egs_core.site.spanning import Spanning

LOG = logging.getLogger("uvicorn.error")
T = TypeVar("T")
Question = Callable[[SiteLogic], T]
Told = Callable[[Any], None]
MOST_AT_ONCE = 512
IDLE_S = 60.0
AGAIN_S = 1.0


class Unavailable(Exception):
    """The site cannot answer now: its store does not take what it decides."""


class Lead(Protocol):
    """Which of several servers of one store may go on. Raises StoreError where another one may be it."""

    def take(self) -> None:
        """From now on it is this one, and nothing that was begun before commits any more."""

    def check(self) -> None:
        """It still is, for what is told without a commit."""


class Alone:
    """A server whose store is nobody else's."""

    def take(self) -> None:
        pass

    def check(self) -> None:
        pass


class Turns:
    """The logic and its store: a batch at a time, by whoever calls it. The fault simulation does so too.

    offer, queues, team_of_queue: what the host has, and whose the queues are, told to each logic that is made. clock:
    seconds since 1970; within the life of one `Turns` it must not go back. spanning: what else its queues' quotas hold
    over; turn: held by whoever calls one of that, so by one thread at a time. woken: called by others where they have
    let a run start, which has to be committed and told. spending: what is used of budgets, the meter of `spanning`.
    lead: of one who may have to stand by: nothing is recovered then before somebody calls `recover`.
    """

    logic: SiteLogic

    def __init__(
        self,
        store: Store,
        offer: Offer,
        queues: tuple[QueueSpec, ...] = (),
        clock: Callable[[], float] = time.time,
        team_of_queue: Mapping[str, str] | None = None,
        spanning: Spanning | None = None,
        turn: AbstractContextManager[Any] | None = None,
        lead: Lead | None = None,
        spending: Spending | None = None,
    ) -> None:
        self._spending = spending or Spending()
        self._spanning, self._turn = spanning or Spanning(), turn or nullcontext()
        self.woken: Callable[[], None] = lambda: None
        self._before: SiteLogic | None = None
        self._store, self.offer, self._queues, self._clock = store, offer, queues, clock
        self._team_of_queue = team_of_queue
        self._lead = lead or Alone()
        self.tally = Tally([queue.name for queue in queues])
        self.is_ready = False
        if lead is None:
            self.recover()

    @property
    def epoch(self) -> float | None:
        """Of the site; None for one who stands by and has not read it yet."""
        return None if self._before is None else self._before.facts.epoch

    def take(self, questions: Iterable[Question[Any]]) -> tuple[list[Any], list[str]]:
        """The answer of each, an exception where it raises one, after one commit of all; and the runs that changed.
        Raises StoreError when the commit fails, and what is no refusal: none may be told then, `recover` is due."""
        try:
            with self._turn:
                self.logic.at(self._clock() - self._zero)
                answers = [_answer(question, self.logic) for question in questions]
                batch = self._taken(self.logic)
            if batch.entries or batch.runs or batch.forgotten or batch.log or batch.hosts or batch.spending:
                self._commit(batch, self.logic.now)
            else:
                self._lead.check()
        except Exception:
            self.logic.fails()
            raise
        return answers, [run.id for run in batch.runs]

    def recover(self) -> None:
        """Go on from what is durable. Raises StoreError while the store cannot be used, or another server is active."""
        self._lead.take()
        kept = self._store.load()
        logic = kept.logic("the site's store")
        self._count(lambda: self.tally.recovered(kept.entries, kept.runs, logic.now))
        with self._turn:
            logic.join(self._spanning, lambda: self.woken())
            if self._before is not None:
                self._before.leave()  # only now: what both hold was never free
            self._spending.begin(kept.spending, self._spanning.gpus_held(), self._spanning.gpus_on_nodes())
            logic.views.spending = self._spending
            self.logic = self._before = logic
            self._zero = min(logic.facts.epoch, self._clock() - logic.now)  # clocks may have been set back
            logic.know(self.offer)
            logic.at(self._clock() - self._zero)
            if not self.is_ready:
                self.tally.slos.began_at = logic.now
            logic.offer(self.offer, self._queues, self._team_of_queue)
            batch = self._taken(logic)
        try:
            self._commit(batch, logic.now)
        except StoreError:
            logic.fails()
            raise
        self.offer = msgspec.structs.replace(self.offer, is_new=False)
        self.is_ready = True

    def _taken(self, logic: SiteLogic) -> Batch:
        """What is to be committed: with what runs hold, where that changes, what they have used until then."""
        batch = logic.take()
        batch.spending = self._spending.to_save(is_changing=bool(batch.entries))
        return batch

    def _commit(self, batch: Batch, now: float) -> None:
        began = time.perf_counter()
        try:
            self._store.commit(batch)
        except StoreError:
            self.tally.failed_commits += 1
            raise
        passed_s = time.perf_counter() - began
        self._spending.saved(batch.spending)
        self._count(lambda: self.tally.committed(batch.entries, batch.runs, now, passed_s))
        events.tell(batch.log, self.logic.facts.epoch)

    def _count(self, what: Callable[[], None]) -> None:
        """Wrong figures are no reason to answer nobody."""
        try:
            what()
        except Exception:
            LOG.exception("what the server counts for /metrics is wrong from now on")

    def compact(self) -> None:
        """Replace the journal by a snapshot when it has become long. Raises StoreError."""
        if not self._store.wants_snapshot:
            return
        with self._turn:
            snapshot = None if self.logic.has_news else self.logic.snapshot()
        if snapshot is not None:  # else it has what the journal is still to get: after the next commit
            self._store.compact(snapshot)
            self.tally.compacted()

    def wait_s(self) -> float:
        """How long nothing is due."""
        with self._turn:
            due, spent = self.logic.next_wakeup(), self._spending.next_due()
        now = self._clock()
        waits = [IDLE_S] + ([] if due is None else [due - (now - self._zero)])
        return max(0.0, min([*waits, *([] if spent is None else [spent - now])]))


def _answer(question: Question[Any], logic: SiteLogic) -> Any:
    try:
        return question(logic)
    except Refusal as refusal:  # it is the asker's: the others of the batch go on
        return refusal


class Writer:
    """See the module. changed: called on the writer's thread with the runs of which something new is to be told."""

    def __init__(self, turns: Turns, changed: Callable[[list[str]], None]) -> None:
        self._turns = turns
        turns.woken = self.wake
        self._changed = changed
        self._queue: queue.SimpleQueue[tuple[Question[Any], Told] | None] = queue.SimpleQueue()
        self._needs_recovery = not turns.is_ready
        self._said = ""
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="egs-writer", daemon=True)

    @property
    def tally(self) -> Tally:
        """For questions, which are asked on its thread."""
        return self._turns.tally

    @property
    def epoch(self) -> float | None:
        """As `Turns.epoch`; from any thread, for it does not change."""
        return self._turns.epoch

    def start(self) -> None:
        self._thread.start()

    def ask(self, question: Question[T]) -> Future[T]:
        """The answer, once what led to it is durable; from any thread, never blocks. What the question raises, and
        Unavailable, is the future's exception."""
        future: Future[T] = Future()
        self.put(question, partial(_settle, future))
        return future

    def put(self, question: Question[Any], told: Told) -> None:
        """The same for whoever is called with the answer or the exception, on the writer's thread."""
        self._queue.put((question, told))

    def wake(self) -> None:
        """What is due, and what others have caused, is done now; what failed is tried again."""
        self.ask(_nothing)

    def close(self, timeout_s: float = 10.0) -> None:
        """Answer what was asked, then end."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._is_closing:
            batch = self._next()
            waiting = deque(told for _, told in batch)
            try:
                if self._needs_recovery:
                    self._turns.recover()
                    self._needs_recovery = False
                answers, changed = self._turns.take([question for question, _ in batch])
                for answer in answers:
                    waiting.popleft()(answer)
                if changed:
                    self._stored()
                    self._changed(changed)
                self._turns.compact()
            except Exception as error:  # the store's, or a bug: what is durable is right in both cases
                problem = self._failed(error)
                for told in waiting:
                    told(problem)

    def _failed(self, error: Exception) -> Exception:
        """What askers are told. The log has it once until it changes, a bug with its traceback."""
        self._needs_recovery = True
        if isinstance(error, NotActive):
            return error  # nothing was taken; the leader has said why
        if isinstance(error, StoreError):
            text = f"the site's database cannot be used ({error}); the server goes on by itself as soon as it can be"
        else:
            text = f"{type(error).__name__}: {error}"
        if text != self._said:
            LOG.warning("%s", text, exc_info=None if isinstance(error, StoreError) else error)
        self._said = text
        return Unavailable(text)

    def _stored(self) -> None:
        """Something new is durable: to read what is there works on a full disk, too."""
        if self._said:
            LOG.warning("the server goes on: its database takes changes")
        self._said = ""

    def _next(self) -> list[tuple[Question[Any], Told]]:
        """All that waits; nothing when a timer is due first."""
        try:
            first = self._queue.get(timeout=AGAIN_S if self._needs_recovery else self._turns.wait_s())
        except queue.Empty:
            return []
        batch = []
        while first is not None:
            batch.append(first)
            if len(batch) >= MOST_AT_ONCE or self._queue.empty():
                return batch
            first = self._queue.get()
        self._is_closing = True
        return batch


def _nothing(_logic: SiteLogic) -> None:
    """A batch for what others have caused."""


def _settle(future: Future[Any], answer: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)
