"""Giving out what fits, in order. What does not fit is passed over (backfill); a gang and an overdue phase reserve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from egs_core.engine import messages as m
from egs_core.engine.order.classes import ANY, PhaseClass
from egs_core.engine.order.fronts import Front
from egs_core.engine.order.policy import PATH_TERM, Key
from egs_core.engine.order.queue import ReadyQueue
from egs_core.engine.passes.issuer import Issuer
from egs_core.engine.passes.warm_pool import Processes
from egs_core.engine.rules import quota
from egs_core.engine.rules.fit import Place, devices_for, lacking, seen_by, select_place
from egs_core.engine.rules.flavor_choice import FlavorChoice, Refused
from egs_core.engine.rules.flavors import chooses
from egs_core.engine.rules.locality import CANDIDATES, TRANSFER_TERM, select_reader
from egs_core.engine.rules.packer import Packer
from egs_core.engine.rules.reservation import (
    MOST_RESERVATIONS,
    find_reservation,
    has_one_place,
    keeps_reservations,
    queues_with_kept,
    select_gang,
)
from egs_core.engine.state.lifecycle import READY
from egs_core.engine.state.nodes import WHOLE_DEVICE
from egs_core.engine.state.records import Reservation

MOST_CHOOSERS = 200  # of those that wait, first ones in order, that are looked at together for flavors in one pass
GANG_PATIENCE = 5.0  # times its P95 that a gang waits before it reserves: reserving at once costs the others more


NOTHING_REFUSED: Mapping[int, Refused] = {}


class Blocked(NamedTuple):
    """The first of a class that found no place. phases: it, or those of its gang; queue: the number of its queue."""

    phase: int
    phases: tuple[int, ...]
    queue: int


class Outcome(NamedTuple):
    """Of a pass. blocked: gathered where somebody may be preempted for them; refused: phases that wait for a better
    flavor than what is free."""

    blocked: Sequence[Blocked]
    refused: Mapping[int, Refused]


NOTHING_FOUND = Outcome((), NOTHING_REFUSED)


class Granting:
    """See the module."""

    def __init__(
        self,
        issuer: Issuer,
        queue: ReadyQueue,
        processes: Processes,
        packer: Packer | None = None,
        objective: str = "finish",
    ) -> None:
        self._issuer = issuer
        self._transitions = issuer.transitions
        self._state = issuer.state
        self._queue = queue
        self._processes = processes
        self._packer = packer
        self._packs: Packer | None = None  # the same once it has learned what the workloads look like
        self._objective = objective
        self._choice: FlavorChoice | None = None  # of this pass; none where all devices are alike
        self._refusals = queue.free.refusals
        self._asked: set[int] = set()  # owners of reservations that have found no place in this pass
        self._reservations: Mapping[int, Reservation] = {}  # as last seen
        self._look_at_reservations()

    def run(self) -> Outcome:
        """Grant until nothing fits within quotas, devices and what is reserved; what found no place."""
        queue, state = self._queue, self._state
        if queue.free.freed_nodes:
            queue.free.refresh()
        if state.reservations or self._reservations:
            self._drop_reservations()
            if self._reservations.keys() != state.reservations.keys():
                self._reservations_changed()  # an owner was granted its place by the framework's own word
        self._choice = self._make_choice() if state.flavors else None
        if state.reservations:
            if self._reservations != state.reservations:
                self._look_at_reservations()
            self._asked.clear()
            self._grant_reserved()
        if self._choice is not None:
            self._grant_choosers(self._choice)
        queue.mark_settled()
        self._packs = self._packer.learn(state.shapes, state.shape) if self._packer is not None else None
        blocked = self._grant_in_order()
        if state.review_at is None and self._choice is None:
            return Outcome(blocked, NOTHING_REFUSED) if blocked else NOTHING_FOUND
        return Outcome(blocked, self._review())

    def _grant_in_order(self) -> list[Blocked]:
        """What fits, the first candidate of each class at a time; returns the first of each class that found none."""
        queue, state = self._queue, self._state
        blocked: list[Blocked] = []
        passed: set[PhaseClass] = set()
        has_rules = bool(state.queues or state.flavors)
        reservations = state.reservations
        while (found := queue.front(passed)) is not None:
            key, phase, phase_class = found
            if not (phase_class.others or has_rules or reservations):
                place = self._simple_place(phase, phase_class)
                if place is None:
                    self._pass_over(found, (phase,), blocked, is_within=True)
                    if queue.is_one_class():
                        break
                    passed.add(phase_class)
                elif not (state.reads and self._grant_local_reader(phase_class, place)):
                    self.grant(phase, place, queue.take(phase_class, key))
                continue
            phases = queue.members(phase)
            is_within = not state.queues or self._is_within_quota(phases, phase_class.queue)
            if reservations and is_within and self._stays_refused(found):
                passed.add(phase_class)
                continue
            places = self._places(phases, phase_class) if is_within and phase not in self._asked else None
            if places is None:
                passed.add(phase_class)
                if reservations and is_within:
                    self._note_refused(phase, phase_class)
                self._pass_over(found, phases, blocked, is_within=is_within)
            elif not (state.reads and self._grant_local_reader(phase_class, places[0])):
                is_owner = phase in reservations
                reason = queue.take(phase_class, key)
                for member, place in zip(phases, places, strict=True):
                    self.grant(member, place, reason)
                if is_owner:  # late ones that come before it would have been asked before it, for nothing
                    late = self._reservations_changed()
                    passed.update(c for c in late if queue.fronts.of[c] < found)
        return blocked

    def _pass_over(self, front: Front, phases: Sequence[int], blocked: list[Blocked], *, is_within: bool) -> None:
        """The first of a class has found no place: it reserves one, or its class waits until something is freed."""
        queue, (key, phase, phase_class) = self._queue, front
        if self._choice is not None and phase in self._choice.refused:
            return
        if queue.preempts:  # who may preempt must be among the blocked, so its resources are never closed
            blocked.append(Blocked(phase, tuple(phases), phase_class.queue))
        has_own_rights = phase_class.has_own_rights
        is_for_room = is_within and queue.free.is_kept and not (queue.preempts or has_own_rights)
        if is_for_room:
            queue.free.found_none(phase_class)
        may_reserve = has_own_rights or queue.has_come_forward(key)
        if may_reserve and is_within and (queue.is_overdue(key) or self._must_reserve(key, phases, phase_class)):
            self._reserve(phase, phases)
        elif not has_own_rights and queue.is_late(key) == queue.is_late_behind_others(key):  # else: once others come
            queue.unplaceable_classes.add(phase_class)

    def _note_refused(self, phase: int, phase_class: PhaseClass) -> None:
        """It has found no place beside what is kept: that need not be seen again at once."""
        state, free = self._state, self._queue.free
        if phase_class.others or not free.is_kept or self._queue.preempts or state.flavors or state.is_metered:
            return
        if phase_class.node == ANY:
            free.was_refused(phase, phase_class)
        elif phase in self._asked:
            self._refusals.owners.add(phase)

    def _stays_refused(self, front: Front) -> bool:
        """Whether it has been refused, would be again, and then neither reserves a place nor changes one."""
        queue, (key, phase, phase_class) = self._queue, front
        if phase_class.node != ANY:
            return phase in self._refusals.owners and phase in self._asked
        if phase_class.others or not queue.free.is_refused(phase, phase_class) or queue.has_come_forward(key):
            return False
        queue.unplaceable_classes.add(phase_class)
        return True

    def _simple_place(self, phase: int, phase_class: PhaseClass) -> Place | None:
        """A place for one phase that has no wishes beyond its shape, where nothing is kept for others."""
        state, number = self._state, phase_class.node
        if number == ANY:
            if len(state.nodes) != 1:
                is_plain = state.task_of[phase] not in state.reads
                best, numbers = self._queue.free.where(phase, phase_class, self._packs, is_plain=is_plain)
                if best is None:
                    if numbers is None or len(numbers) != 1:
                        return select_place(state, phase, None, self._packs, numbers)
                    (best,) = numbers
                number = best
            else:
                number = 0
        shape, node = state.shapes[phase_class.shape], state.nodes[number]
        if (shape.cpu_milli > node.free_cpu and shape.cpu_milli) or not node.alive or lacking(node, shape):
            return None
        return number, devices_for(node, shape, self._packs) if shape.gpu_milli else ()

    def _make_choice(self) -> FlavorChoice | None:
        """None where devices are all alike, or all taken and nobody starts with a CPU phase."""
        nodes = [node for node in self._state.nodes if node.alive and node.gpus]
        if self._objective == "blind" or len({flavor for node in nodes for flavor in node.flavors}) < 2:
            return None
        is_open = any(max(node.devices[: node.gpus]) for node in nodes) or self._queue.has_split_tasks()
        return FlavorChoice(self._state, self._objective) if is_open else None

    def _grant_choosers(self, choice: FlavorChoice) -> None:
        """Those that have a choice between flavors, in order: each is given a place where it is best off, or is left
        to wait, and then what it waits for counts as taken for those behind it."""
        queue, state = self._queue, self._state
        phases = queue.first_choosers(MOST_CHOOSERS)
        choice.line_up(quota.beside_each_other(state, phases) if state.queues else phases)
        for phase in phases:
            if not choice.has_room and self._needs_gpu(phase):
                continue
            phase_class = queue.classes.of(phase)
            if state.queues and not self._is_within_quota((phase,), phase_class.queue):
                continue
            places = self._places((phase,), phase_class)
            if places is not None:
                self.grant(phase, places[0], queue.take_one(phase))
        queue.mark_settled()

    def _review(self) -> Mapping[int, Refused]:
        """When to look again at those that wait although something is free: once what they wait for should be."""
        refused = self._choice.refused if self._choice is not None else NOTHING_REFUSED
        at = min((found.better.start_s for found in refused.values()), default=None)
        if at != self._state.review_at:
            self._transitions.review(at)
        return refused

    def _grant_reserved(self) -> None:
        """Single phases that fit in what is reserved for them: the loop asks the first of each class only, and that may
        be one that has to leave this place alone."""
        queue, state = self._queue, self._state
        for owner in sorted(state.reservations, key=lambda p: (state.reservations[p].at, p)):
            phase_class = queue.classes.of(owner)
            if phase_class.is_gang or (state.queues and not self._is_within_quota((owner,), phase_class.queue)):
                continue
            places = None if owner in self._refusals.owners else self._places((owner,), phase_class)
            if places is not None:
                self.grant(owner, places[0], queue.take_one(owner))
                self._reservations_changed()
            elif self._choice is None:
                self._asked.add(owner)

    def _reservations_changed(self) -> Sequence[PhaseClass]:
        """What was kept is open, or the other way round; the classes whose first phase is late."""
        self._look_at_reservations()
        return self._queue.reservations_changed()

    def _look_at_reservations(self) -> None:
        self._reservations = dict(self._state.reservations)
        self._refusals.reservations_changed(node for kept in self._reservations.values() for _, node in kept.places)
        self._asked.clear()

    def _grant_local_reader(self, phase_class: PhaseClass, place: Place) -> bool:
        """Whether the place went to a phase behind the first of its class, for what it need not fetch there."""
        queue, state = self._queue, self._state
        is_free = phase_class.node == ANY and not phase_class.has_own_rights
        is_free = is_free and not state.reservations
        if not is_free or state.plan_is_firm or not queue.policy.weighs_transfers:
            return False
        first, *others = queue.first_of(phase_class, CANDIDATES)
        chosen = select_reader(state, (first, *others), place[0], PATH_TERM)
        if chosen is first:
            return False
        queue.take_later(chosen[1])
        self.grant(chosen[1], place, TRANSFER_TERM)
        return True

    def _is_within_quota(self, phases: Sequence[int], number: int) -> bool:
        state = self._state
        wanted = quota.demand(state, phases)
        queues = queues_with_kept(state, phases) if state.reservations else state.queues
        return quota.blocked_by(queues, number, wanted) is None

    def _places(self, phases: Sequence[int], phase_class: PhaseClass) -> Sequence[Place] | None:
        """A place for each, without delaying what is reserved for others."""
        state = self._state
        if phase_class.is_gang:
            places = self._gang_places(phases)
            keeps = places is None or not state.reservations or keeps_reservations(state, phases, places, state.now)
            return places if keeps else None

        (phase,) = phases
        if state.reservations:
            return self._place_beside(phase, phase_class)
        if self._choice is not None and phase_class.is_chooser and chooses(state, state.task_of[phase]):
            return self._chosen_place(self._choice, phase, None)
        best, numbers = self._queue.free.where(phase, phase_class, self._packs, is_plain=self._is_plain(phase))
        place = select_place(state, phase, None, self._packs, numbers if best is None else (best,))
        return None if place is None else (place,)

    def _is_plain(self, phase: int) -> bool:
        """Whether nothing but the packing says which of the nodes that fit is best."""
        state, task = self._state, self._state.task_of[phase]
        return not state.flavors and task not in state.reads and state.options_of(task).only_on is None

    def _place_beside(self, phase: int, phase_class: PhaseClass) -> Sequence[Place] | None:
        """A place for one phase without delaying what is reserved for others. A task that has started heeds nothing
        that is kept."""
        state, bound = self._state, phase_class.node
        shape = state.shapes[phase_class.shape]
        if bound != ANY and not phase_class.others:
            node = state.nodes[bound]
            return ((bound, devices_for(node, shape)),) if node.alive and not lacking(node, shape) else None

        def may_take(place: Place) -> bool:
            return keeps_reservations(state, (phase,), (place,), state.now)

        if self._choice is not None and phase_class.is_chooser and chooses(state, state.task_of[phase]):
            return self._chosen_place(self._choice, phase, may_take)
        is_plain = self._is_plain(phase)
        best, numbers = self._queue.free.where(phase, phase_class, None, is_plain=is_plain, beside_kept=True)
        if best is not None:
            return ((best, devices_for(state.nodes[best], shape)),)
        place = select_place(state, phase, may_take, None, numbers, kept=self._refusals.kept)
        return None if place is None else (place,)

    def _gang_places(self, phases: Sequence[int]) -> Sequence[Place] | None:
        """All on one flavor, the best one that has room, else on several: the slowest member holds up the others."""
        state = self._state
        if self._choice is not None and chooses(state, state.task_of[phases[0]]):
            for offer in self._choice.offers(phases[0]):
                nodes = {
                    number: seen_by(state, state.task_of[phases[0]], node, offer.flavor)
                    for number, node in enumerate(state.nodes)
                    if offer.flavor in node.flavors
                }
                if (places := select_gang(state, phases, nodes)) is not None:
                    return places
        return select_gang(state, phases)

    def _chosen_place(
        self, choice: FlavorChoice, phase: int, may_take: Callable[[Place], bool] | None
    ) -> Sequence[Place] | None:
        """A place on the flavor on which the task should start now; what waits too long takes the best that is free."""
        if phase in choice.waits or (not choice.has_room and self._needs_gpu(phase)):
            return None
        if not choice.is_offered(phase) and any(node.device_flavors for node in self._state.nodes):
            place = select_place(self._state, phase, may_take, self._packs)  # of several flavors, for none has so many
            return None if place is None else (place,)
        is_patient = not self._queue.is_overdue(self._queue.keys[phase]) and phase not in self._state.reservations
        for flavor in choice.flavors_now(phase, is_patient):
            place = select_place(self._state, phase, may_take, self._packs, flavor=flavor)
            if place is not None:
                return (place,)
        if is_patient:
            choice.wait(phase)
        return None

    def _needs_gpu(self, phase: int) -> bool:
        return self._state.shape_of(phase).gpu_milli > 0

    def _must_reserve(self, key: Key, phases: Sequence[int], phase_class: PhaseClass) -> bool:
        """What has waited too long for other submissions, one at a time; a gang that has waited long; and a gang or a
        set of GPUs that a deadline has put forward: the order alone never brings it more than one free device."""
        if phase_class.is_gang and self._has_waited_long(phases):
            return True
        state = self._state
        is_set = phase_class.is_gang or state.shape_of(phases[0]).gpu_milli > WHOLE_DEVICE
        if is_set and self._queue.is_urgent(key):
            return True
        is_first = not state.reservations or phases[0] in state.reservations
        return is_first and self._queue.is_late_behind_others(key)

    def _has_waited_long(self, phases: Sequence[int]) -> bool:
        """Whether a gang has waited so long, measured by its own length, that the order of the others must give way."""
        state = self._state
        waited_s = state.now - max(state.ready_at[p] for p in phases)
        return waited_s >= GANG_PATIENCE * max(state.estimate_p95_s[p] for p in phases)

    def _reserve(self, owner: int, phases: Sequence[int]) -> None:
        """Keep the earliest place that the phases can have; once made, it is firm."""
        state = self._state
        kept = state.reservations.get(owner)
        if kept is None and len(state.reservations) >= MOST_RESERVATIONS:
            return
        if kept is not None and (kept.at > state.now or has_one_place(state, phases, kept.places)):
            return
        found = find_reservation(state, phases, state.now)
        if found is None:
            return
        if kept is None:
            self._transitions.reserve(owner, *found)
            self._reservations_changed()
        elif found[1] != kept.places:  # what runs there has outlived its estimate: other places may be free sooner
            self._transitions.reserve(owner, kept.at, found[1])
            self._look_at_reservations()

    def _drop_reservations(self) -> None:
        """Of phases that do not wait any more, or whose gang is not whole any more."""
        state = self._state
        for owner in list(state.reservations):
            kept = state.reservations[owner]
            waits = owner in self._queue.keys and state.status[owner] == READY
            is_there = all(state.nodes[node].alive for _, node in kept.places)
            is_there = is_there and not (state.queues and self._has_no_quota(kept))
            if not waits or not is_there or tuple(p for p, _ in kept.places) != self._queue.members(owner):
                self._transitions.unreserve(owner)
                self._queue.unplaceable_classes.clear()
                self._reservations_changed()

    def _has_no_quota(self, kept: Reservation) -> bool:
        """Whether its queue could not even have it if nothing ran: what is kept would be kept for ever."""
        state = self._state
        wanted = quota.demand(state, [p for p, _ in kept.places])
        number = state.queue_of(state.task_of[kept.places[0][0]])
        return quota.never_fits(state.queues, number, wanted) is not None

    def grant(self, phase: int, place: Place, reason: str) -> None:
        """Give the place out, to a phase that has left the queue."""
        state, processes = self._state, self._processes
        node, devices = place
        task, warm = state.task_of[phase], None
        if state.first_phase[task] == phase:
            self._issuer.mark_started(task)
            is_alone = state.first_phase[task + 1] - phase == 1 and task not in state.options
            if not is_alone and state.needs_slot(task):
                processes.forget(task)
                is_warm = processes.secure(task, node)
                warm = is_warm if state.warm_key_of(task) else None
        if processes.has_keys:
            processes.want_plan()
        decision = state.next_decision
        if self._choice is not None:
            self._choice.granted(phase, node, devices)
        positions = self._transitions.grant(phase, decision, node, devices, bool(warm))
        if self._queue.free.is_kept:
            self._queue.free.taken(node)
        self._issuer.out.append(
            m.Grant(
                decision,
                phase,
                task,
                state.attempt[task],
                state.nodes[node].name,
                devices,
                reason,
                warm,
                positions,
            )
        )
