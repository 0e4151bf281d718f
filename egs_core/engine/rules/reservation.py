"""Firm reservations: what a gang, or an overdue phase, waits for is kept; others may pass only if they do not delay it.

    node n0   |##########|                    a runs until its P95
    node n1   |######|   :                    b
    gang          ready  |================|   reserved on n0 and n1 from `at` on
    c                |==|:                    fits by its P95: may pass (backfill)
    d                |===:====|               would still run at `at`, on what the gang needs: may not

`at` is set once and never moves later, so however wrong estimates are, and however long the stream of small tasks is,
from `at` on nothing new takes what the gang waits for. Source: EASY backfill (Lifka, JSSPP 1995), here with the 95th
percentile of predicted durations instead of users' limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from egs_core.engine.rules import quota
from egs_core.engine.rules.apart import select_apart
from egs_core.engine.rules.ends import sure_ends
from egs_core.engine.rules.fit import Place, devices_for, lacking, may_start_on, possible_nodes, seen_by
from egs_core.engine.rules.flavors import p95_on_node
from egs_core.engine.rules.processes import has_slot_for
from egs_core.engine.rules.topology import groups_of, levels_apart, levels_of, separate
from egs_core.engine.specs import NO_QUEUE
from egs_core.engine.state.nodes import WHOLE_DEVICE, Lease, Node
from egs_core.engine.state.records import QueueState
from egs_core.engine.state.state import State
from egs_core.graph.columns import Shape

MOST_RESERVATIONS = 8
Nodes = dict[int, Node]


def copy_node(node: Node) -> Node:
    """What is free on a node, to try things on."""
    return msgspec.structs.replace(
        node, devices=node.devices[:], device_memory=node.device_memory[:], positions=dict(node.positions)
    )


def select_gang(state: State, phases: Sequence[int], nodes: Nodes | None = None) -> list[Place] | None:
    """A place for every phase at once, or None; in the order of `phases`. Largest first, each on the node with the
    least free that still fits, and where all the members there can start each of their later phases together: a task
    stays where it starts. Of those that must be apart each in a group of its own, whenever that is possible. nodes:
    what to look at instead of all as they are; left as it was."""
    looked_at = nodes if nodes is not None else dict(enumerate(state.nodes))
    if len(phases) == 1:
        return _select_among(state, phases, looked_at)
    select = _select_apart if levels_apart(state, phases) else _select_among
    levels = levels_of(state, phases)
    if not levels:
        return select(state, phases, looked_at)
    groups = (group for _, group in groups_of(looked_at, levels))
    return next((found for group in groups if (found := select(state, phases, group)) is not None), None)


def _select_apart(state: State, phases: Sequence[int], looked_at: Nodes) -> list[Place] | None:
    """Each in a group of its own. On a node alone its later phases are no question: `may_start_on` asks that."""
    part_of = separate(looked_at, levels_apart(state, phases))
    nodes_of: dict[int, dict[int, int]] = {}  # phase -> group -> the best node of it
    for phase in sorted(phases, key=lambda p: (_size(state, p), p)):
        best = nodes_of[phase] = {}
        for number in sorted(_fitting(state, phase, looked_at), key=lambda n: _fullness(looked_at, n)):
            if number in part_of:
                best.setdefault(part_of[number], number)
    found = select_apart({phase: tuple(best) for phase, best in nodes_of.items()})
    if found is None:
        return None
    numbers = [nodes_of[phase][found[phase]] for phase in phases]
    return [_place_on(state, phase, looked_at, number) for phase, number in zip(phases, numbers, strict=True)]


def _select_among(state: State, phases: Sequence[int], looked_at: Nodes) -> list[Place] | None:
    taken: list[tuple[Node, Lease]] = []
    places: dict[int, Place] = {}
    later = _rooms_for_later(state, phases)
    for phase in sorted(phases, key=lambda p: (_size(state, p), p)):
        place = _place_one(state, phase, looked_at, later)
        if place is None:
            break
        places[phase] = place
        for room, shape in zip(later, _later_shapes(state, phase), strict=False):
            room[place[0]].take(room[place[0]].lease(0, place[0], shape, devices_for(room[place[0]], shape)))
        node = looked_at[place[0]]
        lease = node.lease(0, place[0], state.shape_of(phase), place[1])
        node.take(lease)
        taken.append((node, lease))
    for node, lease in reversed(taken):
        node.give_back(lease)
    return [places[phase] for phase in phases] if len(places) == len(phases) else None


def _place_one(state: State, phase: int, nodes: Nodes, later: Sequence[Nodes]) -> Place | None:
    fitting = [
        number
        for number in _fitting(state, phase, nodes)
        if not any(lacking(room[number], s) for room, s in zip(later, _later_shapes(state, phase), strict=False))
    ]
    return _place_on(state, phase, nodes, min(fitting, key=lambda n: _fullness(nodes, n))) if fitting else None


def _fitting(state: State, phase: int, nodes: Nodes) -> list[int]:
    """Those of the nodes on which it might start now."""
    shape, task = state.shape_of(phase), state.task_of[phase]
    return [
        number
        for number in possible_nodes(state, phase)
        if number in nodes
        and not lacking(seen_by(state, task, nodes[number]), shape)
        and may_start_on(state, phase, number)
    ]


def _fullness(nodes: Nodes, number: int) -> tuple[int, int, int]:
    return sum(nodes[number].devices), nodes[number].free_cpu, number


def _place_on(state: State, phase: int, nodes: Nodes, number: int) -> Place:
    return number, devices_for(seen_by(state, state.task_of[phase], nodes[number]), state.shape_of(phase))


def _rooms_for_later(state: State, phases: Sequence[int]) -> list[Nodes]:
    """Empty nodes for each phase after the first of the members' tasks, to see whether those fit together; none when
    the tasks have started or have no later phases, and for one task alone, which `may_start_on` asks for."""
    if len(phases) == 1 or not state.is_first_phase(phases[0]):
        return []
    most = max(len(_later_shapes(state, p)) for p in phases)
    return [_nodes_after(state, state.leases, range(len(state.nodes))) for _ in range(most)]


def _nodes_after(state: State, ended: Iterable[int], copied: Iterable[int] = ()) -> Nodes:
    """The nodes that are there, as they are once these phases have ended: copies of those where one ends and of
    `copied`, for whoever takes something there; the others themselves."""
    nodes = {i: node for i, node in enumerate(state.nodes) if node.alive}
    for number in {state.leases[p].node for p in ended}.union(copied):
        if number in nodes:
            nodes[number] = copy_node(nodes[number])
    for phase in ended:
        lease = state.leases[phase]
        if lease.node in nodes:
            nodes[lease.node].give_back(lease)
    return nodes


def _later_shapes(state: State, phase: int) -> list[Shape]:
    return [state.shapes[s] for s in state.shape[phase + 1 : state.first_phase[state.task_of[phase] + 1]]]


def _size(state: State, phase: int) -> tuple[int, int, int]:
    shape = state.shape_of(phase)
    return -shape.gpu_milli, -shape.cpu_milli, -shape.memory_bytes


def find_reservation(
    state: State, phases: Sequence[int], now: float
) -> tuple[float, tuple[tuple[int, int], ...]] | None:
    """The earliest time at which all of the phases fit, when what runs ends by its P95 and earlier reservations are
    kept, and (phase, node) for each; None when they do not even fit on empty nodes."""
    if len(phases) == 1 and next(iter(state.reservations), phases[0]) == phases[0]:
        return find_for_one(state, phases, now)
    return find_for_several(state, phases, now)


def has_one_place(state: State, phases: Sequence[int], places: Sequence[tuple[int, int]]) -> bool:
    """Whether these (phase, node) are all that there is for the phases: one alone that is bound to its node."""
    return len(phases) == 1 and tuple(possible_nodes(state, phases[0])) == (places[0][1],)


def find_for_several(
    state: State, phases: Sequence[int], now: float
) -> tuple[float, tuple[tuple[int, int], ...]] | None:
    """See `find_reservation`."""
    ends = sure_ends(state, state.leases)
    low, high = 0, len(ends)
    best = select_gang_after(state, phases, [p for _, p in ends])
    if best is None:
        return None
    while low < high:  # more room after more ends, so the first count of ends that is enough can be searched for
        middle = (low + high) // 2
        places = select_gang_after(state, phases, [p for _, p in ends[:middle]])
        if places is None:
            low = middle + 1
        else:
            high, best = middle, places
    at = ends[low - 1][0] if low else now
    return at, tuple((phase, node) for phase, (node, _) in zip(phases, best, strict=True))


def find_for_one(state: State, phases: Sequence[int], now: float) -> tuple[float, tuple[tuple[int, int], ...]] | None:
    """The same for one phase that heeds no other reservation: only the node on which something ends is looked at, and
    none on which it may not start."""
    (phase,) = phases
    if (places := select_gang(state, phases)) is not None:
        return now, ((phase, places[0][0]),)
    shape = state.shape_of(phase)
    possible = {number for number in possible_nodes(state, phase) if may_start_on(state, phase, number)}
    ends = sure_ends(state, [p for number in possible for p in state.leased_on.get(number, ())])
    rooms: dict[int, Node] = {}
    for at, ended in ends:
        lease = state.leases[ended]
        room = rooms.get(lease.node)
        if room is None:
            room = rooms[lease.node] = copy_node(state.nodes[lease.node])
        room.give_back(lease)
        if not lacking(seen_by(state, state.task_of[phase], room), shape):
            return at, ((phase, lease.node),)
    return None


def can_ever_start(state: State, phases: Sequence[int]) -> bool:
    """Whether the phases would fit together if nothing else ran, and nothing were drained or closed."""
    shut = [number for number, node in enumerate(state.nodes) if node.shut]
    nodes = _nodes_after(state, state.leases, shut)
    for number in [one for one in shut if one in nodes]:
        node = nodes[number]
        for device in node.shut:
            node.devices[device] += WHOLE_DEVICE
        node.drained = node.closed = ()
    return select_gang(state, phases, nodes) is not None


def select_gang_after(state: State, phases: Sequence[int], ended: Sequence[int]) -> list[Place] | None:
    """A place for every phase once these others have ended, with the reservations of others kept; or None."""
    before = []
    for owner, kept in state.reservations.items():
        if owner in phases:
            break  # those that came later make way
        before.append(kept.places)
    nodes = _nodes_after(state, ended, {node for places in before for _, node in places})
    for places in before:
        _take_reserved(state, nodes, places)
    return select_gang(state, phases, nodes)


def queues_with_kept(state: State, phases: Sequence[int]) -> list[QueueState]:
    """The queues as they are for these phases: reservations of others that are due count as used, for what was freed
    is kept with its quota, or the victims would take it back at once. As with room, one that has a reservation heeds
    those made before it; a higher priority, a task that has started, and one whose process is waited for, none."""
    queues = list(state.queues)
    for owner, kept in state.reservations.items() if queues and state.is_first_phase(phases[0]) else ():
        if owner in phases:
            break
        number = state.queue_of(state.task_of[owner])
        if kept.at > state.now or number == NO_QUEUE or _goes_first(state, phases[0], owner):
            continue
        if _has_its_slot(state, phases[0], kept.places):
            continue
        amounts = quota.demand(state, [p for p, _ in kept.places])
        queue = queues[number]
        used = [used + amount for used, amount in zip(queue.used, amounts, strict=True)]
        queues[number] = msgspec.structs.replace(queue, used=used)
    return queues


def _take_reserved(state: State, nodes: Nodes, places: Sequence[tuple[int, int]]) -> bool:
    """Take what is reserved on these copies; False when it does not fit."""
    fits = True
    for phase, number in places:
        node = nodes.get(number)
        if node is None:
            continue
        shape, seen = state.shape_of(phase), seen_by(state, state.task_of[phase], node)
        if lacking(seen, shape):
            fits = False
        else:
            node.take(node.lease(0, number, shape, devices_for(seen, shape)))
    return fits


def keeps_reservations(state: State, phases: Sequence[int], places: Sequence[Place], now: float) -> bool:
    """Whether phases may start together at these places: what they take is back before a reservation begins, or
    leaves room for it. One with a reservation of its own heeds those made before it only: two that overlap must not
    wait for each other. A task that has started heeds none: it may hold the process slot that is waited for."""
    if not state.is_first_phase(phases[0]):
        return True
    wanted = {number for number, _ in places}
    if not any(number in wanted for kept in state.reservations.values() for _, number in kept.places):
        return True  # nothing is kept there
    ends = [now + _whole_p95_s(state, p, n) + _loading_s(state, p, n) for p, (n, _) in zip(phases, places, strict=True)]
    for owner, kept in state.reservations.items():
        if owner in phases:
            break
        if _goes_first(state, phases[0], owner) or _has_its_slot(state, phases[0], kept.places):
            continue
        late = [(p, place) for p, place, end in zip(phases, places, ends, strict=True) if end > kept.at]
        for number in {place[0] for _, place in late}:
            reserved = [(p, n) for p, n in kept.places if n == number]
            if not reserved:
                continue
            room = _room_for(state, number, reserved, kept.at, now)
            for phase, (node, devices) in late:
                if node == number:
                    room.take(room.lease(0, node, state.shape_of(phase), devices))
            if not _take_reserved(state, {number: room}, reserved):
                return False
    return True


def _whole_p95_s(state: State, phase: int, number: int) -> float:
    """Until the phase's task has ended, on this node: with the phases that follow it."""
    return sum(p95_on_node(state, p, number) for p in range(phase, state.first_phase[state.task_of[phase] + 1]))


def _goes_first(state: State, phase: int, owner: int) -> bool:
    """What the user gave a higher priority than the reservation's owner need not wait for it, in the same queue (or
    none), unless room is being made for it elsewhere: then it waits for that."""
    own = state.reservations.get(phase)
    if own is not None and own.at <= state.now:
        return False
    task, other = state.task_of[phase], state.task_of[owner]
    if state.queue_of(task) != state.queue_of(other):
        return False
    return state.options_of(task).priority > state.options_of(other).priority


def _has_its_slot(state: State, phase: int, places: Sequence[tuple[int, int]]) -> bool:
    """Its process, which waits for it, has the process slot that a reservation's owner lacks: only its end can make
    that free."""
    home = state.home.get(state.task_of[phase])
    return any(number == home and not has_slot_for(state, state.task_of[p], number) for p, number in places)


def _loading_s(state: State, phase: int, node: int) -> float:
    task = state.task_of[phase]
    options = state.options.get(task)
    if options is None or not options.warm_key or not state.is_first_phase(phase):
        return 0.0
    is_there = state.home.get(task) == node or options.warm_key in state.nodes[node].idle_warm
    return 0.0 if is_there else options.warmup_s


def _room_for(state: State, number: int, reserved: Sequence[tuple[int, int]], at: float, now: float) -> Node:
    """The node as it will be at that time if what runs there ends by its P95; when that is not enough for what is
    reserved, because something runs longer than was believed, as it will be once it is."""
    room, later = copy_node(state.nodes[number]), max(at, now)
    for end, phase in sure_ends(state, state.leased_on.get(number, ())):
        if end > later and _has_room(state, room, number, reserved):
            break
        room.give_back(state.leases[phase])
    return room


def _has_room(state: State, room: Node, number: int, reserved: Sequence[tuple[int, int]]) -> bool:
    """Whether all that is reserved on the node fits; the room stays as it is."""
    if len(reserved) > 1 or room.device_flavors:
        return _take_reserved(state, {number: copy_node(room)}, reserved)
    return not lacking(room, state.shape_of(reserved[0][0]))
