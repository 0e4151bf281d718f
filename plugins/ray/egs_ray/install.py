"""What `egs_ray.hook` does inside `ray.init`: choose what stands between `.remote()` and Ray, and put it there once.

    .remote() ─► compat's wrapper ─► interceptor.submit(original, …) ─► Ray
                                     observe: calls original, notes what it saw
                                     on:      decides when to call original

Repeated `ray.init` and `ray.shutdown` in one process keep the one interceptor; each is a session of it.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

import ray

from egs_core.mode import current_mode
from egs_core.notices import warn
from egs_ray import compat, submitting, waiting
from egs_ray.settings import chosen_gate, chosen_priority, chosen_retry, chosen_split, unread_queues

MAKERS = {"observe": "egs_ray.observe", "on": "egs_ray.gate.act"}
"""The modules whose `make_interceptor` makes that of a mode."""


class Interceptor(Protocol):
    """Every submission of the driver goes through one of these; it must not lose any, and not raise of its own.

    `original(remote_function, args, kwargs, **options)` is Ray's own submission; what it returns or raises belongs to
    the user. remote_function is Ray's RemoteFunction, ActorClass or ActorMethod.
    """

    def submit(
        self,
        original: Callable[..., Any],
        remote_function: Any,
        args: Any,
        kwargs: Any,
        options: dict[str, Any],
    ) -> Any:
        """Make the submission and return what Ray returned."""
        ...

    def session_starts(self) -> None:
        """ray.init is about to connect."""
        ...

    def session_ends(self) -> None:
        """Ray is about to disconnect, the last moment to ask it something. May be called twice."""
        ...

    def close(self) -> None:
        """The process ends. Comes before Ray's own end, and perhaps before the last `session_ends`."""
        ...


interceptor: Interceptor | None = None
"""The one in use; None: every submission is native."""


def install(runtime_env: Any) -> Any:
    """Start a session, after installing the mode's interceptor when there is none; returns the argument."""
    global interceptor
    if ray.is_initialized():  # a repeated ray.init, or one inside a worker: nothing connects
        return runtime_env
    if interceptor is None:
        mode = _mode()
        chosen: Interceptor = import_module(MAKERS[mode]).make_interceptor()
        chosen.session_starts()
        _put_in_place(chosen)
        interceptor = chosen
        if mode == "on":
            _warn_of_settings()
    else:
        interceptor.session_starts()
    return runtime_env


def _mode() -> str:
    mode = current_mode("observe")
    if not compat.supported(ray.__version__):
        warn(f"Ray {ray.__version__} is not a version EGS knows ({', '.join(compat.KNOWN_VERSIONS)}): observing only")
        return "observe"
    if mode == "on" and not (compat.available("submit") and compat.available("wrap")):
        if compat.available("submit"):  # else one line says all of it, below
            warn("this build of Ray does not let submissions be ordered: observing only")
        return "observe"
    return mode


def _warn_of_settings() -> None:
    chosen = chosen_gate()[1], chosen_priority()[1], chosen_split()[1], chosen_retry()[1]
    for found in (*chosen, unread_queues()):
        if found:
            warn(found)


def _put_in_place(chosen: Interceptor) -> None:
    if compat.available("submit"):
        submitting.wrap_submissions(_route)
    else:
        warn("this build of Ray does not show submissions: observing only, and not which task waits for which")
    waiting.before_disconnect(chosen.session_ends)
    if os.environ.get("EGS_HOOK") == "ray":  # the variable is there only while there is no Ray: see `egs_ray.hook`
        waiting.before_disconnect(lambda: os.environ.setdefault("RAY_RUNTIME_ENV_HOOK", "egs_ray.hook"))
    atexit.register(chosen.close)


def _route(original: Callable[..., Any], target: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
    if interceptor is None:
        return original(target, args, kwargs, **options)
    return interceptor.submit(original, target, args, kwargs, options)
