"""What takes long and changes nothing is done in steps, between which whoever owns the state answers others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]


def at_once(steps: Steps[T]) -> T:
    """What it comes to, without a stop."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


async def in_turns(
    ask: Callable[[Callable[[Any], tuple[T, ...]]], Awaitable[tuple[T, ...]]], begin: Callable[[Any], Steps[T]]
) -> T:
    """The same, by a question a step: whoever wants a GPU waits for one of them at most. Raises what they do."""
    begun: list[Steps[T]] = []

    def step(owner: Any) -> tuple[T, ...]:
        if not begun:
            begun.append(begin(owner))
        try:
            next(begun[0])
        except StopIteration as end:
            return (end.value,)
        return ()

    while not (found := await ask(step)):
        pass
    return found[0]
