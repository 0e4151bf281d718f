"""The engine: `handle(event, now)` returns decisions, and `explain` says why a task waits.

One call: take the event in, let due timers act, grant what may start, then plan preloads. The rooms, each of which
imports only those before it:

    specs      values that configure: limits, queues, flavors
    messages   events in, decisions out
    state/     all that is known, as columns and records, and every change of it
    rules/     answers without effects: what fits, what quotas allow, who is in the way
    order/     who is next: the ready phases in the policy's order
    passes/    one step each: readiness, aborts, pauses, restarts, grant, sightings, takeover, warm_pool, preload,
               limits, look_ahead, scaling, capacity, reordering
    engine     which pass runs after which event; explain says why a task waits
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from typing import Any

import msgspec

from egs_core.engine import messages as m
from egs_core.engine.explain import explain, why_never
from egs_core.engine.order.contenders import waiting_for_quota
from egs_core.engine.order.policy import make_policy
from egs_core.engine.order.queue import ReadyQueue
from egs_core.engine.passes.aborts import Aborts
from egs_core.engine.passes.capacity import Capacity
from egs_core.engine.passes.grant import Granting
from egs_core.engine.passes.issuer import Issuer
from egs_core.engine.passes.limits import Limiter
from egs_core.engine.passes.look_ahead import LOOKED_AHEAD_AFTER, LookAhead
from egs_core.engine.passes.pauses import Pauses
from egs_core.engine.passes.readiness import Readiness
from egs_core.engine.passes.reordering import Reordering
from egs_core.engine.passes.restarts import Restarts
from egs_core.engine.passes.scaling import Scaling
from egs_core.engine.passes.sightings import Sightings
from egs_core.engine.passes.takeover import TakeOver
from egs_core.engine.passes.warm_pool import Processes
from egs_core.engine.rules.flavor_choice import Refused
from egs_core.engine.rules.packer import make_packer
from egs_core.engine.specs import Amounts, EngineConfig
from egs_core.engine.state.invariants import validate_state
from egs_core.engine.state.journal import Transition
from egs_core.engine.state.lifecycle import (
    GRANTED,
    HOLDS_LEASE,
    OUTCOMES,
    PENDING,
    PREEMPTED,
    READY,
    RUNNING,
    SUCCEEDED,
)
from egs_core.engine.state.snapshots import decode_state
from egs_core.engine.state.state import State

STARTS_AND_ENDS = frozenset({m.PhaseStarted, m.PhaseEnded})
ALWAYS = (None,)  # in place of what is empty while a part waits for no moment


class Engine:
    """See the module. Not thread-safe: one driver owns it."""

    def __init__(self, config: EngineConfig | None = None, state: State | None = None) -> None:
        self.config = config or EngineConfig()
        self.policy = make_policy(self.config.policy, self.config.seed)
        self.state = state or State()
        self._issuer = Issuer(self.state, self.config.record)
        self._transitions = self._issuer.transitions
        self._queue = ReadyQueue(self.state, self.policy, self.config.default_max_wait_s, self.config.preempt)
        self._processes = Processes(self._issuer, self._queue, self.config.preload)
        self._started = self._issuer.started
        self._is_settled = False  # a pass at this moment would do nothing
        self._refused: Mapping[int, Refused] = {}  # phases that wait for a better flavor than what is free
        packer = make_packer(self.config.packing)
        objective = self.config.objective
        self._granting = Granting(self._issuer, self._queue, self._processes, packer, objective)
        self._preempts = self.config.preempt
        self._waits = self._queue.lines.timers  # of submissions that wait for others
        self._readiness = Readiness(self._issuer, self._queue, self._processes)
        self._aborts = Aborts(self._issuer, self._queue, self._processes, self._readiness)
        self._restarts = Restarts(self._issuer, self._queue, self._readiness, self._aborts)
        self._limits = Limiter(self._issuer, self._aborts, self._restarts, self.config.grace_s, preempts=self._preempts)
        self._pauses = Pauses(self._issuer, self._queue, self._readiness, self._aborts)
        self._sightings = Sightings(
            self._issuer, self._queue, self._processes, self._readiness, self._aborts, self._granting, self._limits
        )
        placements = self.config.search_placements if self.policy.looks_ahead else 0
        scaling = self._issuer, self.config.scaling_horizon_s, objective == "cost"
        self._scaling = Scaling(*scaling) if self.config.scaling_hints else None
        self._look_ahead = LookAhead(self._issuer, self._queue, placements, self.config.seed)
        self._takeover = TakeOver(self._issuer)
        self._reordering = Reordering(self._issuer, self._queue, self._processes)
        capacity = Capacity(self._issuer, self._queue, self._processes, self._readiness, self._restarts, self._limits)
        self._handlers: dict[type[m.Event], Callable[[Any, float], None]] = {
            m.PhaseEnded: self._on_ended,
            m.PhaseStarted: self._on_started,
            m.TasksSeen: self._on_seen,
            m.DecisionApplied: self._on_applied,
            m.DecisionRejected: self._on_rejected,
            m.DecisionLost: self._on_lost,
            m.NodeAdded: capacity.node_added,
            m.NodeLost: capacity.node_lost,
            m.QueuesChanged: capacity.queues_changed,
            m.GrantsHeld: self._on_held,
            m.UsedElsewhere: capacity.elsewhere_changed,
            m.OrderChosen: capacity.order_chosen,
            m.PromisesAtRisk: capacity.promises_at_risk,
            m.FlavorsChanged: capacity.flavors_changed,
            m.WorkloadSubmitted: self._on_workload,
            m.TasksAdded: self._on_tasks,
            m.BranchSkipped: self._on_skipped,
            m.Estimates: self._on_estimates,
            m.FlavorEstimates: self._on_flavor_estimates,
            m.FlavorsAllowed: self._processes.flavors_allowed,
            m.DevicesAllowed: self._processes.devices_allowed,
            m.TaskFinished: self._on_finished,
            m.Checkpointed: self._on_checkpoint,
            m.Activity: self._on_activity,
            m.PreloadReady: self._on_preload_ready,
            m.PreloadFailed: self._on_preload_failed,
            m.AbortRequested: self._on_abort,
            m.PauseRequested: self._pauses.pause,
            m.ResumeRequested: self._on_resume,
            m.Tick: self._on_tick,
        }
        self._moments = self._timed()
        self._rebuild()

    def _timed(self) -> list[tuple[Sized, Callable[[], float | None]]]:
        """Of each part with moments of its own: what is empty while there is none, and the next one, None for none."""
        queue, state = self._queue, self.state
        timed: list[tuple[Sized, Callable[[], float | None]]] = [
            (timers.heap, timers.next_due) for timers in (queue.ages.timers, queue.urgency.timers, self._limits.timers)
        ]
        timed.append((state.retry_at, self._readiness.next_due))
        if self.config.preload:
            timed.append((ALWAYS, self._processes.next_due))
        if self._preempts:
            timed.append((state.reservations, self._restarts.next_due))
        if self._scaling is not None:
            timed.append((ALWAYS, self._scaling.next_due))
        return timed

    # --- the contract ---

    def handle(self, event: m.Event, now: float) -> list[m.Decision]:
        """Take one event in at `now` (clamped: it never goes back) and return what to do. Unknown or outdated task,
        attempt and decision numbers are ignored, so events may be repeated or late. Raises ValueError, and changes
        nothing, for a block that is no graph or whose workload is unknown, and for an unknown outcome."""
        state, kind = self.state, type(event)
        if now < state.now:
            now = state.now
        elif now > state.now:
            self._transitions.clock(now)
            self._is_settled = False
        out: list[m.Decision] = []
        self._issuer.out = out
        self._handlers[kind](event, now)
        if kind is m.PhaseStarted and self._is_settled and not state.is_metered:
            return out  # it frees nothing, and what is due now has been done
        queue = self._queue
        if kind not in STARTS_AND_ENDS:
            queue.free.refusals.forget()
        if kind in LOOKED_AHEAD_AFTER:
            self._look_ahead.after(event)
        if state.is_metered:
            self._limits.enforce(now)
        self._reordering.after(event)
        if state.retry_at:
            self._readiness.retry_held(now)
        if self._waits and self._waits[0][0] < now and queue.heed_waits(now):  # also what was just retried
            self._processes.want_plan()
        if queue.ages.timers.heap:
            queue.age(now)
        if state.has_deadlines:
            queue.apply_deadline_changes(now)
        if state.held_until is not None and self._are_held(now):
            return out
        if queue.is_dirty or state.review_at is not None:
            blocked, self._refused = self._granting.run()
            if self._preempts:
                self._restarts.preempt(blocked, self.config.grace_s, self.config.min_gain_s, now)
        if self._processes.has_keys and self.config.preload:
            while self._processes.plan(now):
                _, self._refused = self._granting.run()
            if queue.heed_waits(now):  # what waited for a process to come free, too long by now
                self._processes.want_plan()
                _, self._refused = self._granting.run()
        if self._scaling is not None:
            self._scaling.after(now)
        is_open = queue.is_dirty or state.has_deadlines or state.review_at is not None
        self._is_settled = not (is_open or self._processes.has_keys or self._scaling is not None)
        return out

    def next_wakeup(self) -> float | None:
        """When to send a `Tick` if nothing happens before; None: never."""
        if (held := self.state.held_until) is not None:  # what else is due comes behind it
            return min(held, self._limits.next_due() or held)
        first = self.state.review_at
        for kept, next_due in self._moments:
            if kept and (due := next_due()) is not None and (first is None or due < first):
                first = due
        return first

    def explain(self, task: int, moment: m.Moment = m.in_seconds) -> m.Reason:
        """Why the task is where it is, with the numbers that decide it. moment: how moments are written."""
        return explain(self.state, task, self._queue, self._refused, task in self._processes.cold_wait, moment)

    def why_never(self, task: int) -> m.Reason | None:
        """What keeps a ready task from ever starting, as nodes and quotas are; None for one that only has to wait."""
        return why_never(self.state, task, self._queue)

    def ready_order(self) -> list[int]:
        """The ready phases in the order in which they come now, first first. One that waits for a process is not among
        them."""
        return self._queue.in_order()

    @property
    def is_idle(self) -> bool:
        """Whether nothing holds anything, and nothing is ready."""
        return not self.state.leases and not self._queue.keys

    def waiting_for_quota(self) -> dict[str, Amounts]:
        """Of each queue, by name, what the first of those needs for which there is room and quota is not."""
        return waiting_for_quota(self._queue)

    def snapshot(self) -> bytes:
        """The whole state, versioned."""
        return msgspec.json.encode(self.state)

    @classmethod
    def restore(cls, data: bytes, config: EngineConfig | None = None) -> Engine:
        """An engine in the snapshot's state. Raises ValueError for another format version or damaged data."""
        return cls(config, decode_state(data))

    def take_transitions(self) -> list[Transition]:
        """Transitions since the last call; needs `record`."""
        return self._issuer.recorder.take() if self._issuer.recorder else []

    def validate_state(self) -> None:
        """Raise AssertionError when an invariant does not hold."""
        validate_state(self.state)
        self._queue.free.validate()
        gathered = {p for phases in self._queue.gangs.arrived.values() for p in phases}
        queued, cold = set(self._queue.keys) | gathered, {self.state.cursor[t] for t in self._processes.cold_wait}
        ready = {p for p, status in enumerate(self.state.status) if status == READY}
        assert not queued & cold, f"both queued and waiting for a process: {sorted(queued & cold)}"
        assert queued | cold == ready, f"queued or cold {sorted(queued | cold)}, ready {sorted(ready)}"
        assert not (stale := self._queue.stale_deadlines()), f"not where their deadlines put them: {stale}"
        assert not (stale := self._queue.stale_submissions()), f"submissions not where their work puts them: {stale}"

    def task_number(self, workload: str, index: int) -> int:
        """The engine's number of a workload's task, by its index in the order in which the graph listed it."""
        return self.state.workloads[self.state.workload_number(workload)].numbers[index]

    def _are_held(self, now: float) -> bool:
        """Whether nothing is to be granted yet; if it is from now on, all is looked at again."""
        self._is_settled = False
        if self.state.held_until is not None and now < self.state.held_until:
            return True
        self._transitions.hold_grants(None)
        self._readiness.freed()
        return False

    # --- events: phases ---

    def _on_ended(self, event: m.PhaseEnded, now: float) -> None:
        state, phase = self.state, event.phase
        status = OUTCOMES.get(event.outcome)
        if status is None:
            raise ValueError(f"unknown outcome {event.outcome!r}; one of {', '.join(OUTCOMES)}")
        if not self._is_current(phase, event.attempt):
            return
        task = state.task_of[phase]
        if state.status[phase] not in HOLDS_LEASE:
            if status == PREEMPTED and task in self._started and phase == state.cursor[task]:
                self._restarts.lost_between(task, now)
            return
        is_last = phase + 1 == state.first_phase[task + 1]
        if task in state.recalled and not (status == SUCCEEDED and is_last):
            status = PREEMPTED
        if state.over_limit:
            status = self._limits.outcome(task, status)
        self._readiness.freed(state.leases[phase].node if status == SUCCEEDED else None)
        freed = self._transitions.end(phase, status)
        if status != SUCCEEDED:
            self._restarts.after_failure(task, status, now)
        elif task in state.stopping:
            self._aborts.finish(task)
        else:
            if is_last:
                self._issuer.mark_over(task)
                if state.gang_of:
                    self._readiness.regather(task)
            for p in freed:
                self._readiness.make_ready(p, now)

    def _on_finished(self, event: m.TaskFinished, now: float) -> None:
        task = event.task
        if task in self._started and self.state.attempt[task] == event.attempt:
            self._readiness.freed()
            self._queue.remove(self.state.cursor[task])
            self._issuer.mark_over(task)
            freed = self._transitions.finish(task)
            self._readiness.regather(task)
            for phase in freed:
                self._readiness.make_ready(phase, now)

    def _on_started(self, event: m.PhaseStarted, now: float) -> None:
        state, phase = self.state, event.phase
        if self._is_current(phase, event.attempt) and state.status[phase] == GRANTED:
            self._transitions.start(phase, now)  # plans no preloads: a late start only makes them due later
            if state.is_metered:
                self._limits.started(phase)

    def _on_seen(self, event: m.TasksSeen, now: float) -> None:
        self._reordering.ranks_changed(self._sightings.take(event, now))

    def _on_checkpoint(self, event: m.Checkpointed, now: float) -> None:
        state, task = self.state, event.task
        is_known = 0 <= task < len(state.cursor) and self._is_current(state.cursor[task], event.attempt)
        if is_known and state.status[state.cursor[task]] == RUNNING:
            self._transitions.checkpointed(task, now)

    def _on_activity(self, event: m.Activity, now: float) -> None:
        state, task = self.state, event.task
        if task in state.meters and state.meters[task].running and state.attempt[task] == event.attempt:
            self._transitions.active(task, now)

    # --- events: answers to decisions ---

    def _on_applied(self, event: m.DecisionApplied, _now: float) -> None:
        if event.decision in self.state.decisions:
            self._transitions.applied(event.decision)

    def _on_rejected(self, event: m.DecisionRejected, now: float) -> None:
        if (phase := self._open_grant(event.decision)) is not None:
            self._readiness.freed()
            self._restarts.rejected(phase, now)

    def _on_lost(self, event: m.DecisionLost, now: float) -> None:
        if (phase := self._open_grant(event.decision)) is not None:
            self._readiness.freed()
            self._restarts.lost(self.state.task_of[phase], now)

    def _open_grant(self, decision: int) -> int | None:
        """The phase of an open grant; an open preload has then failed."""
        subject = self.state.decisions.get(decision)
        if subject is not None and subject < 0:
            self._processes.failed(-1 - subject, decision)
            return None
        return subject

    def _on_preload_ready(self, event: m.PreloadReady, _now: float) -> None:
        self._processes.warmed(event.task, event.decision)

    def _on_preload_failed(self, event: m.PreloadFailed, _now: float) -> None:
        self._processes.failed(event.task, event.decision)

    # --- events: work ---

    def _on_workload(self, event: m.WorkloadSubmitted, now: float) -> None:
        if event.workload not in self.state.workload_numbers:
            self._transitions.absorb_workload(event, now)

    def _on_tasks(self, event: m.TasksAdded, now: float) -> None:
        state, first = self.state, len(self.state.task_ids)
        if event.workload not in state.workload_numbers:
            raise ValueError(f"tasks for the unknown workload {event.workload!r}")
        changed = self._transitions.absorb_tasks(event)
        self._reordering.set_wait(state.workload_number(event.workload))
        added = range(first, len(state.task_ids))
        if any(options.warm_key for options in event.graph.options.values()):
            self._processes.has_keys = True
        self._aborts.after_growth(event.workload, added)
        if event.begun:
            changed = [*changed, *self._take_over(event, now)]
        if state.is_metered:
            self._limits.grown(state.workload_number(event.workload))
        for task in added:
            if not state.waiting[task] and state.status[state.cursor[task]] == PENDING:
                self._readiness.make_ready(state.cursor[task], now)
        self._reordering.ranks_changed(changed)

    def _take_over(self, event: m.TasksAdded, now: float) -> list[int]:
        """What has begun elsewhere holds what it has, before anything of the block is ready; returns the tasks whose
        ranks may have changed."""
        running, changed = self._takeover.take(event, now)
        for phase in running if self.state.is_metered else ():
            self._limits.started(phase)
        self._readiness.freed()
        return changed

    def _on_held(self, event: m.GrantsHeld, now: float) -> None:
        self._transitions.hold_grants(now + max(0.0, event.seconds))

    def _on_skipped(self, event: m.BranchSkipped, now: float) -> None:
        freed = self._aborts.skip(event.task)
        if 0 <= event.task < len(self.state.task_ids):
            self._readiness.regather(event.task)
        for phase in freed:
            self._readiness.make_ready(phase, now)

    def _on_estimates(self, event: m.Estimates, _now: float) -> None:
        self._reordering.ranks_changed(self._transitions.absorb_estimates(event))

    def _on_flavor_estimates(self, event: m.FlavorEstimates, _now: float) -> None:
        self._transitions.absorb_flavor_estimates(event)
        for phase in {p for p, *_ in event.values if p in self._queue.keys}:
            self._queue.place_changed(phase)
        self._readiness.freed()

    def _on_abort(self, event: m.AbortRequested, _now: float) -> None:
        self._aborts.request(event)

    def _on_resume(self, event: m.ResumeRequested, now: float) -> None:
        self._pauses.resume(event, now)
        if self.state.is_metered:
            self._limits.rebuild()

    def _on_tick(self, _event: m.Tick, now: float) -> None:
        if (due := self._processes.next_due()) is not None and due <= now:
            self._processes.want_plan()
        if self._preempts and self.state.reservations:
            self._queue.mark_changed()

    # --- what several events need ---

    def _is_current(self, phase: int, attempt: int) -> bool:
        return 0 <= phase < len(self.state.status) and self.state.attempt[self.state.task_of[phase]] == attempt

    def _rebuild(self) -> None:
        """Queues and sets follow from the state; needed after a restore."""
        state = self.state
        self._processes.has_keys = any(options.warm_key for options in state.options.values())
        for task, phase in enumerate(state.cursor):
            status = state.status[phase]
            is_later = phase != state.first_phase[task]
            if status in HOLDS_LEASE or (is_later and task in state.home):
                self._issuer.mark_started(task)
            if status == READY:
                self._readiness.enqueue(phase)
        self._limits.rebuild()
        self._reordering.recount_workloads(None)
        self._queue.heed_waits(state.now)
        self._processes.needs_planning = False
