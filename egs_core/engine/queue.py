"""Ready phases in the policy's order.

One heap a class (`classes`). When the first of a class cannot be placed, the whole class is passed over and the first
of another may start (backfill). With queues configured they come before what is in them: one that stays within its
nominal quota before one that borrows, then the smaller fair share.

A heap keeps outdated entries until they come up: only the entry whose key is the very object in `keys` counts.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from egs_core.engine import quota
from egs_core.engine.classes import Classes, ClassId, is_chooser, is_gang, needs_process
from egs_core.engine.deadlines import NO_DEADLINE, Urgency
from egs_core.engine.flavor_choice import Refused
from egs_core.engine.free_index import FreeIndex
from egs_core.engine.gangs import index_of, missing_members
from egs_core.engine.heads import Head, Heads, Room
from egs_core.engine.policy import OVERDUE_TERM, Key, Policy
from egs_core.engine.state import State
from egs_core.graph.columns import Shape

Standing = tuple[bool, float]
Entry = tuple[Key, int]
SAME_STANDING: Standing = (False, 0.0)
QUEUE_TERMS = ("nominal_quota", "fair_share")
ONLY_CANDIDATE = "only_candidate"


class ReadyQueue:
    """See the module. keys: phase -> key of its entry; full: classes that fit nowhere until something is freed."""

    def __init__(self, state: State, policy: Policy, default_max_wait_s: float | None, preempts: bool = False) -> None:
        self.state = state
        self.policy = policy
        self.keys: dict[int, Key] = {}
        self.full: set[ClassId] = set()
        self.preempts = preempts
        self.is_dirty = True  # something has changed that may let a phase start
        self._key_of = policy.key
        self._names = policy.term_names
        self._default_max_wait_s = default_max_wait_s
        self.refused: dict[int, Refused] = {}  # phase that waits for a better flavor than what is free
        self.classes = Classes(state)
        self._heaps: dict[ClassId, list[Entry]] = {}
        self.heads = Heads(self.room_of)
        self.free = FreeIndex(state, self.heads)
        self.deadlines: list[tuple[float, int, int]] = []  # heap of (time, phase, order) of phases that age
        self._urgency = Urgency(state, self.keys, self.members)
        self._capacity: quota.Amounts | None = None
        self.arrived: dict[int, set[int]] = {}  # gang -> ready phases of its members that wait for the others
        self.leaders: dict[int, int] = {}  # gang -> the phase under which it is queued

    # --- in and out ---

    def add(self, phase: int) -> None:
        """Queue a ready phase; one of a gang when it is there as a whole."""
        gang = self.state.gang_of.get(self.state.task_of[phase]) if self.state.gang_of else None
        if gang is None:
            self._enter(phase)
        else:
            self.arrived.setdefault(gang, set()).add(phase)
            self.regather(gang)

    def _enter(self, phase: int) -> None:
        if self.policy.ages:
            self._set_deadline(phase)
        self._push(phase, self._place_of(phase))
        if self.state.has_deadlines and self.policy.ages:
            self._urgency.enter(phase)

    def _place_of(self, phase: int) -> Key:
        """The phase's key; for the leader of a gang the best of its members."""
        key = min(self._key_of(self.state, p) for p in self.members(phase))
        if not (self.state.has_deadlines and self.policy.ages):
            return key
        return (*key[: OVERDUE_TERM + 1], self._urgency.term(phase), *key[OVERDUE_TERM + 2 :])

    def remove(self, phase: int) -> bool:
        """Whether it was there."""
        self.is_dirty = True  # what it had reserved is open to others
        gang = self.state.gang_of.get(self.state.task_of[phase]) if self.state.gang_of else None
        if gang is None:
            return self._forget_key(phase)
        was_there = phase in self.arrived.get(gang, ())
        self.arrived.get(gang, set()).discard(phase)
        self.regather(gang)
        return was_there

    def take_all(self) -> list[int]:
        """Empty the queue: every ready phase that was in it, lowest number first."""
        phases = sorted(set(self.keys).union(*self.arrived.values()))
        self.heads.clear()
        for container in (self.keys, self._heaps, self.arrived, self.leaders, self.deadlines, self.full):
            container.clear()
        self._urgency.clear()
        return phases

    # --- gangs ---

    def regather(self, gang: int) -> None:
        """A member has arrived, left or ended: queue the gang when nobody is missing, else take it out."""
        arrived = self.arrived.get(gang, set())
        leader = None
        if arrived:
            index = min(index_of(self.state, p) for p in arrived)
            if not missing_members(self.state, gang, index, arrived):
                leader = min(p for p in arrived if index_of(self.state, p) == index)
        before = self.leaders.get(gang)
        if before is not None and before != leader:
            self._forget_key(self.leaders.pop(gang))
        if leader is not None and before != leader:
            self.leaders[gang] = leader
            self._enter(leader)

    def members(self, phase: int) -> tuple[int, ...]:
        """The phases that start together with this one: itself, or those of the gang that it leads."""
        gang = self.state.gang_of.get(self.state.task_of[phase]) if self.state.gang_of else None
        if gang is None or self.leaders.get(gang) != phase:
            return (phase,)
        index = index_of(self.state, phase)
        return tuple(sorted(p for p in self.arrived[gang] if index_of(self.state, p) == index))

    def leader_of(self, phase: int) -> int:
        """The phase under which this one is queued: itself, or its gang's leader."""
        gang = self.state.gang_of.get(self.state.task_of[phase]) if self.state.gang_of else None
        return phase if gang is None else self.leaders.get(gang, phase)

    def something_freed(self, node: int | None = None) -> None:
        """Capacity or a process is there that was not; on this node only, where one is named."""
        self.full.clear()
        self.is_dirty = True
        if node is None:
            self.free.forget()
        else:
            self.free.freed(node)

    def capacity_changed(self) -> None:
        """A node has come, gone or changed."""
        self._capacity = None

    def take(self, class_id: ClassId) -> None:
        """Remove the first of a class, with the gang behind it."""
        phase = heapq.heappop(self._heaps[class_id])[1]
        del self.keys[phase]
        self._settle(class_id)
        if is_gang(class_id):
            gang = class_id[2][1]
            del self.leaders[gang]
            index = index_of(self.state, phase)
            self.arrived[gang] = {p for p in self.arrived[gang] if index_of(self.state, p) != index}

    def first_of(self, class_id: ClassId, count: int) -> list[Entry]:
        """The first `count` of a class in order, without sorting it."""
        heap, found = self._heaps[class_id], list[Entry]()
        next_up = [(heap[0], 0)]
        while next_up and len(found) < count:
            entry, at = heapq.heappop(next_up)
            if self.keys.get(entry[1]) is entry[0]:
                found.append(entry)
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heapq.heappush(next_up, (heap[child], child))
        return found

    def take_later(self, phase: int) -> None:
        """Remove one that need not be the first of its class, and leads no gang."""
        del self.keys[phase]

    def place_changed(self, phase: int) -> None:
        """A process was parked for the phase's task, got warm, or is gone: its place, or its class, is new."""
        old = self.keys.get(phase)
        if old is not None:
            key = self._place_of(phase)
            self._push(phase, overdue_key(key, self.state.order[phase]) if self.is_overdue(old) else (*key,))

    def _push(self, phase: int, key: Key) -> None:
        old = self.keys.get(phase)
        self.keys[phase] = key
        if old is not None:
            self._settle_without(phase, old)
        self.is_dirty = True
        class_id = self.classes.of(phase)
        heap = self._heaps.get(class_id)
        if heap is None:
            heap = self._heaps[class_id] = []
        heapq.heappush(heap, (key, phase))
        if heap[0][0] is key:
            self.heads.put(class_id, key, phase)
        if heap[0][1] == phase and (self.preempts or self.state.reservations):
            self.full.discard(class_id)  # it may have rights that what waited in front of it had not

    def has_split_tasks(self) -> bool:
        """Whether a task waits whose GPU phase comes after a CPU phase: it can start while every device is taken."""
        shapes = self.state.shapes
        may_choose = [c for c in self.heads.of if is_chooser(c) or is_gang(c)]
        return any(not shapes[class_id[0]].gpu_milli for class_id in may_choose)

    def first_choosers(self, count: int) -> list[int]:
        """The first queued phases of those that may choose between flavors, in order."""
        found: list[tuple[Standing, Key, int]] = []
        for class_id, heap in self._heaps.items():
            if is_chooser(class_id):
                queued = (entry for entry in heap if self.keys.get(entry[1]) is entry[0])
                first = heapq.nsmallest(count, queued)
                found += [(self._standing(class_id, phase), key, phase) for key, phase in first]
        return [phase for _, _, phase in heapq.nsmallest(count, found)]

    # --- order ---

    def front(self, passed: set[ClassId]) -> Head | None:
        """The first candidate over all classes that may have room: its key, phase and class."""
        if self.state.queues:
            return self._front_of_queues(passed)
        return self.heads.first(self.full, passed)

    def _front_of_queues(self, passed: set[ClassId]) -> Head | None:
        best: tuple[Standing, Head] | None = None
        for heads in self.heads.open.values():
            for head in heads:
                if head[2] not in self.full and head[2] not in passed:
                    placed = self._standing(head[2], head[1]), head
                    if best is None or placed < best:
                        best = placed
        return None if best is None else best[1]

    def _standing(self, class_id: ClassId, phase: int) -> Standing:
        """Whether the queue would borrow for this, and its fair share with it. Work without a queue goes first: nobody
        has limited it."""
        state, number = self.state, class_id[3]
        if number == quota.NO_QUEUE:
            return SAME_STANDING
        queue, wanted = state.queues[number], quota.total(self.shapes(phase))
        if self._capacity is None:
            self._capacity = state.capacity()
        return quota.borrows(queue, wanted), quota.fair_share(queue, wanted, self._capacity, state.now)

    def shapes(self, phase: int) -> list[Shape]:
        """What starts together with this phase needs."""
        return [self.state.shapes[self.state.shape[p]] for p in self.members(phase)]

    def _forget_key(self, phase: int) -> bool:
        """Take a phase out, wherever in its heap it is; whether it was there."""
        old = self.keys.pop(phase, None)
        if old is not None:
            self._settle_without(phase, old)
        return old is not None

    def _settle_without(self, phase: int, old: Key) -> None:
        """The phase has left the place that it had with this key."""
        class_id = self.heads.class_headed_by(phase, old)
        if class_id is not None:
            self._settle(class_id)

    def _settle(self, class_id: ClassId) -> None:
        """See to it that the first entry of a class counts; an empty class is forgotten."""
        keys, heap = self.keys, self._heaps[class_id]
        while heap and keys.get(heap[0][1]) is not heap[0][0]:
            heapq.heappop(heap)
        if heap:
            self.heads.put(class_id, *heap[0])
        else:
            del self._heaps[class_id]
            self.heads.drop(class_id)

    def room_of(self, class_id: ClassId, key: Key) -> Room | None:
        """What fits, or does not fit, together with this class; None where more than free room counts: gangs, tasks
        that need a process or choose among flavors, and phases that are overdue or urgent, which reserve."""
        has_own = is_gang(class_id) or needs_process(class_id) or is_chooser(class_id)
        if has_own or self.is_overdue(key) or self.is_urgent(key):
            return None
        return class_id[:2]

    def deciding_term(self, key: Key, class_id: ClassId) -> str:
        """The first term in which the next in order, of those that are first in their class, is worse than this key."""
        if self.state.queues and (by_queue := self._deciding_queue(class_id)):
            return by_queue
        following = self.heads.following(key)
        if following is None:
            return ONLY_CANDIDATE
        names = self._names
        for i, other in enumerate(following):
            if key[i] != other:
                return names[i]
        return names[-1]

    def _deciding_queue(self, class_id: ClassId) -> str:
        """What put this class's queue before the next other queue; "" when there is none."""
        others = [
            self._standing(other_id, head[1]) for other_id, head in self.heads.of.items() if other_id[3] != class_id[3]
        ]
        if not others:
            return ""
        return QUEUE_TERMS[0] if min(others)[0] else QUEUE_TERMS[1]

    def is_overdue(self, key: Key) -> bool:
        return self.policy.ages and not key[OVERDUE_TERM]

    def ahead_of(self, phase: int) -> list[int]:
        """Phases queued before this one, first first; none when it is not queued."""
        key = self.keys.get(self.leader_of(phase))
        if key is None:
            return []
        return sorted((p for p, other in self.keys.items() if other < key), key=self.keys.__getitem__)

    def rekey(self, phases: Iterable[int]) -> None:
        """Ranks have moved: give those of the phases that are queued their new place."""
        for member in phases:
            phase = self.leader_of(member)
            old = self.keys.get(phase)
            if old is None:
                continue
            key = self._place_of(phase)
            if self.is_overdue(old):
                key = overdue_key(key, self.state.order[phase])
            if key != old:
                self._push(phase, key)
            if self.state.has_deadlines and self.policy.ages:
                self._urgency.enter(phase)

    # --- age ---

    def _set_deadline(self, phase: int) -> None:
        options = self.state.options.get(self.state.task_of[phase])
        wait = self._queue_max_wait_s(phase) if options is None or options.max_wait_s is None else options.max_wait_s
        if wait is not None:
            heapq.heappush(self.deadlines, (self.state.ready_at[phase] + wait, phase, self.state.order[phase]))

    def _queue_max_wait_s(self, phase: int) -> float | None:
        number = self.state.queue_of(self.state.task_of[phase])
        stated = self.state.queues[number].spec.max_wait_s if number != quota.NO_QUEUE else None
        return self._default_max_wait_s if stated is None else stated

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
                self.full.discard(self.classes.of(phase))  # it reserves what it lacks, so it must be looked at

    def next_urgent(self) -> float | None:
        """When a deadline next changes the place of a queued phase."""
        return self._urgency.next_change() if self.policy.ages else None

    def heed_deadlines(self, now: float) -> None:
        """Phases whose slack is about used up go forward, those that are too late go back."""
        for phase in self._urgency.changed(now):
            key = self._place_of(phase)
            if not self.is_overdue(self.keys[phase]) and key != self.keys[phase]:
                self._push(phase, key)
                self.full.discard(self.classes.of(phase))  # it may reserve what it lacks

    def stale_deadlines(self) -> list[int]:
        """Queued phases that are not where their deadlines put them; none, always."""
        if not (self.state.has_deadlines and self.policy.ages):
            return []
        waiting = [p for p, key in self.keys.items() if not self.is_overdue(key)]
        return [p for p in waiting if self.keys[p][OVERDUE_TERM + 1] != self._urgency.term(p)]

    def is_urgent(self, key: Key) -> bool:
        """Whether a deadline has put it forward."""
        return self.policy.ages and key[OVERDUE_TERM + 1] != NO_DEADLINE

    def _is_waiting(self, deadline: tuple[float, int, int]) -> bool:
        _, phase, order = deadline
        key = self.keys.get(phase)
        return key is not None and self.state.order[phase] == order and not self.is_overdue(key)


def overdue_key(key: Key, order: int) -> Key:
    """In front of everything of its priority that is not overdue; among overdue ones the oldest first."""
    return (*key[:OVERDUE_TERM], 0, NO_DEADLINE, order, *key[OVERDUE_TERM + 3 :])
