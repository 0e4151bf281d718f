"""A command's processes put aside, off their GPUs, and back where they were: for `egs run --suspend`.

    put aside     CUDA's driver takes what each has on GPUs into the host's memory ─► SIGSTOP to all
    go on         SIGCONT to all ─► the driver puts it back, on the same GPUs ─► their calls go on

The driver's own functions do it (`cuCheckpointProcess…` of cuda.h, driver 570 or later), for a process that knows
nothing of it. While it is aside it has no device open and NVML does not list it; what calls CUDA waits. They are called
in a process of their own (`python -m egs_core.client.suspending`), so that a driver that hangs holds up nobody else.
Where a step fails all goes on as it was. Processes that use no GPU are only stopped. While something is aside a guard,
another such process, waits for the end of this one, and ends what is aside then.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import psutil

from egs_core.client.gpu_users import uses_cuda
from egs_core.client.messages import MOST_PROCESSES, Process
from egs_core.client.processes import descendants, is_alive, is_stopped

LIBRARY = "libcuda.so.1"
SPARE_BYTES = 1 << 30
"""Of the host's memory, that is to stay free of what comes from GPUs."""
LOCK_MS = 10_000
"""So long kernels that were begun may take to end; else it is not put aside."""
DRIVER_S = 600.0
"""So long the driver may take; it copies some GB a second."""
ROUNDS = 5
"""So often it is looked for processes that have come, or have begun to use a GPU, meanwhile."""
STOP_S = 10.0
"""So long processes may take to stop, and those that wait for a disk do."""
MOST_REFUSALS = 20
"""Of the server, half a second apart, until what is aside is given up."""
RUNNING = 0
"""A state of the driver's."""


class Failed(Exception):
    """Why it could not be done. is_as_before: all of them go on; else nobody knows, and they are to be killed."""

    def __init__(self, why: str, *, is_as_before: bool) -> None:
        super().__init__(why)
        self.is_as_before = is_as_before


class Aside(NamedTuple):
    """What was put aside. child: the command's first process; devices: the GPUs of its lease; users: those of its
    processes that had some of them."""

    child: int
    devices: tuple[str, ...]
    processes: tuple[Process, ...]
    users: tuple[int, ...]


class Suspension:
    """What a supervisor has put aside. kill: ends all below it; wait: until nothing is left there."""

    def __init__(self, say: Callable[[str], None], kill: Callable[[], None], wait: Callable[[], None]) -> None:
        self._say, self._kill, self._wait = say, kill, wait
        self._aside: Aside | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._refused = 0

    def __bool__(self) -> bool:
        """Whether something is aside."""
        return self._aside is not None

    @property
    def processes(self) -> tuple[Process, ...]:
        return self._aside.processes if self._aside is not None else ()

    def begin(self, run: str, why: str, child: int, devices: Sequence[str]) -> bool:
        """Whether all of the command is off its devices, and stopped."""
        self._say(f"run {run} gives way: {why}; it is put aside, and goes on when its turn comes")
        self._refused = 0
        try:
            self._aside = put_aside(child, devices)
        except Failed as failed:
            self._say(f"run {run} cannot be put aside ({failed})")
            if not failed.is_as_before:
                self._kill()
        return bool(self)

    def refused(self) -> None:
        """The server has seen that something of it runs: somebody has let it go on. After a while all of it ends."""
        self._refused += 1
        if self and self._refused < MOST_REFUSALS:
            self.stay()
        elif self:
            self._aside = None
            self._kill()
            self._wait()

    def told(self) -> None:
        """The server has its GPUs back: from here on what is aside ends with this process, however that ends."""
        if self._aside is not None:
            self._guard = _start_guard(self._aside.processes)

    def stay(self) -> None:
        """What somebody has let go on meanwhile is stopped again. A number may be another process's by now."""
        goes_on = [one.pid for one in self.processes if is_alive(one) and not is_stopped(one.pid)]
        _send(signal.SIGSTOP, goes_on)

    def end(self, run: str, devices: Sequence[str]) -> int:
        """The command's first process where it goes on; else 0, and nothing of it is left."""
        aside, self._aside = self._aside, None
        if aside is None:
            return 0
        _end_guard(self._guard)
        self._guard = None
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
        _end_guard(self._guard)


def put_aside(child: int, devices: Sequence[str]) -> Aside:
    """All that is below this process, which is stopped and has no GPU from then on. Raises Failed."""
    root, asked, taken = os.getpid(), set[int](), list[int]()
    try:
        for _ in range(ROUNDS):
            found = descendants(root)
            if len(found) >= MOST_PROCESSES:
                raise Failed(f"it has {len(found)} processes and more", is_as_before=True)
            if users := [pid for pid in _cuda_users(found) if pid not in asked]:
                if not all(one.startswith("GPU-") for one in devices):
                    raise Failed(f"of {', '.join(devices)} CUDA's driver takes nothing", is_as_before=True)
                _check_room(users)
                _send(signal.SIGCONT, users)  # what is stopped cannot do its part
                asked.update(users)
                taken += _driver("aside", users)
            _stop(found)
            found = descendants(root)
            if all(is_stopped(one.pid) for one in found) and asked.issuperset(_cuda_users(found)):
                break
        else:
            raise Failed("new processes of it begin again and again", is_as_before=True)
        if child not in [one.pid for one in found]:
            raise Failed("it has ended meanwhile", is_as_before=True)
        return Aside(child, tuple(devices), tuple(found), tuple(taken))
    except Failed as failed:
        if failed.is_as_before:
            go_on(Aside(child, tuple(devices), tuple(descendants(root)), tuple(taken)), devices)
        raise


def go_on(aside: Aside, devices: Sequence[str]) -> None:
    """On the same GPUs: what is started later has those that its parent was told. Raises Failed: then none of it can be
    of use."""
    if set(devices) != set(aside.devices):
        raise Failed("its turn has come on another GPU", is_as_before=False)
    _send(signal.SIGCONT, [one.pid for one in aside.processes])
    if aside.users:
        _driver("back", aside.users)


def _cuda_users(processes: Iterable[Process]) -> list[int]:
    """Those that have CUDA's file open: they use it, or have but inherited it, or ask NVML."""
    return [one.pid for one in processes if uses_cuda(one.pid)]


def _stop(processes: Sequence[Process]) -> None:
    """Until they are, for a while: one that waits for a disk stops when it has been answered."""
    _send(signal.SIGSTOP, [one.pid for one in processes])
    until = time.monotonic() + STOP_S
    while not all(is_stopped(one.pid) or not is_alive(one) for one in processes) and time.monotonic() < until:
        time.sleep(0.005)


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


def _begin(*words: str) -> subprocess.Popen[bytes]:
    """This module in a process of its own, with all GPUs in sight, whatever lies in the folder of the command."""
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    command = [sys.executable, "-P", "-m", __name__, *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True
    )


def _driver(action: str, pids: Sequence[int]) -> list[int]:
    """Those of them with which it was done. Raises Failed."""
    try:
        asked = _begin(action, *map(str, pids))
    except OSError as error:
        raise Failed(f"no process could be started: {error.strerror}", is_as_before=action == "aside") from None
    try:
        out = asked.communicate(timeout=DRIVER_S)[0].decode(errors="replace").splitlines()
    except subprocess.TimeoutExpired:
        asked.kill()  # and not waited for: the driver may hold it
        raise Failed("CUDA's driver did not answer", is_as_before=False) from None
    if len(out) < 2:  # before the first call of the driver, or in the midst of them
        raise Failed("what asks CUDA's driver has ended", is_as_before=not out and action == "aside")
    told = json.loads(out[-1])
    if told["problem"]:
        raise Failed(told["problem"], is_as_before=told["is_as_before"])
    return list(told["done"])


def _start_guard(processes: Iterable[Process]) -> subprocess.Popen[bytes] | None:
    with contextlib.suppress(OSError):
        return _begin("guard", *[f"{one.pid}:{one.started}" for one in processes])
    return None


def _end_guard(guard: subprocess.Popen[bytes] | None) -> None:
    if guard is not None:
        guard.kill()
        guard.communicate()


# --- what runs in a process of its own ---


class _LockArgs(ctypes.Structure):
    _fields_ = (("timeout_ms", ctypes.c_uint), ("reserved0", ctypes.c_uint), ("reserved1", ctypes.c_uint64 * 7))


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


def _is_running(cuda: ctypes.CDLL, pid: int) -> bool:
    """Whether it uses CUDA itself; one that has but inherited CUDA's file has no state there."""
    function, state = getattr(cuda, "cuCheckpointProcessGetState", None), ctypes.c_int(-1)
    return function is None or (not function(ctypes.c_int(pid), ctypes.byref(state)) and state.value == RUNNING)


def _aside(cuda: ctypes.CDLL, pids: Sequence[int]) -> dict[str, Any]:
    locked, taken = list[int](), list[int]()
    try:
        for pid in [one for one in pids if _is_running(cuda, one)]:
            _call(cuda, "Lock", pid, _LockArgs(timeout_ms=LOCK_MS))
            locked.append(pid)
        for pid in locked:
            _call(cuda, "Checkpoint", pid)
            taken.append(pid)
    except _Refused as refused:
        try:
            for pid in taken:
                _call(cuda, "Restore", pid)
            for pid in locked:
                _call(cuda, "Unlock", pid)
        except _Refused as again:
            return {"problem": f"{refused}; {again}", "is_as_before": False}
        return {"problem": str(refused), "is_as_before": True}
    return {"problem": "", "done": taken}


def _back(cuda: ctypes.CDLL, pids: Sequence[int]) -> dict[str, Any]:
    try:
        for name in ("Restore", "Unlock"):
            for pid in pids:
                _call(cuda, name, pid)
    except _Refused as refused:
        return {"problem": str(refused), "is_as_before": False}
    return {"problem": "", "done": list(pids)}


def _ask(action: str, pids: Sequence[int]) -> dict[str, Any]:
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError:
        return {"problem": "there is no CUDA driver here", "is_as_before": action == "aside"}
    cuda.cuInit(0)
    return _aside(cuda, pids) if action == "aside" else _back(cuda, pids)


def _watch_over(names: Sequence[str]) -> None:
    """Until whoever has started this is gone; then these end, whatever session they are of. One that is killed for it
    as well leaves nothing to do."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.stdin.buffer.read()
    for name in names:
        pid, _, started = name.partition(":")
        if is_alive(Process(pid=int(pid), started=int(started))):
            _send(signal.SIGKILL, [int(pid)])


def main(words: Sequence[str]) -> None:
    action, *names = words
    if action == "guard":
        _watch_over(names)
        return
    print("begun", flush=True)
    print(json.dumps(_ask(action, [int(one) for one in names])))


if __name__ == "__main__":
    main(sys.argv[1:])
