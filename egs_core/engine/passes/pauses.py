"""Pause and resume: what waits is held; what runs goes on to the end of its phase and holds no GPU after that."""

from __future__ import annotations

from egs_core.engine import messages as m
from egs_core.engine.order.queue import ReadyQueue
from egs_core.engine.passes.aborts import Aborts
from egs_core.engine.passes.issuer import Issuer
from egs_core.engine.passes.readiness import Readiness
from egs_core.engine.state.lifecycle import READY


class Pauses:
    """See the module."""

    def __init__(self, issuer: Issuer, queue: ReadyQueue, readiness: Readiness, aborts: Aborts) -> None:
        self._transitions = issuer.transitions
        self._state = issuer.state
        self._queue = queue
        self._readiness = readiness
        self._aborts = aborts
        self._started = issuer.started

    def pause(self, event: m.PauseRequested, now: float) -> None:
        state = self._state
        tasks = self._aborts.targets(event)
        if not tasks:
            return
        self._transitions.pause(f"{event.scope}:{event.target}", event.actor, event.reason, now)
        for task in tasks:
            phase = state.cursor[task]
            if state.status[phase] == READY:
                if task in self._started:
                    self._queue.remove(phase)
                else:
                    self._aborts.leave(task)
                self._transitions.hold_paused(phase)
        self._readiness.freed()

    def resume(self, event: m.ResumeRequested, _now: float) -> None:
        """Takes back exactly this pause; another one may still hold the same tasks."""
        state, key = self._state, f"{event.scope}:{event.target}"
        if key not in state.pauses:
            return
        self._transitions.resume(key)
        for phase in sorted(state.paused):
            if state.pause_of(state.task_of[phase]) is None:
                self._transitions.unhold(phase)
                self._readiness.enqueue(phase)
        self._readiness.freed()
