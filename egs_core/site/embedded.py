"""The site in the holder's own process: an engine on the embedded driver's thread, which is the holder's too.

    report(event) ─► engine ─► decisions wait ─► the action that reported ends ─► perform(decision)

What ends without a word of the holder, and workloads that settle, are told when no decision waits any more: what may
start comes first.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from egs_core.driver.embedded import EmbeddedDriver
from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.graph.columns import Graph
from egs_core.runlog import records as r
from egs_core.site import messages as s
from egs_core.site.holder_thread import value_of
from egs_core.site.protocol import Control, Holder
from egs_core.site.shared import SharedEngine

T = TypeVar("T")


class EmbeddedSite:
    """A `Site`, see the protocol. clock: monotonic seconds."""

    def __init__(
        self,
        config: EngineConfig,
        holder: Holder,
        *,
        logs_waits: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = Engine(config)
        self._holder = holder
        shared = SharedEngine(self._engine, self._handle, self.now, logs_waits=logs_waits)
        self._seat = shared.seat(self)
        self._driver = EmbeddedDriver(
            self._engine, shared.decided, after=shared.after, on_death=self._lost, clock=clock
        )
        self._waiting: deque[tuple[s.AnyTold, float]] = deque()
        self._ends: deque[tuple[s.AnyTold, float]] = deque()  # told after those
        self._is_busy = False  # an action or a decision is under way on the holder's thread
        self._will_tell = False
        self._is_lost = False
        self._thread: threading.Thread | None = None

    # --- the protocol: the thread ---

    def start(self) -> None:
        self._driver.do(self._note_thread)
        self._driver.start()

    @property
    def is_alive(self) -> bool:
        return self._driver.is_alive

    @property
    def is_shared(self) -> bool:
        return False

    def now(self) -> float:
        return self._driver.now()

    def do(self, action: Callable[[], None]) -> None:
        self._driver.do(lambda: self._turn(action))

    def call(self, action: Callable[[], T], timeout_s: float = 10.0) -> T:
        if self._is_here():
            return action()
        return value_of(action, self.do, lambda: self._driver.takes_actions, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        self._driver.close(timeout_s)

    # --- the protocol: work ---

    def submit(self, workload: m.WorkloadSubmitted) -> None:
        self.report(workload)

    def control(self, *requests: Control) -> None:
        self.report(*requests)

    def grow(self, workload: str, at: int, graph: Graph, begun: tuple[m.Begun, ...] = ()) -> s.Grown:
        """See `Site.grow`. begun: how far the tasks are already."""
        if self._is_lost:
            raise ConnectionError("the site is lost")
        return self._seat.grow(workload, at, graph, begun)

    def report(self, *events: m.Event) -> None:
        if not self._is_here():
            self.do(lambda: self.report(*events))
            return
        for event in events:
            if not self._is_lost:
                self._seat.report(event)

    def note(self, *notes: s.Note | r.Record) -> None:
        if not self._is_here():
            self.do(lambda: self.note(*notes))
            return
        for note in notes:
            if isinstance(note, r.Record):
                self._holder.record(note)
            elif not self._is_lost:
                self._seat.note(note)

    def has_devices(self, task: int, devices: tuple[str, ...]) -> None:
        """Nobody measures them here."""

    def progressed(self, where: s.Where) -> None:
        """Nobody looks at it here."""

    # --- the protocol: questions ---

    def why(self, task: int) -> m.Reason:
        return self._question(lambda: self._seat.why(task))

    def tasks(self, numbers: Sequence[int]) -> tuple[s.TaskStatus, ...]:
        return self._question(lambda: tuple([self._seat.status_of(task) for task in numbers]))

    def workload(self, workload: str) -> s.WorkloadStatus:
        return self._question(lambda: self._seat.workload(workload))

    def order(self) -> s.Order:
        return self._question(self._seat.order)

    def _question(self, question: Callable[[], T]) -> T:
        if self._is_lost:
            raise TimeoutError("the site is lost")
        return self.call(question)

    # --- turns ---

    def _handle(self, event: m.Event) -> None:
        self._driver.handle(event)

    def _note_thread(self) -> None:
        self._thread = threading.current_thread()

    def _is_here(self) -> bool:
        return threading.current_thread() is self._thread

    def _turn(self, action: Callable[[], None]) -> None:
        """On the driver's thread: an action, then what was decided meanwhile."""
        self._is_busy = True
        try:
            action()
        finally:
            self._is_busy = False
        self._tell()

    def _tell_soon(self) -> None:
        """After the action under way; what a timer has brought about, as an action of its own."""
        if not (self._is_busy or self._will_tell):
            self._will_tell = True
            self._driver.do(self._tell)

    def _tell(self) -> None:
        self._is_busy, self._will_tell = True, False
        try:
            while self._waiting or self._ends:
                self._holder.perform(*(self._waiting or self._ends).popleft())
        finally:
            self._is_busy = False

    def _lost(self, error: BaseException) -> None:
        self._is_lost = True
        self._waiting.clear()
        self._ends.clear()
        self._holder.site_lost(error)

    # --- what is told ---

    def tell(self, told: s.AnyTold, now: float, *, is_end: bool) -> None:
        """See `Listener`."""
        (self._ends if is_end else self._waiting).append((told, now))
        self._tell_soon()

    def record(self, record: r.Record) -> None:
        """See `Listener`."""
        self._holder.record(record)
