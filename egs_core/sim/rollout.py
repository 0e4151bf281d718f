"""Roll-outs: how long what is there would take under another order, in an engine restored from a snapshot.

    snapshot ─► twin, told "queue Q orders by P" ─► what runs and waits, to its end, in virtual time
                                        ▲
                              workloads like the latest ones, as far apart as those came

Lengths are drawn from what the engine believes: log-normal by median and 95th percentile, of what runs given that
it has not ended; lengths that nobody knows from those of the queue's phases that have ended. A phase draws the same in
each roll-out of one seed, so orders are compared on the same future. Processes are warm at once; nothing fails. Pure.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from math import exp, log
from statistics import NormalDist, fmean

import msgspec

from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.rules.flavors import held_flavor, seconds_on
from egs_core.engine.state.histories import Z95, Lengths, amount_of
from egs_core.engine.state.lifecycle import GRANTED, RUNNING
from egs_core.engine.state.state import State
from egs_core.graph.columns import Graph

MOST_EVENTS = 20_000  # of one roll-out; what is open then counts as if it ended then
LEAST_COMING, MOST_COMING = 20, 150  # workloads that come while it lasts
_NORMAL = NormalDist()
_SURELY = 0.9999


class Future(msgspec.Struct, frozen=True):
    """What one roll-out found. spans: of each workload of the queue that was open or has come, when it came (0 for
    those that were there) and ended, in seconds from the snapshot; horizon_s: when the last one came."""

    spans: tuple[tuple[float, float], ...]
    horizon_s: float

    @property
    def mean_s(self) -> float:
        """How long a workload is there, from now on."""
        return fmean([end - came for came, end in self.spans]) if self.spans else 0.0

    def mean_open(self, for_s: float) -> float:
        """How many workloads are open on average in the first so many seconds."""
        return sum(max(0.0, min(end, for_s) - came) for came, end in self.spans if came < for_s) / for_s

    def mean_ended(self, for_s: float) -> float:
        """How many have ended, on average over the first so many seconds."""
        return sum(max(0.0, for_s - end) for _, end in self.spans) / for_s


class Question(msgspec.Struct, frozen=True):
    """Of one queue: which of the orders to try, in how many roll-outs each."""

    queue: str
    orders: tuple[str, ...]
    rounds: int
    seed: int


def roll_out(snapshot: bytes, config: EngineConfig, question: Question) -> dict[str, tuple[Future, ...]]:
    """Futures of each order, on the same draws. Raises ValueError for a damaged snapshot."""
    calm = msgspec.structs.replace(config, record=False, search_placements=0, scaling_hints=False)
    return {
        order: tuple(
            [
                _Twin(Engine.restore(snapshot, calm), question.queue, order, question.seed + n).run()
                for n in range(question.rounds)
            ]
        )
        for order in question.orders
    }


class _Twin:
    """One roll-out."""

    def __init__(self, engine: Engine, queue: str, order: str, seed: int) -> None:
        self._engine, self._state, self._queue, self._seed = engine, engine.state, queue, seed
        self._began = engine.state.now
        self._events: list[tuple[float, int, m.Event | int]] = []
        self._sequence = 0
        self._wakeup: float | None = None
        self._ends: dict[int, float] = {}  # workload -> when it ended
        self._first = len(self._state.workloads)
        self._graphs, coming = _coming(self._state, random.Random(seed))
        self._horizon = max((at for at, _ in coming), default=0.0)
        for at, like in coming:
            self._schedule(self._began + at, like)
        self._order = order

    def run(self) -> Future:
        """To the end of all, or as far as `MOST_EVENTS` reach."""
        state, now = self._state, self._began
        elsewhere = tuple([m.Elsewhere(queue.spec.name, queue.elsewhere) for queue in state.queues])
        self._send(m.UsedElsewhere(elsewhere), now)  # without the turns that pools take: nobody gives it one here
        self._send(m.OrderChosen(self._queue, self._order), now)
        for phase in list(state.leases):
            if state.status[phase] == GRANTED:
                self._send(m.PhaseStarted(phase, state.attempt[state.task_of[phase]]), now)
            if phase in state.leases and state.status[phase] == RUNNING:
                self._schedule_end(phase, now)
        for _ in range(MOST_EVENTS):
            if not self._events:
                break
            now, _, event = heapq.heappop(self._events)
            self._take(event, now)
            due = self._engine.next_wakeup()
            if due is not None and (self._wakeup is None or due < self._wakeup):
                self._wakeup = due
                self._schedule(due, m.Tick())
        return Future(tuple(self._spans(now)), self._horizon)

    def _spans(self, now: float) -> list[tuple[float, float]]:
        found = []
        for number, workload in enumerate(self._state.workloads):
            was_open = number >= self._first or number in self._ends or workload.open_tasks
            if workload.queue == self._queue and was_open:
                end = now if workload.open_tasks else self._ends.get(number, workload.submitted_at)
                came = max(0.0, workload.submitted_at - self._began)
                found.append((came, max(came, end - self._began)))
        return found

    def _take(self, event: m.Event | int, now: float) -> None:
        if isinstance(event, int):
            self._submit(event, now)
        elif isinstance(event, m.Tick):
            self._wakeup = None
            due = self._engine.next_wakeup()
            if due is not None and due <= now:
                self._send(event, now)
        elif isinstance(event, m.PhaseEnded) and event.phase in self._state.leases:
            number = self._state.task_workload[self._state.task_of[event.phase]]
            self._send(event, now)
            if not self._state.workloads[number].open_tasks:
                self._ends[number] = now

    def _submit(self, like: int, now: float) -> None:
        """Another one like that workload."""
        given, graph = self._state.workloads[like], self._graphs[like]
        name = f"{given.id}~{len(self._state.workloads)}"
        submitted = m.WorkloadSubmitted(name, given.name, given.tenant, given.queue, given.deadline_s, given.limits)
        self._send(submitted, now)
        decisions = self._engine.handle(m.TasksAdded(name, graph), now)
        state, spread = self._state, []
        for old, new in zip(given.numbers, state.workloads[-1].numbers, strict=True):
            for before, phase in zip(state.phases_of(old), state.phases_of(new), strict=True):
                p50, p95 = state.estimate_s[before], state.estimate_p95_s[before]
                if p95 > p50 and before not in state.unknown:
                    spread.append((phase, p50, p95))
        if spread:
            decisions = [*decisions, *self._engine.handle(m.Estimates(tuple(spread)), now)]
        self._perform(decisions, now)

    def _send(self, event: m.Event, now: float) -> None:
        self._perform(self._engine.handle(event, now), now)

    def _perform(self, decisions: Sequence[m.Decision], now: float) -> None:
        waiting = list(decisions)
        for decision in waiting:  # grows while it is walked
            if isinstance(decision, m.Grant):
                waiting += self._engine.handle(m.PhaseStarted(decision.phase, decision.attempt), now)
                if decision.phase in self._state.leases:
                    self._schedule_end(decision.phase, now)
            elif isinstance(decision, m.Preload):
                waiting += self._engine.handle(m.PreloadReady(decision.task, decision.id), now)
            elif isinstance(decision, m.Stop):
                outcome = "preempted" if decision.requeue else "aborted"
                self._schedule(now, m.PhaseEnded(decision.phase, decision.attempt, outcome))

    def _schedule(self, at: float, event: m.Event | int) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (at, self._sequence, event))

    def _schedule_end(self, phase: int, now: float) -> None:
        elapsed_s = now - self._state.started_at[phase]
        total_s = self._drawn_s(phase, elapsed_s)
        attempt = self._state.attempt[self._state.task_of[phase]]
        self._schedule(now + max(0.0, total_s - elapsed_s), m.PhaseEnded(phase, attempt))

    def _drawn_s(self, phase: int, elapsed_s: float) -> float:
        """How long the phase takes, when it has taken so long already."""
        state = self._state
        share = random.Random(f"{self._seed} {phase}").random()
        if phase in state.unknown:
            return _from_lengths(_lengths(state, phase), share, elapsed_s)
        p50, p95 = seconds_on(state, phase, held_flavor(state, phase))
        if not p95 > p50 > 0:
            return p50 if p50 > elapsed_s else elapsed_s
        mu, sigma = log(p50), log(p95 / p50) / Z95
        passed = _NORMAL.cdf((log(elapsed_s) - mu) / sigma) if elapsed_s > 0 else 0.0
        if passed > _SURELY:
            return float(elapsed_s * (1 - share) ** -0.5)  # as `rules.durations` has it: a Pareto tail
        return exp(mu + sigma * _NORMAL.inv_cdf(min(max(passed + share * (1 - passed), 1e-9), 1 - 1e-9)))


def _lengths(state: State, phase: int) -> Lengths:
    submission = state.submissions[state.submission_of(state.task_of[phase])]
    history = state.histories[submission.history]
    return history.gpu_phases if state.shape_of(phase).gpu_milli else history.phases


def _from_lengths(lengths: Lengths, share: float, elapsed_s: float) -> float:
    """The quantile `share` of those that are longer than that; half as long again where none is."""
    longer = [(step, n) for step, n in sorted(lengths.steps.items()) if n > 0 and amount_of(step) > 1000 * elapsed_s]
    left = share * sum(n for _, n in longer)
    for step, n in longer:
        left -= n
        if left <= 0:
            return amount_of(step) / 1000
    return 1.5 * elapsed_s or 1.0


def _coming(state: State, draw: random.Random) -> tuple[dict[int, Graph], list[tuple[float, int]]]:
    """Workloads that come, (seconds from now, number of the one that it is like): drawn with the gaps before them from
    the latest ones. And the graphs of those."""
    open_now = sum(workload.open_tasks > 0 for workload in state.workloads)
    count = min(max(open_now, LEAST_COMING), MOST_COMING)
    first = max(1, len(state.workloads) - 2 * count)
    gaps = [
        (state.workloads[n].submitted_at - state.workloads[n - 1].submitted_at, n)
        for n in range(first, len(state.workloads))
        if state.workloads[n].numbers
    ]
    if not gaps:
        return {}, []
    at, found = 0.0, []
    for _ in range(count):
        gap_s, like = draw.choice(gaps)
        at += gap_s
        found.append((at, like))
    return {like: _graph_of(state, like) for like in {like for _, like in found}}, found


def _graph_of(state: State, number: int) -> Graph:
    """A workload's graph as the engine knows it, with what it believes of its lengths."""
    graph, workload = Graph(), state.workloads[number]
    place = {task: index for index, task in enumerate(workload.numbers)}
    for task in workload.numbers:
        phases = [
            (state.kind[p], state.shape_of(p), None if p in state.unknown else state.estimate_s[p])
            for p in state.phases_of(task)
        ]
        parents = tuple([place[parent] for parent in state.parents[task]])
        graph.add_task(state.task_ids[task], parents, tuple(phases), state.task_names[task], state.options.get(task))
    for task, index in place.items():
        for offset, phase in enumerate(state.phases_of(task)):
            if phase in state.flavor_estimates:
                own = {name: p50 for name, (p50, _) in state.flavor_estimates[phase].items()}
                graph.phase_flavor_s[graph.phase_offsets[index] + offset] = own
    return graph
