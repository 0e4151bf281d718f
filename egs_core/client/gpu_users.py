"""Which processes use which GPUs of this host, as NVML lists them, and whose they are.

In a container NVML may count processes by the host's numbers, which are others there: so a process only counts where
it has CUDA's device file open, as every process has that NVML lists.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from egs_core.client.processes import PROC, parents

FOLDER = "EGS_DEVICE_FOLDER"
"""Environment variable: where device files are, if not in /dev. For tests on machines without a GPU."""
CUDA_FILE = "nvidia-uvm"  # opened by every process that initialises CUDA; with driver 580 by NVML as well


def users_of(ids: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The processes on each of these GPUs, by UUID; none where its driver cannot say. Raises NVMLError."""
    import pynvml

    pynvml.nvmlInit()
    try:
        return {one: _users(pynvml.nvmlDeviceGetHandleByUUID(one)) for one in ids}
    finally:
        pynvml.nvmlShutdown()


def users_here() -> dict[str, tuple[int, ...]]:
    """The same of all GPUs of this host. Raises ImportError without NVML's binding, NVMLError without a driver."""
    import pynvml

    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
        return {_text(pynvml.nvmlDeviceGetUUID(handle)): _users(handle) for handle in handles}
    finally:
        pynvml.nvmlShutdown()


def _users(handle: Any) -> tuple[int, ...]:
    import pynvml

    try:
        return tuple(sorted(one.pid for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)))
    except pynvml.NVMLError_NotSupported:
        return ()


def devices_of(roots: Mapping[int, str], users: Mapping[str, Collection[int]]) -> dict[str, tuple[str, ...]]:
    """The devices that each of some processes uses, or what it has started does. roots: number -> what it is called;
    users: as `users_here`. What a root has started counts while its parents live, or it is in the root's process group.
    Who uses none is left out."""
    used = {device: [pid for pid in pids if uses_cuda(pid)] for device, pids in users.items()}
    if not any(used.values()):
        return {}
    owner = {pid: _owner(pid, roots) for pids in used.values() for pid in pids}
    found: dict[str, list[str]] = {}
    for device, pids in used.items():
        for name in {owner[pid] for pid in pids} - {""}:
            found.setdefault(name, []).append(device)
    return {name: tuple(sorted(devices)) for name, devices in found.items()}


def _owner(pid: int, roots: Mapping[int, str]) -> str:
    """Of the nearest root: only those few processes are looked up, not all of the host's."""
    above = next((one for one in (pid, *parents(pid)) if one in roots), 0)
    return roots.get(above or _group(pid), "")


def uses_cuda(pid: int) -> bool:
    """Whether it has CUDA's device file open; not where that cannot be seen, as of another user's."""
    wanted = str(Path(os.environ.get(FOLDER, "/dev")) / CUDA_FILE)
    with contextlib.suppress(OSError):
        for number in os.listdir(f"{PROC}/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                if os.readlink(f"{PROC}/{pid}/fd/{number}") == wanted:
                    return True
    return False


def _group(pid: int) -> int:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid)
    return 0


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
