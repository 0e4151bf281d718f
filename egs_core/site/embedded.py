"""The site in the holder's own process: an engine on the embedded driver's thread, which is the holder's too.

    report(event) ─► engine ─► decisions wait ─► the action that reported ends ─► perform(decision)

What ends without a word of the holder, and workloads that settle, are told when no decision waits any more: what may
start comes first.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from egs_core.driver.embedded import EmbeddedDriver
from egs_core.driver.run_records import RunRecords
from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.state.lifecycle import ABORTED, HOLDS_LEASE, PENDING, STATUS_NAMES
from egs_core.engine.state.metering import is_over_limit
from egs_core.engine.state.nodes import NOT_STARTED
from egs_core.graph.columns import GPU, Graph
from egs_core.runlog import records as r
from egs_core.site import messages as s
from egs_core.site.protocol import Control, Holder

T = TypeVar("T")
CLOSED = "the site is closed"
ENDS_NO_TASK = frozenset(
    {m.PhaseStarted, m.DecisionApplied, m.PreloadReady, m.PreloadFailed, m.NodeAdded, m.Estimates, m.Checkpointed}
)


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
        self._engine = engine = Engine(config)
        self._state = engine.state
        self._holder = holder
        self._records = RunRecords(engine.state, holder.record, engine.explain if logs_waits else None)
        self._driver = EmbeddedDriver(engine, self._decided, after=self._after, on_death=self._lost, clock=clock)
        self._waiting: deque[tuple[s.AnyTold, float]] = deque()
        self._ends: deque[tuple[s.AnyTold, float]] = deque()  # told after those
        self._is_busy = False  # an action or a decision is under way on the holder's thread
        self._will_tell = False
        self._is_lost = False
        self._open: dict[int, int] = {}  # workload not settled -> its open tasks as last seen
        self._dropped: set[int] = set()
        self._offers: dict[str, m.NodeAdded] = {}  # as last written: a repeated event is no news
        self._thread: threading.Thread | None = None
        self._handlers: dict[type[s.Note], Callable[..., None]] = {
            s.Granted: self._note_granted,
            s.Started: self._note_started,
            s.Ended: self._note_ended,
            s.PreloadBegun: lambda note: self._records.preload_started(note.decision, self.now()),
            s.PreloadOver: lambda note: self._records.preload_ended(note.task, note.outcome, self.now()),
        }

    # --- the protocol: the thread ---

    def start(self) -> None:
        self._driver.do(self._note_thread)
        self._driver.start()

    @property
    def is_alive(self) -> bool:
        return self._driver.is_alive

    def now(self) -> float:
        return self._driver.now()

    def do(self, action: Callable[[], None]) -> None:
        self._driver.do(lambda: self._turn(action))

    def call(self, action: Callable[[], T], timeout_s: float = 10.0) -> T:
        if self._is_here():
            return action()
        answer: Future[T] = Future()
        self.do(lambda: _answer(answer, action))
        if not self._driver.takes_actions:
            raise TimeoutError(CLOSED)
        return answer.result(timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        self._driver.close(timeout_s)

    # --- the protocol: work ---

    def submit(self, workload: m.WorkloadSubmitted) -> None:
        self.report(workload)

    def control(self, *requests: Control) -> None:
        self.report(*requests)

    def grow(self, workload: str, at: int, graph: Graph) -> s.Grown:
        if self._is_lost:
            raise ConnectionError("the site is lost")
        state = self._state
        if workload not in state.workload_numbers:
            raise ValueError(f"tasks for the unknown workload {workload!r}")
        numbers = state.workloads[state.workload_number(workload)].numbers
        if at > len(numbers):
            raise ValueError(f"workload {workload!r} has {len(numbers)} tasks, so none can follow task {at}")
        if at < len(numbers):
            return s.Grown(numbers[at], state.first_phase[numbers[at]])
        grown = s.Grown(len(state.task_ids), len(state.task_of))
        self.report(m.TasksAdded(workload, graph))
        return grown

    def report(self, *events: m.Event) -> None:
        if not self._is_here():
            self.do(lambda: self.report(*events))
            return
        for event in events:
            if not self._is_lost:
                self._driver.handle(event)

    def note(self, *notes: s.Note | r.Record) -> None:
        if not self._is_here():
            self.do(lambda: self.note(*notes))
            return
        for note in notes:
            if isinstance(note, r.Record):
                self._holder.record(note)
            elif not self._is_lost:
                self._handlers[type(note)](note)

    # --- the protocol: questions ---

    def why(self, task: int) -> m.Reason:
        return self._question(lambda: self._engine.explain(task))

    def tasks(self, numbers: Sequence[int]) -> tuple[s.TaskStatus, ...]:
        return self._question(lambda: tuple([self._status_of(task) for task in numbers]))

    def workload(self, workload: str) -> s.WorkloadStatus:
        return self._question(lambda: self._workload(workload))

    def order(self) -> s.Order:
        return self._question(self._order)

    def _question(self, question: Callable[[], T]) -> T:
        if self._is_lost:
            raise TimeoutError("the site is lost")
        return self.call(question)

    def _status_of(self, task: int) -> s.TaskStatus:
        state, phase = self._state, self._state.cursor[task]
        status = state.status[phase]
        since = state.started_at[phase] if status in HOLDS_LEASE else state.ready_at[phase]
        index, name = phase - state.first_phase[task], STATUS_NAMES[status]
        waiting_for = self._engine.explain(task).waiting_for if status == PENDING else ()
        return s.TaskStatus(task, name, index, state.attempt[task], since, waiting_for)

    def _workload(self, workload: str) -> s.WorkloadStatus:
        found = self._state.workloads[self._state.workload_number(workload)]
        is_paused = f"workload:{workload}" in self._state.pauses
        return s.WorkloadStatus(workload, found.open_tasks, is_paused, found.failed)

    def _order(self) -> s.Order:
        state = self._state
        kept = [
            s.Kept(phase, state.task_of[phase], state.nodes[node].name, reservation.at)
            for reservation in state.reservations.values()
            for phase, node in reservation.places
        ]
        return s.Order(tuple([self._ranked(phase) for phase in self._engine.ready_order()]), tuple(kept))

    def _ranked(self, phase: int) -> s.Ranked:
        state = self._state
        workload, name, index = self._records.names(phase)
        task = state.task_of[phase]
        attempt, rank_s, ready_at = state.attempt[task], state.rank_s[phase], state.ready_at[phase]
        return s.Ranked(phase, task, attempt, workload, name, index, rank_s, ready_at)

    # --- turns ---

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

    def _decided(self, decision: m.Decision, now: float) -> None:
        if isinstance(decision, m.Grant):
            self._waiting.append((self._grant(decision), now))
        elif isinstance(decision, m.Stop):
            self._waiting.append((self._stop(decision), now))
        else:
            assert isinstance(decision, m.Preload | m.DropPreload | m.ScalingHint)
            self._waiting.append((decision, now))
        self._tell_soon()

    def _grant(self, found: m.Grant) -> s.Grant:
        state, phase, task = self._state, found.phase, found.task
        return s.Grant(
            found.id,
            phase,
            task,
            found.attempt,
            found.node,
            found.devices,
            found.reason,
            found.warm,
            found.positions,
            phase - state.first_phase[task],
            phase + 1 == state.first_phase[task + 1],
            state.kind[phase] == GPU,
            state.rank_s[phase] - state.estimate_s[phase],
            self._together(task) if state.gang_of else (),
        )

    def _together(self, task: int) -> tuple[int, ...]:
        """The grants of the members of a task's gang that hold something now: those of its phases start together."""
        state, gang = self._state, self._state.gang_of.get(task)
        members = state.gangs[gang].members if gang is not None else ()
        leases = [state.leases.get(state.cursor[member]) for member in members]
        return tuple([lease.decision for lease in leases if lease is not None])

    def _stop(self, found: m.Stop) -> s.Stop:
        state, task = self._state, found.task
        is_over = found.phase not in state.leases or state.attempt[task] != found.attempt
        at_limit = is_over_limit(state, task)
        grace_s = found.grace_s
        return s.Stop(
            found.id, found.phase, task, found.attempt, found.reason, found.requeue, grace_s, at_limit, is_over
        )

    def _after(self, event: m.Event, now: float) -> None:
        if isinstance(event, m.NodeAdded) and self._offers.get(event.node) != event:
            self._offers[event.node] = event
            self._records.node(event, now)
        elif isinstance(event, m.NodeLost) and self._offers.pop(event.node, None) is not None:
            self._records.node_lost(event, now)
        self._records.after(event, now)
        if type(event) not in ENDS_NO_TASK or self._state.is_metered:
            for number in self._touched(event):
                self._look_at(number, event, now)
        if self._ends:
            self._tell_soon()

    # --- workloads that have settled ---

    def _touched(self, event: m.Event) -> Iterable[int]:
        """The workloads in which the event may have ended tasks."""
        state = self._state
        if isinstance(event, m.TasksAdded):
            return (state.workload_number(event.workload),)
        if isinstance(event, m.PhaseEnded) and not state.is_metered:
            return (state.task_workload[state.task_of[event.phase]],) if 0 <= event.phase < len(state.task_of) else ()
        if isinstance(event, m.TaskFinished | m.BranchSkipped) and not state.is_metered:
            return (state.task_workload[event.task],) if 0 <= event.task < len(state.cursor) else ()
        return list(self._open)

    def _look_at(self, number: int, event: m.Event, now: float) -> None:
        """Tell what has ended of a workload without a word of the holder, and that nothing of it is left."""
        workload = self._state.workloads[number]
        if isinstance(event, m.TasksAdded):
            self._open[number] = self._open.get(number, 0) + event.graph.n_tasks
        before, left = self._open.get(number, 0), workload.open_tasks
        if left == before:
            return
        is_own = left == before - 1 and isinstance(event, m.PhaseEnded) and event.outcome == "succeeded"
        if workload.failed and not is_own:
            self._note_dropped(workload.numbers, now)
        self._open[number] = left
        if not left:
            del self._open[number]
            self._ends.append((s.Settled(workload.id, workload.failed), now))

    def _note_dropped(self, numbers: Iterable[int], now: float) -> None:
        state = self._state
        firsts = [(task, state.first_phase[task]) for task in numbers if task not in self._dropped]
        found = [t for t, p in firsts if state.status[p] == ABORTED and state.started_at[p] == NOT_STARTED]
        if found:
            self._dropped.update(found)
            self._ends.append((s.Dropped(tuple(found)), now))

    # --- the run log ---

    def _note_granted(self, note: s.Granted) -> None:
        self._records.grant(note.grant, self.now())

    def _note_started(self, note: s.Started) -> None:
        grant, lease = note.grant, self._state.leases.get(note.grant.phase)
        if lease is not None and lease.decision == grant.id:  # else it has been taken back
            self._records.started(grant, note.at, note.warm, note.framework_id, note.pid)

    def _note_ended(self, note: s.Ended) -> None:
        self._records.ended(note.phase, note.attempt, note.outcome, self.now(), note.reason)


def _answer(answer: Future[T], action: Callable[[], T]) -> None:
    try:
        answer.set_result(action())
    except Exception as error:
        answer.set_exception(error)
