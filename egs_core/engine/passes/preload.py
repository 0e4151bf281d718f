"""Which processes to make warm now, and when to look again. Pure: reads the state, changes nothing.

A process for task B should be warm at a moment r. B needs it at s, which is uncertain: when its last predecessor ends
and, if B begins on a GPU, when a device is free for it. Too early costs what a waiting process costs (memory, a place),
too late what a waiting GPU task costs, both by the second; the sum expected is least where

    P(s < r) = EARLY_COST / (EARLY_COST + LATE_COST)          the newsvendor's rule

    now                                  ┌ quantile   ┌ median of s
     │        ├── warm-up ── + margin ──┤r            │
     │        └ due: give B an idle process with its key, else start one here, unless one is left over in time
     │  working process of A ─────────────────┐ ends before s: B takes it over, nothing to load

Candidates are the tasks that are ready but cold, in the order in which they would be granted, then those a few steps
ahead of what runs, by predicted start. A preload takes CPU that nobody wants (free, counted against other preloads)
unless its task is ready and waits for nothing else.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence, Set

import msgspec

from egs_core.engine.passes.device_forecast import DeviceForecast, gpu_part, is_held_up
from egs_core.engine.passes.outlook import FAR, LOOKAHEAD_STEPS, Outlook
from egs_core.engine.passes.process_room import ProcessRoom
from egs_core.engine.state.lifecycle import HOLDS_LEASE, PENDING, RUNNING
from egs_core.engine.state.state import State
from egs_core.graph.columns import TaskOptions
from egs_core.time_estimates import (
    TimeEstimate,
    after,
    any_moment,
    early_quantile,
    latest,
    length_of,
    remaining,
)

MAX_CANDIDATES = 64
LEAD_FACTOR, LEAD_S = 1.2, 0.1  # a warm-up takes a little longer than believed
EARLY_COST, LATE_COST = 1.0, 19.0  # a second of a waiting process, and of a waiting GPU task
EARLY = early_quantile(EARLY_COST / (EARLY_COST + LATE_COST))
MIN_PAUSE_S = 0.05  # the end of a late phase moves away as time passes: do not run after it in ever smaller steps
NEVER_S = float("inf")


class Choice(msgspec.Struct, frozen=True):
    """Warm a process for `task` on node number `node`; reuse an idle warm one or start a new one."""

    task: int
    node: int
    reuse: bool


def task_end(state: State, task: int, now: float) -> TimeEstimate:
    """When a started task is expected to end: its current phase, then the later ones."""
    current, end = state.cursor[task], state.first_phase[task + 1]
    left: TimeEstimate = (now, 0.0)
    if state.status[current] == RUNNING:
        p50_s, p95_s = state.estimate_s[current], state.estimate_p95_s[current]
        rest = remaining(p50_s, p95_s, now - state.started_at[current])
        left = after(left, any_moment(rest[0]) if current in state.unknown else rest)
        current += 1
    elif state.status[current] in HOLDS_LEASE:
        left = after(left, _phase_length(state, current))
        current += 1
    return after(left, _length(state, range(current, end))) if current < end else left


def _length(state: State, phases: Iterable[int]) -> TimeEstimate:
    total: TimeEstimate = (0.0, 0.0)
    for p in phases:
        total = after(total, _phase_length(state, p))
    return total


def _phase_length(state: State, phase: int) -> TimeEstimate:
    """Of a phase of unknown length the estimate says nothing: it may end at once."""
    if phase in state.unknown:
        return any_moment(state.estimate_s[phase])
    return length_of(state.estimate_s[phase], state.estimate_p95_s[phase])


def upcoming(
    state: State, ends: dict[int, TimeEstimate], outlook: Outlook, until: float
) -> tuple[list[tuple[TimeEstimate, int]], float]:
    """(predicted start, task) of pending tasks with a warm key, up to some steps behind the tasks in `ends`, by start;
    and the earliest end after `until`, behind which it did not look."""
    ends, beyond = dict(ends), NEVER_S
    unseen: dict[int, int] = {}  # parents that must still come into sight
    starts: dict[int, TimeEstimate] = {}
    level, found = list(ends), []
    for step in range(LOOKAHEAD_STEPS):
        following: list[int] = []
        for parent in level:
            end = ends[parent]
            if outlook.near_children[parent] + step > LOOKAHEAD_STEPS:
                continue
            if end[0] - EARLY * end[1] > until:
                beyond = min(beyond, end[0] - EARLY * end[1])
                continue
            for child in state.children[parent]:
                missing = unseen[child] = unseen.get(child, state.waiting[child]) - 1
                starts[child] = start = latest(starts[child], end) if child in starts else end
                if missing or state.status[state.first_phase[child]] != PENDING:
                    continue
                if outlook.near_children[child] + step < LOOKAHEAD_STEPS:
                    ends[child] = after(start, _length(state, state.phases_of(child)))
                    following.append(child)
                options = state.options.get(child)
                may_load = child not in state.start_cold  # a driver that cannot make one would be asked for ever
                if options is not None and options.warm_key and not options.gang and may_load:
                    found.append((start, child))
        level = following
        if not level or len(found) >= MAX_CANDIDATES:
            break
    found.sort()
    return found[:MAX_CANDIDATES], beyond


def _has_gpu(state: State, task: int) -> bool:
    return gpu_part(state, task, state.cursor[task])[2] > 0


class _Plan:
    """One look. again: when to look again; left_over: by key, when processes are expected to be free (heaps).
    full: nodes where a candidate found no room, so nothing is started for those behind it that are not even ready."""

    def __init__(self, state: State, now: float, ends: dict[int, TimeEstimate]) -> None:
        self.state = state
        self.now = now
        self.room = ProcessRoom(state)
        self.forecast = DeviceForecast(state, now, ends)
        self.again = NEVER_S
        self.full: set[int] = set()
        self.choices: list[Choice] = []
        self.left_over: dict[str, list[float]] = {}
        for task, end in ends.items():
            key = state.warm_key_of(task)
            if key:
                self.left_over.setdefault(key, []).append(end[0])
        for heap in self.left_over.values():
            heapq.heapify(heap)

    def consider(self, task: int, start: TimeEstimate, *, is_blocked: bool) -> None:
        """Decide for one candidate. is_blocked: it is ready and waits for nothing but its process."""
        state, now, options = self.state, self.now, self.state.options_of(task)
        lead_s = options.warmup_s * LEAD_FACTOR + LEAD_S
        soonest = start[0] - EARLY * start[1] - lead_s
        if soonest > now:  # far off even if devices were free
            self.again = min(self.again, soonest)
            return
        nodes = self.room.fitting(task)
        if not nodes:
            return
        before, _, devices = gpu_part(state, task, state.first_phase[task])
        may_begin = is_blocked and self._may_begin(task, options.warm_key, nodes)
        if devices and not may_begin:  # loading while the devices are busy with others delays nothing
            free_at, early_s = self.forecast.next_free(nodes, devices)
            start = latest(start, (free_at - before, early_s))
        due = start[0] - EARLY * start[1] - lead_s
        if due > now:
            self.again = min(self.again, due)
            return
        self._serve(task, options, start[0], nodes, is_blocked=is_blocked)

    def _may_begin(self, task: int, key: str, nodes: list[int]) -> bool:
        """Whether one that begins on CPUs has something to do at once: an idle process is there, or its CPUs are."""
        wanted = self.state.shape_of(self.state.first_phase[task])
        if wanted.gpu_milli:
            return False
        has_cpus = any(self.room.free_cpu(n) >= wanted.cpu_milli for n in nodes)
        return has_cpus or bool(self.room.with_idle(task, key))

    def _serve(self, task: int, options: TaskOptions, at: float, nodes: list[int], *, is_blocked: bool) -> None:
        """A process for a candidate that is due: an idle one, one that is left over in time, else a new one."""
        state, left_over = self.state, self.left_over.setdefault(options.warm_key, [])
        devices = gpu_part(state, task, state.first_phase[task])[2]
        if idle := self.room.with_idle(task, options.warm_key):
            node = self._best(idle, devices, at)
            self.room.take_idle(node, options.warm_key, is_ready=is_blocked)
            self.choices.append(Choice(task, node, True))
        elif left_over and left_over[0] <= at + options.warmup_s / 2:
            at = max(at, heapq.heappop(left_over))
            node = self._best(nodes, devices, at)
            if is_blocked:  # and if that process is late, it gets one of its own
                self.again = min(self.again, at)
        elif roomy := self.room.with_room(task, options, urgent=is_blocked):
            node = self._best(roomy, devices, at)
            self.room.take_new(node, options, urgent=is_blocked)
            self.choices.append(Choice(task, node, False))
            at = max(at, self.now + options.warmup_s)
        else:
            self.full.update(nodes)
            return
        self.expect(task, at, node)

    def expect(self, task: int, at: float, node: int) -> None:
        """A task will start there: it will want a device, and leave its process over."""
        state = self.state
        before, seconds, devices = gpu_part(state, task, state.first_phase[task])
        if devices:
            self.forecast.commit(node, devices, at + before, seconds)
        end = at + sum([state.estimate_s[p] for p in state.phases_of(task)])
        heapq.heappush(self.left_over.setdefault(state.warm_key_of(task), []), end)

    def _best(self, nodes: Sequence[int], devices: int, at: float) -> int:
        """Where a device is free first; then with the least before it, then the most free CPU."""
        forecast, room = self.forecast, self.room
        if len(nodes) == 1:
            return nodes[0]
        return min(nodes, key=lambda n: (forecast.free_at(n, devices, at), forecast.load_s(n), -room.free_cpu(n), n))


def plan_preloads(
    state: State,
    now: float,
    started: Sequence[int],
    waiting: Sequence[int],
    blocked_on_warmth: Set[int],
    outlook: Outlook,
) -> tuple[list[Choice], float | None]:
    """Choices to make now, and the time at which to look again (None: only after the next event).

    started: tasks whose process works; waiting: ready cold tasks with a warm key, in order of grant;
    blocked_on_warmth: those of them that wait for nothing but their process.
    """
    ends = {
        task: task_end(state, task, now)
        for task in started
        if (outlook.near[task] < FAR or _has_gpu(state, task)) and not is_held_up(state, task)
    }
    plan = _Plan(state, now, ends)
    first_free = min([end for end, _ in ends.values()], default=now)
    for task in waiting:
        is_blocked = task in blocked_on_warmth
        plan.consider(task, (now if is_blocked else first_free, 0.0), is_blocked=is_blocked)
        ends[task] = after((now, 0.0), _length(state, state.phases_of(task)))
    if len(plan.full) < len(state.nodes):
        lead_s = outlook.longest_warmup_s * LEAD_FACTOR + LEAD_S
        found, beyond = upcoming(state, ends, outlook, now + lead_s)
        plan.again = min(plan.again, beyond - lead_s)
        for start, task in found:
            if task in state.parked:
                plan.expect(task, start[0], state.home[task])
            elif not plan.full.issuperset(plan.room.fitting(task)):
                plan.consider(task, start, is_blocked=False)
    return plan.choices, None if plan.again == NEVER_S else max(plan.again, now + MIN_PAUSE_S)
