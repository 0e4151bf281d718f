"""What nodes can still take of processes, counted down while the preload planner chooses."""

from __future__ import annotations

from egs_core.engine.rules.fit import fits_task
from egs_core.engine.rules.processes import keeps_slot
from egs_core.engine.state.lifecycle import WARM
from egs_core.engine.state.nodes import UNTRACKED
from egs_core.engine.state.state import State
from egs_core.graph.columns import TaskOptions


class ProcessRoom:
    """See the module. idle: by node, warm processes without a task, by key."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.idle = [dict(node.idle_warm) if node.alive else {} for node in state.nodes]
        self._processes = [node.processes for node in state.nodes]
        self._warming = [node.warming for node in state.nodes]
        self._firm = [node.started for node in state.nodes]  # those that nobody gives up
        self._loading_cpu = [0] * len(state.nodes)
        self._kept_bytes = [0] * len(state.nodes)
        for task in state.parked:
            node, options = state.home[task], state.options_of(task)
            self._firm[node] += keeps_slot(state, task)
            self._kept_bytes[node] += options.warm_memory_bytes
            if state.warmth[task] != WARM:
                self._loading_cpu[node] += options.warm_cpu_milli
        self._fits: dict[tuple[tuple[int, ...], tuple[str, ...]], list[int]] = {}

    def fitting(self, task: int) -> list[int]:
        """Nodes that could run the whole task if they were empty. Tasks of one kind share shapes: asked once."""
        state = self.state
        shapes = tuple(state.shape[state.first_phase[task] : state.first_phase[task + 1]])
        kind = shapes, state.options_of(task).flavors
        known = self._fits.get(kind)
        if known is None:
            known = [i for i, node in enumerate(state.nodes) if fits_task(state, task, node)]
            self._fits[kind] = known
        return known

    def with_idle(self, task: int, key: str) -> list[int]:
        """Nodes with an idle process that would serve the task."""
        return [i for i in self.fitting(task) if self.idle[i].get(key, 0) > 0]

    def take_idle(self, number: int, key: str, *, is_ready: bool) -> None:
        """The process is spoken for."""
        self.idle[number][key] -= 1
        self._firm[number] += is_ready

    def with_room(self, task: int, options: TaskOptions, *, urgent: bool) -> list[int]:
        """Nodes where a process may be started now. An idle one with other things loaded makes way for it; an urgent
        one asks for no free CPU or memory, and may displace what is kept for tasks that are not yet ready."""
        found = []
        for i in self.fitting(task):
            node = self.state.nodes[i]
            in_use = self._firm[i] if urgent else self._processes[i] - sum(self.idle[i].values())
            if (
                self._warming[i] < node.preload_slots
                and in_use < node.process_slots
                and (urgent or self._has_free(i, options))
            ):
                found.append(i)
        return found

    def take_new(self, number: int, options: TaskOptions, *, urgent: bool) -> None:
        """A process is started there."""
        if not self._displace_idle(number):
            self._processes[number] += 1
        self._warming[number] += 1
        self._firm[number] += urgent
        self._loading_cpu[number] += options.warm_cpu_milli
        self._kept_bytes[number] += options.warm_memory_bytes

    def free_cpu(self, number: int) -> int:
        """Thousandths that neither a phase nor a process that loads has."""
        return self.state.nodes[number].free_cpu - self._loading_cpu[number]

    def _has_free(self, number: int, options: TaskOptions) -> bool:
        """CPU and memory that nobody has: a preload delays no running phase."""
        node, wanted = self.state.nodes[number], options.warm_memory_bytes
        if options.warm_cpu_milli and self.free_cpu(number) < options.warm_cpu_milli:
            return False
        return not wanted or node.memory_bytes == UNTRACKED or node.free_memory - self._kept_bytes[number] >= wanted

    def _displace_idle(self, number: int) -> bool:
        """On a full node an idle process ends; nothing later may count on it."""
        idle = self.idle[number]
        spare = [key for key, count in idle.items() if count > 0]
        if self._processes[number] < self.state.nodes[number].process_slots or not spare:
            return False
        idle[min(spare)] -= 1
        return True
