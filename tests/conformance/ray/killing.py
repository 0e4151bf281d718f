"""How tests end a process of EGS's own. Drivers import this module, so it imports neither pytest nor a test."""

from __future__ import annotations

import os
import signal

import ray
from ray._private.state import actors

from egs_ray.promises import Promises

START_S = 200.0


def kill_board(promises: Promises) -> None:
    """Kill the process of the actor behind the promises; it is started first, where nothing has needed it yet."""
    ray.get(promises.ready(), timeout=START_S)
    kill_process(actors(promises._board._actor_id.hex())["Pid"])


def kill_process(pid: int) -> None:
    """Kill one process. 0, the number of an actor without a process, would be the whole group of the caller's."""
    assert pid > 0
    os.kill(pid, signal.SIGKILL)
