"""Which submission goes first: those that have waited too long, then the one with the least work left.

    a |######..............................|   2 h left      class 8
    b |####|                                   8 min left    class 4     goes first, although it came later
    c |###|                                    6 min left    class 4     after b, which came first …
                                                                         … unless only c's next task has dependents

Least remaining work first minimises the mean completion time on one machine (Schrage, Operations Research 16(3), 1968).
Classes that span a factor of two, with a floor, keep submissions from changing places at every end, and leave those of
one class to rule 2 on their heads and to their order of arrival. Inside a submission nothing of this is asked.

    place = whether it has not waited too long · class of its work · whether nothing waits for its next task · number

as the digits of one whole number, since that is what is compared most.

**Waiting.** A phase that has waited longer for other submissions than `WAIT_FACTOR` times what all work in its queue
took when its submission came brings its submission forward, until it has started. No clock is asked: the places are a
function of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from egs_core.engine.order.timers import Timers
from egs_core.engine.specs import NO_QUEUE, ORDERS, UNLIMITED, Amounts
from egs_core.engine.state.histories import PRIOR_MS, QueueHistory, Submission, amount_of
from egs_core.engine.state.state import State

Place = int
FLOOR = 30 * 1000 * 1000  # half a minute of a device, in thousandths times milliseconds
WAIT_FACTOR = 4.0
LEAST_WAIT_S = 60.0
MOST_SUBMISSIONS, MOST_CLASSES = 1 << 40, 1 << 16
LEAF: Place = MOST_SUBMISSIONS  # added where nothing waits for the next task
WORK_CLASS: Place = 2 * LEAF
IN_TIME: Place = WORK_CLASS * MOST_CLASSES  # less: has waited too long
NO_ORDER = IN_TIME  # of a queue whose submissions are not told apart
Waiter = tuple[float, int]  # ready at, phase


class SubmissionOrder:
    """See the module. oldest: the waiting phase of a submission that became ready first; None when none waits.
    stated: whether nobody waits longer than a `max_wait` of the configuration, so that no default is needed."""

    def __init__(self, state: State, oldest: Callable[[int], Waiter | None], *, stated: bool) -> None:
        self._state = state
        self._oldest = oldest
        self._stated = stated
        self.places: list[Place] = []  # of those that have been asked for, as they were counted last
        self._classes: list[int] = []  # of the work that is left
        self.leaves: dict[int, int] = {}  # whether nothing waits for its next task; 0 where none is queued
        self.late: dict[int, int] = {}  # submission that has waited too long -> the phase that has
        self.timers = Timers(self._due_of)  # submissions with waiting phases: not before then have they waited too long
        self.due = self.timers.at
        self._seen: dict[str, tuple[int, ...]] = {}  # queue -> what its history said of work that nobody knows
        self._totals: dict[str, int] = {}  # name of a submission that grew -> what its last run took, as seen last
        self._open: dict[str, set[int]] = {}  # by queue: submissions in `places` that may have open tasks
        if state.submissions:  # restored: ends are heard also of those of which nothing waits
            self.place(len(state.submissions) - 1)

    def place(self, number: int) -> Place:
        """Of a submission, as it was counted last."""
        for new in range(len(self.places), number + 1):
            self._classes.append(self._class_of(new))
            self.places.append(self._count(new))
            self.joined(new)
        return self.places[number]

    def joined(self, number: int) -> None:
        """Tasks have joined the submission."""
        if number < len(self.places):
            self._open.setdefault(self._state.submissions[number].history, set()).add(number)

    def _open_in(self, names: Iterable[str]) -> list[int]:
        """The submissions of these queues that have open tasks, in the order in which they came."""
        submissions, found = self._state.submissions, list[int]()
        for known in [self._open[name] for name in names if name in self._open]:
            known.difference_update([number for number in known if not submissions[number].open_tasks])
            found += known
        return sorted(found)

    def set_leaf(self, number: int, leaf: int) -> bool:
        """Say whether nothing waits for the submission's next task; whether that changes its place."""
        self.leaves[number] = leaf
        self.place(number)
        return self._changed(number)

    def _changed(self, number: int) -> bool:
        place = self._count(number)
        is_new = place != self.places[number]
        self.places[number] = place
        return is_new

    def _class_of(self, number: int) -> int:
        return (remaining_work(self._state, self._state.submissions[number]) // FLOOR).bit_length()

    def _count(self, number: int) -> Place:
        order = self._order_of(self._state.submissions[number])
        if order == "dependents":
            return NO_ORDER
        if order == "arrival":
            return IN_TIME + number
        if number in self.late:
            return number
        return IN_TIME + WORK_CLASS * self._classes[number] + LEAF * self.leaves.get(number, 0) + number

    def _order_of(self, submission: Submission) -> str:
        if not self._state.queues:
            return ""
        queue = self._state.queue_numbers.get(submission.queue, NO_QUEUE)
        return "" if queue == NO_QUEUE else self._state.queues[queue].order

    # --- what events change ---

    def recount(self, number: int) -> Sequence[int]:
        """Work of this submission has come or gone: those that have a new place, others of its queue included."""
        submission = self._state.submissions[number]
        history = self._state.histories[submission.history]
        if number >= len(self.places):
            return ()
        if history.guesses:
            name, queue = submission.name, submission.history
            total, seen = self._state.grown_totals.get(name), _guesses(history)
            is_told = total is not None and total != self._totals.get(name)
            if total is not None:
                self._totals[name] = total
            if seen != self._seen.get(queue):
                self._seen[queue] = seen
                return self._recount_these(self._open_in((queue,)), may_wait=True)
            if is_told:  # what is believed of others with this name
                alike = [n for n in self._open_in((queue,)) if self._state.submissions[n].name == name]
                return self._recount_these(alike, may_wait=True)
            work = remaining_work(self._state, submission)
        else:
            work = submission.left_device if submission.needs_devices else submission.left_slot
        work_class = (work // FLOOR).bit_length()
        if work_class == self._classes[number]:
            return ()
        self._classes[number] = work_class
        return (number,) if self._changed(number) else ()

    def _reclassify(self, number: int) -> bool:
        work_class = self._class_of(number)
        if work_class == self._classes[number]:
            return False
        self._classes[number] = work_class
        return self._changed(number)

    def _recount_these(self, numbers: Iterable[int], *, may_wait: bool = False) -> list[int]:
        """Something new is known of these open submissions; those that have a new place. may_wait: also of how long
        they may wait."""
        changed = []
        for number in numbers:
            place = self.places[number]
            if may_wait:
                self.look_again(number)
            self._reclassify(number)
            self._changed(number)
            if self.places[number] != place:
                changed.append(number)
        return changed

    def recount_all(self) -> list[int]:
        """Anything may have changed."""
        seen = {name: _guesses(history) for name, history in self._state.histories.items() if history.guesses}
        told = {name for name, guesses in seen.items() if guesses != self._seen.get(name)}
        self._seen.update(seen)
        changed = self._recount_these(self._open_in(told), may_wait=True)
        return sorted([*changed, *self._recount_these(self._open_in(self._open.keys() - told))])

    def stale(self) -> list[int]:
        """Open submissions that are not where the state puts them; none, always."""
        found = []
        for number, place in enumerate(self.places):
            if self._state.submissions[number].open_tasks:
                is_current = self._class_of(number) == self._classes[number] and self._count(number) == place
                due = self.late_at(number)
                if not is_current or (due is not None and due < self._state.now) != (number in self.late):
                    found.append(number)
        return found

    # --- waiting ---

    def waits(self, number: int, ready_at: float) -> None:
        """A phase of the submission waits since then."""
        if not self._may_wait_long(number):
            return
        if number not in self.late:
            self.timers.set(number, ready_at + self.wait_limit(number))

    def _may_wait_long(self, number: int) -> bool:
        """Whether the default of how long it waits holds for the submission."""
        if self._stated:
            return False
        submission = self._state.submissions[number]
        queue = self._state.queue_numbers.get(submission.queue, NO_QUEUE) if self._state.queues else NO_QUEUE
        if queue == NO_QUEUE:
            return True
        found = self._state.queues[queue]
        return found.spec.max_wait_s is None and found.order == ORDERS[0]

    def left(self, number: int, phase: int) -> bool:
        """A phase does not wait any more; whether its submission has another place therefore."""
        if self.late.get(number) != phase:
            return False
        del self.late[number]
        self.timers.forget(number)
        self._look(number, self._state.now)
        return self._changed(number)

    def forget_waits(self) -> None:
        """Nothing is queued any more."""
        self.late.clear()
        self.timers.clear()
        self.leaves.clear()
        self.recount_all()

    def heed_waits(self, now: float) -> list[int]:
        """Submissions that have waited too long by now."""
        if not self.timers.heap or self.timers.heap[0][0] >= now:
            return []
        return [number for number in self.timers.take(now) if self._look(number, now) and self._changed(number)]

    def _look(self, number: int, now: float) -> bool:
        """Whether its oldest phase has waited too long; else when that will be so."""
        oldest = self._oldest(number)
        if oldest is None:
            return False
        due = oldest[0] + self.wait_limit(number)
        if due < now:
            self.late[number] = oldest[1]
            return True
        self.timers.set(number, due)
        return False

    def late_at(self, number: int) -> float | None:
        """When the submission will have waited too long for others, by what is known now; None where nothing of it
        waits, or only its queue or a configuration says how long it may."""
        return self._due_of(number) if self._may_wait_long(number) else None

    def _due_of(self, number: int) -> float | None:
        oldest = self._oldest(number)
        return None if oldest is None else oldest[0] + self.wait_limit(number)

    def look_again(self, number: int) -> bool:
        """How long the submission may wait has changed; whether its place has, therefore."""
        if number not in self.due and number not in self.late:
            return False
        self.timers.forget(number)
        self.late.pop(number, None)
        self._look(number, self._state.now)
        return self._changed(number)

    def wait_limit(self, number: int) -> float:
        """Seconds that a phase of the submission waits at most for others, by what is known now."""
        submission = self._state.submissions[number]
        length_s = mean_length_s(self._state.histories[submission.history], needs_devices=submission.needs_devices)
        return max(LEAST_WAIT_S, submission.wait_s + submission.wait_lengths * length_s)


def parts_of(place: Place) -> tuple[int, int, int, int]:
    """The numbers that make up a place, the one that counts most first."""
    in_time, rest = divmod(place, IN_TIME)
    work_class, rest = divmod(rest, WORK_CLASS)
    return in_time, work_class, *divmod(rest, LEAF)


def _guesses(history: QueueHistory) -> tuple[int, ...]:
    """What places depend on of the history, where not everything is known."""
    phases, gpu_phases = history.phases, history.gpu_phases
    middles = phases.middle, gpu_phases.middle, history.totals.middle, history.gpu_totals.middle
    return (*middles, phases.mean_step(), gpu_phases.mean_step())


def remaining_work(state: State, submission: Submission) -> int:
    """What the submission is expected to have left: device time where any of its tasks needs a device, else slot time;
    in thousandths times milliseconds. One that has grown, or did so in its last run, may grow again."""
    is_device = submission.needs_devices
    left = submission.left_device if is_device else submission.left_slot
    history = state.histories[submission.history]
    if not history.guesses:
        return left
    if is_device and submission.unknown_device:
        left += submission.unknown_device * (history.gpu_phases.median or PRIOR_MS)
    elif submission.unknown_slot and not is_device:
        left += submission.unknown_slot * (history.phases.median or PRIOR_MS)
    total = state.grown_totals.get(submission.name)
    if total is None and submission.has_grown:
        total = (history.gpu_totals if is_device else history.totals).median
    used = submission.used_device if is_device else submission.used_slot
    return left if total is None else max(left, total - used)


def mean_length_s(history: QueueHistory, *, needs_devices: bool) -> float:
    """Of the queue's phases that have ended; within a fifth, so that it changes seldom."""
    lengths = history.gpu_phases if needs_devices and history.gpu_phases.count else history.phases
    return (amount_of(lengths.mean_step()) if lengths.count else PRIOR_MS) / 1000


def backlog_wait(state: State, submission: Submission, capacity: Amounts) -> tuple[float, float]:
    """`wait_s` and `wait_lengths` of a submission whose tasks have just come: its whole queue's work, its own included,
    divided by what there is to do it, by the scarcer of slots and devices."""
    history = state.histories[submission.history]
    length_s = mean_length_s(history, needs_devices=submission.needs_devices)
    cpu_milli, gpu_milli, _ = _usable(state, submission, capacity)
    waits = [(history.left_slot / max(cpu_milli, 1) / 1000, history.unknown_slot / max(cpu_milli, 1))]
    if history.left_device or history.unknown_device:
        waits.append((history.left_device / max(gpu_milli, 1) / 1000, history.unknown_device / max(gpu_milli, 1)))
    known_s, lengths = max(waits, key=lambda wait: wait[0] + wait[1] * length_s)
    return WAIT_FACTOR * known_s, WAIT_FACTOR * lengths


def _usable(state: State, submission: Submission, capacity: Amounts) -> Amounts:
    """What the submission's queue may use: its nominal quota, where it cannot borrow."""
    queue = state.queue_numbers.get(submission.queue, NO_QUEUE)
    if queue == NO_QUEUE or state.queues[queue].spec.cohort:
        return capacity
    nominal = state.queues[queue].spec.nominal
    cpus, devices, memory = (min(c, n) if n < UNLIMITED else c for c, n in zip(capacity, nominal, strict=True))
    return cpus, devices, memory
