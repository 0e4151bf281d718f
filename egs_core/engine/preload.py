"""Which processes to make warm now, and when to look again. Pure: reads the state, changes nothing.

A process is worth starting when nothing else will be warm at the moment its task can start:

    now                         s = predicted start of task B
     │  working process of A ────────┐ ends before s: B takes it over, nothing to do
     │                               ▼
     │        └── due = s - lead ──► start a process for B here, if none is left over by then
     │
     └ an idle warm process is given to the next candidate at once: that costs nothing

Candidates are the tasks that are ready but cold, in the order in which they would be granted, then those a few steps
ahead of what runs, by predicted start. A preload takes CPU that nobody wants (free, counted against other preloads)
unless its task is ready and waits for nothing else.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence, Set

import msgspec

from egs_core.engine.capacity import WHOLE_DEVICE
from egs_core.engine.lifecycle import COLD, ENDED, HOLDS_LEASE, PENDING, RUNNING
from egs_core.engine.placement import fits_task, ready_parked
from egs_core.engine.state import State

LOOKAHEAD_STEPS = 3
MAX_CANDIDATES = 64
LEAD_FACTOR, LEAD_S = 1.2, 0.1  # a warm-up takes a little longer than believed
MIN_PAUSE_S = 0.05  # the end of a late phase moves away as time passes: do not run after it in ever smaller steps


class Choice(msgspec.Struct, frozen=True):
    """Warm a process for `task` on node number `node`; reuse an idle warm one or start a new one."""

    task: int
    node: int
    reuse: bool


def remaining_s(state: State, phase: int, now: float) -> float:
    """Expected seconds until a running phase ends; one that outlived its median is not about to end.

    Up to the median: what is left of it. From there to the 95th percentile: half of the way left. Beyond: half of
    what it has taken already, the mean residual life of a heavy tail.
    """
    elapsed = now - state.started_at[phase]
    if elapsed < state.estimate_s[phase]:
        return state.estimate_s[phase] - elapsed
    if elapsed < state.estimate_p95_s[phase]:
        return (state.estimate_p95_s[phase] - elapsed) / 2
    return elapsed / 2


def task_end_s(state: State, task: int, now: float) -> float:
    """When a started task is expected to end: its current phase, then the later ones."""
    current = state.cursor[task]
    end = state.first_phase[task + 1]
    if state.status[current] in HOLDS_LEASE:
        runs = state.status[current] == RUNNING
        left = remaining_s(state, current, now) if runs else state.estimate_s[current]
        current += 1
    else:
        left = 0.0
    return now + left + sum(state.estimate_s[p] for p in range(current, end))


def upcoming(state: State, task_ends: dict[int, float], waiting: Iterable[int], now: float) -> list[tuple[float, int]]:
    """(predicted start, task) of cold tasks with a warm key, up to some steps ahead of started tasks (with their
    predicted ends) and ready ones."""
    ends = dict(task_ends)
    for task in waiting:
        ends[task] = now + _work_s(state, task)
    level, found = list(ends), []
    for _ in range(LOOKAHEAD_STEPS):
        following: list[int] = []
        for parent in level:
            for child in state.children[parent][:MAX_CANDIDATES]:
                start = None if child in ends else _start_after(state, child, ends)
                if start is None:
                    continue
                ends[child] = start + _work_s(state, child)
                following.append(child)
                options = state.options.get(child)
                if options is not None and options.warm_key and not options.gang and state.warmth[child] == COLD:
                    found.append((start, child))
        level = following
        if len(found) >= MAX_CANDIDATES:
            break
    found.sort()
    return found[:MAX_CANDIDATES]


def _work_s(state: State, task: int) -> float:
    return sum(state.estimate_s[p] for p in state.phases_of(task))


def _start_after(state: State, task: int, ends: dict[int, float]) -> float | None:
    """When all parents of a pending task are expected to have ended; None when one of them is out of sight."""
    if state.status[state.first_phase[task]] != PENDING:
        return None
    start = 0.0
    for parent in state.parents[task]:
        if parent in ends:
            start = max(start, ends[parent])
        elif state.status[state.first_phase[parent + 1] - 1] not in ENDED:
            return None
    return start


class _Room:
    """What the nodes can still take, counted down while choices are made.

    firm counts the processes that nobody gives up: those at work, and those kept for tasks that are ready.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.idle = [dict(node.idle_warm) for node in state.nodes]
        self.processes = [node.processes for node in state.nodes]
        self.warming = [node.warming for node in state.nodes]
        self._known: dict[tuple[int, ...], bool] = {}
        self.firm = [node.working + ready_parked(state, i) for i, node in enumerate(state.nodes)]

    def take_idle(self, task: int, key: str, *, is_ready: bool) -> int | None:
        for number, idle in enumerate(self.idle):
            if idle.get(key, 0) > 0 and self._fits(task, number):
                idle[key] -= 1
                self.firm[number] += is_ready
                return number
        return None

    def take_new(self, task: int, *, urgent: bool) -> int | None:
        """The node where a new process would find the most room. An idle process with other things loaded makes way for
        it; an urgent one may also displace what is kept for tasks that are not yet ready."""
        wanted_cpu = self.state.options_of(task).warm_cpu_milli
        best, most = None, (0, 0)
        for number, node in enumerate(self.state.nodes):
            in_use = self.firm[number] if urgent else self.processes[number] - sum(self.idle[number].values())
            if self.warming[number] >= node.preload_slots or in_use >= node.process_slots:
                continue
            free_cpu = node.free_cpu - self.warming[number] * wanted_cpu
            if (not urgent and free_cpu < wanted_cpu) or not self._fits(task, number):
                continue
            room = (sum(node.devices) - WHOLE_DEVICE * node.parked, free_cpu)
            if best is None or room > most:
                best, most = number, room
        if best is not None:
            if not self._displace_idle(best):
                self.processes[best] += 1
            self.warming[best] += 1
            self.firm[best] += urgent
        return best

    def _displace_idle(self, number: int) -> bool:
        """On a full node an idle process ends; nothing later may count on it."""
        idle = self.idle[number]
        spare = [key for key, count in idle.items() if count > 0]
        if self.processes[number] < self.state.nodes[number].process_slots or not spare:
            return False
        idle[min(spare)] -= 1
        return True

    def _fits(self, task: int, number: int) -> bool:
        """Tasks of one kind have the same shapes: asked once for each."""
        state = self.state
        shapes = (number, *state.shape[state.first_phase[task] : state.first_phase[task + 1]])
        known = self._known.get(shapes)
        if known is None:
            known = self._known[shapes] = fits_task(state, task, state.nodes[number])
        return known


def plan_preloads(
    state: State, now: float, started: Sequence[int], waiting: Sequence[int], blocked_on_warmth: Set[int]
) -> tuple[list[Choice], float | None]:
    """Choices to make now, and the time at which to look again (None: only after the next event).

    started: tasks whose process works; waiting: ready cold tasks with a warm key, in order of grant;
    blocked_on_warmth: those of them that wait for nothing but their process.
    """
    room, choices = _Room(state), []
    again: float | None = None
    task_ends = {task: task_end_s(state, task, now) for task in started}
    first_free = min(task_ends.values(), default=now)
    ends = _process_ends(state, task_ends)
    ready = [(now if task in blocked_on_warmth else first_free, task) for task in waiting]
    for start, task in ready + upcoming(state, task_ends, waiting, now):
        options = state.options_of(task)
        due = start - options.warmup_s * LEAD_FACTOR - LEAD_S
        left_over = ends.setdefault(options.warm_key, [])
        node = room.take_idle(task, options.warm_key, is_ready=task in blocked_on_warmth)
        if node is not None:
            choices.append(Choice(task, node, True))
        elif left_over and left_over[0] <= start + options.warmup_s / 2:
            start = max(start, heapq.heappop(left_over))
            if task in blocked_on_warmth:  # and if that process is late, it gets one of its own
                again = start if again is None else min(again, start)
        elif due > now:
            again = due if again is None else min(again, due)
        else:
            node = room.take_new(task, urgent=task in blocked_on_warmth)
            if node is None:
                continue
            choices.append(Choice(task, node, False))
            start = max(start, now + options.warmup_s)
        heapq.heappush(left_over, start + _work_s(state, task))
    return choices, None if again is None else max(again, now + MIN_PAUSE_S)


def _process_ends(state: State, task_ends: dict[int, float]) -> dict[str, list[float]]:
    """By warm key the times (a heap) at which processes at work are expected to be left over."""
    ends: dict[str, list[float]] = {}
    for task, end in task_ends.items():
        key = state.warm_key_of(task)
        if key:
            heapq.heappush(ends.setdefault(key, []), end)
    return ends
