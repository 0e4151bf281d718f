"""EGS for Ray. `egs_ray.run(dag)` runs a static graph; `EGS_HOOK=ray` works on unmodified scripts.

`EGS_HOOK` is read by `egs_ray_hook.pth` when Python starts in an environment that has this package, and only there: it
sets Ray's own variable, RAY_RUNTIME_ENV_HOOK=egs_ray.hook. Set by hand, that one makes `ray.init` fail with
ModuleNotFoundError in every other environment that it reaches.

Importing this package imports nothing else: Ray loads it by name inside `ray.init`, where a missing or broken
dependency must leave Ray as it is. `hook`, `uv_hook` and `run` are functions of this module: no submodule may have
their names.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["Options", "Run", "Session", "hook", "run", "uv_hook"]

_VARIABLE = "RAY_RUNTIME_ENV_HOOK"
_LAZY = {
    "Options": "egs_ray.session.shared",
    "Run": "egs_ray.session.api",
    "Session": "egs_ray.session.session",
    "run": "egs_ray.session.api",
}


def hook(runtime_env: Any) -> Any:
    """Switch EGS on in this driver as `EGS_MODE` says (off, observe, on); returns the runtime environment.

    Ray calls it inside `ray.init`. Never raises: whatever goes wrong is one line on stderr, and Ray runs natively.
    """
    runtime_env = _without_hook(runtime_env)
    if os.environ.get("EGS_HOOK") == "ray":  # what this process starts may be in another environment
        os.environ.pop(_VARIABLE, None)
    if os.environ.get("EGS_MODE", "observe").strip().lower() == "off":
        return runtime_env
    try:
        from egs_ray.install import install

        return install(runtime_env)
    except Exception as error:  # Ray has no net of its own around this call
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        if sys.stderr is not None:
            with suppress(Exception):  # it may be closed; egs_core, which has this once for all, may be missing
                print(f"egs: off, Ray runs as it would without EGS: {reason}", file=sys.stderr)
        return runtime_env


def _without_hook(runtime_env: Any) -> Any:
    """A job submission names the hook in env_vars, which workers get as well: there a ray.init of theirs would look for
    this package, also in an environment that lacks it. Without the hook in there workers are as they are natively."""
    env_vars = runtime_env.get("env_vars") if isinstance(runtime_env, dict) else None
    if not isinstance(env_vars, dict) or env_vars.get(_VARIABLE) not in ("egs_ray.hook", "egs_ray.uv_hook"):
        return runtime_env
    return {**runtime_env, "env_vars": {name: value for name, value in env_vars.items() if name != _VARIABLE}}


def uv_hook(runtime_env: Any) -> Any:
    """`hook` for drivers under `uv run`: first what Ray itself does there, then EGS.

    Under `uv run` Ray calls its own hook instead of the user's, unless RAY_ENABLE_UV_RUN_RUNTIME_ENV=0. Errors of
    Ray's own hook are raised as they are natively.
    """
    from egs_ray import launch

    return hook(launch.with_uv(runtime_env))


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
