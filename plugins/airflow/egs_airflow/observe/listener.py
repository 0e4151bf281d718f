"""The listener: one line in a local file for each task that ends. It runs inside tasks, so standard library only.

    Airflow starts the task ─ start ─► DAG file is imported ─ code ─► user's code ─ end ─► one line is appended

The line is written by a thread that is waited for at most PATIENCE_S: a disk that hangs costs a task no more than that.
Whatever goes wrong is one warning in the task's log. In processes that run no task (the scheduler and the api-server
tell listeners too, of what they change themselves) nothing is read or written.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from airflow.listeners import hookimpl

from egs_airflow import config
from egs_airflow.observe.progress import Heard

F = TypeVar("F", bound=Callable[..., None])
hook: Callable[[F], F] = hookimpl  # Airflow's own marker has no types

PATIENCE_S = 0.1
MOST_BYTES = 256 * 1024 * 1024  # of one day on one host: what comes then is lost, not the disk


def listeners() -> list[Any]:
    """What the plugin registers. Raises what Airflow would raise while it registers it, which would end its process:
    where the hooks of this Airflow have other names or arguments than ours."""
    from egs_airflow import compat

    compat.try_listener(TaskListener())
    return [TaskListener()]


class TaskListener:
    """Airflow calls it in the task's own process, just before the user's code and when the task is over."""

    def __init__(self) -> None:
        self._code_s: float | None = None
        self._heard = Heard()

    @hook
    def on_task_instance_running(self, task_instance: Any) -> None:
        """Note the moment: the DAG file has been imported, the user's code comes next."""
        _taken_work()  # what was told while the DAG file was imported is no task's
        try:
            self._heard.begin(str(getattr(task_instance, "id", "")), folder())
        except Exception as error:
            _warn(error, "what this task tells of how far it is is not kept")
        _say_begun(str(getattr(task_instance, "id", "")))
        self._code_s = time.time()

    @hook
    def on_task_instance_success(self, task_instance: Any) -> None:
        """The task has succeeded."""
        self._over(task_instance, "success")

    @hook
    def on_task_instance_failed(self, task_instance: Any) -> None:
        """The task has failed, or is to be tried again."""
        self._over(task_instance, "failed")

    @hook
    def on_task_instance_skipped(self, task_instance: Any) -> None:
        """The task has skipped itself."""
        self._over(task_instance, "skipped")

    def _over(self, task_instance: Any, state: str) -> None:
        code_s, self._code_s = self._code_s, None
        if code_s is None:
            return
        _ring()
        try:
            self._heard.end()
            told = task_instance, state, code_s, _taken_work()
            writer = threading.Thread(target=_write, args=told, name="egs-listener", daemon=True)
            writer.start()
            writer.join(PATIENCE_S)
        except BaseException as error:  # also SystemExit, which would fail the task
            _warn(error)


def _ring() -> None:
    """Tell the scheduler that Airflow knows of the end; the module is there only where that has made a bell."""
    bell = getattr(sys.modules.get("egs_airflow.executors.bell"), "hung", None)
    if bell is not None and bell.tasks_ring:
        bell.ring()


def _say_begun(try_id: str) -> None:
    """Tell the scheduler of this host that the task's code begins."""
    begun = getattr(sys.modules.get("egs_airflow.executors.bell"), "begun", None)
    if begun is not None:
        with contextlib.suppress(ValueError):  # no id of Airflow's
            begun.ring(uuid.UUID(try_id).bytes)


def _taken_work() -> dict[str, float]:
    """What the task's code has told by `egs.work` since the last call."""
    try:
        from egs_core.worked import take  # in tasks alone: all of Airflow's processes load this module

        return take()
    except Exception:  # an earlier core
        return {}


def _write(task_instance: Any, state: str, code_s: float, work: dict[str, float]) -> None:
    try:
        append(line_of(task_instance, state, code_s, work))
    except BaseException as error:
        _warn(error)


def line_of(task_instance: Any, state: str, code_s: float, work: dict[str, float] | None = None) -> bytes:
    """What is kept of a task that has ended. work: what it has told by `egs.work`, by unit."""
    now_s, task = time.time(), getattr(task_instance, "task", None)
    started, ended = task_instance.start_date, task_instance.end_date
    kept = {
        "v": 1,
        "dag": task_instance.dag_id,
        "run": task_instance.run_id,
        "task": task_instance.task_id,
        "map": -1 if task_instance.map_index is None else task_instance.map_index,
        "try": task_instance.try_number,
        "state": state,
        "pool": getattr(task, "pool", ""),
        "slots": getattr(task, "pool_slots", 1),
        "start": started.timestamp() if started else code_s,
        "code": code_s,
        "end": ended.timestamp() if ended else now_s,
        "pid": os.getpid(),
    } | ({"work": work} if work else {})
    return json.dumps(kept, separators=(",", ":")).encode() + b"\n"


def append(line: bytes) -> None:
    """Add a line to this host's file of the day. OSError where that cannot be."""
    path = folder() / f"tasks-{time.strftime('%Y%m%d', time.gmtime())}-{socket.gethostname()}.jsonl"
    try:
        file = _open(path)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _open(path)
    try:
        if os.fstat(file).st_size < MOST_BYTES:
            os.write(file, line)  # one call: lines of tasks that end at once do not mix
    finally:
        os.close(file)


def folder() -> Path:
    """Where the lines are: EGS_RUNLOG or `[egs] runlog`, else in the user's data folder."""
    if stated := config.option("runlog"):
        return Path(stated)
    from egs_core.places import data_folder

    return data_folder() / "airflow"


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _warn(error: BaseException, what: str = "this task is not recorded, it is not affected") -> None:
    try:
        config.warn(f"{what}: {type(error).__name__}: {error}")
    except BaseException:
        return  # nobody is left to tell
