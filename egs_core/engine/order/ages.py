"""When queued phases have waited longer than their `max_wait`: they then go to the front of their priority."""

from __future__ import annotations

from collections.abc import Iterator

from egs_core.engine.order.policy import AGE_TERM, OVERDUE_TERM, Key
from egs_core.engine.order.timers import Timers
from egs_core.engine.rules.deadlines import NO_DEADLINE
from egs_core.engine.specs import NO_QUEUE
from egs_core.engine.state.state import State


class Ages:
    """See the module. keys: the queued phases; default_max_wait_s: of tasks that state none, nor their queue."""

    def __init__(self, state: State, keys: dict[int, Key], default_max_wait_s: float | None) -> None:
        self._state = state
        self._keys = keys
        self._default_max_wait_s = default_max_wait_s
        self.timers = Timers(self.overdue_at)

    def enter(self, phase: int) -> None:
        """The phase is being queued."""
        state = self._state
        if self._default_max_wait_s is not None or state.options or state.queues:
            wait_s = self._max_wait_s(phase)
            if wait_s is not None:
                self.timers.set(phase, state.ready_at[phase] + wait_s)

    def overdue(self, now: float) -> Iterator[int]:
        """Queued phases whose `max_wait` has passed, the first first; each once."""
        while (phase := self.timers.pop(now)) is not None:
            yield phase

    def overdue_at(self, phase: int) -> float | None:
        """When the `max_wait` of a queued phase has passed; None where it has none, or is overdue."""
        key = self._keys.get(phase)
        if key is None or is_overdue(key):
            return None
        wait_s = self._max_wait_s(phase)
        return None if wait_s is None else self._state.ready_at[phase] + wait_s

    def _max_wait_s(self, phase: int) -> float | None:
        state, task = self._state, self._state.task_of[phase]
        options = state.options.get(task)
        if options is not None and options.max_wait_s is not None:
            return options.max_wait_s
        number = state.queue_of(task) if state.queues else NO_QUEUE
        stated = state.queues[number].spec.max_wait_s if number != NO_QUEUE else None
        return self._default_max_wait_s if stated is None else stated


def is_overdue(key: Key) -> bool:
    """Of a policy in which phases age."""
    return not key[OVERDUE_TERM]


def overdue_key(key: Key, order: int) -> Key:
    """In front of everything of its priority that is not overdue; among overdue ones the oldest first."""
    return (*key[:OVERDUE_TERM], 0, NO_DEADLINE, order, *key[AGE_TERM + 1 :])
