"""Puts a handler between the `.remote()` of this process and Ray: no public hook sees submissions of decorated code.

Part of `compat` (features submit, auto_init, auto_start): private Ray API.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import ray

from egs_ray.compat import available
from egs_ray.functions import submit_classes


class SubmitHandler(Protocol):
    """What stands between a call of `.remote()` and Ray; `original(target, args, kwargs, **options)` is Ray's own."""

    def __call__(
        self, original: Callable[..., Any], target: Any, args: Any, kwargs: Any, options: dict[str, Any], /
    ) -> Any: ...


_inside = threading.local()


def wrap_submissions(handler: SubmitHandler) -> Callable[[], None]:
    """Let `handler` make every submission of this process, also one that waits in an automatic ray.init.

    What the handler itself submits goes to Ray directly. Returns the function that undoes it.
    """
    undo: list[tuple[type, Any]] = []
    catch_pending = available("auto_init")
    for cls in submit_classes():
        original = vars(cls)["_remote"]
        cls._remote = _wrapper(original, handler)  # type: ignore[attr-defined]  # a `type` here, to mypy
        undo.append((cls, original))
        if catch_pending:
            _catch_pending_call(original, handler)

    def unwrap() -> None:
        for cls, original in undo:
            cls._remote = original  # type: ignore[attr-defined]  # a `type` here, to mypy

    return unwrap


def _wrapper(original: Callable[..., Any], handler: SubmitHandler) -> Callable[..., Any]:
    # No functools.wraps: with __wrapped__ set, Ray would check calls against the inner signature.
    def _remote(self: Any, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        if more or getattr(_inside, "handler", False):
            return original(self, args, kwargs, *more, **options)
        _inside.handler = True
        try:
            return handler(original, self, args, kwargs, options)
        finally:
            _inside.handler = False

    return _remote


def _catch_pending_call(original: Any, handler: SubmitHandler) -> None:
    """A script's first `.remote()` may itself call ray.init: then Ray's wrapper of `_remote` is on this stack already.

    It calls the function in its closure when ray.init returns, so that cell gets the handler, for this one call.
    """
    if getattr(_inside, "handler", False) or not _waits_in_init(original):
        return
    cell = original.__closure__[0]
    inner, thread = cell.cell_contents, threading.get_ident()

    def once(self: Any, *args: Any, **options: Any) -> Any:
        if threading.get_ident() != thread:
            return inner(self, *args, **options)
        cell.cell_contents = inner
        return _wrapper(inner, handler)(self, *args, **options)

    cell.cell_contents = once


def _waits_in_init(original: Any) -> bool:
    """Whether a call of this very wrapper (they share code, not closures) is on the calling thread's stack."""
    inner, frame = original.__closure__[0].cell_contents, sys._getframe()
    while frame is not None:
        if frame.f_code is original.__code__ and frame.f_locals.get("fn") is inner:
            return True
        frame = frame.f_back  # type: ignore[assignment]  # the outermost has none
    return False


@contextmanager
def directly() -> Iterator[None]:
    """What the calling thread submits in here goes to Ray directly."""
    before = getattr(_inside, "handler", False)
    _inside.handler = True
    try:
        yield
    finally:
        _inside.handler = before


def is_direct() -> bool:
    """Whether what the calling thread submits now goes to Ray directly."""
    return bool(getattr(_inside, "handler", False))


def submit_directly() -> None:
    """What the calling thread submits from now on goes to Ray directly: for EGS's own threads."""
    _inside.handler = True
    never_start_ray()


# --- auto_start: a call of Ray without a Ray starts one, and the script's own ray.init then fails ---------------------


def never_start_ray() -> None:
    """On the calling thread, calls of Ray raise RuntimeError from now on when there is none (any more): for EGS's own
    threads, which may be about to ask something just as the script shuts Ray down."""
    _inside.starts_no_ray = True
    if not available("auto_start"):
        return
    from ray._private import auto_init_hook

    original = auto_init_hook.auto_init_ray
    if hasattr(original, "egs_guards"):
        return

    def auto_init_ray() -> None:
        if not getattr(_inside, "starts_no_ray", False):
            original()
        elif not ray.is_initialized():
            raise RuntimeError("Ray was shut down")

    for name in ("__module__", "__name__", "__qualname__"):  # a function that names ray.get is pickled with this one
        setattr(auto_init_ray, name, getattr(original, name))
    auto_init_ray.egs_guards = True  # type: ignore[attr-defined]  # functions may have attributes
    auto_init_hook.auto_init_ray = auto_init_ray
