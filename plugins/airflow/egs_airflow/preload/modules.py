"""Modules that no task has to import, because the process that it is forked from has.

    scheduler ── import pandas ── fork ──► process of LocalExecutor ── fork ──► task: pandas is there

LocalExecutor forks its processes when it starts, and again for those that have died, always from the scheduler. So the
modules of `[egs] preload_modules` are imported into the scheduler before the executor starts. Each is tried in a
process of its own first: what fails, hangs, ends its process, touches a GPU or starts a thread stays out of the
scheduler, and is one warning. CUDA that was initialised before a fork cannot be used after it, and a lock that another
thread holds is never freed.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import sys
import threading
import time
from multiprocessing.connection import Connection

from egs_airflow import compat, config

OPTION = "[egs] preload_modules"
PATIENCE_S = 120.0
COMMON = (
    "airflow.sdk.definitions.decorators.condition",
    "airflow.sdk.definitions.decorators.setup_teardown",
    "airflow.providers.standard.decorators.python",
    "airflow.sdk.definitions.asset.metadata",
    "airflow.sdk.definitions.connection",
    "airflow.sdk.execution_time.cache",
    "airflow.sdk.execution_time.supervisor",
    "airflow.sdk._shared.logging.factory",
    "airflow.sdk._shared.logging.remote",
    "airflow.dag_processing.bundles.local",
    "airflow.version",
    "jinja2.ext",
    "egs_airflow.agent.declare",
    "egs_airflow.order.policy",
    "egs_airflow.order.pools",
    "egs_airflow.split",
)
"""What the processes of nearly every task import before the user's code, in a tenth of a second or more: what Airflow
runs and watches a task with, its decorators, and what EGS reads a DAG file with. They need no trial; one that is not
there is left to the tasks."""
CUDA_DEVICE = "/dev/nvidia-uvm"
"""What a process has opened once CUDA is initialised in it; asking a driver how a GPU does opens others."""


def preload_modules() -> list[str]:
    """Import what tasks have in common, and what the option names, into this process, in mode on. Gives the names of
    the option that were imported. Never raises."""
    try:
        if config.settings().mode != "on":
            return []
        names = config.words("preload_modules")
        if (method := multiprocessing.get_start_method()) != "fork":
            if names:
                config.warn(f"{OPTION}: nothing is preloaded, this executor makes processes by {method}, not by fork")
            return []
        _import_common()
        return _preload(names)
    except Exception as error:  # the executor starts without
        config.warn(f"{OPTION}: {type(error).__name__}: {error}")
        return []


def _import_common() -> None:
    for name in COMMON:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    compat.load_certificates()


def _preload(names: tuple[str, ...]) -> list[str]:
    began, done = time.monotonic(), []
    for name in names:
        problem = why_not(name)
        if problem:
            config.warn(f"{OPTION}: {name} is not preloaded: {problem}")
        else:
            importlib.import_module(name)
            done.append(name)
    if names:
        config.log.info("egs: preloaded %s in %.1f s", ", ".join(done) or "no module", time.monotonic() - began)
    return done


def why_not(name: str) -> str:
    """Why a module is not to be imported before a fork, found out in a process of its own; empty where it may be."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    trial = multiprocessing.get_context("fork").Process(target=_try, args=(name, sender), daemon=True)
    trial.start()
    sender.close()
    try:
        return str(receiver.recv()) if receiver.poll(PATIENCE_S) else f"it takes more than {PATIENCE_S:g} s"
    except EOFError:
        return "importing it ends the process"
    finally:
        trial.kill()
        trial.join()
        receiver.close()


def _try(name: str, sender: Connection) -> None:
    threads = threading.active_count()
    try:
        importlib.import_module(name)
        problem = "it initialises CUDA, which then fails in every task" if has_cuda() else ""
        problem = problem or ("it starts a thread" if threading.active_count() > threads else "")
    except BaseException as error:  # whatever the module does
        problem = f"{type(error).__name__}: {error}"
    sender.send(problem)


def has_cuda() -> bool:
    """Whether CUDA is initialised in this process."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return True
    files = "/proc/self/fd"
    return os.path.isdir(files) and any(_opened(f"{files}/{fd}") == CUDA_DEVICE for fd in os.listdir(files))


def _opened(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:  # closed meanwhile, as the folder's own is
        return ""
