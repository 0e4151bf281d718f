"""What a process leaves on GPUs: whether it still holds device memory, how much of it, and when it is gone for good.

CUDA gives a process's device memory back when the process ends, hardly before: libraries cache it, and the context
alone takes some hundred MiB. So leaving `with egs.gpu():` frees a device only where the process has nothing there.
Looked at, in this order:

    no device file here                    nothing to leave; GPUs are emulated
    CUDA's device file is not open         these processes never used CUDA: 0 bytes
    NVML lists them                        that many bytes
    else                                   None: something, nobody can say how much (in a container NVML does not know
                                           processes by their numbers there; without nvidia-ml-py nobody asks it)

Standard library only: it runs inside workers. nvidia-ml-py is used where it is installed (the extra `gpu`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = "EGS_DEVICE_FOLDER"
"""Environment variable: where device files are, if not in /dev. For tests on machines without a GPU."""

CUDA_FILE = "nvidia-uvm"  # opened by every process that initialises CUDA; with driver 580 by NVML as well
HOST_PROCESSES = "pid:[4026531836]"  # the kernel's number of the namespace in which NVML counts processes
GONE_STATES = ("Z", "X", "x")
"""A zombie has given all its memory back, on devices too, once it is its last thread: one whose first thread has ended
before the others is called a zombie as well, and has it until they have."""
LOOK_S = 0.01


def has_devices() -> bool:
    """Whether this machine shows an NVIDIA device."""
    return any(_folder().glob("nvidia[0-9]*"))


def family(pid: int) -> set[int]:
    """A process and all of its descendants."""
    children: dict[int, list[int]] = {}
    for stat in _read_stats():
        children.setdefault(stat.parent, []).append(stat.pid)
    found, todo = {pid}, [pid]
    while todo:
        new = [child for child in children.get(todo.pop(), ()) if child not in found]
        found.update(new)
        todo += new
    return found


def held_by_family(pid: int) -> int | None:
    """`held_bytes` of a process and all of its descendants."""
    return held_bytes(family(pid)) if has_devices() else 0


def held_bytes(pids: Collection[int], nvml: Any = None) -> int | None:
    """Device memory that these processes hold on all devices; None when they use CUDA and nobody can say how much.

    nvml: a module like pynvml, by default that one.
    """
    users = {pid for pid in pids if uses_cuda(pid)}
    return _listed_bytes(users, nvml or _nvml()) if users else 0


def release_cache() -> None:
    """A courtesy: let PyTorch give back what it only caches, if this process has it loaded and in use."""
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):  # another library of that name, or one that is being imported
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def wait_until_gone(pid: int, limit_s: float | None = None) -> bool:
    """Wait for a process of this machine to end; whether it has, within the limit (None: however long it takes)."""
    deadline = None if limit_s is None else time.monotonic() + limit_s
    while (stat := _stat_of(f"/proc/{pid}/stat")) is not None and (stat.state not in GONE_STATES or stat.threads > 1):
        if deadline is not None and time.monotonic() > deadline:
            return False
        time.sleep(LOOK_S)
    return True


def _folder() -> Path:
    return Path(os.environ.get(FOLDER, "/dev"))


def uses_cuda(pid: int) -> bool:
    """Whether it has CUDA's device file open; when that cannot be seen, it may."""
    wanted = str(_folder() / CUDA_FILE)
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                if os.readlink(f"/proc/{pid}/fd/{number}") == wanted:
                    return True
    except FileNotFoundError:  # it has ended
        return False
    except OSError:
        return True
    return False


def _nvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def _listed_bytes(pids: Collection[int], nvml: Any) -> int | None:
    """What NVML says of these processes; None where it cannot know them all."""
    if nvml is None:
        return None
    try:
        nvml.nvmlInit()
        try:
            listed = list(_processes(nvml))
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError:
        return None
    mine = [used for pid, used in listed if pid in pids]
    if None in mine or (not mine and not _sees_all_processes()):
        return None
    return sum(used for used in mine if used is not None)


def _processes(nvml: Any) -> Iterator[tuple[int, int | None]]:
    """(process, bytes or None) of every process on every device."""
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
            yield process.pid, process.usedGpuMemory


def _sees_all_processes() -> bool:
    """Whether process numbers here are those of the machine, as they are outside of containers."""
    try:
        return os.readlink("/proc/self/ns/pid") == HOST_PROCESSES
    except OSError:
        return False


class _Stat(NamedTuple):
    pid: int
    parent: int
    state: str
    threads: int


def _read_stats() -> Iterator[_Stat]:
    for name in os.listdir("/proc"):
        stat = _stat_of(f"/proc/{name}/stat") if name.isdecimal() else None
        if stat is not None:
            yield stat


def _stat_of(path: str) -> _Stat | None:
    """From the kernel's line, whose second field may contain anything."""
    try:
        line = Path(path).read_text(errors="replace")
    except OSError:
        return None
    fields = line.rpartition(")")[2].split()
    return _Stat(int(line.partition(" ")[0]), int(fields[1]), fields[0], int(fields[17]))
