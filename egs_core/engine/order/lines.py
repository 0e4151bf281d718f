"""The queued phases of each class, by submission: a heap for each of both, and one of the submissions' firsts.

    class A   firsts   (place of s1, key of p4)   (place of s7, key of p2)          the smallest fronts the class
                              ▲                          ▲
              s1   p4 p9 p5 p8                s7   p2 p3                            keys alone, without places

When a submission's place changes, only its firsts move, one a class, however many phases wait behind them. Heaps keep
outdated entries until they come up: only the key that is kept for its phase, as the same object, counts.

Where the policy does not tell submissions apart, all phases are of one, and a full key is the key.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from egs_core.engine.order.classes import PhaseClass
from egs_core.engine.order.fronts import ClassFronts
from egs_core.engine.order.policy import DEPENDENTS_TERM, FullKey, Key, Policy
from egs_core.engine.order.submission_order import IN_TIME, NO_ORDER, SubmissionOrder, Waiter
from egs_core.engine.rules.promises import PROMISED
from egs_core.engine.state.state import State

Aged = tuple[float, int, int]  # ready at, order, phase
LEAST_KEPT = 64  # outdated entries that are not worth counting again
ALL = 0  # the one submission of a policy that does not tell them apart


class Line:
    """Of one class. heaps: submission -> its phases; firsts: heap of the first of each; shown: those that count. Of one
    submission alone there is nothing to compare: the last two are empty."""

    __slots__ = ("firsts", "heaps", "shown")

    def __init__(self) -> None:
        self.heaps: dict[int, list[Key]] = {}
        self.firsts: list[FullKey] = []
        self.shown: dict[int, FullKey] = {}


class Lines:
    """See the module. keys: phase -> its key, without its submission's place."""

    def __init__(self, state: State, policy: Policy, fronts: ClassFronts, *, has_max_wait: bool) -> None:
        self._state = state
        self._fronts = fronts
        self.keys: dict[int, Key] = {}
        self._at: dict[int, tuple[PhaseClass, int]] = {}  # phase -> class and submission
        self._lines: dict[PhaseClass, Line] = {}
        self._tops: dict[int, dict[PhaseClass, Key]] = {}  # submission -> class -> its first there
        self._next: dict[int, Key] = {}  # submission -> the first of those, while that one is queued with this key
        self._ages: dict[int, list[Aged]] = {}  # submission -> heap of its phases since the oldest was asked for
        self.order = SubmissionOrder(state, self._oldest, stated=has_max_wait) if policy.by_submission else None
        self.timers = self.order.timers.heap if self.order is not None else []  # of submissions that wait

    def clear(self) -> None:
        for container in (self.keys, self._at, self._lines, self._tops, self._next, self._ages):
            container.clear()
        if self.order is not None:
            self.order.forget_waits()

    def submission_of(self, phase: int) -> int:
        if self.order is None:
            return ALL
        return self._state.submission_of(self._state.task_of[phase])

    def full_key(self, phase: int, key: Key) -> FullKey:
        """The key with its submission's place."""
        if self.order is None:
            return key
        number = self.submission_of(phase)
        self.order.place(number)  # so that it is known from now on
        return self._placed(key, number, self.order)

    def _placed(self, key: Key, number: int, order: SubmissionOrder) -> FullKey:
        """Among overdue phases submissions are not told apart."""
        # spelled out for the hot path; a policy that tells submissions apart has these terms (`EGS_TERMS`)
        priority, overdue, deadline, path, dependents, warmth, ready_order, phase = key
        place = order.places[number] if overdue else NO_ORDER
        if place < IN_TIME and deadline > PROMISED:
            deadline = PROMISED  # beside what goes first for a promise, and there the first
        return priority, overdue, deadline, place, path, dependents, warmth, ready_order, phase, number

    # --- in and out ---

    def put(self, phase: int, key: Key, phase_class: PhaseClass) -> None:
        """Queue a phase, or give a queued one a new key and class."""
        old, order, state = self._at.get(phase), self.order, self._state
        if old is not None:
            number = old[1]
        elif order is None:
            number = ALL
        else:
            number = state.workloads[state.task_workload[state.task_of[phase]]].submission
        self.keys[phase] = key
        self._at[phase] = phase_class, number
        line = self._lines.get(phase_class)
        if line is None:
            line = self._lines[phase_class] = Line()
        heap = line.heaps.get(number)
        if heap is None:
            heap = self._new_heap(phase_class, line, number)
        heapq.heappush(heap, key)
        if old is not None:
            known = self._tops[number]
            if (top := known.get(old[0])) is not None and top[-1] == phase:
                self._settle(old[0], number, known)
                if self._leaf_changed(number, known):
                    self.refresh(number)
        elif order is not None:
            if (ages := self._ages.get(number)) is not None:
                heapq.heappush(ages, (state.ready_at[phase], state.order[phase], phase))
            if number not in order.due or state.ready_at[phase] < state.now:
                order.waits(number, state.ready_at[phase])
        if heap[0] is key:
            tops = self._tops.get(number)
            if tops is None:
                tops = self._tops[number] = {}
            tops[phase_class] = key
            next_up = self._next.get(number)
            is_behind = next_up is not None and next_up < key
            if not is_behind and next_up is not None:
                self._next[number] = key
            if not is_behind and self._leaf_changed(number, tops):
                self.refresh(number)
            else:
                self._put_first(phase_class, line, number, key)

    def _new_heap(self, phase_class: PhaseClass, line: Line, number: int) -> list[Key]:
        """For a submission that has had no phase in the class."""
        if self.order is not None:
            self.order.place(number)  # so that it is known from now on
        if len(line.heaps) == 1:
            (other,) = line.heaps
            key = self._tops[other][phase_class]
            first = self.full_key(key[-1], key)
            line.firsts, line.shown = [first], {other: first}
        heap = line.heaps[number] = []
        return heap

    def drop(self, phase: int) -> bool:
        """Take a phase out, wherever it is; whether it was there."""
        if phase not in self.keys:
            return False
        self.settle_place(phase, self.take(phase))
        return True

    def take(self, phase: int) -> int:
        """Take a phase out; its submission, which keeps its place until `settle_place`: who comes next is asked
        before."""
        del self.keys[phase]
        phase_class, number = self._at.pop(phase)
        tops = self._tops[number]
        if tops[phase_class][-1] == phase:
            self._settle(phase_class, number, tops)
        return number

    def settle_place(self, phase: int, number: int) -> None:
        """The phase is gone, and perhaps what gave its submission its place."""
        order = self.order
        if order is None:
            return
        next_up = self._next.get(number)
        is_new = next_up is None or self.keys.get(next_up[-1]) is not next_up
        is_new = is_new and self._leaf_changed(number, self._tops.get(number))
        if (order.late and order.left(number, phase)) or is_new:
            self.refresh(number)

    # --- firsts ---

    def _settle(self, phase_class: PhaseClass, number: int, tops: dict[PhaseClass, Key]) -> None:
        """The submission's first in the class may count no more: the next one does. What is empty is forgotten. The
        submission keeps its place."""
        keys, line = self.keys, self._lines[phase_class]
        heap = line.heaps[number]
        while heap and keys.get(heap[0][-1]) is not heap[0]:
            heapq.heappop(heap)
        if heap:
            key = tops[phase_class] = heap[0]
            self._put_first(phase_class, line, number, key)
            return
        del line.heaps[number], tops[phase_class]
        line.shown.pop(number, None)
        if not tops:
            del self._tops[number]
            self._next.pop(number, None)
            self._ages.pop(number, None)
        self._settle_class(phase_class, line)

    def _leaf_changed(self, number: int, tops: dict[PhaseClass, Key] | None) -> bool:
        """Whether the submission's next task says something new of who waits for it, and that moves the submission."""
        order = self.order
        if order is None:
            return False
        leaf: float = 0
        if tops:
            next_up = self._next.get(number)
            if next_up is None or self.keys.get(next_up[-1]) is not next_up:
                next_up = self._next[number] = min(tops.values())
            leaf = next_up[DEPENDENTS_TERM]
        return order.leaves.get(number, 0) != leaf and order.set_leaf(number, int(leaf))

    def refresh(self, number: int) -> None:
        """The submission has a new place."""
        for phase_class, key in self._tops.get(number, {}).items():
            self._put_first(phase_class, self._lines[phase_class], number, key)

    def _put_first(self, phase_class: PhaseClass, line: Line, number: int, key: Key) -> None:
        first = key if self.order is None else self._placed(key, number, self.order)
        if len(line.heaps) == 1:
            self._fronts.put(phase_class, first, key[-1])
            return
        firsts, shown = line.firsts, line.shown
        if firsts and firsts[0] is shown.get(number):
            heapq.heapreplace(firsts, first)
        else:
            heapq.heappush(firsts, first)
        shown[number] = first
        if firsts[0] is first:
            self._fronts.put(phase_class, first, key[-1])
        else:
            self._settle_class(phase_class, line)

    def _settle_class(self, phase_class: PhaseClass, line: Line) -> None:
        firsts, shown = line.firsts, line.shown
        while firsts and shown.get(firsts[0][-1]) is not firsts[0]:
            heapq.heappop(firsts)
        if firsts:
            self._fronts.put(phase_class, firsts[0], firsts[0][-2])
            if len(line.heaps) == 1:
                line.firsts, line.shown = [], {}
        else:
            del self._lines[phase_class]
            self._fronts.drop(phase_class)

    # --- questions ---

    def classes_of(self, number: int) -> tuple[PhaseClass, ...]:
        """The classes in which the submission has phases."""
        return tuple(self._tops.get(number, ()))

    def is_late(self, number: int) -> bool:
        """Whether the submission has waited too long for others."""
        return self.order is not None and self.order.place(number) < IN_TIME

    def are_several(self) -> bool:
        """Whether phases of more than one submission wait."""
        return len(self._tops) > 1

    def queued(self, phase_class: PhaseClass) -> Iterator[tuple[FullKey, int]]:
        """The phases of a class with their full keys, in no order."""
        for heap in self._lines[phase_class].heaps.values():
            for phase in self._counted(heap):
                yield self.full_key(phase, self.keys[phase]), phase

    def _counted(self, heap: list[Key]) -> Iterator[int]:
        """The phases of the keys that count."""
        keys = self.keys
        return (key[-1] for key in heap if keys.get(key[-1]) is key)

    def first_of(self, phase_class: PhaseClass, count: int) -> list[tuple[Key, int]]:
        """The first `count` of a class that are of the submission that goes first in it, in order, without sorting:
        their keys and they."""
        line, found = self._lines[phase_class], list[tuple[Key, int]]()
        heap = line.heaps[line.firsts[0][-1] if line.firsts else next(iter(line.heaps))]
        next_up = [(heap[0], 0)]
        while next_up and len(found) < count:
            key, at = heapq.heappop(next_up)
            if self.keys.get(key[-1]) is key:
                found.append((key, key[-1]))
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heapq.heappush(next_up, (heap[child], child))
        return found

    def _oldest(self, number: int) -> Waiter | None:
        """The waiting phase of the submission that became ready first."""
        ready_at, order, ages = self._state.ready_at, self._state.order, self._ages.get(number)
        if ages is None or len(ages) > 2 * len(self.keys) + LEAST_KEPT:
            ages = self._ages[number] = [
                (ready_at[phase], order[phase], phase)
                for phase_class in self._tops.get(number, ())
                for phase in self._counted(self._lines[phase_class].heaps[number])
            ]
            heapq.heapify(ages)
        while ages:
            at, place, phase = ages[0]
            if phase in self.keys and (ready_at[phase], order[phase]) == (at, place):
                return at, phase
            heapq.heappop(ages)
        return None
