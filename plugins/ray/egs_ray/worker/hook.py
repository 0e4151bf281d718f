"""What Ray runs in each worker of a job whose nested GPU tasks go to the cluster's gate (mode `on`, EGS_GATE=cluster).

    ray.init in the driver ─► runtime_env["worker_process_setup_hook"] ─► pickled by value, once a job
    worker starts ─► the function: egs_ray.worker.start, whatever becomes of it ─► the user's own hook

Ray ends a worker whose hook raises, and a worker's environment (pip, conda, another virtual environment) may lack this
package or break at its import. So the function is made inside a function, which pickles it with its code, and uses the
standard library only.
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Callable, Mapping
from typing import Any

from egs_ray import launch

FIELD = "worker_process_setup_hook"
NAME = "egs_worker_setup_hook"
NAME_WITH_USERS = "egs_worker_setup_hook_and_users"
ALONE = ("container", "image_uri")  # Ray refuses a job's setup hook beside one of these


def chain(settings: dict[str, str], users_hook: Callable[[], Any] | str | None = None) -> Callable[[], None]:
    """The worker's hook: EGS's part, which never raises, then the user's own, whose exceptions are the user's.

    users_hook: a function, or "module.function" as Ray takes it. Equal arguments give functions that pickle to equal
    bytes, in every process: Ray compares hooks by these.
    """
    packed = json.dumps(settings, sort_keys=True)

    def egs_worker_setup_hook() -> None:
        import contextlib
        import importlib
        import json

        with contextlib.suppress(BaseException):  # also a SystemExit: what cannot be imported here must end no worker
            importlib.import_module("egs_ray.worker.start").start(json.loads(packed))
        if isinstance(users_hook, str) and users_hook:
            module, _, name = users_hook.rpartition(".")
            getattr(importlib.import_module(module), name)()
        elif users_hook:
            users_hook()

    # Code that was compiled here and code that was read from a file share their constants differently, which pickles to
    # other bytes. Version 2 of the format shares none.
    egs_worker_setup_hook.__code__ = marshal.loads(marshal.dumps(egs_worker_setup_hook.__code__, 2))
    egs_worker_setup_hook.__name__ = NAME_WITH_USERS if users_hook else NAME  # what Ray shows, and hands on
    return egs_worker_setup_hook


def with_hook(runtime_env: Mapping[str, Any] | None, settings: dict[str, str]) -> dict[str, Any] | None:
    """A copy of a job's runtime environment with EGS's hook before the user's; None where there is no room for one.

    A driver started from another (vLLM's engine, say) may be given the other's environment, whose hook Ray has exported
    already. EGS's alone is made anew: the driver may be one of another cluster, where nothing is exported. With a
    user's in it, it must serve; its name in there, were it left, Ray would take for a second hook, and raise.
    """
    wanted = dict(runtime_env or {})
    wanted["env_vars"] = dict(wanted.get("env_vars") or {})  # Ray writes into it
    if launch.SETUP_HOOK_VARIABLE in wanted["env_vars"]:
        if (exported := wanted.get(FIELD)) in (NAME, NAME_WITH_USERS):
            del wanted[FIELD]
        if exported != NAME:
            return wanted
        del wanted["env_vars"][launch.SETUP_HOOK_VARIABLE]
    users_hook = wanted.get(FIELD)
    is_known = users_hook is None or isinstance(users_hook, str) or callable(users_hook)
    if not is_known or any(wanted.get(key) for key in ALONE):
        return None
    return {**wanted, FIELD: chain(settings, users_hook)}
