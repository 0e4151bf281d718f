"""A Ray of its own on this machine, for as long as a `with` block lasts: nothing of it is left afterwards.

Used by the demo, the replay and the benchmarks. Another Ray on the machine is neither used nor disturbed, and variables
of the user's that would change what runs (a hook, an address) are out of the way while it starts.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psutil
import ray

OBJECT_STORE_BYTES = 200_000_000
END_S = 20.0
MOST_TEMP_CHARACTERS = 20  # Ray puts sockets below its folder, whose paths may have 107 characters in all

OUT_OF_THE_WAY = ("RAY_ADDRESS", "RAY_RUNTIME_ENV_HOOK", "EGS_MODE", "EGS_RUNLOG", "EGS_HISTORY", "EGS_ROLE")
QUIET = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray announces a coming change of its default
    "RAY_AUTH_MODE": "disabled",  # else the first start writes a token into the home folder
    "RAY_USAGE_STATS_ENABLED": "0",
}


@contextmanager
def local_ray(cpus: int, gpus: int, environment: Mapping[str, str] | None = None, **options: Any) -> Iterator[None]:
    """Start Ray with that many CPUs and logical GPUs and connect this process to it; end all of it afterwards.

    environment: variables that are set while it runs, so that its workers have them too. options: for `ray.init`.
    """
    before = set(psutil.Process().children(recursive=True))
    folder = _short_folder()
    wanted: dict[str, str | None] = {**dict.fromkeys(OUT_OF_THE_WAY), **QUIET, "RAY_TMPDIR": folder}
    with variables({**wanted, **(environment or {})}):
        try:
            ray.init(**_INIT, num_cpus=cpus, num_gpus=gpus, **options)
            yield
        finally:
            ray.shutdown()
            _end_processes(before)
            shutil.rmtree(folder, ignore_errors=True)


_INIT: dict[str, Any] = {
    "address": "local",
    "include_dashboard": False,
    "log_to_driver": False,
    "logging_level": "ERROR",
    "object_store_memory": OBJECT_STORE_BYTES,
}


@contextmanager
def variables(environment: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables (None: unset), and put back what was there."""
    before = {name: os.environ.get(name) for name in environment}
    _set(environment)
    try:
        yield
    finally:
        _set(before)


def _set(environment: Mapping[str, str | None]) -> None:
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _short_folder() -> str:
    parent = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="egs-", dir=parent if len(parent) <= MOST_TEMP_CHARACTERS else "/tmp")


def _end_processes(before: set[psutil.Process]) -> None:
    """Wait until every process that Ray started has ended; what has not by then is killed."""
    started = [child for child in psutil.Process().children(recursive=True) if child not in before]
    _, alive = psutil.wait_procs(started, timeout=END_S)
    for process in alive:
        process.kill()
