"""EGS for Ray. `egs_ray.run(dag)` runs a static graph; `RAY_RUNTIME_ENV_HOOK=egs_ray.hook` works on unmodified scripts.

Importing this package imports nothing else: Ray loads it by name inside `ray.init`, where a missing or broken
dependency must leave Ray as it is. `hook` and `run` are functions of this module: no submodule may have their names.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["Options", "Run", "Session", "hook", "run"]

_LAZY = {"Options": "egs_ray.shared", "Run": "egs_ray.api", "Session": "egs_ray.session", "run": "egs_ray.api"}


def hook(runtime_env: Any) -> Any:
    """Switch EGS on in this driver as `EGS_MODE` says (off, observe, on); returns the runtime environment.

    Ray calls it inside `ray.init`. Never raises: whatever goes wrong is one line on stderr, and Ray runs natively.
    """
    if os.environ.get("EGS_MODE", "observe").strip().lower() == "off":
        return runtime_env
    try:
        from egs_ray.install import install

        return install(runtime_env)
    except Exception as error:  # Ray has no net of its own around this call
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        print(f"egs: off, Ray runs as it would without EGS: {reason}", file=sys.stderr)
        return runtime_env


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
