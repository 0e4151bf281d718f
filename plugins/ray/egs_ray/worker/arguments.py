"""What a task of the user's is called with, in its shell: brought to the node while it waits, resolved when it starts.

`arguments` is [args, kwargs], or [a promise of these two]. As Ray has it, references directly among them become values,
nested ones stay references.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import ray


class ArgumentsLostError(RuntimeError):
    """What keeps promised arguments died: the driver submits the task again, as the user wrote it."""


def fetch(arguments: list[Any]) -> None:
    """Let Ray bring the values that a waiting task will take to this node, as they come into being."""
    if len(arguments) == 1 or _references(*arguments):
        threading.Thread(target=_fetch, args=(arguments,), name="egs-fetch", daemon=True).start()


def _fetch(arguments: list[Any]) -> None:
    with contextlib.suppress(Exception):  # what is wrong with a value is told to whoever takes it
        args, kwargs = ray.get(arguments[0]) if len(arguments) == 1 else arguments
        coming = _references(args, kwargs)
        while coming:  # one by one: a wait for several fetches none before all of them exist
            _, coming = ray.wait(coming, num_returns=1, fetch_local=True)


def arrived(arguments: list[Any], timeout_s: float | None = None) -> bool:
    """Whether all that the task takes is on this node, within that time; True also when something of it is lost for
    good, which `resolved` tells."""
    try:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        args, kwargs = ray.get(arguments[0], timeout=timeout_s) if len(arguments) == 1 else arguments
        refs, left_s = _references(args, kwargs), None if until is None else max(0.0, until - time.monotonic())
        return not refs or not ray.wait(refs, num_returns=len(refs), timeout=left_s)[1]
    except ray.exceptions.GetTimeoutError:
        return False
    except Exception:
        return True


def _references(args: Any, kwargs: Any) -> list[Any]:
    return list({value for value in (*args, *kwargs.values()) if isinstance(value, ray.ObjectRef)})


def resolved(arguments: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as the user's function gets them."""
    try:
        args, kwargs = ray.get(arguments[0]) if len(arguments) == 1 else arguments
    except ray.exceptions.RayActorError as error:
        raise ArgumentsLostError(f"its arguments did not come: {error}") from error
    refs = _references(args, kwargs)
    got = dict(zip(refs, ray.get(refs), strict=True)) if refs else {}

    def value_of(value: Any) -> Any:
        return got[value] if isinstance(value, ray.ObjectRef) else value

    return [value_of(value) for value in args], {key: value_of(value) for key, value in kwargs.items()}
