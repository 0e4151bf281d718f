"""How this driver was started: what `ray.init` was given, and `uv run`.

Part of `compat`: private Ray API. A hook's answer takes the place of what ray.init was given in `job_config`, and the
hook is not told of it (feature job_config). Under `uv run` Ray calls a hook of its own in place of the user's, and only
its source says how to have both (feature uv).
"""

from __future__ import annotations

import sys
from typing import Any

from egs_ray.compat import available
from egs_ray.functions import SETUP_HOOK_VARIABLE as SETUP_HOOK_VARIABLE
from egs_ray.functions import init_code


def runtime_env_of_job_config() -> Any:
    """The runtime_env in the `job_config` argument of the ray.init that is on the calling thread's stack, or None."""
    if not available("job_config"):
        raise RuntimeError("this build of Ray hides the job_config of ray.init")
    code, frame = init_code(), sys._getframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back  # type: ignore[assignment]  # the outermost has none
    return None if frame is None else getattr(frame.f_locals.get("job_config"), "runtime_env", None)


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
