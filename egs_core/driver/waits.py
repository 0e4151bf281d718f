"""What phases wait for, as run log records: `Ready` when one becomes ready, `Held` with the reason then and whenever it
changes.

    ready ──── Held quota ────────── Held capacity ──── granted
               │ its queue uses all     │ a task of its queue has ended, its GPU went to another queue

Phases of one class (queue, needs, flavors, gang) wait for the same: the engine is asked about one of them, and what of
its answer does not concern that one alone (its place in the queue) is written for all. Without quotas, reservations and
pauses the reason cannot change from a lack of capacity, and nobody is asked again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable

import msgspec

from egs_core.engine import messages as m
from egs_core.engine.state.lifecycle import ENDED, HELD, READY
from egs_core.engine.state.state import State
from egs_core.runlog import records as r

Explain = Callable[[int], m.Reason]
Names = Callable[[int], tuple[str, str, int]]
Change = tuple[float, str, str, tuple[str, ...]]

ASK_AGAIN_S = 0.25  # of the run's clock: what changes for less is no figure's concern
MOST_AT_ONCE = 200  # records that one change of a reason may cause; the others follow when they are granted
CAPACITY = "capacity"
WAITING = (READY, HELD)


class Class(msgspec.Struct, eq=False):
    """Waiting phases for which the same reason holds. changes: every reason so far: since when, kind, text, for which
    tasks; asked_at: of the last look."""

    waiting: dict[int, None] = {}
    changes: list[Change] = []
    asked_at: float = float("-inf")


class Waiter(msgspec.Struct, eq=False):
    """A phase whose `Ready` is written. written: how many changes of its class are. A paused one is told of none."""

    attempt: int
    of: Class
    written: int
    is_paused: bool = False


class WaitRecords:
    """See the module. Call `after` when the engine has handled an event, and `granted` for every grant."""

    def __init__(self, state: State, explain: Explain, emit: Callable[[int, r.Record], None], names: Names) -> None:
        self._state, self._explain, self._emit, self._names = state, explain, emit, names
        self._classes: dict[Hashable, Class] = {}
        self._waits: dict[int, Waiter] = {}
        self._had_reasons = False

    def after(self, event: m.Event, now: float) -> None:
        """Write what has become ready by the event and was not granted with it, and which reasons have changed."""
        status, waits = self._state.status, self._waits
        for phase in self._candidates(event):
            if status[phase] in WAITING and phase not in waits:
                self._begin(phase, now)
        if isinstance(event, (m.PauseRequested, m.ResumeRequested)):
            self._look_at_pauses(now)
        if self._had_reasons or self._reasons_change():
            self._ask_all(event, now)

    def _ask_all(self, event: m.Event, now: float) -> None:
        for one in self._classes.values():
            if one.waiting and (now - one.asked_at >= ASK_AGAIN_S or isinstance(event, m.QueuesChanged)):
                self._ask(one, now)

    def granted(self, phase: int, attempt: int) -> bool:
        """The phase waits no longer. False where its `Ready` was not written: it was granted at once, or nothing told
        that it was ready."""
        wait = self._waits.pop(phase, None)
        if wait is None:
            return False
        wait.of.waiting.pop(phase, None)
        if wait.written < len(wait.of.changes):
            self._catch_up(phase, wait)
        return wait.attempt == attempt

    def ended(self, phase: int) -> None:
        """The phase has ended without a grant: it was aborted, or its workload was."""
        self.granted(phase, 0)

    # --- what has become ready ---

    def _candidates(self, event: m.Event) -> Iterable[int]:
        """Phases that the event may have made ready. One that is missed is written when it is granted."""
        state = self._state
        if isinstance(event, m.TasksAdded):
            numbers = state.workloads[state.workload_number(event.workload)].numbers
            return [state.cursor[task] for task in numbers[len(numbers) - event.graph.n_tasks :]]
        if isinstance(event, m.PhaseEnded):
            return self._after_task(state.task_of[event.phase])
        if isinstance(event, (m.TaskFinished, m.BranchSkipped)) and 0 <= event.task < len(state.cursor):
            return self._after_task(event.task)
        return ()

    def _after_task(self, task: int) -> list[int]:
        """What may follow when something of a task has ended: its next phase, itself again, its children."""
        cursor = self._state.cursor
        return [cursor[task], *[cursor[child] for child in self._state.children[task]]]

    def _begin(self, phase: int, now: float) -> None:
        state = self._state
        task, ready_at, names = state.task_of[phase], state.ready_at[phase], self._names(phase)
        attempt, number = state.attempt[task], state.task_workload[task]
        self._emit(number, r.Ready(ready_at, *names, attempt))
        one = self._class_of(phase)
        one.waiting[phase] = None
        if now - one.asked_at >= ASK_AGAIN_S and (len(one.waiting) == 1 or self._had_reasons or self._reasons_change()):
            self._ask(one, now)
        self._emit(number, r.Held(ready_at, *names, *one.changes[-1][1:]))
        self._waits[phase] = Waiter(attempt, one, len(one.changes))
        if phase in state.paused:
            self._pause(phase, self._waits[phase], now)

    def _class_of(self, phase: int) -> Class:
        state = self._state
        task = state.task_of[phase]
        gang = state.gang_of.get(task)
        key = (state.queue_of(task), state.shape[phase], state.options_of(task).flavors, gang)
        if key not in self._classes:
            self._classes[key] = Class(changes=[(state.ready_at[phase], CAPACITY, "", ())])
        return self._classes[key]

    # --- why it waits ---

    def _reasons_change(self) -> bool:
        """Whether there is, or was, anything but capacity that may keep a class waiting."""
        self._had_reasons = self._had_reasons or bool(self._state.queues or self._state.reservations)
        return self._had_reasons

    def _ask(self, one: Class, now: float) -> None:
        """Ask for one of the class, and write the reason for all of them where it has changed."""
        one.asked_at = now
        status = self._state.status
        for phase in [p for p in itertools.islice(one.waiting, MOST_AT_ONCE) if status[p] in ENDED]:
            del one.waiting[phase]  # aborted
            self._waits.pop(phase, None)
        first = next((p for p in one.waiting if status[p] in WAITING and p not in self._state.paused), None)
        if first is None:
            return
        reason = self._explain(self._state.task_of[first])
        kind = reason.kind or CAPACITY
        if kind == one.changes[-1][1] and one.changes[-1][2]:
            return
        waiting_for = () if reason.own else reason.waiting_for  # else it is who goes before this one of them
        one.changes.append((now, kind, reason.text.removesuffix(reason.own), waiting_for))
        for phase in itertools.islice(one.waiting, MOST_AT_ONCE):
            if (wait := self._waits.get(phase)) is not None:
                self._catch_up(phase, wait)

    def _look_at_pauses(self, now: float) -> None:
        """Operators pause workloads, stages and tasks: each phase is looked at, for that is rare."""
        for phase, wait in self._waits.items():
            if wait.is_paused == (phase in self._state.paused):
                continue
            if not wait.is_paused:
                self._pause(phase, wait, now)
                continue
            wait.is_paused, wait.written = False, len(wait.of.changes)
            self._tell(phase, now, *wait.of.changes[-1][1:])

    def _pause(self, phase: int, wait: Waiter, now: float) -> None:
        self._catch_up(phase, wait)
        wait.is_paused = True
        self._tell(phase, now, "paused", self._explain(self._state.task_of[phase]).text)

    def _catch_up(self, phase: int, wait: Waiter) -> None:
        if wait.is_paused:
            return
        for at, kind, text, waiting_for in wait.of.changes[wait.written :]:
            self._tell(phase, at, kind, text, waiting_for)
        wait.written = len(wait.of.changes)

    def _tell(self, phase: int, at: float, kind: str, text: str, waiting_for: tuple[str, ...] = ()) -> None:
        number = self._state.task_workload[self._state.task_of[phase]]
        self._emit(number, r.Held(at, *self._names(phase), kind, text, waiting_for))
