"""A site behind a wire, to show that a holder cannot tell it from one in its own process.

    holder's thread ◄── JSON, each message twice ──┐
          │                                        │ the site's own thread: an embedded site
          └── JSON, each request twice ────────────┘

Every call, answer, decision and line of the run log becomes JSON bytes and comes back from them. Requests are repeated,
as by a client that got no answer, but for lines of the run log; so are the messages, which the holder's end knows by
their numbers. Decisions are carried out on a thread that is not the engine's.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.graph.columns import Graph
from egs_core.runlog import records as r
from egs_core.site import messages as s
from egs_core.site.embedded import EmbeddedSite
from egs_core.site.holder_thread import HolderThread
from egs_core.site.protocol import Control, Holder, Site

T = TypeVar("T")


class Message(msgspec.Struct, frozen=True):
    """From the site. number: rises by one, so a repeated message is known."""

    number: int
    body: bytes


class WireSite:
    """A `Site`, see the module."""

    def __init__(self, config: EngineConfig, holder: Holder, *, logs_waits: bool = True) -> None:
        self._holder = holder
        self._site = EmbeddedSite(config, _Sender(self), logs_waits=logs_waits)
        self._numbers, self._seen = itertools.count(1), 0
        self._is_lost = False
        self._own = HolderThread(lambda: self._is_lost, self._lose)
        self.repeated = 0  # messages that came again

    # --- the holder's thread ---

    def start(self) -> None:
        self._own.start()
        self._site.start()

    @property
    def is_alive(self) -> bool:
        return self._site.is_alive and self._own.is_alive and not self._is_lost

    @property
    def is_shared(self) -> bool:
        return False

    def now(self) -> float:
        return self._site.now()

    def do(self, action: Callable[[], None]) -> None:
        self._own.do(action)

    def call(self, action: Callable[[], T], timeout_s: float = 10.0) -> T:
        return self._own.call(action, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        with contextlib.suppress(TimeoutError):  # what is under way arrives first
            self.call(lambda: None, timeout_s)
            self._site.call(lambda: None, timeout_s)
        self._own.close(timeout_s)
        self._site.close(timeout_s)

    def _lose(self, error: BaseException) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._holder.site_lost(error)

    # --- requests ---

    def submit(self, workload: m.WorkloadSubmitted) -> None:
        self.report(workload)

    def control(self, *requests: Control) -> None:
        self.report(*requests)

    def report(self, *events: m.Event) -> None:
        for event in events:
            body = msgspec.json.encode(event)
            for _ in range(2):
                self._request(partial(self._reported, body))

    def note(self, *notes: s.Note | r.Record) -> None:
        for note in notes:
            body, kind = msgspec.json.encode(note), r.AnyRecord if isinstance(note, r.Record) else s.AnyNote
            self._request(partial(self._noted, body, kind))

    def has_devices(self, task: int, devices: tuple[str, ...]) -> None:
        """Dropped, as by the site behind it."""

    def progressed(self, where: s.Where) -> None:
        """Dropped, as by the site behind it."""

    def _reported(self, body: bytes) -> None:
        self._site.report(msgspec.json.decode(body, type=m.AnyEvent))

    def _noted(self, body: bytes, kind: Any) -> None:
        self._site.note(msgspec.json.decode(body, type=kind))

    def grow(self, workload: str, at: int, graph: Graph) -> s.Grown:
        if self._is_lost:
            raise ConnectionError("the site is lost")
        body = msgspec.json.encode(graph)
        answers = [
            self._ask(s.Grown, lambda: self._site.grow(workload, at, msgspec.json.decode(body, type=Graph)))
            for _ in range(2)
        ]
        assert answers[0] == answers[1], "a repeated call has another answer"
        return answers[0]

    def _request(self, action: Callable[[], None]) -> None:
        if not self._is_lost:
            self._site.do(action)

    def _ask(self, kind: Any, question: Callable[[], T]) -> T:
        if self._is_lost:
            raise TimeoutError("the site is lost")
        body = self._site.call(lambda: msgspec.json.encode(question()))
        return msgspec.json.decode(body, type=kind)  # type: ignore[no-any-return]  # of that kind

    # --- questions ---

    def why(self, task: int) -> m.Reason:
        return self._ask(m.Reason, lambda: self._site.why(task))

    def tasks(self, numbers: Sequence[int]) -> tuple[s.TaskStatus, ...]:
        return self._ask(tuple[s.TaskStatus, ...], lambda: self._site.tasks(numbers))

    def workload(self, workload: str) -> s.WorkloadStatus:
        return self._ask(s.WorkloadStatus, lambda: self._site.workload(workload))

    def order(self) -> s.Order:
        return self._ask(s.Order, self._site.order)

    # --- messages ---

    def tell(self, value: Any, take: Callable[[bytes], None]) -> None:
        """On the site's thread: send something to the holder, twice."""
        message = msgspec.json.encode(Message(next(self._numbers), msgspec.json.encode(value)))
        for _ in range(2):
            self._own.do(lambda: self._take(message, take))

    def _take(self, encoded: bytes, take: Callable[[bytes], None]) -> None:
        message = msgspec.json.decode(encoded, type=Message)
        if message.number <= self._seen:
            self.repeated += 1
        elif not self._is_lost:
            self._seen = message.number
            take(message.body)

    def take_decision(self, body: bytes) -> None:
        decision, now = msgspec.json.decode(body, type=tuple[s.AnyTold, float])
        self._holder.perform(decision, now)

    def take_record(self, body: bytes) -> None:
        self._holder.record(msgspec.json.decode(body, type=r.AnyRecord))

    def take_loss(self, error: BaseException) -> None:
        self._own.do(lambda: self._lose(error))


class _Sender:
    """The site's end of the wire: a holder that passes everything on."""

    def __init__(self, wire: WireSite) -> None:
        self._wire = wire

    def perform(self, decision: s.AnyTold, now: float) -> None:
        self._wire.tell((decision, now), self._wire.take_decision)

    def record(self, record: r.Record) -> None:
        self._wire.tell(record, self._wire.take_record)

    def asked(self, request: s.Asked) -> None:
        raise AssertionError(f"an embedded site passes no {request.verb} on")

    def site_lost(self, error: BaseException) -> None:
        self._wire.take_loss(error)


def look_behind(site: Site, question: Callable[[Engine], T]) -> T:
    """What a test wants to know of the engine behind a site, or do to it, on the engine's thread."""
    inner = site._site if isinstance(site, WireSite) else site
    assert isinstance(inner, EmbeddedSite)
    return inner.call(lambda: question(inner._engine))
