"""Processes in the state: kept for a task (parked), at work, or idle and warm. The transitions that change them."""

from __future__ import annotations

from egs_core.engine.state.columns import Columns
from egs_core.engine.state.lifecycle import COLD, WARM, WARMING
from egs_core.engine.state.nodes import Node


class ProcessState(Columns):
    """The columns with what happens to processes; `State` adds the life of the phases."""

    def park(self, task: int, node: int, decision: int, reuse: bool) -> None:
        """A process on the node gets warm for this task; with reuse it is an idle one that already is."""
        home = self.nodes[node]
        if reuse:
            home.retire(self.options[task].warm_key)
        self.parked[task] = decision
        home.parked += 1
        home.warming += not reuse
        self.warmth[task] = WARM if reuse else WARMING
        self.home[task] = node
        self.decisions[decision] = -1 - task
        self.next_decision = decision + 1

    def warmed(self, task: int) -> None:
        self.warmth[task] = WARM
        self.nodes[self.home[task]].warming -= 1

    def unpark(self, task: int) -> None:
        """No process is kept waiting for this task any more; one that is warm stays idle for another."""
        if task not in self.parked:
            return
        node, was_warm = self._unpark(task)
        if was_warm and node.alive:
            node.add_idle(self.options[task].warm_key)

    def preload_failed(self, task: int) -> None:
        """The process kept for the task is not there; the task may start without."""
        self._unpark(task)
        self.start_cold.add(task)

    def _unpark(self, task: int) -> tuple[Node, bool]:
        self.decisions.pop(self.parked.pop(task), None)
        node, was_warm = self.nodes[self.home.pop(task)], self.warmth[task] == WARM
        node.parked -= 1
        node.warming -= not was_warm
        self.warmth[task] = COLD
        return node, was_warm

    def _take_process(self, task: int, node: int, warm: bool) -> None:
        key = self.warm_key_of(task)
        if key:
            if task in self.parked:
                self._unpark(task)
            elif warm:
                self.nodes[node].retire(key)
            self.warmth[task] = WARM
        if self.needs_slot(task):
            self.nodes[node].started += 1
            self.nodes[node].started_bytes += self.memory_of(task)
        self.home[task] = node

    def _leave_process(self, task: int, *, reusable: bool) -> None:
        """A started task is over; its process, if still good, is warm and idle."""
        if task not in self.home or task in self.parked:
            return
        node, key = self.nodes[self.home.pop(task)], self.warm_key_of(task)
        if self.needs_slot(task):
            node.started -= 1
            node.started_bytes -= self.memory_of(task)
        if key and reusable and node.alive:
            node.add_idle(key)
        self.warmth[task] = COLD

    def retire(self, node: int, key: str) -> None:
        """An idle warm process ends."""
        self.nodes[node].retire(key)
