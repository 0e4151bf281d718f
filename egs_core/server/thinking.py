"""Questions that cost processor time, one at a time in a thread of its own: of each account one, so that who asks
without end has a turn like everybody else's.

    ann   ████ 429 ████ 429 ████        a second question while the first is there is refused
    ben       ████              ·       it waits for what came before it
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from egs_core.server.principals import Principal
from egs_core.server.runs import Refusal

T = TypeVar("T")
BUDGET_S = 1.0
"""So long one question is thought about."""
WAIT_S = 3.0
"""In so long it is to be answered, also where others are there: a controller waits for five seconds."""
MOST, MOST_OF_TEAM = 50, 3
"""Questions that are there at once; of the accounts of one team, or of those without."""


class _Asked(NamedTuple):
    team: str
    answer: Future[Any]


class Thinking:
    """See the module. Used from one thread; a thread cannot be called off, so there is only ever one that thinks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "egs-outlooks")
        self._asked: dict[str, _Asked] = {}  # by account; never changed, but replaced

    def begin(self, who: Principal, think: Callable[[float], T]) -> Future[T]:
        """think: is called in its turn, with the seconds that it may take. Raises Refusal (429)."""
        there = {name: one for name, one in self._asked.items() if not one.answer.done()}
        if who.name in there:
            raise Refusal(429, f"a question of {who.name} is being thought about: ask again", BUDGET_S)
        if sum(one.team == who.team for one in there.values()) >= MOST_OF_TEAM or len(there) >= MOST:
            raise Refusal(429, "other questions are being thought about: ask again", BUDGET_S)
        until = self._clock() + WAIT_S
        answer = self._thread.submit(lambda: think(self._budget_s(until)))
        self._asked = {**there, who.name: _Asked(who.team, answer)}
        return answer

    def _budget_s(self, until: float) -> float:
        """Its part of the time that it has, where those behind it have as much."""
        there = sum(not one.answer.done() for one in self._asked.values())
        return min(BUDGET_S, max(0.0, until - self._clock()) / max(1, there))
