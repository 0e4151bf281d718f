"""The loop: the next event in virtual time goes to the engine, its decisions become later events.

Ties in time are broken by the order in which events were scheduled, so a run is repeatable to the bit.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from egs_core.driver.run_records import RunRecords
from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.specs import LEARNED
from egs_core.errors import InputError
from egs_core.graph.load import LoadedWorkload
from egs_core.runlog import records as r
from egs_core.sim.advisor import Advisors, learned_queues
from egs_core.sim.config import Durations, SimConfig, SimNode
from egs_core.sim.outcome import late_s, over_limit
from egs_core.sim.rollout import roll_out
from egs_core.sim.trace import Trace, prepared

__all__ = ["Estimator", "SimResult", "Simulation", "simulate"]

Estimator = Callable[[LoadedWorkload, int], tuple[float, float]]
"""(workload, phase number in its graph) -> believed median and 95th percentile in seconds."""

Learner = Callable[[int, int, float], Sequence[tuple[int, float, float]]]
"""(place of the workload in the list, phase number in its graph, seconds that it took) -> what is believed anew of the
workload's phases: number, median, 95th percentile. Told of every phase that succeeds, before the engine is."""


class SimResult(msgspec.Struct):
    """makespan_s: first submission to last end. jct_s: by workload, in the order given. wall_s: real seconds that the
    engine and the loop took from the first event to the last. phases: phases that ended. over_limit: tasks and
    workloads that have reached a limit, and which; late_s: by how much they missed their deadlines. orders: that queues
    have learned, at the end."""

    makespan_s: float
    jct_s: list[float]
    phases: int
    wall_s: float
    records: list[r.Record]
    failed: list[str]
    over_limit: dict[str, str] = {}
    late_s: dict[str, float] = {}
    orders: dict[str, str] = {}

    @property
    def phases_per_s(self) -> float:
        return self.phases / self.wall_s if self.wall_s else 0.0


def simulate(
    workloads: Sequence[LoadedWorkload],
    config: SimConfig,
    estimator: Estimator | None = None,
    observer: Callable[[Engine], None] | None = None,
    learner: Learner | None = None,
) -> SimResult:
    """Run the workloads to their end. Raises InputError when a duration is unknown or nothing can ever run a task.

    estimator is needed for `predicted` durations, learner may revise them as phases end. observer is called after every
    event (tests validate the state).
    """
    return Simulation(workloads, config, estimator, observer, learner).run()


class Simulation:
    """One run that can be stopped at a moment and looked at: `advance` to it, then ask `engine`."""

    def __init__(
        self,
        workloads: Sequence[LoadedWorkload],
        config: SimConfig,
        estimator: Estimator | None = None,
        observer: Callable[[Engine], None] | None = None,
        learner: Learner | None = None,
    ) -> None:
        if config.durations is Durations.PREDICTED and estimator is None:
            raise ValueError("predicted durations need an estimator")
        self.config = config
        self.workloads = [prepared(w, config) for w in workloads]
        self.ids = _unique_ids(self.workloads)
        self.engine = Engine(
            EngineConfig(
                config.policy,
                config.preload,
                config.default_max_wait_s,
                config.seed,
                preempt=config.preempt,
                search_placements=config.search_placements,
                objective=config.objective,
            )
        )
        self.state = self.engine.state
        self._handle = self.engine.handle
        self.records: list[r.Record] = []
        self.now = 0.0
        self.last_end = 0.0
        self.phases = 0
        self.wall_s = 0.0
        self._estimator = estimator
        self._observer = observer
        self._learner = learner if config.durations is Durations.PREDICTED else None
        self._place_of: dict[int, tuple[int, int]] = {}  # phase -> place of its workload, number in its graph
        self._phases_of: dict[int, list[int]] = {}  # and back; both only for the learner
        self._log: RunRecords | None = None
        if config.records:
            self._log = RunRecords(self.state, lambda _, record: self.records.append(record), self.engine.explain)
        self._random = random.Random(config.seed)
        self._trace = Trace(self.state, config)
        self._events: list[tuple[float, int, m.Event]] = []
        self._sequence = 0
        self._warming: dict[int, tuple[int, float]] = {}  # task -> (its Preload, when it will be warm)
        self._kept: set[int] = set()  # tasks with an unused preload
        self._begun: dict[int, float] = {}  # running phase -> when its own work began
        self._slowdown: dict[int, float] = {}  # running phase -> seconds it takes for one on the reference, if not 1
        self._left_s: dict[int, float] = {}  # phase that was stopped -> seconds of work that no checkpoint has saved
        self._submitted: list[int] = []  # engine's workload number -> place in `workloads`
        self._ended_at: dict[int, float] = {}  # by place
        self._wakeup: float | None = None
        self._tells_checkpoints = config.preempt and config.checkpoint_s > 0
        self._handlers: dict[type[m.Event], Callable[[Any, float], None]] = {
            m.WorkloadSubmitted: self._submit,
            m.PhaseEnded: self._phase_ended,
            m.PreloadReady: self._preload_ready,
            m.Checkpointed: self._checkpointed,
            m.Tick: self._tick,
        }
        self._begin()
        learned = learned_queues(self.state)
        self.advisors = Advisors(learned, config.seed) if learned else None

    # --- the loop ---

    def run(self) -> SimResult:
        """Everything, to the end."""
        self.advance(float("inf"))
        self._require_all_ended()
        first = min((w.arrival_s for w in self.workloads), default=0.0)
        jct = [self._ended_at.get(i, w.arrival_s) - w.arrival_s for i, w in enumerate(self.workloads)]
        failed = [w.id for w in self.state.workloads if w.failed]
        makespan = max(self.last_end - first, 0.0)
        late = late_s(self.state, lambda w: self._ended_at.get(self._submitted[w], self.now), self.ended_at)
        stopped = over_limit(self.state)
        orders = {q.spec.name: q.order for q in self.state.queues if q.spec.order == LEARNED}
        return SimResult(makespan, jct, self.phases, self.wall_s, self.records, failed, stopped, late, orders)

    def advance(self, until: float) -> bool:
        """Handle every event up to this time; whether any are left."""
        started = time.perf_counter()
        events, handlers, pop, next_wakeup = self._events, self._handlers, heapq.heappop, self.engine.next_wakeup
        while events and events[0][0] <= until:
            now, _, event = pop(events)
            self.now = now
            handlers[type(event)](event, now)
            due = next_wakeup()
            if due is not None and (self._wakeup is None or due < self._wakeup):
                self._wakeup = due
                self._schedule(due, m.Tick())
        self.wall_s += time.perf_counter() - started
        return bool(events)

    def step(self) -> bool:
        """Handle the events of the next moment; whether there was one."""
        if not self._events:
            return False
        self.advance(self._events[0][0])
        return True

    def ended_at(self, task: int) -> float:
        """When a task's last phase ended; 0 before."""
        return self._trace.ended_at.get(task, 0.0)

    def _begin(self) -> None:
        config = self.config
        nodes = (SimNode("slots", config.slots, process_slots=2**30),) if config.slots else config.nodes
        if self._log:
            self.records.append(r.Header(driver="sim", policy=config.policy, mode="on", emulated_gpus=True))
        for node in nodes:
            offers = msgspec.structs.asdict(node)
            event = m.NodeAdded(offers.pop("name"), **offers)
            event = msgspec.structs.replace(event, bandwidth_bytes_s=config.bandwidth_bytes_per_s)
            self._send(event, 0.0)
            if self._log:
                self._log.node(event, 0.0)
        if config.flavors:
            self._send(m.FlavorsChanged(config.flavors), 0.0)
        if config.queues:
            self._send(m.QueuesChanged(config.queues), 0.0)
        for number, workload in enumerate(self.workloads):
            self._schedule(workload.arrival_s, m.WorkloadSubmitted(str(number)))

    def _schedule(self, at: float, event: m.Event) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (at, self._sequence, event))

    def _send(self, event: m.Event, now: float) -> None:
        decisions = self._handle(event, now)
        if self._log:
            self._log.after(event, now)
        self._perform(decisions, now)

    # --- events ---

    def _tick(self, event: m.Event, now: float) -> None:
        self._wakeup = None
        due = self.engine.next_wakeup()
        if due is not None and due <= now:
            self._send(event, now)
            self._note_ends(now)

    def _note_ends(self, now: float) -> None:
        """Workloads that end without the end of a phase: a limit was reached while all of their tasks waited."""
        for number in self.state.workload_meters:
            place = self._submitted[number]
            if not self.state.workloads[number].open_tasks and place not in self._ended_at:
                self._ended_at[place] = now
                if self._log:
                    self._log.workload_ended(number, now)

    def _submit(self, event: m.WorkloadSubmitted, now: float) -> None:
        """`event` carries the workload's place in the list; the engine is told its id."""
        index = int(event.workload)
        given = self.workloads[index]
        submitted = m.WorkloadSubmitted(
            self.ids[index],
            given.name,
            given.tenant,
            given.queue,
            given.deadline_s,
            given.limits,
            given.submission,
        )
        self._submitted.append(index)
        self._send(submitted, now)
        tasks, believed = self._believed(given, submitted.workload)
        decisions = self._handle(tasks, now)
        self._trace.learn(given, self.state.workload_number(submitted.workload))
        if self._learner:
            self._phases_of[index] = self._trace.phase_numbers
            self._place_of.update((p, (index, number)) for number, p in enumerate(self._trace.phase_numbers))
        if self._log:
            self._log.workload(submitted, now)
            self._log.tasks(tasks, now)
        if believed:
            numbered = zip(self._trace.phase_numbers, believed, strict=True)
            estimates = m.Estimates(tuple([(phase, p50, p95) for phase, (p50, p95) in numbered]))
            decisions += self._handle(estimates, now)
        if self._log:
            self._log.after(tasks, now)
        self._perform(decisions, now)

    def _believed(self, given: LoadedWorkload, workload: str) -> tuple[m.TasksAdded, list[tuple[float, float]]]:
        """The block as the engine sees it. Medians ride in it, so that the first decision knows them; the spread of
        predictions follows as `Estimates`."""
        graph, durations = given.graph, self.config.durations
        believed: list[tuple[float, float]] = []
        seconds: list[float | None] = list(graph.phase_duration_s)
        if durations is Durations.BLIND:
            seconds = [None] * graph.n_phases
        elif durations is Durations.PREDICTED and self._estimator is not None:
            believed = [self._estimator(given, p) for p in range(graph.n_phases)]
            seconds = [p50 for p50, _ in believed]
        on_flavors = graph.phase_flavor_s if durations is Durations.EXACT else {}
        seen = msgspec.structs.replace(graph, phase_duration_s=seconds, phase_flavor_s=on_flavors)
        return m.TasksAdded(workload, seen), believed

    def _phase_ended(self, event: m.PhaseEnded, now: float) -> None:
        state, phase = self.state, event.phase
        task = state.task_of[phase]
        if phase not in state.leases or state.attempt[task] != event.attempt:
            return  # it was stopped meanwhile
        self.phases += 1
        self.last_end = now
        begun = self._begun.pop(phase, now)
        if event.outcome == "preempted":
            slowdown = self._slowdown.pop(phase, 1.0)
            self._left_s[phase] = self._work_s(phase) - self._saved_s(now - begun) / slowdown
        self._trace.ended_at[task] = now
        workload = state.task_workload[task]
        learned = self._learn(phase, now - begun, now) if self._learner and event.outcome == "succeeded" else []
        decisions = self._handle(event, now)
        if learned:
            decisions = [*learned, *decisions]
        if self._log:
            self._log.ended(phase, event.attempt, event.outcome, now)
            self._log.after(event, now)
        if not state.workloads[workload].open_tasks:
            self._ended_at[self._submitted[workload]] = now
            if self.advisors is not None:
                decisions = [*decisions, *self._advised(self.advisors, now)]
            if self._log:
                self._log.workload_ended(workload, now)
        self._perform(decisions, now)

    def _learn(self, phase: int, seconds: float, now: float) -> list[m.Decision]:
        """Tell the learner of a phase, and the engine what follows from it."""
        assert self._learner is not None
        index, number = self._place_of[phase]
        numbers = self._phases_of[index]
        believed = [(numbers[p], p50_s, p95_s) for p, p50_s, p95_s in self._learner(index, number, seconds)]
        return self._handle(m.Estimates(tuple(believed)), now) if believed else []

    def _advised(self, advisors: Advisors, now: float) -> list[m.Decision]:
        """A workload has ended: the orders of queues that have theirs learned may change."""
        decisions: list[m.Decision] = []
        for advisor in advisors.look(self.state):
            futures = roll_out(self.engine.snapshot(), self.engine.config, advisor.question())
            chosen = advisor.review(futures, now)
            decisions += self._handle(chosen, now) if chosen is not None else []
        return decisions

    def _work_s(self, phase: int) -> float:
        """What is left of the phase's own work."""
        return self._left_s.get(phase, self._trace.seconds[phase])

    def _saved_s(self, worked_s: float) -> float:
        """What checkpoints have saved of so much work; nothing of a phase whose work has not begun."""
        every = self.config.checkpoint_s
        return worked_s // every * every if every and worked_s > 0 else 0.0

    def _checkpointed(self, event: m.Checkpointed, now: float) -> None:
        phase = self.state.cursor[event.task]
        if phase in self._begun and self.state.attempt[event.task] == event.attempt:
            self._schedule(now + self.config.checkpoint_s, event)
            self._send(event, now)

    def _preload_ready(self, event: m.PreloadReady, now: float) -> None:
        if self._warming.get(event.task, (0, 0.0))[0] != event.decision:
            return  # given up, or its task has started meanwhile
        del self._warming[event.task]
        if self._log:
            self._log.preload_ended(event.task, "warm", now)
        self._send(event, now)

    # --- decisions ---

    def _perform(self, decisions: list[m.Decision], now: float) -> None:
        """Carry decisions out, and those that follow from telling the engine so."""
        if self._observer:
            self._observer(self.engine)
        for decision in decisions:  # grows while it is walked
            if isinstance(decision, m.Grant):
                more = self._start(decision, now)
                if more:
                    decisions.extend(more)
            elif isinstance(decision, m.Preload):
                self._preload(decision, now)
            elif isinstance(decision, m.DropPreload):
                self._drop_preload(decision.task, now)
            elif isinstance(decision, m.Stop):
                outcome = "preempted" if decision.requeue else "aborted"
                self._schedule(now, m.PhaseEnded(decision.phase, decision.attempt, outcome))

    def _start(self, grant: m.Grant, now: float) -> list[m.Decision]:
        phase, task, loading = grant.phase, grant.task, 0.0
        if grant.warm is not None:
            loading = self._loading_s(grant, now)
        fetching = 0.0
        if self.config.bandwidth_bytes_per_s and self.state.first_phase[task] == phase:
            fetching = self._trace.transfer_s(task, grant.node)
        if self._log:
            self._record_start(grant, now, loading)
        decisions = self._handle(m.PhaseStarted(phase, grant.attempt), now)
        if self._observer:
            self._observer(self.engine)
        seconds, outcome = self._trace.seconds[phase], "succeeded"
        if phase in self._left_s:
            loading += self.config.restart_s
            seconds = self._left_s[phase]
        begun = self._begun[phase] = now + loading + fetching
        if self._tells_checkpoints:
            self._schedule(begun + self.config.checkpoint_s, m.Checkpointed(task, grant.attempt))
        if self.config.flavors:
            self._slowdown[phase] = self._trace.slowdown(phase, self.state.nodes[self.state.leases[phase].node].flavor)
            seconds *= self._slowdown[phase]
        if self.config.failure_rate and self._random.random() < self.config.failure_rate:
            seconds, outcome = seconds * self._random.random(), "failed"
        self._schedule(begun + seconds, m.PhaseEnded(phase, grant.attempt, outcome))
        return decisions

    def _loading_s(self, grant: m.Grant, now: float) -> float:
        """A warm process costs nothing; one that is being loaded what is left of it; else the whole warm-up."""
        warming = self._warming.pop(grant.task, None)
        if warming is not None:
            return warming[1] - now
        return 0.0 if grant.warm else self._trace.warmup_s(grant.task)

    def _record_start(self, grant: m.Grant, now: float, loading: float) -> None:
        assert self._log is not None
        self._log.grant(grant, now)
        self._log.started(grant, now, grant.warm)
        if loading:
            self._log.cold_start(grant, now, now + loading)
        if grant.task in self._kept:
            self._kept.discard(grant.task)
            self._log.preload_ended(grant.task, "used", now)

    def _preload(self, decision: m.Preload, now: float) -> None:
        self._kept.add(decision.task)
        if self._log:
            self._log.preload_started(decision, now)
        if not decision.reuse:
            until = now + self._trace.warmup_s(decision.task)
            self._warming[decision.task] = (decision.id, until)
            self._schedule(until, m.PreloadReady(decision.task, decision.id))

    def _drop_preload(self, task: int, now: float) -> None:
        self._warming.pop(task, None)
        self._kept.discard(task)
        if self._log:
            self._log.preload_ended(task, "unused", now)

    # --- the end ---

    def _require_all_ended(self) -> None:
        """Raise InputError with the reason of the first task that cannot run here."""
        for workload in self.state.workloads:
            if workload.open_tasks:
                reasons = [self.engine.explain(t) for t in workload.numbers]
                waiting = [reason for reason in reasons if reason.status == "ready"]
                reason = next((reason for reason in waiting if reason.kind == "infeasible"), waiting[0])
                place = f"{workload.id}: task {reason.task!r}"
                raise InputError(place, f"can never run here: {reason.text}", "give more resources")


def _unique_ids(workloads: Sequence[LoadedWorkload]) -> list[str]:
    """Workload ids; where several share one, all of them with their place in the list behind it."""
    count = Counter(w.id for w in workloads)
    return [w.id if count[w.id] == 1 else f"{w.id}#{i}" for i, w in enumerate(workloads)]
