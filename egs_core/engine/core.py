"""The engine: `handle(event, now)` returns decisions, and `explain` says why a task waits.

One pass a call: take the event in, let due timers act, grant what may start, then plan preloads. All changes go through
`self._do`, the state's transitions, which a journal records by wrapping them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from egs_core.engine import messages as m
from egs_core.engine.explain import explain
from egs_core.engine.invariants import validate_state
from egs_core.engine.lifecycle import (
    ABORTED,
    COLD,
    FAILED,
    GRANTED,
    HELD,
    HOLDS_LEASE,
    OUTCOMES,
    PENDING,
    PREEMPTED,
    READY,
    RUNNING,
    SUCCEEDED,
    WARM,
)
from egs_core.engine.placement import fits_ever, lacking, select_node
from egs_core.engine.policy import OVERDUE_TERM, Key, make_policy
from egs_core.engine.preload import plan_preloads
from egs_core.engine.recording import Recorder, Transition
from egs_core.engine.state import STATE_VERSION, State
from egs_core.graph.columns import GPU

RETRY_FIRST_S, RETRY_MAX_S = 0.5, 30.0


class EngineConfig(msgspec.Struct, frozen=True):
    """policy: a name of `POLICIES`; preload: whether to plan preloads; default_max_wait_s: `max_wait` of tasks that
    state none (None: they never go forward by age); seed: of the random policy; record: keep transitions."""

    policy: str = "egs"
    preload: bool = True
    default_max_wait_s: float | None = None
    seed: int = 0
    record: bool = False


QueueId = tuple[int, int]  # (shape, node the task is bound to or -1)
Entry = tuple[Key, int]


class Engine:
    """See the module. Not thread-safe: one driver owns it."""

    def __init__(self, config: EngineConfig | None = None, state: State | None = None) -> None:
        self.config = config or EngineConfig()
        self.policy = make_policy(self.config.policy, self.config.seed)
        self.state = state or State()
        self.recorder = Recorder(self.state) if self.config.record else None
        self._do: Any = self.recorder or self.state
        self._terms = self.policy.terms
        self._names = self.policy.term_names
        self._queues: dict[QueueId, list[Entry]] = {}
        self._keys: dict[int, Key] = {}  # phase -> its valid entry's key
        self._full: set[QueueId] = set()  # queues whose shape fits nowhere until something is freed
        self._deadlines: list[tuple[float, int, int]] = []  # (time, phase, order) of queued phases that age
        self._cold_wait: set[int] = set()  # ready tasks that start once their process is warm
        self._cold_ready: set[int] = set()  # ready tasks with a warm key and no process
        self._started: set[int] = set()
        self._plan_at: float | None = None
        self._plan_now = False
        self._warmable = any(o.warm_key for o in self.state.options.values())
        self._out: list[m.Decision] = []
        self._handlers: dict[type[m.Event], Callable[[Any, float], None]] = {
            m.PhaseEnded: self._on_ended,
            m.PhaseStarted: self._on_started,
            m.DecisionApplied: self._on_applied,
            m.DecisionRejected: self._on_rejected,
            m.DecisionLost: self._on_lost,
            m.NodeAdded: self._on_node,
            m.NodeLost: self._on_node_lost,
            m.WorkloadSubmitted: self._on_workload,
            m.TasksAdded: self._on_tasks,
            m.BranchSkipped: self._on_skipped,
            m.Estimates: self._on_estimates,
            m.TaskFinished: self._on_finished,
            m.PreloadReady: self._on_preload_ready,
            m.PreloadFailed: self._on_preload_failed,
            m.AbortRequested: self._on_abort,
            m.Tick: self._on_tick,
        }
        self._rebuild()

    # --- the contract ---

    def handle(self, event: m.Event, now: float) -> list[m.Decision]:
        """Take one event in at `now` (clamped: it never goes back) and return what to do. Unknown or outdated task
        and attempt numbers are ignored, so events may be repeated or late."""
        state = self.state
        if now < state.now:
            now = state.now
        elif now > state.now:
            self._do.clock(now)
        self._out = []
        self._handlers[type(event)](event, now)
        if self._deadlines or state.retry_at:
            self._run_timers(now)
        self._dispatch(now)
        if self._warmable and self.config.preload:
            while self._plan(now):
                self._dispatch(now)
        return self._out

    def next_wakeup(self) -> float | None:
        """When to send a `Tick` if nothing happens before; None: never."""
        times = [*self.state.retry_at.values()]
        if self._deadlines:
            times.append(self._deadlines[0][0])
        if self._plan_at is not None:
            times.append(self._plan_at)
        return min(times, default=None)

    def explain(self, task: int) -> m.Reason:
        """Why the task is where it is, with the numbers that decide it."""
        return explain(self.state, task, self._ahead_of(task))

    def snapshot(self) -> bytes:
        """The whole state, versioned."""
        return msgspec.json.encode(self.state)

    @classmethod
    def restore(cls, data: bytes, config: EngineConfig | None = None) -> Engine:
        """An engine in the snapshot's state. Raises ValueError for another format version or damaged data."""
        try:
            state = msgspec.json.decode(data, type=State)
        except msgspec.DecodeError as error:
            raise ValueError(f"snapshot: {error}") from error
        if state.version != STATE_VERSION:
            raise ValueError(f"snapshot: format version {state.version}, this engine reads {STATE_VERSION}")
        return cls(config, state)

    def take_transitions(self) -> list[Transition]:
        """Transitions since the last call; needs `record`."""
        return self.recorder.take() if self.recorder else []

    def validate_state(self) -> None:
        """Raise AssertionError when an invariant does not hold."""
        validate_state(self.state)
        queued = set(self._keys) | {self.state.cursor[t] for t in self._cold_wait}
        ready = {p for p, status in enumerate(self.state.status) if status == READY}
        assert queued == ready, f"queued {sorted(queued - ready)} but not ready, ready {sorted(ready - queued)} unqueued"

    def task_number(self, workload: str, index: int) -> int:
        """The engine's number of a workload's task, by its index in the order in which the graph listed it."""
        return self.state.workloads[self.state.workload_number(workload)].numbers[index]

    # --- events ---

    def _on_ended(self, event: m.PhaseEnded, now: float) -> None:
        state, phase = self.state, event.phase
        if not self._is_current(phase, event.attempt) or state.status[phase] not in HOLDS_LEASE:
            return
        self._full.clear()
        task = state.task_of[phase]
        status = OUTCOMES[event.outcome]
        freed = self._do.end(phase, status)
        self._plan_now = True
        if status != SUCCEEDED:
            self._after_failure(task, status, now)
        elif task in state.stopping:
            self._finish_abort(task)
        else:
            if phase + 1 == state.first_phase[task + 1]:
                self._started.discard(task)
            for p in freed:
                self._make_ready(p, now)

    def _on_finished(self, event: m.TaskFinished, now: float) -> None:
        task = event.task
        if self._is_open(task) and task in self._started and self.state.attempt[task] == event.attempt:
            self._full.clear()
            self._unqueue(task)
            self._started.discard(task)
            self._plan_now = True
            for phase in self._do.finish(task):
                self._make_ready(phase, now)

    def _after_failure(self, task: int, status: int, now: float) -> None:
        """Preempted or lost: again. Failed: again while it has retries. Else it is over, and what waits for it too."""
        state = self.state
        retry = status == PREEMPTED or (status == FAILED and state.attempt[task] <= state.options_of(task).retries)
        self._started.discard(task)
        if retry and task not in state.stopping:
            self._make_ready(self._do.requeue(task), now)
        else:
            self._do.fail(task)
            self._abort_descendants(task)

    def _on_started(self, event: m.PhaseStarted, now: float) -> None:
        phase = event.phase
        if self._is_current(phase, event.attempt) and self.state.status[phase] == GRANTED:
            self._do.start(phase, now)
            self._plan_now = True

    def _on_applied(self, event: m.DecisionApplied, now: float) -> None:
        self._do.applied(event.decision)

    def _on_rejected(self, event: m.DecisionRejected, now: float) -> None:
        subject = self.state.decisions.get(event.decision)
        if subject is None:
            return
        if subject < 0:
            self._preload_gone(-1 - subject, now)
            return
        self._full.clear()
        wait = min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(self.state.rejections.get(subject, 0), 10))
        self._do.hold(subject, now + wait)

    def _on_lost(self, event: m.DecisionLost, now: float) -> None:
        subject = self.state.decisions.get(event.decision)
        if subject is None:
            return
        if subject < 0:
            self._preload_gone(-1 - subject, now)
            return
        self._full.clear()
        self._started.discard(self.state.task_of[subject])
        self._make_ready(self._do.requeue(self.state.task_of[subject]), now)

    def _on_node(self, event: m.NodeAdded, now: float) -> None:
        self._do.absorb_node(event)
        self._full.clear()
        self._plan_now = True

    def _on_node_lost(self, event: m.NodeLost, now: float) -> None:
        for number, node in enumerate(self.state.nodes):
            if node.name == event.node and node.alive:
                for task in self._do.lose_node(number):
                    self._started.discard(task)
                    if task in self.state.stopping:
                        self._do.fail(task)
                        self._abort_descendants(task)
                        continue
                    self._unqueue(task)
                    self._make_ready(self._do.requeue(task), now)
                self._requeue_cold_waiters(now)

    def _on_workload(self, event: m.WorkloadSubmitted, now: float) -> None:
        if all(w.id != event.workload for w in self.state.workloads):
            self._do.absorb_workload(event, now)

    def _on_tasks(self, event: m.TasksAdded, now: float) -> None:
        added = self._do.absorb_tasks(event)
        state = self.state
        self._warmable = self._warmable or any(o.warm_key for o in state.options.values())
        dead = {t for t in {p for task in added for p in state.parents[task]} if self._is_dead(t)}
        for task in dead:
            self._abort_descendants(task)
        for task in added:
            if not state.waiting[task] and state.status[state.cursor[task]] == PENDING:
                self._make_ready(state.cursor[task], now)
        self._rekey(p for p in list(self._keys) if state.children[state.task_of[p]])
        self._plan_now = True

    def _on_skipped(self, event: m.BranchSkipped, now: float) -> None:
        if self._is_open(event.task) and event.task not in self._started:
            self._unqueue(event.task)
            for phase in self._do.skip(event.task):
                self._make_ready(phase, now)

    def _on_estimates(self, event: m.Estimates, now: float) -> None:
        changed = self._do.absorb_estimates(event)
        cursor = self.state.cursor
        self._rekey(cursor[t] for t in changed if cursor[t] in self._keys)
        self._plan_now = True

    def _on_preload_ready(self, event: m.PreloadReady, now: float) -> None:
        task = event.task
        self._do.warmed(task)
        self._plan_now = True
        if task in self._cold_wait and self.state.warmth[task] == WARM:
            self._cold_wait.discard(task)
            self._enqueue(self.state.cursor[task], now)

    def _on_preload_failed(self, event: m.PreloadFailed, now: float) -> None:
        self._preload_gone(event.task, now)

    def _preload_gone(self, task: int, now: float) -> None:
        if task not in self.state.parked:
            return
        self._do.preload_failed(task)
        self._plan_now = True
        if task in self._cold_wait:
            self._cold_wait.discard(task)
            self._enqueue(self.state.cursor[task], now)

    def _on_abort(self, event: m.AbortRequested, now: float) -> None:
        for task in self._targets(event):
            if not self._is_open(task):
                continue
            phase = self.state.cursor[task]
            if task not in self._started:
                self._drop_task(task)
                continue
            reason = f"aborted by {event.actor or 'operator'}" + (f": {event.reason}" if event.reason else "")
            self._decide(m.Stop(self.state.next_decision, phase, task, self.state.attempt[task], reason))
            self._do.stop(task)
            if self.state.status[phase] not in HOLDS_LEASE:
                self._finish_abort(task)

    def _targets(self, event: m.AbortRequested) -> list[int]:
        """Tasks of a workload, a stage of it or one task, highest number first so that children go before parents."""
        state = self.state
        if event.scope == "task":
            number = int(event.target) if event.target.isdecimal() else -1
            tasks = [number] if 0 <= number < len(state.task_ids) else []
        else:
            workload, _, stage = event.target.partition("/") if event.scope == "stage" else (event.target, "", "")
            numbers = next((w.numbers for w in state.workloads if w.id == workload), [])
            tasks = [t for t in numbers if event.scope == "workload" or state.options_of(t).stage == stage]
        return sorted(tasks, reverse=True)

    def _on_tick(self, event: m.Tick, now: float) -> None:
        if self._plan_at is not None and self._plan_at <= now:
            self._plan_now = True

    # --- how tasks end early ---

    def _finish_abort(self, task: int) -> None:
        """A started task that holds nothing any more and has phases left, which will not run."""
        self._started.discard(task)
        self._unqueue(task)
        self._do.fail(task)
        self._abort_descendants(task)

    def _drop_task(self, task: int) -> None:
        self._unqueue(task)
        if task in self.state.parked:
            self._decide(m.DropPreload(self.state.next_decision, task))
        self._do.abort(task)
        self._abort_descendants(task)

    def _abort_descendants(self, task: int) -> None:
        """Nothing that waits for this task will ever run."""
        pending = list(self.state.children[task])
        while pending:
            child = pending.pop()
            if self.state.status[self.state.cursor[child]] == PENDING and child not in self._started:
                if child in self.state.parked:
                    self._decide(m.DropPreload(self.state.next_decision, child))
                self._do.abort(child)
                pending.extend(self.state.children[child])

    # --- questions ---

    def _is_current(self, phase: int, attempt: int) -> bool:
        state = self.state
        return 0 <= phase < len(state.status) and state.attempt[state.task_of[phase]] == attempt

    def _is_open(self, task: int) -> bool:
        """Not ended in any way, and no stop under way."""
        state = self.state
        if not 0 <= task < len(state.task_ids) or task in state.stopping:
            return False
        return state.status[state.cursor[task]] in (PENDING, READY, HELD, GRANTED, RUNNING)

    def _is_dead(self, task: int) -> bool:
        """Ended in a way that its children can never run."""
        return any(self.state.status[p] in (FAILED, ABORTED) for p in self.state.phases_of(task))

    # --- the queue ---

    def _make_ready(self, phase: int, now: float) -> None:
        self._do.ready(phase, now)
        self._enqueue(phase, now)

    def _enqueue(self, phase: int, now: float) -> None:
        """Queue a ready phase, unless it is a GPU phase that first gets a warm process: no GPU is held for loading."""
        state = self.state
        task = state.task_of[phase]
        options = state.options.get(task)
        if options is not None and options.warm_key and state.first_phase[task] == phase:
            if state.warmth[task] == COLD:
                self._cold_ready.add(task)
                self._plan_now = True
            if self._must_warm_first(task, phase):
                self._cold_wait.add(task)
                return
        if self.policy.ages:
            wait = options.max_wait_s if options is not None and options.max_wait_s is not None else None
            wait = self.config.default_max_wait_s if wait is None else wait
            if wait is not None:
                heapq.heappush(self._deadlines, (state.ready_at[phase] + wait, phase, state.order[phase]))
        self._push(phase, tuple([term(state, phase) for term in self._terms]))

    def _must_warm_first(self, task: int, phase: int) -> bool:
        state = self.state
        return (
            self.config.preload
            and state.kind[phase] == GPU
            and state.warmth[task] != WARM
            and task not in state.start_cold
            and any(node.alive and node.preload_slots and node.process_slots for node in state.nodes)
        )

    def _requeue_cold_waiters(self, now: float) -> None:
        for task in sorted(self._cold_wait):
            self._cold_wait.discard(task)
            self._enqueue(self.state.cursor[task], now)

    def _push(self, phase: int, key: Key) -> None:
        state = self.state
        self._keys[phase] = key
        task = state.task_of[phase]
        bound = state.home.get(task, -1) if state.home and task not in state.parked else -1
        queue = self._queues.get((state.shape[phase], bound))
        if queue is None:
            queue = self._queues[(state.shape[phase], bound)] = []
        heapq.heappush(queue, (key, phase))

    def _rekey(self, phases: Iterable[int]) -> None:
        """Ranks have moved: give queued phases their new place; the old entry is dropped when it comes up."""
        for phase in list(phases):
            old = self._keys[phase]
            key = tuple([term(self.state, phase) for term in self._terms])
            if self.policy.ages and not old[OVERDUE_TERM]:
                key = _overdue_key(key, self.state.order[phase])
            if key != old:
                self._push(phase, key)

    def _unqueue(self, task: int) -> None:
        self._keys.pop(self.state.cursor[task], None)
        self._cold_wait.discard(task)
        self._cold_ready.discard(task)

    def _run_timers(self, now: float) -> None:
        """Overdue phases go to the front of their priority, oldest first; held ones are ready again."""
        state = self.state
        for phase in [p for p, at in state.retry_at.items() if at <= now]:
            self._do.unhold(phase)
            self._enqueue(phase, now)
        while self._deadlines and self._deadlines[0][0] <= now:
            _, phase, order = heapq.heappop(self._deadlines)
            key = self._keys.get(phase)
            if key is not None and state.order[phase] == order and key[OVERDUE_TERM]:
                self._push(phase, _overdue_key(key, order))

    # --- granting ---

    def _dispatch(self, now: float) -> None:
        """Grant in order until nothing fits. A shape that fits nowhere is passed over (backfill), unless the phase in
        front of it is overdue: then nobody may take what it lacks."""
        reserved: set[str] = set()
        passed: set[QueueId] = set()
        while True:
            best, runner_up, queue_id = self._front(passed)
            if best is None or queue_id is None:
                return
            key, phase = best
            choice = None if reserved and self._uses(phase, reserved) else select_node(self.state, phase)
            if choice is None:
                passed.add(queue_id)
                if self.policy.ages and not key[OVERDUE_TERM]:
                    reserved |= self._lacking_everywhere(phase)
                elif not reserved and not self._needs_process(phase):
                    self._full.add(queue_id)
                continue
            heapq.heappop(self._queues[queue_id])
            del self._keys[phase]
            self._grant(phase, choice, self._reason(key, runner_up))

    def _front(self, passed: set[QueueId]) -> tuple[Entry | None, Entry | None, QueueId | None]:
        """The first candidate over all queues that may have room, the one after it, and its queue."""
        best: Entry | None = None
        runner_up: Entry | None = None
        best_id: QueueId | None = None
        keys, full = self._keys, self._full
        for queue_id in list(self._queues) if len(self._queues) > 1 else self._queues:
            if queue_id in full or queue_id in passed:
                continue
            queue = self._queues[queue_id]
            while queue and keys.get(queue[0][1]) is not queue[0][0]:
                heapq.heappop(queue)
            if not queue:
                continue
            entry = queue[0]
            if best is None or entry < best:
                best, runner_up, best_id = entry, best, queue_id
            elif runner_up is None or entry < runner_up:
                runner_up = entry
        if best_id is not None:
            for child in self._queues[best_id][1:3]:
                if keys.get(child[1]) is child[0] and (runner_up is None or child < runner_up):
                    runner_up = child
        return best, runner_up, best_id

    def _reason(self, key: Key, runner_up: Entry | None) -> str:
        """The first term in which the next candidate is worse."""
        if runner_up is None:
            return "only_candidate"
        for i, other in enumerate(runner_up[0]):
            if key[i] != other:
                return self._names[i]
        return "ready_order"

    def _needs_process(self, phase: int) -> bool:
        options = self.state.options.get(self.state.task_of[phase])
        return options is not None and bool(options.warm_key)

    def _uses(self, phase: int, kinds: set[str]) -> bool:
        shape = self.state.shapes[self.state.shape[phase]]
        wants = {"cpus": shape.cpu_milli, "gpus": shape.gpu_milli, "memory": shape.memory_bytes}
        return any(wants.get(kind) for kind in kinds)

    def _lacking_everywhere(self, phase: int) -> set[str]:
        """What an overdue phase lacks on the nodes that could ever run it."""
        shape = self.state.shapes[self.state.shape[phase]]
        return {lacking(node, shape) for node in self.state.nodes if fits_ever(node, shape)} - {""}

    def _grant(self, phase: int, choice: tuple[int, tuple[int, ...]], reason: str) -> None:
        state = self.state
        node, devices = choice
        task = state.task_of[phase]
        warm = None
        if state.first_phase[task] == phase:
            self._started.add(task)
            self._cold_ready.discard(task)
            if self._needs_process(phase):
                warm = self._secure_process(task, node)
        decision = state.next_decision
        self._do.grant(phase, decision, node, devices, bool(warm))
        self._plan_now = True
        self._out.append(
            m.Grant(decision, phase, task, state.attempt[task], state.nodes[node].name, devices, reason, warm)
        )

    def _secure_process(self, task: int, node: int) -> bool:
        """Make sure the node has a process for a task that starts; returns whether it is warm."""
        state = self.state
        if task in state.parked and state.home[task] != node:
            self._give_up(task)
        if task in state.parked:
            return state.warmth[task] == WARM
        home, key = state.nodes[node], state.options_of(task).warm_key
        if home.idle_warm.get(key):
            return True
        if home.processes >= home.process_slots:
            self._free_process(node, key)
        return bool(home.idle_warm.get(key))

    def _free_process(self, node: int, key: str) -> None:
        """Give up the process kept for the task that is last in order of rank, one with the same key if possible;
        without any, an idle one with other things loaded."""
        state = self.state
        kept = [t for t in state.parked if state.home[t] == node and state.status[state.cursor[t]] == PENDING]
        kept = kept or [t for t in state.parked if state.home[t] == node]
        if kept:
            same = [t for t in kept if state.options_of(t).warm_key == key and state.warmth[t] == WARM]
            self._give_up(min(same or kept, key=lambda t: (state.rank_s[state.cursor[t]], t)))
            return
        for other, count in state.nodes[node].idle_warm.items():
            if count:
                self._do.retire(node, other)
                return

    def _give_up(self, task: int) -> None:
        """Drop the process kept for a task; if it is warm it stays idle for another."""
        self._decide(m.DropPreload(self.state.next_decision, task))
        self._do.unpark(task, True)
        if self.state.status[self.state.cursor[task]] == READY:
            self._cold_ready.add(task)
            key = self._keys.pop(self.state.cursor[task], None)
            if key is not None and self._must_warm_first(task, self.state.cursor[task]):
                self._cold_wait.add(task)
            elif key is not None:
                self._push(self.state.cursor[task], key)

    def _decide(self, decision: m.Decision) -> None:
        """Give out a decision that is not also a transition."""
        self._do.count_decision()
        self._out.append(decision)

    # --- preloads ---

    def _plan(self, now: float) -> bool:
        """Start what is worth warming now; True when that let a phase into the queue."""
        if not self._plan_now:
            return False
        self._plan_now = False
        state = self.state
        waiting = sorted(self._cold_ready, key=lambda t: self._keys.get(state.cursor[t], self._key_of(t)))
        choices, self._plan_at = plan_preloads(state, now, self._started, waiting, self._cold_wait)
        queued = False
        for choice in choices:
            home, key = state.nodes[choice.node], state.options_of(choice.task).warm_key
            if not choice.reuse and home.processes >= home.process_slots:
                self._free_process(choice.node, key)
            reuse = bool(home.idle_warm.get(key))
            decision = state.next_decision
            self._do.park(choice.task, choice.node, decision, reuse)
            self._cold_ready.discard(choice.task)
            self._out.append(m.Preload(decision, choice.task, home.name, reuse))
            if reuse and choice.task in self._cold_wait:
                self._cold_wait.discard(choice.task)
                self._enqueue(state.cursor[choice.task], now)
                queued = True
        return queued

    def _key_of(self, task: int) -> Key:
        return tuple([term(self.state, self.state.cursor[task]) for term in self._terms])

    # --- set-up ---

    def _rebuild(self) -> None:
        """Queues and sets follow from the state; needed after a restore."""
        state = self.state
        for task in range(len(state.task_ids)):
            phase = state.cursor[task]
            status = state.status[phase]
            if status in HOLDS_LEASE or phase != state.first_phase[task] and status in (READY, HELD, PENDING):
                self._started.add(task)
            if status == READY:
                self._enqueue(phase, state.now)
        self._plan_now = True

    def _ahead_of(self, task: int) -> Sequence[int]:
        """Phases queued before this task's current one."""
        key = self._keys.get(self.state.cursor[task])
        if key is None:
            return ()
        return sorted((p for p, other in self._keys.items() if other < key), key=self._keys.__getitem__)


def _overdue_key(key: Key, order: int) -> Key:
    """In front of everything of its priority that is not overdue; among overdue ones the oldest first."""
    return (*key[:OVERDUE_TERM], 0, order, *key[OVERDUE_TERM + 2 :])
