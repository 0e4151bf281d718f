"""Which devices a task has, by the names that no others have (UUIDs): for a site server that measures its host's.

    task begins ── LONG_S ─► "devices"        one word, of a task that takes long, on a machine with real devices

Where they are emulated, or it is not sure which they are, nothing is told. Standard library only: it runs inside
workers.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from egs_ray.link import Message
from egs_ray.worker.device_memory import FOLDER

LONG_S = 10.0  # who is idle is asked in minutes
VISIBLE = "CUDA_VISIBLE_DEVICES"
DRIVER = "/proc/driver/nvidia/gpus"  # a folder for each, named by its address on the bus
UUIDS = ("GPU-", "MIG-")  # of GPUs, and of the slices into which MIG has split some
ORDER, BY_ADDRESS = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"


def uuids(visible: str) -> tuple[str, ...]:
    """The devices of a value of CUDA_VISIBLE_DEVICES; () where there are none, or it is not sure which they are."""
    names = [name for one in visible.split(",") if (name := one.strip())]
    by_number = _by_number() if any(map(str.isdecimal, names)) else ()
    found = [name if name.startswith(UUIDS) else _at(by_number, name) for name in names]
    return tuple(found) if all(found) else ()


def _at(by_number: tuple[str, ...], name: str) -> str:
    return by_number[int(name)] if name.isdecimal() and int(name) < len(by_number) else ""


@cache
def _by_number() -> tuple[str, ...]:
    """Of this machine, in the order in which CUDA counts: by their addresses where that is stated, or all are of one
    model; else the fastest is the first, and nobody knows which that is."""
    folder = Path(os.environ[FOLDER]) / "gpus" if FOLDER in os.environ else Path(DRIVER)
    try:
        told = [_fields(one.read_text()) for one in sorted(folder.glob("*/information"))]
    except OSError:
        return ()
    is_sure = os.environ.get(ORDER) == BY_ADDRESS or len({one.get("Model") for one in told}) == 1
    return tuple([one.get("GPU UUID", "") for one in told]) if is_sure else ()


def _fields(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


class _Watch:
    """The task that runs in this process: looked at by one thread, which is started by the first that has devices."""

    def __init__(self) -> None:
        self.task: tuple[float, Callable[[Message], None], tuple[str, ...]] | None = None
        self._is_started = False

    def begin(self, tell: Callable[[Message], None], found: tuple[str, ...]) -> None:
        self.task = time.monotonic(), tell, found
        if not self._is_started:
            self._is_started = True
            threading.Thread(target=self._look, name="egs-devices", daemon=True).start()

    def _look(self) -> None:
        while True:
            task = self.task
            time.sleep(LONG_S if task is None else max(0.05, LONG_S - (time.monotonic() - task[0])))
            if task is not None and self.task is task:
                self.task = None
                task[1]({"m": "devices", "uuids": task[2]})


_watch = _Watch()


@contextmanager
def devices_told(tell: Callable[[Message], None]) -> Iterator[None]:
    """The code of a task that has its devices from Ray runs inside. tell: must not raise."""
    if not (found := uuids(os.environ.get(VISIBLE, ""))):
        yield
        return
    _watch.begin(tell, found)
    try:
        yield
    finally:
        _watch.task = None
