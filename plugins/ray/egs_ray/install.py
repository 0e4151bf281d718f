"""What `egs_ray.hook` does inside `ray.init`: choose what stands between `.remote()` and Ray, and put it there once.

    .remote() ─► compat's wrapper ─► interceptor.submit(original, …) ─► Ray
                                     observe: calls original, notes what it saw
                                     on:      decides when to call original

Repeated `ray.init` and `ray.shutdown` in one process keep the one interceptor; each is a session of it.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

import ray

from egs_ray import compat

MODES = ("off", "observe", "on")
MAKERS = {"observe": "egs_ray.observe:make_interceptor", "on": "egs_ray.act:make_interceptor"}
"""Where the interceptor of a mode comes from: `module:function`, a function without arguments."""


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
        chosen = _make(_mode())
        chosen.session_starts()
        _put_in_place(chosen)
        interceptor = chosen
    else:
        interceptor.session_starts()
    return runtime_env


def warn(problem: str) -> None:
    """One line to the user; the script's stdout stays its own."""
    print(f"egs: {problem}", file=sys.stderr)


def _mode() -> str:
    mode = os.environ.get("EGS_MODE", "").strip().lower() or "observe"
    if mode not in MODES:
        warn(f"EGS_MODE={mode!r} is none of {', '.join(MODES)}: observing")
        return "observe"
    if not compat.supported(ray.__version__):
        warn(f"Ray {ray.__version__} is not a version EGS knows ({', '.join(compat.KNOWN_VERSIONS)}): observing only")
        return "observe"
    if mode == "on" and not (compat.available("submit") and compat.available("wrap")):
        warn("this build of Ray does not let submissions be ordered: observing only")
        return "observe"
    return mode


def _make(mode: str) -> Interceptor:
    module, _, maker = MAKERS[mode].partition(":")
    made: Interceptor = getattr(import_module(module), maker)()
    return made


def _put_in_place(chosen: Interceptor) -> None:
    if compat.available("submit"):
        compat.wrap_submissions(_route)
    else:
        warn("this build of Ray does not show submissions: which task waits for which will be missing in the run log")
    compat.before_disconnect(chosen.session_ends)
    atexit.register(chosen.close)


def _route(original: Callable[..., Any], target: Any, args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
    if interceptor is None:
        return original(target, args, kwargs, **options)
    return interceptor.submit(original, target, args, kwargs, options)
