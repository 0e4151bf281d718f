"""Ready phases in the policy's order.

One heap a *class*: phases that fit, or do not fit, in the same places. When the first of a class cannot be placed, the
whole class is passed over and the first of another may start (backfill).

    class = (shape, node the phase is bound to or ANY, what else decides where it may start)
    plain tasks of one phase              (shape, ANY, ())
    first of several phases               (shape, ANY, shapes of all phases)      one node must offer them all
    with a warm key                       (shape, ANY or its process's node, shapes of all phases + (PROCESS,))
    later phase of a started task         (shape, its node, ())

A heap keeps outdated entries until they come up: only the entry whose key is the very object in `keys` counts.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from egs_core.engine.policy import OVERDUE_TERM, Key, Policy
from egs_core.engine.state import State

ClassId = tuple[int, int, tuple[int, ...]]
Entry = tuple[Key, int]
ANY = -1
PROCESS = -1
ONLY_CANDIDATE = "only_candidate"


class ReadyQueue:
    """See the module. keys: phase -> key of its entry; full: classes that fit nowhere until something is freed."""

    def __init__(self, state: State, policy: Policy, default_max_wait_s: float | None) -> None:
        self.state = state
        self.policy = policy
        self.keys: dict[int, Key] = {}
        self.full: set[ClassId] = set()
        self.is_dirty = True  # something has changed that may let a phase start
        self._key_of = policy.key
        self._names = policy.term_names
        self._default_max_wait_s = default_max_wait_s
        self._heaps: dict[ClassId, list[Entry]] = {}
        self.deadlines: list[tuple[float, int, int]] = []  # heap of (time, phase, order) of phases that age

    # --- in and out ---

    def add(self, phase: int) -> None:
        """Queue a ready phase."""
        if self.policy.ages:
            self._set_deadline(phase)
        self._push(phase, self._key_of(self.state, phase))

    def remove(self, phase: int) -> bool:
        """Whether it was there."""
        self.is_dirty = True  # what it had reserved is open to others
        return self.keys.pop(phase, None) is not None

    def something_freed(self) -> None:
        """Capacity or a process is there that was not."""
        self.full.clear()
        self.is_dirty = True

    def take(self, class_id: ClassId) -> None:
        """Remove the first of a class."""
        del self.keys[heapq.heappop(self._heaps[class_id])[1]]

    def place_changed(self, phase: int) -> None:
        """A process was parked for the phase's task, got warm, or is gone: its place, or its class, is new."""
        old = self.keys.get(phase)
        if old is not None:
            key = self._key_of(self.state, phase)
            self._push(phase, overdue_key(key, self.state.order[phase]) if self.is_overdue(old) else (*key,))

    def _push(self, phase: int, key: Key) -> None:
        self.keys[phase] = key
        self.is_dirty = True
        class_id = self._class_of(phase)
        heap = self._heaps.get(class_id)
        if heap is None:
            heap = self._heaps[class_id] = []
        heapq.heappush(heap, (key, phase))

    def _class_of(self, phase: int) -> ClassId:
        state = self.state
        task, shape = state.task_of[phase], state.shape[phase]
        first, end = state.first_phase[task], state.first_phase[task + 1]
        if phase != first:
            return shape, state.home[task], ()
        needs_process = task in state.options and state.options[task].warm_key
        if not needs_process:
            return shape, ANY, () if end - first == 1 else tuple(state.shape[first:end])
        return shape, state.home.get(task, ANY), (*state.shape[first:end], PROCESS)

    # --- order ---

    def front(self, passed: set[ClassId]) -> tuple[Key, int, ClassId] | None:
        """The first candidate over all classes that may have room: its key, phase and class."""
        best: Entry | None = None
        best_id: ClassId | None = None
        full = self.full
        for class_id, heap in self._heaps.items():
            if heap and class_id not in full and class_id not in passed:
                entry = self._head(heap)
                if entry is not None and (best is None or entry < best):
                    best, best_id = entry, class_id
        return None if best is None or best_id is None else (*best, best_id)

    def _head(self, heap: list[Entry]) -> Entry | None:
        keys = self.keys
        while heap:
            entry = heap[0]
            if keys.get(entry[1]) is entry[0]:
                return entry
            heapq.heappop(heap)
        return None

    def deciding_term(self, key: Key) -> str:
        """The first term in which the next in order, of those that are first in their class, is worse than this key."""
        following: Key | None = None
        for heap in self._heaps.values():
            if heap:
                entry = self._head(heap)
                if entry is not None and entry[0] > key and (following is None or entry[0] < following):
                    following = entry[0]
        if following is None:
            return ONLY_CANDIDATE
        names = self._names
        for i, other in enumerate(following):
            if key[i] != other:
                return names[i]
        return names[-1]

    def is_overdue(self, key: Key) -> bool:
        return self.policy.ages and not key[OVERDUE_TERM]

    def ahead_of(self, phase: int) -> list[int]:
        """Phases queued before this one, first first; none when it is not queued."""
        key = self.keys.get(phase)
        if key is None:
            return []
        return sorted((p for p, other in self.keys.items() if other < key), key=self.keys.__getitem__)

    def rekey(self, phases: Iterable[int]) -> None:
        """Ranks have moved: give those of the phases that are queued their new place."""
        for phase in phases:
            old = self.keys.get(phase)
            if old is None:
                continue
            key = self._key_of(self.state, phase)
            if self.is_overdue(old):
                key = overdue_key(key, self.state.order[phase])
            if key != old:
                self._push(phase, key)

    # --- age ---

    def _set_deadline(self, phase: int) -> None:
        options = self.state.options.get(self.state.task_of[phase])
        wait = self._default_max_wait_s if options is None or options.max_wait_s is None else options.max_wait_s
        if wait is not None:
            heapq.heappush(self.deadlines, (self.state.ready_at[phase] + wait, phase, self.state.order[phase]))

    def next_deadline(self) -> float | None:
        """When the next queued phase becomes overdue."""
        while self.deadlines and not self._is_waiting(self.deadlines[0]):
            heapq.heappop(self.deadlines)
        return self.deadlines[0][0] if self.deadlines else None

    def age(self, now: float) -> None:
        """Phases whose `max_wait` has passed go to the front of their priority, oldest first."""
        while self.deadlines and self.deadlines[0][0] <= now:
            entry = heapq.heappop(self.deadlines)
            if self._is_waiting(entry):
                phase = entry[1]
                self._push(phase, overdue_key(self.keys[phase], entry[2]))
                self.full.discard(self._class_of(phase))  # it reserves what it lacks, so it must be looked at

    def _is_waiting(self, deadline: tuple[float, int, int]) -> bool:
        _, phase, order = deadline
        key = self.keys.get(phase)
        return key is not None and self.state.order[phase] == order and not self.is_overdue(key)


def overdue_key(key: Key, order: int) -> Key:
    """In front of everything of its priority that is not overdue; among overdue ones the oldest first."""
    return (*key[:OVERDUE_TERM], 0, order, *key[OVERDUE_TERM + 2 :])
