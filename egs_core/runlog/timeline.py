"""From records to intervals: who held what, who waited for what, and what was preloaded.

This is the one place that reads the meaning of records; metrics and report work on its intervals. The records may come
in any order (a real driver writes `Used` and `ColdStart` when they are over): they are sorted by time, ties by place.

    Ready ──wait──► Started ────────────hold────────────► Ended
                       ├─ cold ─┤         ├── used ──┤
                                          └─ useful ─┘      useful = used, less what was a cold start
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from egs_core.runlog.intervals import Demand, Hold, Preload, Timeline, Wait, WorkloadSpan
from egs_core.runlog.records import (
    Capacity,
    ColdStart,
    Ended,
    Granted,
    Held,
    PreloadEnded,
    PreloadStarted,
    Ready,
    Record,
    Started,
    TaskAdded,
    Used,
    WorkloadEnded,
    WorkloadSubmitted,
    time_of,
)
from egs_core.runlog.steps import Interval, clip, subtract, union
from egs_core.runlog.window import submission_of, window_of

Attempt = tuple[str, str, int]  # workload, task, attempt
Phase = tuple[str, str, int]  # workload, task, phase
PhaseRun = tuple[str, str, int, int]  # workload, task, phase, attempt


def build_timeline(records: Iterable[Record]) -> Timeline:
    """Read the records of one run into intervals."""
    ordered = sorted((r for r in records if hasattr(r, "t")), key=time_of)  # stable: ties keep their place
    builder = _Builder(ordered)
    for record in ordered:
        builder.take(record)
    return builder.finish(time_of(ordered[-1]) if ordered else 0.0)


class _Builder:
    """Folds time-ordered records; what is open is closed by `finish`."""

    def __init__(self, records: list[Record]) -> None:
        self.line = Timeline()
        self.open_holds: dict[PhaseRun, Hold] = {}
        self.open_waits: dict[PhaseRun, Wait] = {}
        self.open_preloads: dict[tuple[str, str], Preload] = {}
        self.held_since: dict[Phase, dict[int, tuple[Wait, float, str]]] = defaultdict(dict)  # by attempt
        self.granted: dict[PhaseRun, str] = {}
        self.last_end_s: float | None = None
        self.first_s: float | None = None
        self.added_s: dict[str, float] = {}  # by workload: the first `TaskAdded`, and the first `Ready`
        self.ready_s: dict[str, float] = {}
        # A wait has the demand of the start that ends it, and stretches may be logged late: collected ahead.
        self.line.tasks = {(r.workload, r.task): r for r in records if isinstance(r, TaskAdded)}
        self.started_demand = {_run_of(r): self._demand_of_start(r) for r in records if isinstance(r, Started)}
        self.used: dict[Attempt, list[Interval]] = defaultdict(list)
        self.cold: dict[Attempt, list[Interval]] = defaultdict(list)
        for record in records:
            if isinstance(record, Used):
                self.used[_attempt_of(record)].append((record.t, record.end_t))
            elif isinstance(record, ColdStart):
                self.cold[_attempt_of(record)].append((record.t, record.end_t))

    def take(self, record: Record) -> None:
        handler = _HANDLERS.get(type(record))
        if handler is not None:
            handler(self, record)

    # --- demand -------------------------------------------------------------------------------------------------------

    def _declared(self, workload: str, task: str, phase: int) -> Demand:
        added = self.line.tasks.get((workload, task))
        if added is None or not 0 <= phase < len(added.phases):
            return Demand()
        kind, cpus, gpus, memory_bytes = added.phases[phase]
        return Demand(kind, cpus, gpus, memory_bytes)

    def _demand_of_start(self, record: Started) -> Demand:
        """What it took; a start without amounts took what its task declared."""
        declared = self._declared(record.workload, record.task, record.phase)
        if not (record.cpus or record.gpus or record.memory_bytes):
            return declared
        known = (record.workload, record.task) in self.line.tasks and declared != Demand()
        kind = declared.kind if known else ("gpu" if record.gpus else "cpu")
        return Demand(kind, record.cpus, record.gpus, record.memory_bytes)

    # --- phases -------------------------------------------------------------------------------------------------------

    def on_ready(self, record: Ready) -> None:
        run = _run_of(record)
        self.ready_s.setdefault(record.workload, record.t)
        if run in self.open_waits or run in self.open_holds:
            return
        demand = self.started_demand.get(run) or self._declared(record.workload, record.task, record.phase)
        wait = Wait(record.workload, record.task, record.phase, record.attempt, demand)
        self.open_waits[run] = wait
        self.line.waits.append(wait)
        self.held_since[run[:3]][record.attempt] = (wait, record.t, "")
        self._seen(record.t)

    def on_held(self, record: Held) -> None:
        """A phase is held with all of its attempts that wait: the record names none."""
        waiting = self.held_since.get((record.workload, record.task, record.phase), {})
        for attempt, piece in waiting.items():
            wait = _end_piece(piece, record.t)
            waiting[attempt] = (wait, record.t, record.kind)
            wait.granted_s = None  # what was let go before could not be started
            if record.reason:
                wait.told[record.kind] = record.reason

    def on_granted(self, record: Granted) -> None:
        run = _run_of(record)
        self.granted[run] = record.reason
        if (wait := self.open_waits.get(run)) is not None:
            wait.granted_s = record.t

    def on_started(self, record: Started) -> None:
        run = _run_of(record)
        self._end_wait(run, record.t, started=True)
        hold = Hold(
            record.workload,
            record.task,
            record.phase,
            record.attempt,
            record.t,
            record.t,
            self._demand_of_start(record),
            node=record.node,
            devices=record.devices,
            warm=record.warm,
            reason=self.granted.pop(run, ""),
        )
        self.open_holds[run] = hold
        self.line.holds.append(hold)
        self._seen(record.t)

    def on_ended(self, record: Ended) -> None:
        run = _run_of(record)
        self._end_wait(run, record.t, started=False)
        hold = self.open_holds.pop(run, None)
        if hold is not None:
            self._end_hold(hold, record.t, record.outcome)
        elif record.outcome == "skipped":
            self.line.skipped += 1
        self.last_end_s = record.t
        self._touch_workload(record.workload, record.t)

    def _end_hold(self, hold: Hold, end_s: float, outcome: str) -> None:
        hold.end_s, hold.outcome = end_s, outcome
        key = (hold.workload, hold.task, hold.attempt)
        hold.cold = union(clip(self.cold.get(key, ()), hold.start_s, end_s))
        if hold.demand.gpus > 0:
            hold.useful = subtract(self._used_in(hold, self.used.get(key, [])), hold.cold)

    def _used_in(self, hold: Hold, used: list[Interval]) -> list[Interval]:
        inside = union(clip(used, hold.start_s, hold.end_s))
        if inside or hold.demand.kind == "cpu":
            return inside
        return clip([(hold.start_s, hold.end_s)], hold.start_s, hold.end_s)

    def _end_wait(self, run: PhaseRun, t: float, started: bool) -> None:
        if self.open_waits.pop(run, None) is None:
            return
        waiting = self.held_since[run[:3]]
        _end_piece(waiting.pop(run[3]), t).started = started
        if not waiting:
            del self.held_since[run[:3]]

    # --- preloads, workloads, capacity --------------------------------------------------------------------------------

    def on_preload(self, record: PreloadStarted) -> None:
        t = record.t
        preload = Preload(
            record.workload, record.task, record.node, t, t, t, cpus=record.cpus, memory_bytes=record.memory_bytes
        )
        self.open_preloads[record.workload, record.task] = preload
        self.line.preloads.append(preload)

    def on_preload_ended(self, record: PreloadEnded) -> None:
        preload = self.open_preloads.get((record.workload, record.task))
        if preload is None:
            return
        if record.outcome == "warm":
            preload.work_end_s = record.t
            preload.outcome = "warm"
            return
        self._end_preload(preload, record.t, record.outcome)
        del self.open_preloads[record.workload, record.task]

    def _end_preload(self, preload: Preload, end_s: float, outcome: str) -> None:
        if preload.outcome != "warm":  # it was still loading
            preload.work_end_s = end_s
        preload.end_s, preload.outcome = end_s, outcome

    def on_submitted(self, record: WorkloadSubmitted) -> None:
        span = WorkloadSpan(record.name or record.workload, record.tenant, record.queue, submitted_s=record.t)
        self.line.workloads[record.workload] = span
        self._seen(record.t)

    def on_workload_ended(self, record: WorkloadEnded) -> None:
        """What of it still waits, waits no longer: an aborted workload is not blocked work."""
        self.last_end_s = record.t
        for run in [run for run in self.open_waits if run[0] == record.workload]:
            self._end_wait(run, record.t, started=False)
        self._touch_workload(record.workload, record.t)

    def _touch_workload(self, workload: str, t: float) -> None:
        span = self.line.workloads.setdefault(workload, WorkloadSpan(workload))
        span.end_s = t

    def on_task(self, record: TaskAdded) -> None:
        self.added_s.setdefault(record.workload, record.t)
        self._seen(record.t)

    def on_capacity(self, record: Capacity) -> None:
        self.line.capacities.append(record)

    def _seen(self, t: float) -> None:
        self.first_s = t if self.first_s is None else self.first_s

    def finish(self, log_end_s: float) -> Timeline:
        """Close what is open at the last record: a run that was cut off is measured up to there."""
        unfinished = {run[0] for run in (*self.open_holds, *self.open_waits)}
        for run in list(self.open_waits):
            self._end_wait(run, log_end_s, started=False)
        for hold in self.open_holds.values():
            self._end_hold(hold, log_end_s, "")
        for preload in self.open_preloads.values():
            self._end_preload(preload, log_end_s, "")
        for workload in unfinished:
            self.line.workloads.setdefault(workload, WorkloadSpan(workload)).end_s = None
        for workload, span in self.line.workloads.items():
            added_s, ready_s = self.added_s.get(workload), self.ready_s.get(workload)
            span.submitted_s = submission_of(added_s, ready_s, span.submitted_s)
        self.line.window = self._window(log_end_s if unfinished else self.last_end_s)
        return self.line

    def _window(self, end_s: float | None) -> Interval:
        submitted = [w.submitted_s for w in self.line.workloads.values() if w.submitted_s is not None]
        first_s = self.first_s or 0.0
        return window_of(submitted or [first_s], () if end_s is None else [end_s])


def _end_piece(piece: tuple[Wait, float, str], t: float) -> Wait:
    wait, since, hold = piece
    if t > since:
        wait.pieces.append((since, t, hold))
    return wait


def _run_of(record: Ready | Granted | Started | Ended) -> PhaseRun:
    return record.workload, record.task, record.phase, record.attempt


def _attempt_of(record: Used | ColdStart) -> Attempt:
    return record.workload, record.task, record.attempt


_HANDLERS: dict[type[Record], Callable[[_Builder, Any], None]] = {
    Capacity: _Builder.on_capacity,
    WorkloadSubmitted: _Builder.on_submitted,
    TaskAdded: _Builder.on_task,
    Ready: _Builder.on_ready,
    Held: _Builder.on_held,
    Granted: _Builder.on_granted,
    Started: _Builder.on_started,
    Ended: _Builder.on_ended,
    PreloadStarted: _Builder.on_preload,
    PreloadEnded: _Builder.on_preload_ended,
    WorkloadEnded: _Builder.on_workload_ended,
}
