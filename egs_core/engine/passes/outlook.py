"""What the preload planner knows of the graph without walking it at each look. It follows from the state."""

from __future__ import annotations

from egs_core.engine.state.state import State

LOOKAHEAD_STEPS = 3
FAR = LOOKAHEAD_STEPS + 1


class Outlook:
    """near[task]: steps along children to the nearest task with a warm key, itself included (0); FAR: out of sight.
    near_children[task]: the same without itself (at least 1).

    longest_warmup_s: of all tasks; nothing needs a look earlier than that before its start.
    """

    def __init__(self) -> None:
        self.near = bytearray()
        self.near_children = bytearray()
        self.longest_warmup_s = 0.0

    def extend(self, state: State) -> None:
        """Take in the tasks that have come since the last call. Options and parents of known tasks never change."""
        known, total = len(self.near), len(state.task_ids)
        self.near.extend(bytes([FAR]) * (total - known))
        self.near_children.extend(bytes([FAR]) * (total - known))
        for task in range(total - 1, known - 1, -1):
            options = state.options.get(task)
            if options is not None and options.warm_key:
                self.longest_warmup_s = max(self.longest_warmup_s, options.warmup_s)
                self.near[task] = 0
            self._tell_ancestors(state, task)

    def _tell_ancestors(self, state: State, task: int) -> None:
        near, near_children, open_tasks = self.near, self.near_children, [task]
        while open_tasks:
            task = open_tasks.pop()
            steps = near[task] + 1
            if steps >= FAR:
                continue
            for parent in state.parents[task]:
                if near_children[parent] > steps:
                    near_children[parent] = steps
                if near[parent] > steps:
                    near[parent] = steps
                    open_tasks.append(parent)
