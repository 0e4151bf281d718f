"""From ready to wherever the phase waits: in the queue, for a warm process, or paused."""

from __future__ import annotations

from egs_core.engine.order.queue import ReadyQueue
from egs_core.engine.passes.issuer import Issuer
from egs_core.engine.passes.warm_pool import Processes


class Readiness:
    """See the module."""

    def __init__(self, issuer: Issuer, queue: ReadyQueue, processes: Processes) -> None:
        self._transitions = issuer.transitions
        self._state = issuer.state
        self._queue = queue
        self._processes = processes

    def make_ready(self, phase: int, now: float) -> None:
        state = self._state
        self._transitions.ready(phase, now)
        if state.pauses or state.options or state.gang_of:
            self.enqueue(phase)
        else:
            self._queue.enter(phase)

    def enqueue(self, phase: int) -> None:
        """A ready phase goes where it waits."""
        state = self._state
        if state.pauses and state.pause_of(state.task_of[phase]):
            self._transitions.hold_paused(phase)
        elif state.options and state.task_of[phase] in state.options:
            self._processes.enqueue(phase)
        else:
            self._queue.add(phase)

    def next_due(self) -> float | None:
        """When the next grant that was rejected is tried again."""
        retry_at = self._state.retry_at
        return min(retry_at.values()) if retry_at else None

    def retry_held(self, now: float) -> None:
        """Phases whose grant was rejected, when their time has come."""
        for phase in sorted(p for p, at in self._state.retry_at.items() if at <= now):
            self._transitions.unhold(phase)
            self.enqueue(phase)

    def freed(self, node: int | None = None) -> None:
        """Something may fit now that did not before: anywhere, or on this node only."""
        self._queue.something_freed(node)
        if self._processes.has_keys:
            self._processes.want_plan()

    def regather(self, task: int) -> None:
        """A task that has ended holds up its gang no more."""
        if task in self._state.gang_of:
            self._queue.regather(self._state.gang_of[task])
