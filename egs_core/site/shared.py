"""One engine for the work of one or more holders: what each of them is told, may ask, and has of the run log.

    holder A ── Seat ──┐                                 ┌──► Listener of A
                       ├─► handle(event) ─► engine ─► `after`, `decided`
    holder B ── Seat ──┘                                 └──► Listener of B

It touches no clock, thread, file or network: whoever drives the engine (the embedded site's thread, the site server)
calls `after` and `decided` around each event. Numbers of tasks, phases and decisions are the engine's own, for all
holders the same; a holder's workloads and warm keys have its prefix in the engine, which it never sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from egs_core.driver.run_records import RunRecords, capacity_of
from egs_core.engine import Engine
from egs_core.engine import messages as m
from egs_core.engine.state.lifecycle import ABORTED, HOLDS_LEASE, PENDING, STATUS_NAMES
from egs_core.engine.state.metering import is_over_limit
from egs_core.engine.state.nodes import NOT_STARTED
from egs_core.graph.columns import GPU, Graph
from egs_core.runlog import records as r
from egs_core.site import messages as s

ENDS_NO_TASK = frozenset(
    {
        m.PhaseStarted,
        m.DecisionApplied,
        m.PreloadReady,
        m.PreloadFailed,
        m.NodeAdded,
        m.UsedElsewhere,
        m.Estimates,
        m.FlavorsAllowed,
        m.Checkpointed,
    }
)
MOST_HELD_S = 120.0  # that a holder which is alone may have nothing granted while it tells
CONTROLS = (m.AbortRequested, m.PauseRequested, m.ResumeRequested)


class Listener(Protocol):
    """Where what concerns a holder goes, in order."""

    def tell(self, told: s.AnyTold, now: float, *, is_end: bool) -> None:
        """is_end: an end without a word of the holder, or a workload that has settled: may be told after decisions."""
        ...

    def record(self, record: r.Record) -> None:
        """A line of its run log."""
        ...


class SharedEngine:
    """See the module. handle: takes an event to the engine, now or a little later, and calls `after` and then `decided`
    for each decision. now: seconds of the engine's clock. logs_waits: as of `connect`."""

    def __init__(
        self, engine: Engine, handle: Callable[[m.Event], None], now: Callable[[], float], *, logs_waits: bool = True
    ) -> None:
        self.engine = engine
        self.state = engine.state
        self._called: list[str] = []  # by workload number: what its holder calls it
        explain = engine.explain if logs_waits else None
        self.records = RunRecords(engine.state, self._record, explain, self._called.__getitem__)
        self.handle, self.now = handle, now
        self._seats: list[Seat] = []
        self._owners: list[Seat] = []  # by workload number
        self._known: set[str] = set()  # the engine's ids of workloads
        self._open: dict[int, int] = {}  # workload not settled -> its open tasks as last seen
        self._dropped: set[int] = set()

    def seat(self, listener: Listener, prefix: str = "") -> Seat:
        """A place for one more holder. prefix: unlike that of any other that there ever was."""
        self._seats.append(Seat(self, listener, prefix))
        return self._seats[-1]

    @property
    def seats(self) -> Sequence[Seat]:
        return self._seats

    @property
    def owners(self) -> Sequence[Seat]:
        """Whose each workload is, by the engine's number."""
        return self._owners

    def leave(self, seat: Seat) -> None:
        """The holder is gone: its work leaves the engine, and what that held is free. It is told nothing more."""
        seat.is_open = False
        self._seats.remove(seat)
        state = self.state
        for workload in seat.workloads:
            if state.workloads[state.workload_number(workload)].open_tasks:
                self.handle(m.AbortRequested("workload", workload, "site", "its driver is gone"))
        for phase in [phase for phase in state.leases if self.owner(state.task_of[phase]) is seat]:
            self.handle(m.PhaseEnded(phase, state.attempt[state.task_of[phase]], "aborted"))
        for task in [task for task in state.parked if self.owner(task) is seat]:
            self.handle(m.PreloadFailed(task))

    def owner(self, task: int) -> Seat:
        """Whose task this is."""
        return self._owners[self.state.task_workload[task]]

    # --- for seats ---

    def take_workload(self, seat: Seat, event: m.WorkloadSubmitted) -> None:
        """A workload of a holder, by the engine's id; a repeated one changes nothing."""
        if event.workload not in self._known:
            self._known.add(event.workload)
            self._owners.append(seat)
            self._called.append(event.workload.removeprefix(seat.prefix))
            seat.workloads.append(event.workload)
        self.handle(event)

    # --- what is told: by whoever drives the engine ---

    def decided(self, decision: m.Decision, now: float) -> None:
        """The engine has decided this."""
        if isinstance(decision, m.ScalingHint):
            for seat in self._seats:
                seat.tell(decision, now)
        elif isinstance(decision, m.Grant):
            self.owner(decision.task).tell(self._grant(decision), now)
        elif isinstance(decision, m.Stop):
            self.owner(decision.task).tell(self._stop(decision), now)
        else:
            assert isinstance(decision, (m.Preload, m.DropPreload))
            self.owner(decision.task).tell(decision, now)

    def _grant(self, found: m.Grant) -> s.Grant:
        state, phase, task = self.state, found.phase, found.task
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
        state, gang = self.state, self.state.gang_of.get(task)
        members = state.gangs[gang].members if gang is not None else ()
        leases = [state.leases.get(state.cursor[member]) for member in members]
        return tuple([lease.decision for lease in leases if lease is not None])

    def _stop(self, found: m.Stop) -> s.Stop:
        state, task = self.state, found.task
        is_over = found.phase not in state.leases or state.attempt[task] != found.attempt
        at_limit = is_over_limit(state, task)
        grace_s = found.grace_s
        return s.Stop(
            found.id, found.phase, task, found.attempt, found.reason, found.requeue, grace_s, at_limit, is_over
        )

    def after(self, event: m.Event, now: float) -> None:
        """The engine has handled this event."""
        self.records.after(event, now)
        if type(event) not in ENDS_NO_TASK or self.state.is_metered:
            for number in self._touched(event):
                self._look_at(number, event, now)

    # --- workloads that have settled ---

    def _touched(self, event: m.Event) -> Iterable[int]:
        """The workloads in which the event may have ended tasks."""
        state = self.state
        if isinstance(event, m.TasksAdded):
            return (state.workload_number(event.workload),)
        if isinstance(event, m.PhaseEnded) and not state.is_metered:
            return (state.task_workload[state.task_of[event.phase]],) if 0 <= event.phase < len(state.task_of) else ()
        if isinstance(event, (m.TaskFinished, m.BranchSkipped)) and not state.is_metered:
            return (state.task_workload[event.task],) if 0 <= event.task < len(state.cursor) else ()
        return list(self._open)

    def _look_at(self, number: int, event: m.Event, now: float) -> None:
        """Tell what has ended of a workload without a word of the holder, and that nothing of it is left."""
        workload, seat = self.state.workloads[number], self._owners[number]
        if isinstance(event, m.TasksAdded):
            self._open[number] = self._open.get(number, 0) + event.graph.n_tasks
        before, left = self._open.get(number, 0), workload.open_tasks
        if left == before:
            return
        is_own = left == before - 1 and isinstance(event, m.PhaseEnded) and event.outcome == "succeeded"
        if workload.failed and not is_own:
            self._note_dropped(seat, workload.numbers, now)
        self._open[number] = left
        if not left:
            del self._open[number]
            seat.tell_end(s.Settled(workload.id.removeprefix(seat.prefix), workload.failed), now)

    def _note_dropped(self, seat: Seat, numbers: Iterable[int], now: float) -> None:
        state = self.state
        firsts = [(task, state.first_phase[task]) for task in numbers if task not in self._dropped]
        found = [t for t, p in firsts if state.status[p] == ABORTED and state.started_at[p] == NOT_STARTED]
        if found:
            self._dropped.update(found)
            seat.tell_end(s.Dropped(tuple(found)), now)

    def _record(self, workload: int, record: r.Record) -> None:
        self._owners[workload].record(record)


class Seat:
    """A holder's place at an engine: its side of `Site`, without thread or clock. workloads: by the engine's ids."""

    def __init__(self, shared: SharedEngine, listener: Listener, prefix: str) -> None:
        self._shared, self._listener = shared, listener
        self.prefix = prefix
        self.workloads: list[str] = []
        self.is_open = True
        self._offers: dict[str, m.NodeAdded] = {}  # as last written: a repeated event is no news
        self._handlers: dict[type[s.Note], Callable[..., None]] = {
            s.Granted: lambda note: shared.records.grant(note.grant, shared.now()),
            s.Started: self._note_started,
            s.Ended: self._note_ended,
            s.PreloadBegun: lambda note: shared.records.preload_started(note.decision, shared.now()),
            s.PreloadOver: lambda note: shared.records.preload_ended(note.task, note.outcome, shared.now()),
        }

    # --- what the holder asks and tells ---

    def grow(self, workload: str, at: int, graph: Graph, begun: tuple[m.Begun, ...] = ()) -> s.Grown:
        """See `Site.grow`. begun: how far the tasks are already."""
        state, name = self._shared.state, self.prefix + workload
        if name not in state.workload_numbers:
            raise ValueError(f"tasks for the unknown workload {workload!r}")
        numbers = state.workloads[state.workload_number(name)].numbers
        if at > len(numbers):
            raise ValueError(f"workload {workload!r} has {len(numbers)} tasks, so none can follow task {at}")
        if at < len(numbers):
            return s.Grown(numbers[at], state.first_phase[numbers[at]])
        grown = s.Grown(len(state.task_ids), len(state.task_of))
        self.report(m.TasksAdded(workload, graph, begun))
        return grown

    def report(self, event: m.Event) -> None:
        """See `Site.report`. Raises ValueError for a block that is no graph."""
        named = self._named(event) if self.prefix else event
        if isinstance(named, (m.PhaseStarted, m.PhaseEnded)):  # the most
            self._shared.handle(named)
        elif isinstance(named, m.WorkloadSubmitted):
            self._shared.take_workload(self, named)
        elif named is not None:
            self._shared.handle(named)
            if isinstance(named, (m.NodeAdded, m.NodeLost)):
                self._hear_of_node(named, self._shared.now())

    def _named(self, event: m.Event) -> m.Event | None:
        """The event with the engine's names; None where it names what is not the holder's."""
        if isinstance(event, (m.PhaseStarted, m.PhaseEnded)):  # the most
            return event if self._owns_phase(event.phase) else None
        if isinstance(event, m.WorkloadSubmitted):
            part_of = self.prefix + event.submission if event.submission else ""
            return msgspec.structs.replace(event, workload=self.prefix + event.workload, submission=part_of)
        if isinstance(event, m.TasksAdded):
            return m.TasksAdded(self.prefix + event.workload, self._with_own_keys(event.graph), event.begun)
        if isinstance(event, CONTROLS) and event.scope != "task":
            return msgspec.structs.replace(event, target=self.prefix + event.target)
        if isinstance(event, m.GrantsHeld):
            event = m.GrantsHeld(min(event.seconds, MOST_HELD_S))
        return event if self._is_own(event) else None

    def note(self, note: s.Note) -> None:
        """See `Site.note`; of work that is not the holder's nothing is written."""
        if not self.prefix or self._may_note(note):
            self._handlers[type(note)](note)

    def _with_own_keys(self, graph: Graph) -> Graph:
        """Its warm processes are its own: nobody else's task can use them."""
        for task, options in list(graph.options.items()):
            if options.warm_key:
                graph.options[task] = msgspec.structs.replace(options, warm_key=self.prefix + options.warm_key)
        return graph

    # --- questions ---

    def why(self, task: int, moment: m.Moment = m.in_seconds) -> m.Reason:
        """See `Site.why`. moment: how moments are written."""
        return self._shared.engine.explain(task, moment)

    def status_of(self, task: int) -> s.TaskStatus:
        """How far a task is."""
        state = self._shared.state
        phase = state.cursor[task]
        status = state.status[phase]
        since = state.started_at[phase] if status in HOLDS_LEASE else state.ready_at[phase]
        index, name = phase - state.first_phase[task], STATUS_NAMES[status]
        waiting_for = self._shared.engine.explain(task).waiting_for if status == PENDING else ()
        return s.TaskStatus(task, name, index, state.attempt[task], since, waiting_for)

    def workload(self, workload: str) -> s.WorkloadStatus:
        """See `Site.workload`."""
        state, name = self._shared.state, self.prefix + workload
        found = state.workloads[state.workload_number(name)]
        return s.WorkloadStatus(workload, found.open_tasks, f"workload:{name}" in state.pauses, found.failed)

    def order(self) -> s.Order:
        """See `Site.order`: of all holders."""
        state = self._shared.state
        kept = [
            s.Kept(phase, state.task_of[phase], state.nodes[node].name, reservation.at)
            for reservation in state.reservations.values()
            for phase, node in reservation.places
        ]
        ready = [self._ranked(phase) for phase in self._shared.engine.ready_order()]
        return s.Order(tuple(ready), tuple(kept))

    def _ranked(self, phase: int) -> s.Ranked:
        state = self._shared.state
        _, name, index = self._shared.records.names(phase)
        task = state.task_of[phase]
        workload = state.workloads[state.task_workload[task]].id.removeprefix(self.prefix)
        attempt, rank_s, ready_at = state.attempt[task], state.rank_s[phase], state.ready_at[phase]
        return s.Ranked(phase, task, attempt, workload, name, index, rank_s, ready_at)

    # --- what the holder is told ---

    def tell(self, told: s.AnyTold, now: float) -> None:
        if self.is_open:
            self._listener.tell(told, now, is_end=False)

    def tell_end(self, told: s.AnyTold, now: float) -> None:
        if self.is_open:
            self._listener.tell(told, now, is_end=True)

    def record(self, record: r.Record) -> None:
        """A record of its work."""
        if self.is_open:
            self._listener.record(record)

    def _hear_of_node(self, event: m.NodeAdded | m.NodeLost, now: float) -> None:
        """For its run log: what it has told of a node."""
        if isinstance(event, m.NodeAdded) and self._offers.get(event.node) != event:
            self._offers[event.node] = event
            self._listener.record(capacity_of(event, now))
        elif isinstance(event, m.NodeLost) and self._offers.pop(event.node, None) is not None:
            self._listener.record(capacity_of(event, now))

    # --- whose it is ---

    def _is_own(self, event: m.Event) -> bool:
        """Whether all that the event names is the holder's; nodes are everybody's."""
        state = self._shared.state
        if isinstance(event, (m.NodeAdded, m.NodeLost)):
            return True
        if isinstance(event, (m.Estimates, m.FlavorEstimates)):
            return self._owns_phases([value[0] for value in event.values])
        if isinstance(event, m.TasksSeen):
            return self.owns([sight.task for sight in event.tasks])
        if isinstance(event, (m.DecisionApplied, m.DecisionRejected, m.DecisionLost)):
            subject = state.decisions.get(event.decision, 0)  # unknown ones mean nothing to the engine
            known = event.decision in state.decisions
            return not known or (self.owns([-1 - subject]) if subject < 0 else self._owns_phase(subject))
        if isinstance(event, CONTROLS):
            return event.target.isdecimal() and self.owns([int(event.target)])
        if isinstance(event, m.GrantsHeld):
            return len(self._shared.seats) == 1  # else others' work would be held, too
        if isinstance(event, (m.QueuesChanged, m.UsedElsewhere, m.FlavorsChanged, m.Tick)):
            return False  # the site's own affairs
        return self.owns([event.task])  # type: ignore[attr-defined]  # all others name one

    def _may_note(self, note: s.Note) -> bool:
        if isinstance(note, (s.Granted, s.Started)):
            return self._owns_phase(note.grant.phase)
        if isinstance(note, s.Ended):
            return self._owns_phase(note.phase)
        if isinstance(note, s.PreloadBegun):
            return self.owns([note.decision.task])
        return self.owns([note.task])  # type: ignore[attr-defined]  # all others name one

    def _owns_phases(self, phases: Iterable[int]) -> bool:
        return all(map(self._owns_phase, phases))

    def _owns_phase(self, phase: int) -> bool:
        task_of = self._shared.state.task_of
        return 0 <= phase < len(task_of) and self._shared.owner(task_of[phase]) is self

    def owns(self, tasks: Iterable[int]) -> bool:
        """Whether there are such tasks, and all of them are the holder's."""
        known = len(self._shared.state.task_ids)
        return all(0 <= task < known and self._shared.owner(task) is self for task in tasks)

    # --- the run log ---

    def _note_started(self, note: s.Started) -> None:
        grant, lease = note.grant, self._shared.state.leases.get(note.grant.phase)
        if lease is not None and lease.decision == grant.id:  # else it has been taken back
            self._shared.records.started(grant, note.at, note.warm, note.framework_id, note.pid)

    def _note_ended(self, note: s.Ended) -> None:
        records, now = self._shared.records, self._shared.now()
        records.ended(note.phase, note.attempt, note.outcome, now, note.reason)
