"""Warm processes: which task waits for one, which is given up for whom, and the Preload and DropPreload decisions.

A task with a warm key whose first phase is on a GPU does not enter the queue before its process is warm: no GPU is held
for loading. It waits in `cold_wait`. Where processes load apart from their tasks' CPUs (`NodeAdded.loads_apart`) one
that comes to its GPU from CPUs waits as well, but when it is alone:

    with its CPU    [ load      decode ][ fit ]....[ write ]     what has been fitted waits for a CPU that loads
                    ............[ load      decode ]
    apart           [ decode ][ fit ][ write ]                   so many load at once as the node has slots for it, and
                     load...[ decode ]                           what is left over is taken over

Every ready task without a process is in `cold`, in order, for the planner.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice

from egs_core.engine import messages as m
from egs_core.engine.order.policy import Key
from egs_core.engine.order.queue import ReadyQueue
from egs_core.engine.passes.issuer import Issuer
from egs_core.engine.passes.outlook import Outlook
from egs_core.engine.passes.preload import MAX_CANDIDATES, Choice, plan_preloads
from egs_core.engine.rules.fit import fits_task
from egs_core.engine.rules.processes import keeps_slot, takes_process_to_gpu
from egs_core.engine.state.lifecycle import COLD, READY, WARM
from egs_core.graph.columns import GPU


class Processes:
    """See the module. `needs_planning`: something has happened since the planner last looked."""

    def __init__(self, issuer: Issuer, queue: ReadyQueue, enabled: bool) -> None:
        self._issuer = issuer
        self._transitions = issuer.transitions
        self._state = issuer.state
        self._queue = queue
        self.enabled = enabled
        self.has_keys = False  # whether any task has a warm key at all
        self.needs_planning = False
        self.cold_wait: set[int] = set()
        self._cold: dict[int, list[tuple[Key, int]]] = {}  # by submission, in its order
        self._cold_keys: dict[int, Key] = {}
        self._outlook = Outlook()

    # --- ready tasks ---

    def enqueue(self, phase: int) -> None:
        """Queue a ready phase, unless its task first gets a warm process."""
        state = self._state
        task = state.task_of[phase]
        if state.first_phase[task] == phase and state.warm_key_of(task) and task not in state.gang_of:
            if state.warmth[task] == COLD and task not in state.start_cold:
                self._add_cold(task)
            if self.must_warm_first(task):
                self.cold_wait.add(task)
                return
        self._queue.add(phase)

    def must_warm_first(self, task: int) -> bool:
        """Whether the task may not start without a warm process."""
        state = self._state
        return (
            self.enabled
            and (state.kind[state.first_phase[task]] == GPU or self._loads_apart(task))
            and state.warmth[task] != WARM
            and task not in state.start_cold
            and any(n.preload_slots and n.process_slots and fits_task(state, task, n) for n in state.nodes)
        )

    def _loads_apart(self, task: int) -> bool:
        """Whether it loads before it takes its CPUs. One alone is in nobody's way: it loads with them."""
        nodes = self._state.nodes
        if not (any(node.loads_apart for node in nodes) and takes_process_to_gpu(self._state, task)):
            return False
        return len(self._cold_keys) > 1 or any(node.processes for node in nodes)

    def forget(self, task: int) -> None:
        """The task has been granted, or waits for nothing any more."""
        self.cold_wait.discard(task)
        key = self._cold_keys.pop(task, None)
        if key is not None:
            submission = self._queue.lines.submission_of(self._state.first_phase[task])
            line = self._cold[submission]
            del line[bisect_left(line, (key, task))]
            if not line:
                del self._cold[submission]

    def rekey(self, tasks: Iterable[int]) -> None:
        """Ranks have moved."""
        for task in [t for t in tasks if t in self._cold_keys]:
            waits = task in self.cold_wait
            self.forget(task)
            self._add_cold(task)
            if waits:
                self.cold_wait.add(task)

    def review(self) -> None:
        """Capacity has changed: who must wait for a process, and who cannot hope for one?"""
        state = self._state
        for task in sorted(self.cold_wait):
            if not self.must_warm_first(task):
                self._release(task)
        for task in list(self._cold_keys):
            if task not in self.cold_wait and self.must_warm_first(task):
                self._queue.remove(state.cursor[task])
                self.cold_wait.add(task)

    def _add_cold(self, task: int) -> None:
        key = self._queue.policy.key(self._state, self._state.cursor[task])
        self._cold_keys[task] = key
        insort(self._cold.setdefault(self._queue.lines.submission_of(self._state.cursor[task]), []), (key, task))
        self.needs_planning = True

    def _release(self, task: int) -> None:
        self.cold_wait.discard(task)
        self._queue.add(self._state.cursor[task])

    # --- news of processes ---

    def warmed(self, task: int, decision: int) -> None:
        if not self._is_current(task, decision) or self._state.warmth[task] == WARM:
            return
        self._transitions.warmed(task)
        self.needs_planning = True
        if task in self.cold_wait:
            self._release(task)
        else:
            self._queue.place_changed(self._state.cursor[task])

    def failed(self, task: int, decision: int) -> None:
        """No process for this task after all: it may start without one."""
        if not self._is_current(task, decision):
            return
        self._transitions.preload_failed(task)
        self._queue.mark_changed()
        self.needs_planning = True
        if task in self.cold_wait:
            self._release(task)
        else:
            self._queue.place_changed(self._state.cursor[task])

    def _is_current(self, task: int, decision: int) -> bool:
        parked_by = self._state.parked.get(task)
        return parked_by is not None and decision in (0, parked_by)

    # --- giving up ---

    def give_up(self, task: int) -> None:
        """Drop the process kept for a task; if it is warm it stays idle for another."""
        self._issuer.decide(m.DropPreload(self._state.next_decision, task))
        self._transitions.unpark(task)
        self._queue.mark_changed()

    def flavors_allowed(self, event: m.FlavorsAllowed, _now: float) -> None:
        """A task may have other flavors than before: perhaps not that where its process waits."""
        if event.flavors:
            self._allow(event.task, partial(self._transitions.allow_flavors, event))

    def devices_allowed(self, event: m.DevicesAllowed, _now: float) -> None:
        """A task may have other devices than before."""
        self._allow(event.task, partial(self._transitions.allow_devices, event))

    def _allow(self, task: int, change: Callable[[], None]) -> None:
        state = self._state
        if not 0 <= task < len(state.task_ids):
            return
        phase = state.cursor[task]
        is_ready = state.status[phase] == READY
        if is_ready:
            self._queue.remove(phase)
            self.forget(task)
        change()
        if task in state.parked and not fits_task(state, task, state.nodes[state.home[task]]):
            self.give_up(task)
        if is_ready:
            self.enqueue(phase)
        self._queue.something_freed()
        self.want_plan()

    def lose_node(self, number: int) -> None:
        """Processes kept on a lost node are gone; ready tasks that had one wait anew."""
        state = self._state
        for task in sorted(t for t in state.parked if state.home[t] == number):
            self._transitions.unpark(task)
            if state.status[state.cursor[task]] == READY:
                self._queue.remove(state.cursor[task])
                self.forget(task)
                self.enqueue(state.cursor[task])

    def secure(self, task: int, node: int) -> bool:
        """Make sure that the node has a process for a task that starts there; returns whether it is warm."""
        state = self._state
        if task in state.parked and state.home[task] != node:
            self.give_up(task)
        if task in state.parked:
            return state.warmth[task] == WARM
        key = state.warm_key_of(task)
        if key not in state.nodes[node].idle_warm:
            self._make_room(node, key)
        return key in state.nodes[node].idle_warm

    def _make_room(self, number: int, key: str) -> bool:
        """See to it that the node has an idle process with this key, or a slot for a new one; whether that worked.

        In this order: a slot is free; an idle process with other things loaded ends; a process kept for a task that is
        not yet ready is given up, one with this key first, then of the lowest rank.
        """
        state, node = self._state, self._state.nodes[number]
        if node.processes < node.process_slots:
            return True
        if node.idle_warm:
            self._transitions.retire(number, min(node.idle_warm))
            return True
        kept = [t for t in state.parked if state.home[t] == number and not keeps_slot(state, t)]
        if not kept:
            return False
        same = [t for t in kept if state.warm_key_of(t) == key and state.warmth[t] == WARM]
        task = min(same or kept, key=lambda t: (state.rank_s[state.cursor[t]], t))
        self.give_up(task)
        left = state.warm_key_of(task)
        if left != key and left in node.idle_warm:
            self._transitions.retire(number, left)
        return True

    # --- preloads ---

    def want_plan(self) -> None:
        """Something has happened that the planner should see."""
        self.needs_planning = True

    def next_due(self) -> float | None:
        """When the planner wants to look again."""
        return self._state.plan_at

    def plan(self, now: float) -> bool:
        """Start what is worth warming now; True when that let a phase into the queue."""
        if not self.needs_planning:
            return False
        self.needs_planning = False
        state = self._state
        waiting = self._first_cold(MAX_CANDIDATES)
        self._outlook.extend(state)
        choices, again_at = plan_preloads(
            state, now, sorted(self._issuer.started), waiting, self.cold_wait, self._outlook
        )
        if again_at != state.plan_at:
            self._transitions.planned(again_at)
        queued = False
        for choice in choices:
            queued |= self._issue(choice)
        return queued

    def _first_cold(self, count: int) -> list[int]:
        """Ready tasks without a process in the order in which they would be granted."""
        full_key, first_phase = self._queue.lines.full_key, self._state.first_phase
        lines = [[(full_key(first_phase[t], key), t) for key, t in line[:count]] for line in self._cold.values()]
        return [task for _, task in islice(heapq.merge(*lines), count)]

    def _issue(self, choice: Choice) -> bool:
        """Give out one preload; True when the task can be granted at once."""
        state, task = self._state, choice.task
        node, key = state.nodes[choice.node], state.warm_key_of(task)
        if key not in node.idle_warm and (choice.reuse or not self._make_room(choice.node, key)):
            return False  # an earlier choice took what this one counted on
        reuse = key in node.idle_warm
        decision = state.next_decision
        self._transitions.park(task, choice.node, decision, reuse)
        self._issuer.out.append(m.Preload(decision, task, node.name, reuse))
        waits = task in self.cold_wait
        self.forget(task)
        if waits and reuse:
            self._release(task)
        elif waits:
            self.cold_wait.add(task)
        else:
            self._queue.place_changed(state.cursor[task])
        return waits and reuse
