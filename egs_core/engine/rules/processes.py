"""Processes and the slots of their node: who has one, and who may get one. `state.processes` changes them.

A node has `process_slots`. What has one, and when it is given up for a task that starts there and needs one:

    started    of a task that `needs_slot`, from its first phase to its end, between its phases too    never
    kept       for a task that is ready                                                                never
    kept       for a task that is not yet ready                                                        last
    idle       warm, without a task                                                                    first

A process keeps between two phases the memory that its task states, so those that have started have no more than the
node's together, unless one alone has more. So what has a slot for good needs no other, nor more memory, to come to its
end: between two phases it waits for what runs.

The one that starts where all slots are taken is a member of a gang: that starts as a whole where one is free on each of
its nodes, or two gangs could wait for each other's, and one of more members than there are slots for ever. Its first
phases run at the same moment in any case.
"""

from __future__ import annotations

from egs_core.engine.specs import UNLIMITED
from egs_core.engine.state.lifecycle import READY
from egs_core.engine.state.nodes import UNTRACKED, Node
from egs_core.engine.state.state import State

NO_SLOT = -1  # less than any memory


def has_slot_for(state: State, task: int, number: int) -> bool:
    """Whether the task may start on the node as far as processes go: it needs no slot, its own process is there, or one
    is free or given up for it; and there is memory for it beside those that have started."""
    node = state.nodes[number]
    is_counted = node.started_bytes > 0 and node.memory_bytes != UNTRACKED
    has_memory = not is_counted or node.started_bytes + state.memory_of(task) <= node.memory_bytes
    if (has_memory and node.started + node.parked < node.process_slots) or not state.needs_slot(task):
        return True  # as mostly
    if not has_memory or state.home.get(task) == number:
        return has_memory
    free = node.process_slots - node.started
    if node.parked and free > 0:
        free -= sum(keeps_slot(state, t) for t in state.parked if state.home[t] == number)
    return free > 0


def may_have_slot(node: Node, memory_bytes: int) -> bool:
    """Whether a task that needs a slot and states so much memory may have one there, if all that is kept for others is
    given up for it: where this is false `has_slot_for` is too, but for a task whose own process is there."""
    return memory_bytes <= slot_room(node)


def slot_room(node: Node) -> int:
    """How much memory a task that needs a slot there may state, in the same sense; NO_SLOT where all are taken."""
    if node.started >= node.process_slots:
        return NO_SLOT
    is_counted = node.started_bytes > 0 and node.memory_bytes != UNTRACKED
    return node.memory_bytes - node.started_bytes if is_counted else UNLIMITED


def keeps_slot(state: State, task: int) -> bool:
    """Whether a process that is kept for this task is given up for no other."""
    return state.status[state.cursor[task]] == READY


def warmth_on(state: State, task: int, number: int) -> int:
    """2: its own process waits on this node; 1: an idle warm one would serve; 0: it would start cold, or loads
    nothing."""
    key = state.warm_key_of(task)
    if not key:
        return 0
    if state.home.get(task) == number:
        return 2
    return 1 if key in state.nodes[number].idle_warm else 0


def takes_process_to_gpu(state: State, task: int) -> bool:
    """Whether a task begins on CPUs, and comes to a GPU phase with a process for which something was loaded."""
    if not state.warm_key_of(task):
        return False
    gpu_milli = [state.shape_of(p).gpu_milli for p in state.phases_of(task)]
    return not gpu_milli[0] and any(gpu_milli)


def process_pressure(node: Node) -> tuple[int, ...]:
    """Lower is better for a task that begins on CPUs: whether a process kept for another would be given up for its own,
    then how many processes are at work or kept there, since each will want a device."""
    in_use = node.started + node.parked
    return int(in_use >= node.process_slots), in_use
