"""Recording transitions, and folding them back: the journal's half of the engine.

An entry of a journal is (event, now, transitions). A transition is the name of a `State` method and its arguments;
where an argument is the event itself, its place is marked and the event is stored once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from egs_core.engine import messages as m
from egs_core.engine.state.state import State

Transition = tuple[str, tuple[Any, ...]]
EVENT_MARK = "$event"
TRANSITIONS = frozenset(
    {
        "absorb_node",
        "absorb_queues",
        "absorb_elsewhere",
        "choose_order",
        "absorb_risk",
        "absorb_flavors",
        "absorb_flavor_estimates",
        "allow_flavors",
        "allow_devices",
        "review",
        "hinted",
        "scaled",
        "absorb_workload",
        "absorb_tasks",
        "absorb_estimates",
        "lift",
        "set_wait",
        "close_workload",
        "clock",
        "ready",
        "hold",
        "unhold",
        "hold_paused",
        "detach",
        "pause",
        "resume",
        "grant",
        "start",
        "end",
        "finish",
        "skip",
        "abort",
        "stop",
        "fail",
        "requeue",
        "lose_node",
        "recall",
        "checkpointed",
        "reserve",
        "unreserve",
        "count_decision",
        "hold_grants",
        "attempted",
        "take_over",
        "applied",
        "planned",
        "park",
        "warmed",
        "unpark",
        "preload_failed",
        "retire",
        "active",
        "over",
        "over_workload",
        "close_box",
    }
)


class Recorder:
    """Stands in for the state in the engine: does every transition and notes it."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._log: list[Transition] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._state, name)

        def record(*args: Any) -> Any:
            result = method(*args)  # first: what raises has changed nothing and is no transition
            self._log.append((name, tuple([EVENT_MARK if isinstance(arg, m.Event) else arg for arg in args])))
            return result

        self.__dict__[name] = record
        return record

    def take(self) -> list[Transition]:
        """What was noted since the last call."""
        log = self._log[:]
        self._log.clear()
        return log


def fold(state: State, event: m.Event, transitions: Sequence[Transition]) -> None:
    """Apply one journal entry to the state; decides nothing. Raises ValueError for an unknown transition."""
    for name, args in transitions:
        if name not in TRANSITIONS:
            raise ValueError(f"unknown transition {name!r}")
        getattr(state, name)(*[event if arg == EVENT_MARK else _tuple(arg) for arg in args])


def _tuple(value: Any) -> Any:
    """JSON knows no tuples; transitions take no lists."""
    return tuple(value) if isinstance(value, list) else value
