"""How much memory a GPU has in use while a command runs, and how much of the time it works.

On real GPUs by NVML: the most memory in use at once beyond what was in use before, of the fullest of them, and the
mean of what the driver says that it worked. Where there is none, or an emulated one, those of the command's processes
stand in: resident memory, and CPU time over time. That is said with each figure (`is_emulated`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import psutil

LOOK_S = 0.1


class Sampled(msgspec.Struct):
    """busy: 0 to 1, None where nothing could be looked at. memory_bytes: of one GPU, 0 where that is not known."""

    peak_bytes: int = 0
    busy: float | None = None
    is_emulated: bool = True
    memory_bytes: int = 0


class Sampler:
    """Looks again and again from `start` to `stop`, in a thread of its own. devices: ids of the GPUs that the command
    has, None while it has none yet; root: whose processes, itself left out, are the command's."""

    def __init__(self, devices: Callable[[], Sequence[str] | None], root: int) -> None:
        self._devices, self._root = devices, root
        self._is_over = threading.Event()
        self._found = Sampled()
        self._thread = threading.Thread(target=self._watch, name="egs-sample", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> Sampled:
        self._is_over.set()
        self._thread.join(5.0)
        return self._found

    def _watch(self) -> None:
        while (devices := self._devices()) is None:
            if self._is_over.wait(LOOK_S):
                return
        with nvml_handles(devices) as handles:
            if handles:
                self._watch_gpus(handles)
            else:
                self._watch_processes()

    def _watch_gpus(self, handles: Sequence[Any]) -> None:
        import pynvml

        before = [int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles]
        found, worked = self._found, list[float]()
        found.is_emulated = False
        found.memory_bytes = min(int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles)
        while not self._is_over.wait(LOOK_S):
            with contextlib.suppress(pynvml.NVMLError):
                used = [int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles]
                found.peak_bytes = max(found.peak_bytes, *(now - then for now, then in zip(used, before, strict=True)))
                worked.append(sum(pynvml.nvmlDeviceGetUtilizationRates(one).gpu for one in handles) / len(handles))
                found.busy = sum(worked) / len(worked) / 100

    def _watch_processes(self) -> None:
        began, spent = time.monotonic(), dict[int, float]()
        while True:
            resident = 0
            for process in _below(self._root):
                with contextlib.suppress(psutil.Error):
                    resident += process.memory_info().rss
                    times = process.cpu_times()
                    spent[process.pid] = times.user + times.system
            self._found.peak_bytes = max(self._found.peak_bytes, resident)
            self._found.busy = min(1.0, sum(spent.values()) / max(time.monotonic() - began, LOOK_S))
            if self._is_over.wait(LOOK_S):
                return


def _below(root: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return list(psutil.Process(root).children(recursive=True))
    return []


@contextlib.contextmanager
def nvml_handles(devices: Sequence[str]) -> Iterator[list[Any]]:
    """NVML's of these GPUs; [] where there is no NVML, or one of them is not its."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library, or no driver
        yield []
        return
    try:
        found = []
        with contextlib.suppress(pynvml.NVMLError):
            found = [pynvml.nvmlDeviceGetHandleByUUID(device) for device in devices]
        yield found
    finally:
        pynvml.nvmlShutdown()
