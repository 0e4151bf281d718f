"""Where a phase fits: pure questions on the state. Flavors, topology and deadlines belong here when they come."""

from __future__ import annotations

from egs_core.engine.state import UNTRACKED, WHOLE_DEVICE, Node, State
from egs_core.graph.columns import Shape


def fits_ever(node: Node, shape: Shape) -> bool:
    """Whether an empty node could run it."""
    wanted = -(-shape.gpu_milli // WHOLE_DEVICE)
    return (
        node.alive
        and shape.cpu_milli <= node.cpu_milli
        and (node.memory_bytes == UNTRACKED or shape.memory_bytes <= node.memory_bytes)
        and wanted <= len(node.devices)
        and (not wanted or node.gpu_memory_bytes == UNTRACKED or shape.gpu_memory_bytes <= node.gpu_memory_bytes)
    )


def lacking(node: Node, shape: Shape) -> str:
    """The first resource kind of which too little is free on the node: cpus, memory, gpus, or "" when it fits."""
    if shape.cpu_milli > node.free_cpu:
        return "cpus"
    if node.memory_bytes != UNTRACKED and shape.memory_bytes > node.free_memory:
        return "memory"
    if shape.gpu_milli and select_devices(node, shape) is None:
        return "gpus"
    return ""


def select_devices(node: Node, shape: Shape) -> tuple[int, ...] | None:
    """Devices for the shape: whole ones lowest index first; a share goes to the fullest device that still fits."""
    tracked = node.gpu_memory_bytes != UNTRACKED
    share = min(shape.gpu_milli, WHOLE_DEVICE)
    usable = [
        i
        for i, free in enumerate(node.devices)
        if free >= share and (not tracked or node.device_memory[i] >= shape.gpu_memory_bytes)
    ]
    if shape.gpu_milli < WHOLE_DEVICE:
        return (min(usable, key=lambda i: (node.devices[i], i)),) if usable else None
    wanted = shape.gpu_milli // WHOLE_DEVICE
    return tuple(usable[:wanted]) if len(usable) >= wanted else None


def select_node(state: State, phase: int) -> tuple[int, tuple[int, ...]] | None:
    """Node and devices for the phase now, or None.

    A started task stays on its node. Otherwise: where its warm process waits, or one is idle; then nodes without GPUs
    for CPU phases, then the fullest node that fits (best fit), then the first.
    """
    task = state.task_of[phase]
    shape = state.shapes[state.shape[phase]]
    home = state.home.get(task)
    started = home is not None and task not in state.parked
    best, best_score = None, None
    for number in (home,) if started and home is not None else range(len(state.nodes)):
        node = state.nodes[number]
        if not node.alive or lacking(node, shape) or not (started or has_process(state, task, number)):
            continue
        score = (-warmth_on(state, task, number), bool(node.devices) and not shape.gpu_milli, node.free_cpu, number)
        if best_score is None or score < best_score:
            best, best_score = number, score
    if best is None:
        return None
    devices = select_devices(state.nodes[best], shape) if shape.gpu_milli else ()
    return best, devices or ()


def warmth_on(state: State, task: int, number: int) -> int:
    """2: its own process waits on this node; 1: an idle warm one would serve; 0: it would start cold, or needs none."""
    options = state.options.get(task)
    if options is None or not options.warm_key:
        return 0
    if state.home.get(task) == number:
        return 2
    return 1 if state.nodes[number].idle_warm.get(options.warm_key) else 0


def has_process(state: State, task: int, number: int) -> bool:
    """Whether the node has, or may make, a process for the task. One kept for a task that is not yet ready, or idle
    with other things loaded, can be given up for it."""
    options = state.options.get(task)
    if options is None or not options.warm_key or state.home.get(task) == number:
        return True
    node = state.nodes[number]
    return node.working < node.process_slots
