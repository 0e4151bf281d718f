"""What the code of a task tells, from its process to the driver: by `egs.work`, one word when it is over, if any; by
`egs.progress`, a word a second at most while it tells. An actor's methods tell to its end, of which its process does
not hear when it is killed: so of its work there is a word a second, too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from egs_core.progressed import Later, progress_told
from egs_core.worked import on_work, take
from egs_ray.link import Message

Tell = Callable[[Message], None]


@contextmanager
def work_told(tell: Tell, where: Tell | None = None) -> Iterator[None]:
    """A task's code runs in here. What the process has told before is of another task. where: who is told of
    `egs.progress`, if another."""
    take()
    try:
        with where_told(where or tell):
            yield
    finally:
        _say_work(tell)


def where_told(tell: Tell) -> AbstractContextManager[None]:
    """The same of `egs.progress` alone. tell: is called on a thread of its own, and may raise OSError."""
    return progress_told(lambda told: tell({"m": "progress", "told": told[:-1]}))


_last_words: list[Callable[[], None]] = []  # of the actor of this process


def work_told_to_the_end(tell: Tell) -> None:
    """From now on an actor's `egs.work` is told of, a second later. tell: must not raise."""
    if _last_words:
        return

    process = os.getpid()

    def say() -> None:
        if os.getpid() == process:  # what it forks has no line
            _say_work(tell)

    take()
    on_work(Later(say).call)
    _last_words.append(say)


def say_last_words() -> None:
    """What has not been told yet: somebody is about to kill this process."""
    for say in _last_words:
        say()


def _say_work(tell: Tell) -> None:
    if amounts := take():
        tell({"m": "worked", "amounts": amounts})
