"""The state of a gate's engine without what has ended, so that a gate may live for months.

The engine's columns only grow, and with them the snapshots of the journal. What still counts fits into a new state:
the tasks that have not ended, in their order, and the leases of those that hold a ticket.
"""

from __future__ import annotations

from collections.abc import Mapping

from egs_core.engine import messages as m
from egs_core.engine.state.lifecycle import HELD, HOLDS_LEASE, READY
from egs_core.engine.state.state import State
from egs_core.graph.columns import Graph


def renewed(state: State, labels: Mapping[int, str]) -> tuple[State, dict[int, int]]:
    """A state with only the tasks in `labels` (their names by number; one phase each), and their new numbers.

    Nothing is decided: what has a lease keeps it, with its decision's number; what is ready keeps its place.
    """
    new, numbers = State(), dict[int, int]()
    new.clock(state.now)
    for workload in state.workloads:
        _add_tasks(new, state, workload.id, [task for task in workload.numbers if task in labels], labels, numbers)
    nodes = _add_nodes(new, state)
    waiting = [task for task in numbers if state.status[state.cursor[task]] in (READY, HELD, *HOLDS_LEASE)]
    for task in sorted(waiting, key=lambda task: state.order[state.cursor[task]]):
        new.ready(new.cursor[numbers[task]], state.ready_at[state.cursor[task]])
        if state.cursor[task] in state.paused:
            new.hold_paused(new.cursor[numbers[task]])
    _keep_pauses(new, state, numbers)
    for phase, lease in sorted(state.leases.items(), key=lambda item: item[1].decision):
        task = state.task_of[phase]
        if task in numbers:
            new.grant(new.cursor[numbers[task]], lease.decision, nodes[lease.node], lease.devices, False)
    _withdraw_devices(new, state, nodes)
    new.next_decision = state.next_decision
    return new, numbers


def _add_tasks(
    new: State, state: State, workload: str, tasks: list[int], labels: Mapping[int, str], numbers: dict[int, int]
) -> None:
    if not tasks:
        return
    block, index, first = Graph(), dict[int, int](), len(new.task_ids)
    for task in tasks:
        phase = state.cursor[task]
        parents = tuple(index[parent] for parent in state.parents[task] if parent in index)
        shape = state.shapes[state.shape[phase]]
        seconds = None if phase in state.unknown else state.estimate_s[phase]
        phases = ((state.kind[phase], shape, seconds),)
        index[task] = block.add_task(labels[task], parents, phases, state.task_names[task])
        numbers[task] = first + index[task]
    new.absorb_workload(m.WorkloadSubmitted(workload), state.now)
    new.absorb_tasks(m.TasksAdded(workload, block))


def _keep_pauses(new: State, state: State, numbers: Mapping[int, int]) -> None:
    """Those of what is still there."""
    for key, pause in state.pauses.items():
        scope, _, target = key.partition(":")
        if scope == "task" and int(target) in numbers:
            new.pause(f"task:{numbers[int(target)]}", pause.actor, pause.reason, pause.at)
        elif scope == "workload" and target in new.workload_numbers:
            new.pause(key, pause.actor, pause.reason, pause.at)


def _add_nodes(new: State, state: State) -> dict[int, int]:
    """Those that offer something, or that something is held on; devices that were withdrawn while held are there."""
    held = {lease.node for lease in state.leases.values()}
    numbers = {}
    for number, node in enumerate(state.nodes):
        if node.gpus or number in held:
            numbers[number] = len(new.nodes)
            new.absorb_node(m.NodeAdded(node.name, gpus=len(node.devices)))
    return numbers


def _withdraw_devices(new: State, state: State, nodes: Mapping[int, int]) -> None:
    """Only now that they are held again: one that is whole goes at once."""
    for number in nodes:
        if len(state.nodes[number].devices) > state.nodes[number].gpus:
            new.absorb_node(m.NodeAdded(state.nodes[number].name, gpus=state.nodes[number].gpus))
