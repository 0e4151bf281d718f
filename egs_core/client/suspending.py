"""A command's processes put aside, off their GPUs, and back where they were: for `egs run --suspend`.

    put aside     CUDA's driver takes what each has on GPUs into the host's memory ─► SIGSTOP to all
    go on         SIGCONT to all ─► the driver puts it back, on the GPUs of the new lease ─► their calls go on

The driver's own functions do it (`cuCheckpointProcess…` of cuda.h, driver 570 or later), for a process that knows
nothing of it. While it is aside it has no device open and NVML does not list it; what calls CUDA waits. They are called
in a process of their own (`python -m egs_core.client.suspending`), so that a driver that hangs holds up nobody else.
Where a step fails all goes on as it was. Processes that use no GPU are only stopped.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import psutil

from egs_core.client.messages import Process
from egs_core.client.processes import descendants, is_stopped

LIBRARY = "libcuda.so.1"
CUDA_FILE = "/dev/nvidia-uvm"
"""Open in each process that has begun to use CUDA, until the driver has put it aside; not where NVML alone is used."""
SPARE_BYTES = 1 << 30
"""Of the host's memory, that is to stay free of what comes from GPUs."""
LOCK_MS = 10_000
"""So long kernels that were begun may take to end; else it is not put aside."""
DRIVER_S = 600.0
"""So long the driver may take; it copies some GB a second."""
ROUNDS = 5
"""So often it is looked for processes that have come, or have begun to use a GPU, meanwhile."""


class Failed(Exception):
    """Why it could not be done. is_as_before: all of them go on; else nobody knows, and they are to be killed."""

    def __init__(self, why: str, *, is_as_before: bool) -> None:
        super().__init__(why)
        self.is_as_before = is_as_before


class Aside(NamedTuple):
    """What was put aside. child: the command's first process; devices: UUIDs of the GPUs of its lease; users: those of
    its processes that had some of them."""

    child: int
    devices: tuple[str, ...]
    processes: tuple[Process, ...]
    users: tuple[int, ...]


class Suspension:
    """What a supervisor has put aside. kill: ends all below it; wait: until nothing is left there."""

    def __init__(self, say: Callable[[str], None], kill: Callable[[], None], wait: Callable[[], None]) -> None:
        self._say, self._kill, self._wait = say, kill, wait
        self._aside: Aside | None = None

    def __bool__(self) -> bool:
        """Whether something is aside."""
        return self._aside is not None

    @property
    def processes(self) -> tuple[Process, ...]:
        return self._aside.processes if self._aside is not None else ()

    def begin(self, run: str, why: str, child: int, devices: Sequence[str]) -> bool:
        """Whether all of the command is off its devices, and stopped."""
        self._say(f"run {run} gives way: {why}; it is put aside, and goes on when its turn comes")
        try:
            self._aside = put_aside(child, devices)
        except Failed as failed:
            self._say(f"run {run} cannot be put aside ({failed})")
            if not failed.is_as_before:
                self._kill()
        return bool(self)

    def end(self, run: str, devices: Sequence[str]) -> int:
        """The command's first process where it goes on; else 0, and nothing of it is left."""
        aside, self._aside = self._aside, None
        if aside is None:
            return 0
        try:
            go_on(aside, devices)
        except Failed as failed:
            self._say(f"run {run} cannot go on ({failed}): it is started again")
            self._kill()
            self._wait()
            return 0
        self._say(f"run {run} goes on where it was")
        return aside.child

    def close(self) -> None:
        """What is aside never goes on."""
        if self:
            self._kill()


def put_aside(child: int, devices: Sequence[str]) -> Aside:
    """All that is below this process, which is stopped and has no GPU from then on. Raises Failed."""
    root, aside = os.getpid(), list[int]()
    try:
        for _ in range(ROUNDS):
            users = gpu_users(descendants(root))
            if users:
                _check_room(users)
                _send(signal.SIGCONT, users)  # what is stopped cannot do its part
                _driver("aside", users)
                aside += users
            found = descendants(root)
            _send(signal.SIGSTOP, [one.pid for one in found if not is_stopped(one.pid)])
            found = descendants(root)
            if all(is_stopped(one.pid) for one in found) and not gpu_users(found):
                return Aside(child, tuple(devices), tuple(found), tuple(aside))
        raise Failed("new processes of it begin again and again", is_as_before=True)
    except Failed as failed:
        if failed.is_as_before:
            go_on(Aside(child, (), tuple(descendants(root)), tuple(aside)), ())
        raise


def go_on(aside: Aside, devices: Sequence[str]) -> None:
    """On these GPUs, one for each that it had. Raises Failed: then none of it can be of use."""
    if aside.users and len(devices) != len(aside.devices):
        raise Failed(f"it had {len(aside.devices)} GPUs, and has {len(devices)} now", is_as_before=False)
    _send(signal.SIGCONT, [one.pid for one in aside.processes])
    if aside.users:
        _driver("back", aside.users, dict(zip(aside.devices, devices, strict=True)))


def gpu_users(processes: Iterable[Process]) -> list[int]:
    """Those that have begun to use CUDA, and are not aside."""
    return [one.pid for one in processes if _uses_cuda(one.pid)]


def _uses_cuda(pid: int) -> bool:
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{name}") == CUDA_FILE:
                    return True
    return False


def _check_room(pids: Sequence[int]) -> None:
    """Raises Failed where the host's memory cannot take what these have on GPUs; what NVML does not tell is nothing."""
    needed = 0
    with contextlib.suppress(Exception):  # no binding, no driver, or one that does not list processes
        import pynvml

        pynvml.nvmlInit()
        try:
            for number in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(number)
                listed = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
                needed += sum(one.usedGpuMemory or 0 for one in listed if one.pid in pids)
        finally:
            pynvml.nvmlShutdown()
    free = psutil.virtual_memory().available - SPARE_BYTES
    if needed > free:
        what = f"it has {needed / 2**30:.1f} GiB on GPUs, and the host's memory has room for {max(0, free) / 2**30:.1f}"
        raise Failed(what, is_as_before=True)


def _send(wanted: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, wanted)


def _driver(action: str, pids: Sequence[int], moved: Mapping[str, str] | None = None) -> None:
    """Raises Failed."""
    ask = json.dumps({"action": action, "pids": list(pids), "moved": dict(moved or {})})
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    command = [sys.executable, "-m", __name__, ask]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=DRIVER_S, check=False, process_group=0
        )
        told = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        raise Failed("CUDA's driver did not answer", is_as_before=False) from None
    if told["problem"]:
        raise Failed(told["problem"], is_as_before=told["is_as_before"])


# --- what runs in a process of its own ---


class _LockArgs(ctypes.Structure):
    _fields_ = (("timeout_ms", ctypes.c_uint), ("reserved0", ctypes.c_uint), ("reserved1", ctypes.c_uint64 * 7))


class _Pair(ctypes.Structure):
    _fields_ = (("old", ctypes.c_ubyte * 16), ("new", ctypes.c_ubyte * 16))


class _RestoreArgs(ctypes.Structure):
    _fields_ = (
        ("pairs", ctypes.POINTER(_Pair)),
        ("count", ctypes.c_uint),
        ("reserved", ctypes.c_char * (52 - ctypes.sizeof(ctypes.c_void_p))),
        ("reserved1", ctypes.c_uint64),
    )


class _Refused(Exception):
    pass


def _call(cuda: ctypes.CDLL, name: str, pid: int, arguments: ctypes.Structure | None = None) -> None:
    function = getattr(cuda, f"cuCheckpointProcess{name}", None)
    if function is None:
        raise _Refused("CUDA's driver is older than 570, and cannot put a process aside")
    if code := function(ctypes.c_int(pid), None if arguments is None else ctypes.byref(arguments)):
        text = ctypes.c_char_p()
        cuda.cuGetErrorName(code, ctypes.byref(text))
        said = (text.value or b"?").decode()
        raise _Refused(f"CUDA's driver refused it for process {pid}: {said} ({name.lower()})")


def _aside(cuda: ctypes.CDLL, pids: Sequence[int]) -> tuple[str, bool]:
    """What went wrong, "" for nothing, and whether all go on as before then."""
    locked, taken = list[int](), list[int]()
    try:
        for pid in pids:
            _call(cuda, "Lock", pid, _LockArgs(timeout_ms=LOCK_MS))
            locked.append(pid)
        for pid in pids:
            _call(cuda, "Checkpoint", pid)
            taken.append(pid)
    except _Refused as refused:
        try:
            for pid in taken:
                _call(cuda, "Restore", pid)
            for pid in locked:
                _call(cuda, "Unlock", pid)
        except _Refused as again:
            return f"{refused}; {again}", False
        return str(refused), True
    return "", True


def _back(cuda: ctypes.CDLL, pids: Sequence[int], moved: Mapping[str, str]) -> tuple[str, bool]:
    pairs = (_Pair * len(moved))(*[_Pair(_bytes(old), _bytes(new)) for old, new in moved.items()])
    arguments = _RestoreArgs(pairs=pairs, count=len(moved)) if moved else None
    try:
        for pid in pids:
            _call(cuda, "Restore", pid, arguments)
        for pid in pids:
            _call(cuda, "Unlock", pid)
    except _Refused as refused:
        return str(refused), False
    return "", True


def _bytes(device: str) -> ctypes.Array[ctypes.c_ubyte]:
    return (ctypes.c_ubyte * 16)(*uuid.UUID(device.removeprefix("GPU-")).bytes)


def main(words: Sequence[str]) -> None:
    ask = json.loads(words[0])
    problem, is_as_before = "there is no CUDA driver here", True
    with contextlib.suppress(OSError):
        cuda = ctypes.CDLL(LIBRARY)
        cuda.cuInit(0)
        done = _aside(cuda, ask["pids"]) if ask["action"] == "aside" else _back(cuda, ask["pids"], ask["moved"])
        problem, is_as_before = done
    print(json.dumps({"problem": problem, "is_as_before": is_as_before}))


if __name__ == "__main__":
    main(sys.argv[1:])
