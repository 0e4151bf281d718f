"""Which GPUs of this host tasks use: a slot is no device, but NVML lists processes.

    task's process ─ starts ─► python train.py ─ CUDA ─► NVML lists it on GPU-7f… ─► task has GPU-7f… ─► site server

Asked by a thread of its own, as a driver may hang, and only while tasks run here that hold slots of GPUs. What a task
has used it is believed to have until it ends, or uses another one. Nothing is known of what never used a GPU.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from egs_airflow import compat
from egs_airflow.agent.processes import is_of_user, task_processes
from egs_core.client.gpu_users import devices_of, users_here

LOOK_S = 5.0
LONG_S = 10.0  # who is idle is asked in minutes
AGAIN_S = 60.0
"""Until a driver is asked again that did not answer."""

Users = Mapping[str, Collection[int]]


class Devices:
    """See the module; used by one thread. users: tells the processes on each GPU of this host."""

    def __init__(self, users: Callable[[], Users] = users_here) -> None:
        self._users = users
        self._wanted: frozenset[str] = frozenset()
        self._found: dict[str, tuple[str, ...]] = {}
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self, tries: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """The GPUs, by UUID, of those of these tries, by id, of which that is known by now."""
        self._wanted = wanted = frozenset(tries)
        if wanted and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="egs-devices", daemon=True)
            self._thread.start()
        found = self._found
        return {one: found[one] for one in wanted if one in found}

    def close(self) -> None:
        """Does not wait for a driver that hangs."""
        self._is_over.set()

    def _run(self) -> None:
        wait_s = 0.0
        while not self._is_over.wait(wait_s):
            wait_s = LOOK_S
            wanted = self._wanted
            try:
                seen = self._seen(wanted) if wanted else {}
            except ImportError:
                return  # without NVML's binding nobody ever knows
            except Exception:  # no driver, or one that has gone
                seen, wait_s = {}, AGAIN_S
            known = {one: devices for one, devices in self._found.items() if one in wanted}
            self._found = known | seen  # as a whole: another thread reads it

    def _seen(self, wanted: Collection[str]) -> dict[str, tuple[str, ...]]:
        began_s = time.time() - LONG_S
        roots = {one.pid: one.instance for one in task_processes() if one.started_s <= began_s}
        roots = {pid: instance for pid, instance in roots.items() if instance in wanted}
        user = _airflows_user() if roots else 0
        roots = {pid: instance for pid, instance in roots.items() if is_of_user(pid, user)}  # a title anybody can have
        return devices_of(roots, self._users()) if roots else {}


def _airflows_user() -> int:
    """Who runs Airflow here: the agent's own user, and where that is root the owner of Airflow's home."""
    own = os.getuid()
    try:
        return own or compat.airflow_home().stat().st_uid
    except OSError:  # there is none
        return own
