"""What the parts of one engine share: the state, its transitions, and the decisions of the current call."""

from __future__ import annotations

from typing import cast

from egs_core.engine import messages as m
from egs_core.engine.recording import Recorder
from egs_core.engine.state import State


class Issuer:
    """state is for questions; every change goes through `do`: the state itself, or a recorder in front of it."""

    __slots__ = ("do", "out", "recorder", "state")

    def __init__(self, state: State, record: bool) -> None:
        self.state = state
        self.recorder = Recorder(state) if record else None
        self.do = cast(State, self.recorder) if self.recorder else state
        self.out: list[m.Decision] = []

    def decide(self, decision: m.Decision) -> None:
        """Give out a decision that is not also a transition."""
        self.do.count_decision()
        self.out.append(decision)
