"""Where a phase fits: pure questions on the state. Which flavor it should take is for `flavor_choice`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import msgspec

from egs_core.engine.rules.locality import start_delay_s
from egs_core.engine.rules.packer import Packer
from egs_core.engine.rules.processes import has_slot_for, process_pressure, takes_process_to_gpu, warmth_on
from egs_core.engine.rules.topology import has_level, has_wish
from egs_core.engine.state.nodes import UNTRACKED, WHOLE_DEVICE, Node
from egs_core.engine.state.slices import smallest
from egs_core.engine.state.state import State
from egs_core.graph.columns import GPU, Shape

Place = tuple[int, tuple[int, ...]]  # node, devices


def devices_of(shape: Shape) -> int:
    """How many devices a phase of this shape touches."""
    return -(-shape.gpu_milli // WHOLE_DEVICE)


def fits_ever(node: Node, shape: Shape) -> bool:
    """Whether an empty node could run it."""
    wanted = devices_of(shape)
    return (
        node.alive
        and shape.cpu_milli <= node.cpu_milli
        and (node.memory_bytes == UNTRACKED or shape.memory_bytes <= node.memory_bytes)
        and wanted <= node.gpus
        and (not wanted or node.gpu_memory_bytes == UNTRACKED or shape.gpu_memory_bytes <= node.gpu_memory_bytes)
        and (not node.device_totals or not wanted or len(_large_enough(node, shape)) >= wanted)
        and (not is_sliced(node, shape) or offers_slice(node, shape))
    )


def _large_enough(node: Node, shape: Shape) -> list[int]:
    """Devices with as much memory as the shape needs of each, were they empty."""
    return [device for device in range(node.gpus) if node.memory_of(device) >= shape.gpu_memory_bytes]


def count_of(node: Node, flavors: Collection[str], shape: Shape) -> int:
    """How many devices of these flavors could hold the shape, of a node whose devices have flavors of their own."""
    able = _large_enough(node, shape) if node.gpu_memory_bytes != UNTRACKED else range(node.gpus)
    return sum(node.device_flavors[device] in flavors for device in able)


def is_sliced(node: Node, shape: Shape) -> bool:
    """Whether the phase would get a slice of a device there."""
    return bool(node.profiles) and 0 < shape.gpu_milli < WHOLE_DEVICE


def offers_slice(node: Node, shape: Shape) -> bool:
    """Whether an empty device there could be split so that the phase gets a slice."""
    profile = smallest(node.profiles, shape)
    if profile is None:
        return False
    return node.gpu_memory_bytes == UNTRACKED or profile.memory_bytes <= node.gpu_memory_bytes


def fits_task(state: State, task: int, node: Node) -> bool:
    """Whether an empty node could run every phase of the task, which stays where it starts, and is of a flavor and in
    a group that it may have."""
    shapes = [state.shape_of(p) for p in state.phases_of(task)]
    if not is_allowed(state, task, node) or not has_level(state, task, node):
        return False
    if not all(fits_ever(node, shape) for shape in shapes):
        return False
    if not node.device_flavors:
        return True
    may = allowed_flavors(state, task, node)
    return all(count_of(node, may, shape) >= devices_of(shape) for shape in shapes)


def lacking(node: Node, shape: Shape) -> str:
    """The first resource kind of which too little is free on the node: cpus, memory, gpus, or "" when it fits."""
    if shape.cpu_milli > node.free_cpu and shape.cpu_milli:
        return "cpus"
    if shape.memory_bytes > node.free_memory and shape.memory_bytes and node.memory_bytes != UNTRACKED:
        return "memory"
    return "gpus" if shape.gpu_milli and not _has_devices(node, shape) else ""


def _has_devices(node: Node, shape: Shape) -> bool:
    """Whether the devices for the shape are free."""
    devices, wanted = node.devices, shape.gpu_milli
    if node.profiles or node.gpu_memory_bytes != UNTRACKED or len(devices) != node.gpus:
        return max(devices, default=0) >= min(wanted, WHOLE_DEVICE) and select_devices(node, shape) is not None
    if wanted < WHOLE_DEVICE:
        return max(devices, default=0) >= wanted
    return devices.count(WHOLE_DEVICE) * WHOLE_DEVICE >= wanted


def select_devices(node: Node, shape: Shape) -> tuple[int, ...] | None:
    """Devices for the shape: whole ones lowest index first; a share goes to the fullest device that still fits."""
    if is_sliced(node, shape):
        usable = [device for device in range(node.gpus) if node.slice_of(shape, device)]
        return (min(usable, key=lambda i: (node.devices[i], i)),) if usable else None
    tracked = node.gpu_memory_bytes != UNTRACKED
    if shape.gpu_milli == WHOLE_DEVICE and not tracked and len(node.devices) == node.gpus:  # as mostly
        return (node.devices.index(WHOLE_DEVICE),) if WHOLE_DEVICE in node.devices else None
    share = min(shape.gpu_milli, WHOLE_DEVICE)
    usable = [
        i
        for i, free in enumerate(node.devices[: node.gpus])
        if free >= share and (not tracked or node.device_memory[i] >= shape.gpu_memory_bytes)
    ]
    if shape.gpu_milli < WHOLE_DEVICE:
        return (min(usable, key=lambda i: (node.devices[i], i)),) if usable else None
    wanted = devices_of(shape)
    return tuple(usable[:wanted]) if len(usable) >= wanted else None


def select_place(
    state: State,
    phase: int,
    may_take: Callable[[Place], bool] | None = None,
    packer: Packer | None = None,
    numbers: Collection[int] | None = None,
    flavor: str | None = None,
    kept: Collection[int] | None = None,
) -> Place | None:
    """Node and devices for the phase now, or None. may_take: asked for each place where it fits, on the nodes `kept`
    where these are named. numbers: the nodes to look at, where others are known not to be the answer. flavor: only
    there.

    Where it can begin its work first, if it reads files of others (`locality`); where its warm process waits, or one is
    idle; then for a task that begins on CPUs and will want a device beside its process the least `process_pressure`;
    then nodes without GPUs for CPU phases; then where the packer wants it, or without one the node with the least
    free that still fits (best fit); then the first. Where room is kept for others it is best fit too: that room is
    counted on the devices that `select_devices` would take.
    """
    shape = state.shape_of(phase)
    if may_take is not None or (state.flavors and any(is_sliced(node, shape) for node in state.nodes)):
        packer = None
    if numbers is not None and len(numbers) == 1 and flavor is None:
        (number,) = numbers  # nothing to compare it with
        node = seen_by(state, state.task_of[phase], state.nodes[number])
        if lacking(node, shape) or not may_start_on(state, phase, number):
            return None
        place = number, devices_for(node, shape, packer)
        is_open = may_take is None or (kept is not None and number not in kept) or may_take(place)
        return place if is_open else None
    task = state.task_of[phase]
    has_inputs = bool(state.reads) and task in state.reads and state.first_phase[task] == phase
    is_plain = task not in state.options and state.first_phase[task + 1] - state.first_phase[task] == 1
    spreads = not is_plain and phase == state.first_phase[task] and takes_process_to_gpu(state, task)
    best: int | None = None
    best_score: tuple[float, ...] = ()
    possible = range(len(state.nodes)) if is_plain else possible_nodes(state, phase)
    asked: list[tuple[tuple[float, ...], int]] = []  # places on which may_take has a say, and only there
    has_key = not is_plain and bool(state.warm_key_of(task))
    is_bound = not is_plain and state.options_of(task).only_on is not None
    for number in possible if numbers is None else numbers:
        node = state.nodes[number]
        if flavor is not None and flavor not in node.flavors:
            continue
        if node.device_flavors or is_bound:
            node = seen_by(state, task, node, flavor)
        if lacking(node, shape) or not (node.alive if is_plain else may_start_on(state, phase, number)):
            continue
        warm = warmth_on(state, task, number) if has_key else 0
        crowding = process_pressure(node) if spreads else ()
        if packer is not None:
            score: tuple[float, ...] = (-warm, *crowding, *packer.score(node, shape), number)
        else:
            fullness = sum(node.devices) if shape.gpu_milli else len(node.devices) > 0
            score = (-warm, *crowding, fullness, node.free_cpu, number)
        if has_inputs:
            score = (start_delay_s(state, task, number, warm > 0), *score)
        if may_take is not None and (kept is None or number in kept):
            asked.append((score, number))
        elif best is None or score < best_score:
            best, best_score = number, score
    for score, number in sorted(asked):
        if best is not None and score > best_score:
            break
        node = seen_by(state, task, state.nodes[number], flavor)
        if may_take is not None and may_take((number, devices_for(node, shape))):
            best = number
            break
    if best is None:
        return None
    return best, devices_for(seen_by(state, task, state.nodes[best], flavor), shape, packer)


def devices_for(node: Node, shape: Shape, packer: Packer | None = None) -> tuple[int, ...]:
    """Devices that the shape takes on a node on which it fits; none for one without a GPU."""
    if not shape.gpu_milli:
        return ()
    if packer is None or shape.gpu_milli >= WHOLE_DEVICE:  # whole ones are alike to every packing
        return select_devices(node, shape) or ()
    return packer.devices(node, shape)


def possible_nodes(state: State, phase: int) -> Iterable[int]:
    """A started task stays on its node, and a GPU is not held while a process loads: it is where the process waits. A
    member of a gang that must be close together, or apart, need not start there: others of it may have theirs too far
    away, or beside it."""
    task = state.task_of[phase]
    is_parked = task in state.parked and state.kind[phase] == GPU and not has_wish(state, task)
    if phase != state.first_phase[task] or is_parked:
        return (state.home[task],)
    return range(len(state.nodes))


def may_start_on(state: State, phase: int, number: int) -> bool:
    """Apart from what is free: the node is there, could run the whole task, and has a slot for its process."""
    node = state.nodes[number]
    if not node.alive:
        return False
    task = state.task_of[phase]
    first = state.first_phase[task]
    if phase != first:
        return True
    is_split = state.first_phase[task + 1] - first > 1
    if is_split and not fits_task(state, task, node):
        return False
    has_wishes = is_split or task in state.options
    if not has_wishes:
        return True
    return is_allowed(state, task, node) and has_level(state, task, node) and has_slot_for(state, task, number)


def is_allowed(state: State, task: int, node: Node) -> bool:
    """Whether the task may run on hardware of the node's flavor, or on some of its devices."""
    flavors = state.options_of(task).flavors
    return not flavors or node.flavor in flavors or any(flavor in flavors for flavor in node.device_flavors)


def allowed_flavors(state: State, task: int, node: Node) -> Collection[str]:
    """Of the node's devices those that the task may have."""
    flavors = state.options_of(task).flavors
    return flavors if flavors and node.flavor not in flavors else node.flavors


def own_devices(state: State, task: int, node: Node) -> int:
    """How many of the node's devices the task may have."""
    return sum(_own(state, task, node, None))


def seen_by(state: State, task: int, node: Node, flavor: str | None = None) -> Node:
    """The node as it is to a task that may have some of its devices only, or those of `flavor` alone: the others are
    taken. Nothing may be taken there."""
    if not node.device_flavors and state.options_of(task).only_on is None:
        return node
    return seen_as(node, _own(state, task, node, flavor))


def _own(state: State, task: int, node: Node, flavor: str | None) -> list[bool]:
    """Of each device whether the task may have it."""
    own = [True] * node.gpus
    if node.device_flavors:
        may = allowed_flavors(state, task, node) if flavor is None else (flavor,)
        own = [one in may for one in node.device_flavors]
    if (only_on := state.options_of(task).only_on) is not None:
        name, devices = only_on
        own = [is_own and name == node.name and number in devices for number, is_own in enumerate(own)]
    return own


def seen_as(node: Node, own: list[bool]) -> Node:
    """The node as it is to who may have these devices of its own: the others are taken. own: none: all."""
    if all(own):
        return node
    own = own + [False] * (len(node.devices) - len(own))  # withdrawn ones
    devices = [free if is_own else min(free, 0) for free, is_own in zip(node.devices, own, strict=True)]
    return msgspec.structs.replace(node, devices=devices)
