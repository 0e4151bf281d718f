"""The task processes of this host, and how they are ended.

Airflow gives the process of each try a title, `airflow worker -- <id>`, also under Celery, and from 3.3 on a process
group of its own; before that, what descends from it is looked for. The id is that of the try's task instance, which no
other try has; so the title, read again at the last moment, says whether a process is still the one that is meant,
whatever has become of its number. Linux only: elsewhere no process is found, and Airflow's own heartbeat ends tasks,
some seconds later.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from egs_airflow.compat import TASK_TITLE
from egs_core.runlog.marks import process_start

PROC = Path("/proc")
ON_KILL_S = 0.5
"""How long a task's `on_kill` may take, which ends what the task has started elsewhere, where nobody says otherwise."""
LOOK_S = 0.02


class TaskProcess(NamedTuple):
    """The process in which one try of a task runs; started_s: Unix time."""

    pid: int
    instance: str
    started_s: float


def task_processes() -> list[TaskProcess]:
    """Those that run on this host now, of whichever Airflow, oldest first."""
    try:
        pids = [int(entry.name) for entry in os.scandir(PROC) if entry.name.isdecimal()]
    except FileNotFoundError:
        return []
    now_s = time.time()  # where one has just ended
    found = [TaskProcess(pid, one, process_start(pid) or now_s) for pid in pids if (one := _instance(pid))]
    return sorted(found, key=lambda process: process.started_s)


def end_processes(processes: Collection[TaskProcess], grace_s: float = ON_KILL_S) -> list[TaskProcess]:
    """End processes with all that they have started: SIGTERM, on which Airflow calls the task's `on_kill`, and after
    at most `grace_s` SIGKILL, because a task goes on after SIGTERM. Those that were there to be ended."""
    there = {process: _family(process) for process in processes if is_there(process)}
    for process in there:
        _signal(process.pid, signal.SIGTERM, to_group=False)
    until = time.monotonic() + grace_s
    while time.monotonic() < until and any(is_there(process) for process in there):
        time.sleep(LOOK_S)
    for process, family in there.items():  # also where the task itself is gone: what it has started may not be
        if family is None:
            _signal(process.pid, signal.SIGKILL, to_group=True)
            continue
        for one in [*family, *(_family(process) or ())]:
            with suppress(psutil.Error):
                one.kill()
    return list(there)


def _family(process: TaskProcess) -> list[psutil.Process] | None:
    """A process and what descends from it; None where it leads a group of its own, which has all of them."""
    try:
        if os.getpgid(process.pid) == process.pid:
            return None
        first = psutil.Process(process.pid)
        return [first, *first.children(recursive=True)] if is_there(process) else []
    except (OSError, psutil.Error):  # it has ended
        return []


def is_there(process: TaskProcess) -> bool:
    """Whether it is still that try's process; one that is dead and not yet reaped is not."""
    return _instance(process.pid) == process.instance


def is_of_user(pid: int, user: int) -> bool:
    """Whether it runs as this user, or at most processes of root's are between it and one that does, as `sudo` for a
    task's `run_as_user`. By real users: a setuid program, whose effective one is root, everybody can start."""
    try:
        one = psutil.Process(pid)
        if one.uids().real == user:
            return True
        if user == 0:  # where Airflow is root, so is every daemon
            return False
        above = one.parent()
        while above is not None and above.uids().real == 0:
            above = above.parent()
        return above is not None and above.pid != 1 and above.uids().real == user  # 1 has everybody's orphans
    except psutil.Error:  # it has ended, or cannot be seen
        return False


def _instance(pid: int) -> str:
    """The id of the try that a process was started for, else ""; what that process forks has the same title."""
    try:
        match = TASK_TITLE.fullmatch(_title(pid))
        if match is None:
            return ""
        is_first = os.getpgid(pid) == pid or _title(psutil.Process(pid).ppid()) != match[0]
    except (OSError, psutil.Error):  # it has ended, or is somebody else's
        return ""
    return match[1].decode() if is_first else ""


def _title(pid: int) -> bytes:
    return (PROC / str(pid) / "cmdline").read_bytes()


def _signal(pid: int, number: int, *, to_group: bool) -> None:
    try:
        if to_group:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return  # it has ended; or it runs as another user, and Airflow's own heartbeat ends it
