"""What a task keeps when it must stop before its end, so that its next try goes on instead of beginning again.

    @egs.task(gpus=1, grace="10s")
    def train(steps):
        state = egs.restored({"step": 0})           # what the try before kept, else this default
        egs.checkpoint(lambda: dict(state))         # called only when EGS must stop the task
        while state["step"] < steps:
            state = advance(state)

The callback runs in the task's process, on a thread of its own, while the task goes on: what it returns (anything that
can be pickled: the state, or the path of a file that it wrote) is kept outside of the process. It may take as long as
the task's `grace` says; no grace, no call. A callback that raises or takes too long costs the checkpoint, never more.
Where no adapter keeps checkpoints (EGS off, or a framework that cannot) `restored` returns its default.

This module runs inside workers: standard library only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar, cast

from egs_core.errors import InputError

T = TypeVar("T")


class CheckpointKeeper(Protocol):
    """What an adapter installs for a task's time. Neither call may raise."""

    def registered(self) -> None:
        """The task has a callback now: from here on `save_checkpoint` may be called, from any thread."""
        ...

    def restored(self) -> tuple[Any, ...]:
        """What the try before kept: one value, or nothing."""
        ...


_keeper: CheckpointKeeper | None = None
_save: Callable[[], Any] | None = None


def checkpoint(save: Callable[[], Any]) -> None:
    """Register what to call when EGS must stop this task; the last one registered counts. See the module."""
    global _save
    if not callable(save):
        raise InputError("egs.checkpoint", f"{save!r} is not a function", "pass a function without arguments")
    _save = save
    if _keeper is not None:
        _keeper.registered()


def restored(default: T | None = None) -> T:
    """What the last stopped try of this task kept, else `default`."""
    found = _keeper.restored() if _keeper is not None else ()
    return cast(T, found[0] if found else default)


@contextlib.contextmanager
def checkpoint_keeper(keeper: CheckpointKeeper) -> Iterator[None]:
    """Use `keeper` for one task, which is all that this process runs meanwhile."""
    global _keeper, _save
    _keeper, _save = keeper, None
    try:
        yield
    finally:
        _keeper = _save = None


def save_checkpoint() -> tuple[Any, ...]:
    """What the task's callback returns, as one value; nothing when the task has none (any more). Raises what the
    callback raises."""
    save = _save
    return (save(),) if save is not None else ()
