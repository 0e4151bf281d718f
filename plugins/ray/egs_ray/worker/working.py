"""What the code of a task tells by `egs.work`, from its process to the driver: one word when it is over, if any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from egs_core.worked import take
from egs_ray.link import Message


@contextmanager
def work_told(tell: Callable[[Message], None]) -> Iterator[None]:
    """A task's code runs in here. What the process has told before is of another task."""
    take()
    try:
        yield
    finally:
        if amounts := take():
            tell({"m": "worked", "amounts": amounts})
