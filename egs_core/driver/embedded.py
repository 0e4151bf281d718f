"""The embedded driver: one thread that owns an engine, its clock and its timers.

    any thread ── post(event) ──► queue ──► handle ──► after(event) ──► perform(decision)
                                    ▲                                        │
                                    └──────── events that follow ◄───────────┘

It never raises into the caller's pipeline. If the engine or the performer fails, `on_death` is called once and events
mean nothing any more: the adapter then lets everything pass as its framework would. Actions still get their turn.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from egs_core.engine import Engine
from egs_core.engine import messages as m

T = TypeVar("T")
Perform = Callable[[m.Decision, float], None]
Observe = Callable[[m.Event, float], None]
IDLE_S = 3600.0


class EmbeddedDriver:
    """See the module. perform(decision, now) is called on the driver's thread, and must not block for long;
    after(event, now) sees each event that the engine has taken in, before anything is done of what was decided."""

    def __init__(
        self,
        engine: Engine,
        perform: Perform,
        *,
        after: Observe | None = None,
        on_death: Callable[[BaseException], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self._perform = perform
        self._after, self._on_death = after, on_death
        self._clock = clock
        self._origin = clock() - engine.state.now
        self._queue: queue.SimpleQueue[m.Event | Callable[[], None] | None] = queue.SimpleQueue()
        self._decided: deque[m.Decision] = deque()
        self._is_performing = False
        self._dead = threading.Event()
        self._thread = threading.Thread(target=self._run, name="egs-driver", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._dead.is_set()

    @property
    def takes_actions(self) -> bool:
        """Whether what is given to `do` will have its turn: also when the driver is dead, but not once it is closed."""
        return self._thread.is_alive()

    def now(self) -> float:
        """Seconds since the first driver of this engine was made: after a recovery the engine's time goes on."""
        return self._clock() - self._origin

    def post(self, event: m.Event) -> None:
        """Give the engine an event; from any thread, never blocks."""
        self._queue.put(event)

    def do(self, action: Callable[[], None]) -> None:
        """Run something on the driver's thread, in turn with the events; from any thread, never blocks."""
        self._queue.put(action)

    def ask(self, question: Callable[[Engine], T], timeout_s: float = 10.0) -> T:
        """The answer of a function of the engine, computed on the driver's thread.

        Raises TimeoutError when the driver is dead or does not get to it in time, and what the function raises.
        """
        answer: list[Any] = []
        done = threading.Event()

        def compute() -> None:
            try:
                answer.extend((True, question(self.engine)))
            except Exception as error:
                answer.extend((False, error))
            done.set()

        self._queue.put(compute)
        if self._dead.is_set() or not done.wait(timeout_s):
            raise TimeoutError("the EGS driver gave no answer")
        if not answer[0]:
            raise answer[1]
        return answer[1]  # type: ignore[no-any-return]  # what question returned

    def close(self, timeout_s: float = 5.0) -> None:
        """Handle what is queued, then end the thread."""
        self._queue.put(None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    # --- on the driver's thread ---

    def _run(self) -> None:
        try:
            while (item := self._next()) is not None:
                if isinstance(item, m.Event):
                    self.handle(item)
                else:
                    item()
        except BaseException as error:  # whatever it is, the pipeline must go on without EGS
            self._dead.set()
            if self._on_death is not None:
                self._on_death(error)
            self._run_actions()
        self._dead.set()

    def _run_actions(self) -> None:
        """What a dead driver still does: the adapter may have to answer those who wait. Until `close`."""
        while (item := self._queue.get()) is not None:
            if not isinstance(item, m.Event):
                with contextlib.suppress(Exception):
                    item()

    def _next(self) -> m.Event | Callable[[], None] | None:
        """The next thing to do; a Tick when a timer of the engine is due first."""
        due = self.engine.next_wakeup()
        wait = IDLE_S if due is None else max(0.0, due - self.now())
        try:
            return self._queue.get(timeout=wait)
        except queue.Empty:
            return m.Tick()

    def handle(self, event: m.Event) -> None:
        """Handle an event at once: only on the driver's thread, for an action or the performer. What the engine decides
        is carried out before this returns; inside the performer, after what was decided before."""
        now = self.now()
        self._decided.extend(self.engine.handle(event, now))
        if self._after is not None:
            self._after(event, now)
        if self._is_performing:
            return
        self._is_performing = True
        try:
            while self._decided:
                self._perform(self._decided.popleft(), now)
        finally:
            self._is_performing = False
