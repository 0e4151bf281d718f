"""What the code of a task tells, from its process to the driver: by `egs.work`, one word when it is over, if any; by
`egs.progress`, a word a second at most while it tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from egs_core.progressed import progress_told
from egs_core.worked import take
from egs_ray.link import Message


@contextmanager
def work_told(tell: Callable[[Message], None]) -> Iterator[None]:
    """A task's code runs in here. What the process has told before is of another task."""
    take()
    try:
        with where_told(tell):
            yield
    finally:
        if amounts := take():
            tell({"m": "worked", "amounts": amounts})


def where_told(tell: Callable[[Message], None]) -> AbstractContextManager[None]:
    """The same of `egs.progress` alone. tell: is called on a thread of its own, and may raise OSError."""
    return progress_told(lambda told: tell({"m": "progress", "told": told[:-1]}))
