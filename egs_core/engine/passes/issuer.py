"""What the parts of one engine share: the state, its transitions, and the decisions of the current call."""

from __future__ import annotations

from collections.abc import Set
from typing import cast

from egs_core.engine import messages as m
from egs_core.engine.state.journal import Recorder
from egs_core.engine.state.state import State


class Issuer:
    """state is for questions; every change goes through `transitions`: the state, or a recorder in front of it.

    started: tasks whose first phase has been granted and that have not ended. It follows from the state, and only the
    two methods here change it.
    """

    __slots__ = ("_started", "out", "recorder", "started", "state", "transitions")

    def __init__(self, state: State, record: bool) -> None:
        self.state = state
        self.recorder = Recorder(state) if record else None
        self.transitions = cast(State, self.recorder) if self.recorder else state
        self.out: list[m.Decision] = []
        self._started: set[int] = set()
        self.started: Set[int] = self._started

    def mark_started(self, task: int) -> None:
        self._started.add(task)

    def mark_over(self, task: int) -> None:
        """It has ended, or starts again from its first phase."""
        self._started.discard(task)

    def decide(self, decision: m.Decision) -> None:
        """Give out a decision that is not also a transition."""
        self.transitions.count_decision()
        self.out.append(decision)
