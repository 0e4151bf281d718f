"""Drivers under `uv run`. Part of `compat` (feature uv): private Ray API.

Under `uv run` Ray calls a hook of its own in place of the user's, and only its source says how to have both.
"""

from __future__ import annotations

from typing import Any

from egs_ray.compat import available


def runs_under_uv() -> bool:
    """Whether this process was started by `uv run`."""
    from ray._private.runtime_env.uv_runtime_env_hook import _get_uv_run_cmdline

    return bool(_get_uv_run_cmdline())


def with_uv(runtime_env: Any) -> Any:
    """The runtime environment by which workers run under the driver's `uv run`; the argument itself outside of one."""
    if not (available("uv") and runs_under_uv()):
        return runtime_env
    from ray._private.runtime_env.uv_runtime_env_hook import hook

    return hook(runtime_env)
