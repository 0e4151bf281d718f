"""Ready phases in the policy's order.

Queued phases wait in lines, by class (`classes`) and submission (`lines`). When the first of a class cannot be placed,
the whole class is passed over and the first of another may start (backfill). With queues configured each is in the
policy's order by itself; of their firsts one whose queue stays within its nominal quota with it goes before one that
borrows for it, then the one with which its queue's share is smaller.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice

from egs_core.engine.order.ages import Ages, overdue_key
from egs_core.engine.order.classes import PhaseClass, ResourceKey, SchedulingClasses
from egs_core.engine.order.free_index import FreeIndex
from egs_core.engine.order.fronts import ClassFronts, Front
from egs_core.engine.order.gathering import Gathering
from egs_core.engine.order.lines import Lines
from egs_core.engine.order.policy import (
    AGE_TERM,
    DEADLINE_TERM,
    OVERDUE_TERM,
    PATH_TERM,
    PLACE_TERMS,
    FullKey,
    Key,
    Policy,
)
from egs_core.engine.order.submission_order import IN_TIME, parts_of
from egs_core.engine.order.urgency import Urgency
from egs_core.engine.rules import quota
from egs_core.engine.rules.promises import PROMISED
from egs_core.engine.specs import NO_QUEUE, Amounts
from egs_core.engine.state.state import State

Standing = tuple[bool, float]
SAME_STANDING: Standing = (False, 0.0)
QUEUE_TERMS = ("nominal_quota", "fair_share")
ONLY_CANDIDATE = "only_candidate"
PROMISE = "promise"


class ReadyQueue:
    """See the module. keys: phase -> key of its entry; unplaceable_classes: what fits nowhere for now."""

    def __init__(self, state: State, policy: Policy, default_max_wait_s: float | None, preempts: bool = False) -> None:
        self.state = state
        self.policy = policy
        self.unplaceable_classes: set[PhaseClass] = set()
        self.preempts = preempts
        self.is_dirty = True  # something has changed that may let a phase start
        self._ages = policy.ages
        self._by_submission = policy.by_submission
        self._key_of = policy.key
        self._names = policy.term_names
        self._age_term = AGE_TERM + policy.by_submission if policy.ages else -1
        self._first_terms = PATH_TERM + policy.by_submission if len(self._names) > PATH_TERM else 0
        self.classes = SchedulingClasses(state)
        self.fronts = ClassFronts(self.resource_key_of)
        self.lines = Lines(state, policy, self.fronts, has_max_wait=default_max_wait_s is not None)
        self.keys = self.lines.keys  # of what is queued, without the place of its submission
        self.free = FreeIndex(state, self.fronts)
        self.gangs = Gathering(state)
        self.members, self.leader_of = self.gangs.members, self.gangs.leader_of
        self.ages = Ages(state, self.keys, default_max_wait_s)
        self.urgency = Urgency(state, self.keys, self.members, heeds_promises=policy.by_submission)
        self._capacity: Amounts | None = None

    # --- in and out ---

    def add(self, phase: int) -> None:
        """Queue a ready phase; one of a gang when it is there as a whole."""
        gang = self.gangs.gang_of(phase)
        if gang is None:
            self.enter(phase)
        else:
            self.gangs.arrive(gang, phase)
            self.regather(gang)

    def enter(self, phase: int) -> None:
        """Queue a phase that is in no gang, or leads one."""
        state = self.state
        if self._ages:
            self.ages.enter(phase)
        if not (state.gang_of or state.has_deadlines):
            self._push(phase, self._key_of(state, phase))
            return
        self._push(phase, self._place_of(phase))
        if state.has_deadlines and self._ages:
            self.urgency.timers.enter(phase)

    def _place_of(self, phase: int) -> Key:
        """The phase's key; for the leader of a gang the best of its members."""
        key = min(self._key_of(self.state, p) for p in self.members(phase))
        if key[-1] != phase:
            key = (*key[:-1], phase)
        if not (self.state.has_deadlines and self.policy.ages):
            return key
        return (*key[:DEADLINE_TERM], self.urgency.term(phase), *key[DEADLINE_TERM + 1 :])

    def remove(self, phase: int) -> bool:
        """Whether it was there."""
        self.mark_changed()  # what it had reserved is open to others
        gang = self.gangs.gang_of(phase)
        if gang is None:
            return self.lines.drop(phase)
        was_there = self.gangs.leave(gang, phase)
        self.regather(gang)
        return was_there

    def take_all(self) -> list[int]:
        """Empty the queue: every ready phase that was in it, lowest number first."""
        phases = sorted(set(self.keys).union(*self.gangs.arrived.values()))
        for part in (self.fronts, self.lines, self.gangs, self.ages.timers, self.urgency.timers):
            part.clear()
        self.unplaceable_classes.clear()
        return phases

    def regather(self, gang: int) -> None:
        """A member has arrived, left or ended: queue the gang when nobody is missing, else take it out."""
        before, leader = self.gangs.settle(gang)
        if before is not None:
            self.lines.drop(before)
        if leader is not None:
            self.enter(leader)

    # --- what changes ---

    def mark_changed(self) -> None:
        """Something may let a phase start."""
        self.unplaceable_classes.clear()
        self.is_dirty = True

    def mark_settled(self) -> None:
        """All that can start as things are has been granted."""
        self.is_dirty = False

    def something_freed(self, node: int | None = None) -> None:
        """Capacity or a process is there that was not; on this node only, where one is named."""
        if self.unplaceable_classes:
            self.unplaceable_classes.clear()
        self.is_dirty = True
        if node is None:
            self.free.forget()
        elif self.free.is_kept:
            self.free.freed_nodes.add(node)

    def capacity_changed(self) -> None:
        """A node has come, gone or changed."""
        self._capacity = None

    def take(self, phase_class: PhaseClass, key: FullKey) -> str:
        """Remove the first of a class, which has this key, with the gang behind it; what put it before the next."""
        phase = self.fronts.of[phase_class][1]
        submission = self.lines.take(phase)
        if phase_class.is_gang:
            self.gangs.start(phase_class.gang, phase)
        reason = self.deciding_term(key, phase_class)
        self.lines.settle_place(phase, submission)
        return reason

    def take_one(self, phase: int) -> str:
        """Remove a phase that is in no gang, wherever in its class it is; what put it before the next."""
        key, phase_class = self.full_key(phase), self.classes.of(phase)
        self.is_dirty = True
        submission = self.lines.take(phase)
        reason = self.deciding_term(key, phase_class)
        self.lines.settle_place(phase, submission)
        return reason

    def first_of(self, phase_class: PhaseClass, count: int) -> list[tuple[Key, int]]:
        """The first `count` of a class, of one submission, with their own keys."""
        return self.lines.first_of(phase_class, count)

    def take_later(self, phase: int) -> None:
        """Remove one that need not be the first of its class, and leads no gang."""
        self.lines.drop(phase)

    def place_changed(self, phase: int) -> None:
        """A process was parked for the phase's task, got warm, or is gone: its place, or its class, is new."""
        old = self.keys.get(phase)
        if old is not None:
            key = self._place_of(phase)
            self._push(phase, overdue_key(key, self.state.order[phase]) if self.is_overdue(old) else (*key,))

    def _push(self, phase: int, key: Key) -> None:
        self.is_dirty = True
        phase_class = self.classes.of(phase)
        self.lines.put(phase, key, phase_class)
        if (self.preempts or self.state.reservations) and self.fronts.of[phase_class][1] == phase:
            self.unplaceable_classes.discard(phase_class)  # it may have rights that what waited in front of it had not

    def has_split_tasks(self) -> bool:
        """Whether a task waits whose GPU phase comes after a CPU phase: it can start while every device is taken."""
        shapes = self.state.shapes
        may_choose = [c for c in self.fronts.of if c.is_chooser or c.is_gang]
        return any(not shapes[phase_class.shape].gpu_milli for phase_class in may_choose)

    def first_choosers(self, count: int) -> list[int]:
        """The first queued phases of those that may choose between flavors, in order."""
        found: list[tuple[FullKey, int]] = []
        for phase_class in self.fronts.of:
            if phase_class.is_chooser:
                found += heapq.nsmallest(count, self.lines.queued(phase_class))
        return list(islice(self._by_turns(found), count))

    # --- order ---

    def front(self, passed: set[PhaseClass]) -> Front | None:
        """The first candidate over all classes that may have room: its key, phase and class."""
        if self.state.queues:
            return self._front_of_queues(passed)
        return self.fronts.first(self.unplaceable_classes, passed)

    def is_one_class(self) -> bool:
        """Whether all that is queued is of one class, and no queue has a say in what comes next."""
        return len(self.fronts.order) == 1

    def _front_of_queues(self, passed: set[PhaseClass]) -> Front | None:
        firsts: dict[int, Front] = {}  # by queue
        for front in self.fronts.in_open_keys():
            phase_class = front[2]
            if phase_class not in self.unplaceable_classes and phase_class not in passed:
                first = firsts.get(phase_class.queue)
                if first is None or front < first:
                    firsts[phase_class.queue] = front
        if len(firsts) < 2:
            return next(iter(firsts.values()), None)
        return min((self._standing(front[2], front[1]), front) for front in firsts.values())[1]

    def _by_turns(self, waiting: Iterable[tuple[FullKey, int]]) -> Iterator[int]:
        """Queued phases, first first: of each queue by their keys, between queues by how each stands with its first."""
        alike: dict[tuple[int, int], Standing] = {}  # of a queue and a shape, where no gang asks for more

        def placed(key: FullKey, phase: int) -> tuple[Standing, FullKey, int]:
            phase_class = self.classes.of(phase)
            if phase_class.is_gang:
                return self._standing(phase_class, phase), key, phase
            which = phase_class.queue, phase_class.shape
            if which not in alike:
                alike[which] = self._standing(phase_class, phase)
            return alike[which], key, phase

        if not self.state.queues:
            yield from (phase for _, phase in sorted(waiting))
            return
        lines: dict[int, list[tuple[FullKey, int]]] = {}
        for one in sorted(waiting, reverse=True):
            lines.setdefault(self.classes.of(one[1]).queue, []).append(one)
        firsts = [(placed(*line.pop()), number) for number, line in lines.items()]
        heapq.heapify(firsts)
        while firsts:
            (_, _, phase), number = firsts[0]
            yield phase
            if lines[number]:
                heapq.heapreplace(firsts, (placed(*lines[number].pop()), number))
            else:
                heapq.heappop(firsts)

    def _standing(self, phase_class: PhaseClass, phase: int) -> Standing:
        """Whether the queue would borrow for this, and its fair share with it. Work without a queue goes first: nobody
        has limited it."""
        state, number = self.state, phase_class.queue
        if number == NO_QUEUE:
            return SAME_STANDING
        queue, wanted = state.queues[number], quota.demand(state, self.members(phase))
        return quota.borrows(queue, wanted), quota.fair_share(queue, wanted, self.capacity(), state.now)

    def capacity(self) -> Amounts:
        """What all nodes that are there offer."""
        if self._capacity is None:
            self._capacity = self.state.capacity()
        return self._capacity

    def resource_key_of(self, key: FullKey, phase: int, phase_class: PhaseClass) -> ResourceKey | None:
        """What fits, or does not fit, together with this class; None where more than free room counts: gangs, tasks
        that need a process or choose among flavors, and phases that may reserve: overdue and urgent ones, and late ones
        while nothing is reserved for others."""
        if self._ages and (not key[OVERDUE_TERM] or key[DEADLINE_TERM] < PROMISED):
            return None
        if self._by_submission and key[PATH_TERM] < IN_TIME:
            reservations = self.state.reservations
            if not reservations or phase in reservations:
                return None
        return None if phase_class.has_own_rights else phase_class.resources

    def reservations_changed(self) -> list[PhaseClass]:
        """Late phases may reserve now that could not, or the other way round; the classes of which they are fronts."""
        late = [front for front in self.fronts.of.values() if self.is_late(front[0])]
        self.fronts.refile(late)
        return [phase_class for _, _, phase_class in late]

    def deciding_term(self, key: FullKey, phase_class: PhaseClass) -> str:
        """The first term in which the next in order, of those that are first in their class, is worse than this key."""
        if self.state.queues and (by_queue := self._deciding_queue(phase_class)):
            return by_queue
        following = self.fronts.following(key)
        if following is None:
            return ONLY_CANDIDATE
        names, at = self._names, self._first_terms
        if key[:at] != following[:at]:  # mostly they are alike
            at = 0
        while key[at] == following[at]:
            at += 1
            if at == len(names):
                return names[-1]
        if not names[at]:
            return _deciding_part(key, following)
        if at == DEADLINE_TERM and self._ages and key[at] == PROMISED:
            return PLACE_TERMS[0] if self.is_late(key) else PROMISE
        return names[OVERDUE_TERM] if at == self._age_term and not key[OVERDUE_TERM] else names[at]

    def _deciding_queue(self, phase_class: PhaseClass) -> str:
        """What put this class's queue before the next other queue; "" when there is none."""
        firsts: dict[int, Front] = {}  # of other queues
        for other, front in self.fronts.of.items():
            if (number := other.queue) != phase_class.queue and (number not in firsts or front < firsts[number]):
                firsts[number] = front
        if not firsts:
            return ""
        next_one = min(self._standing(front[2], front[1]) for front in firsts.values())
        return QUEUE_TERMS[0] if next_one[0] else QUEUE_TERMS[1]

    def has_come_forward(self, key: FullKey) -> bool:
        """Whether it may reserve: it is overdue, a deadline has put it forward, or its submission has waited too long
        for others."""
        is_forward = self._ages and (not key[OVERDUE_TERM] or key[DEADLINE_TERM] < PROMISED)
        return is_forward or (self._by_submission and key[PATH_TERM] < IN_TIME)

    def is_overdue(self, key: FullKey) -> bool:
        return self._ages and not key[OVERDUE_TERM]

    def ahead_of(self, phase: int) -> list[int]:
        """Phases queued before this one, first first; none when it is not queued."""
        key = self.keys.get(self.leader_of(phase))
        if key is None:
            return []
        full_key = self.lines.full_key
        own = full_key(self.leader_of(phase), key)
        ahead = [(full, p) for p, other in self.keys.items() if (full := full_key(p, other)) < own]
        return [p for _, p in sorted(ahead)]

    def in_order(self) -> list[int]:
        """All queued phases, first first, the members of a gang behind each other."""
        full_key = self.lines.full_key
        waiting = [(full_key(phase, key), phase) for phase, key in self.keys.items()]
        return [member for phase in self._by_turns(waiting) for member in self.members(phase)]

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
                self.urgency.timers.enter(phase)

    # --- what time changes ---

    def age(self, now: float) -> None:
        """Phases whose `max_wait` has passed go to the front of their priority, oldest first."""
        for phase in self.ages.overdue(now):
            self._push(phase, overdue_key(self.keys[phase], self.state.order[phase]))
            self.unplaceable_classes.discard(self.classes.of(phase))  # it reserves what it lacks

    def apply_deadline_changes(self, now: float) -> None:
        """Phases whose slack is about used up go forward, those that are too late go back."""
        for phase in self.urgency.changed(now):
            key = self._place_of(phase)
            if not self.is_overdue(self.keys[phase]) and key != self.keys[phase]:
                self._push(phase, key)
                self.unplaceable_classes.discard(self.classes.of(phase))  # it may reserve what it lacks

    def stale_deadlines(self) -> list[int]:
        """Queued phases that are not where their deadlines put them; none, always."""
        if not (self.state.has_deadlines and self.policy.ages):
            return []
        waiting = [p for p, key in self.keys.items() if not self.is_overdue(key)]
        return [p for p in waiting if self.keys[p][DEADLINE_TERM] != self.urgency.term(p)]

    # --- submissions ---

    def heed_waits(self, now: float) -> bool:
        """Submissions of which something has waited too long for others go forward; whether any did."""
        order = self.lines.order
        changed = order.heed_waits(now) if order is not None else ()
        self.submissions_moved(changed)
        return bool(changed)

    def submissions_moved(self, numbers: Iterable[int]) -> None:
        """What is left of some submissions, or how long they have waited, has given them new places."""
        for number in numbers:
            self.lines.refresh(number)
            if self.preempts or self.state.reservations or self.lines.is_late(number):
                self.unplaceable_classes.difference_update(
                    self.lines.classes_of(number)
                )  # it may have rights that others had not
                self.is_dirty = True

    def stale_submissions(self) -> list[int]:
        """Open submissions that are not where the state puts them; none, always."""
        return self.lines.order.stale() if self.lines.order is not None else []

    def wait_changed(self, submission: int) -> None:
        """How long a submission may wait has changed."""
        if self.lines.order is not None and self.lines.order.look_again(submission):
            self.submissions_moved((submission,))

    def is_late(self, key: FullKey) -> bool:
        """Whether its submission has waited too long for others."""
        return self._by_submission and key[PATH_TERM] < IN_TIME

    def is_late_behind_others(self, key: FullKey) -> bool:
        """The same, while other submissions wait too: one alone waits for nobody."""
        return self.is_late(key) and self.lines.are_several()

    def place_term(self, first: int, second: int) -> str:
        """What of their submissions' places, or PROMISE, puts one queued phase before another; "" when something else
        does."""
        one, other = [self.full_key(self.leader_of(phase)) for phase in (first, second)]
        if not self.policy.by_submission or one[:DEADLINE_TERM] != other[:DEADLINE_TERM]:
            return ""
        if one[DEADLINE_TERM] != other[DEADLINE_TERM]:
            if one[DEADLINE_TERM] != PROMISED:
                return ""
            return PLACE_TERMS[0] if self.is_late(one) else PROMISE
        return _deciding_part(one, other)

    def full_key(self, phase: int) -> FullKey:
        """The key of a queued phase, with the place of its submission."""
        return self.lines.full_key(phase, self.keys[phase])

    def is_urgent(self, key: FullKey) -> bool:
        """Whether a deadline has put it forward."""
        return self._ages and key[DEADLINE_TERM] < PROMISED


def _deciding_part(one: FullKey, other: FullKey) -> str:
    """What of their submissions' places puts one before the other; "" when they are alike."""
    parts = zip(PLACE_TERMS, parts_of(one[PATH_TERM]), parts_of(other[PATH_TERM]), strict=True)
    return next((name for name, a, b in parts if a != b), "")
