"""Giving out what fits, in order: the first that fits nowhere is passed over (backfill), unless it is overdue."""

from __future__ import annotations

from egs_core.engine import messages as m
from egs_core.engine.issuer import Issuer
from egs_core.engine.placement import Place, select_place
from egs_core.engine.processes import Processes
from egs_core.engine.queue import PROCESS, ClassId, ReadyQueue


class Granting:
    """See the module."""

    def __init__(self, issuer: Issuer, queue: ReadyQueue, processes: Processes, started: set[int]) -> None:
        self._issuer = issuer
        self._do = issuer.do
        self._state = issuer.state
        self._queue = queue
        self._processes = processes
        self._started = started

    def run(self) -> None:
        """Grant until nothing fits. What an overdue phase waits for is reserved: nobody behind it may take it."""
        queue, state = self._queue, self._state
        queue.is_dirty = False
        reserved_by: list[int] = []
        passed: set[ClassId] = set()
        while (found := queue.front(passed)) is not None:
            key, phase, class_id = found
            place = select_place(state, phase, reserved_by)
            if place is not None:
                queue.take(class_id)
                self._grant(phase, place, queue.deciding_term(key))
                continue
            passed.add(class_id)
            if queue.is_overdue(key):
                reserved_by.append(phase)
            elif not reserved_by and PROCESS not in class_id[2]:
                queue.full.add(class_id)

    def _grant(self, phase: int, place: Place, reason: str) -> None:
        state = self._state
        node, devices = place
        task = state.task_of[phase]
        warm = None
        if state.first_phase[task] == phase:
            self._started.add(task)
            if task in state.options and state.options[task].warm_key:
                self._processes.forget(task)
                warm = self._processes.secure(task, node)
        self._processes.is_wanted = True
        decision = state.next_decision
        self._do.grant(phase, decision, node, devices, bool(warm))
        self._issuer.out.append(
            m.Grant(decision, phase, task, state.attempt[task], state.nodes[node].name, devices, reason, warm)
        )
