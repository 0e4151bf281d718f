"""Taking over what another engine has begun: it holds what it has from the first moment on.

    a block ─► what has begun is taken over ─► the rest becomes ready ─► the pass that follows grants what is left over

What runs cannot be undone, so neither quotas nor free room are asked: queues and nodes may then use more than they
have, and nothing new starts there before that is paid back.
"""

from __future__ import annotations

from collections.abc import Mapping

from egs_core.engine import messages as m
from egs_core.engine.passes.issuer import Issuer
from egs_core.engine.rules.fit import devices_for, lacking
from egs_core.engine.state.nodes import NOT_STARTED, WHOLE_DEVICE, Node
from egs_core.graph.columns import Shape


class TakeOver:
    """See the module."""

    def __init__(self, issuer: Issuer) -> None:
        self._issuer = issuer
        self._transitions = issuer.transitions
        self._state = issuer.state

    def take(self, event: m.TasksAdded, now: float) -> tuple[list[int], list[int]]:
        """How far the tasks of a new block are; the phases that run, and the tasks whose ranks may have changed. What
        is said of tasks or nodes that there are not, and of a part of a gang, begins anew instead."""
        state, number = self._state, self._state.workload_number(event.workload)
        numbers = state.workloads[number].numbers
        block = numbers[len(numbers) - event.graph.n_tasks :]
        said = {block[one.task]: one for one in event.begun if 0 <= one.task < len(block)}
        for task, one in said.items():
            self._transitions.attempted(task, one.attempt, one.failures)
        begun = {task: (one, node) for task, one in said.items() if (node := self._node_of(task, one)) is not None}
        running, changed = list[int](), list[int]()
        for task, (one, node) in sorted(begun.items()):
            if not self._is_whole(task, begun):
                continue
            if state.waiting[task]:
                changed += self._transitions.detach((task,))
            self._begin(task, one, node, now)
            if one.since_s is not None:
                running.append(state.cursor[task])
        return running, changed

    def _begin(self, task: int, one: m.Begun, node: int, now: float) -> None:
        state = self._state
        shape = state.shape_of(state.first_phase[task] + one.index)
        devices = _devices(state.nodes[node], shape, one.devices)
        started_at = None if one.since_s is None else now - max(0.0, one.since_s)
        if started_at == NOT_STARTED:
            started_at -= 0.001
        self._transitions.take_over(task, one.index, node, devices, started_at)
        self._issuer.mark_started(task)

    def _node_of(self, task: int, one: m.Begun) -> int | None:
        """The number of the node where it has begun; None where it has not, or there is no such phase or node."""
        has_begun = 0 < one.index < len(self._state.phases_of(task)) or (one.index == 0 and one.since_s is not None)
        alive = [n for n, node in enumerate(self._state.nodes) if node.name == one.node and node.alive]
        return alive[0] if has_begun and alive else None

    def _is_whole(self, task: int, begun: Mapping[int, tuple[m.Begun, int]]) -> bool:
        """Whether all of the task's gang have begun and are equally far; so is a task without one."""
        gang = self._state.gang_of.get(task)
        members = self._state.gangs[gang].members if gang is not None else [task]
        found = [begun[member][0] for member in members if member in begun]
        return len(found) == len(members) and len({(one.index, one.since_s is None) for one in found}) == 1


def _devices(node: Node, shape: Shape, told: tuple[int, ...]) -> tuple[int, ...]:
    """Those that it is said to have, while they are free; else free ones; else those with the most left."""
    if not shape.gpu_milli or not node.devices:
        return ()
    count = max(1, shape.gpu_milli // WHOLE_DEVICE)
    per_device = shape.gpu_milli // count
    known = [device for device in told if 0 <= device < len(node.devices)]
    if len(set(known)) == count and all(node.devices[device] >= per_device for device in known):
        return tuple(known)
    if not lacking(node, shape):
        return devices_for(node, shape)
    by_room = sorted(range(len(node.devices)), key=lambda device: (-node.devices[device], device))
    return tuple(sorted(by_room[:count]))
