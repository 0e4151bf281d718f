"""What a process still holds on devices: by its open files, by NVML (emulated here), and when it is gone."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from egs_core.client import processes
from egs_ray.worker import device_memory
from egs_ray.worker.device_memory import (
    CUDA_FILE,
    FOLDER,
    family,
    has_devices,
    held_by_family,
    held_bytes,
    wait_until_gone,
)


class FakeNvml:
    """As much of pynvml as is used, with one device and these (process, bytes)."""

    class NVMLError(Exception):
        pass

    def __init__(self, *listed: tuple[int, int | None], broken: bool = False) -> None:
        self.listed, self.broken, self.open = listed, broken, 0

    def nvmlInit(self) -> None:
        if self.broken:
            raise self.NVMLError
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: int) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.listed]


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for /dev, with one device."""
    for name in ("nvidia0", "nvidiactl", CUDA_FILE):
        (tmp_path / name).touch()
    monkeypatch.setenv(FOLDER, str(tmp_path))
    return tmp_path


@pytest.fixture
def user(devices: Path) -> Iterator[int]:
    """A process that has CUDA's file open."""
    code = "import sys; f = open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(devices / CUDA_FILE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process.pid
        process.kill()


def test_no_device_files_means_no_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them nothing is asked: GPUs are emulated."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert not has_devices()
    assert held_by_family(os.getpid()) == 0


def test_a_process_without_cuda_holds_nothing(devices: Path) -> None:
    """Whatever NVML would say of others."""
    assert has_devices()
    assert held_bytes({os.getpid()}, FakeNvml((os.getpid(), 5))) == 0
    assert devices


def test_nvml_tells_the_bytes(user: int) -> None:
    """Those of all the given processes that use CUDA, and NVML is closed again."""
    nvml = FakeNvml((user, 100), (user, 20), (1, 7))
    assert held_bytes({user, os.getpid()}, nvml) == 120
    assert nvml.open == 0


@pytest.mark.parametrize("nvml", ["none", "broken", "no number"])
def test_unknown_is_not_nothing(user: int, monkeypatch: pytest.MonkeyPatch, nvml: str) -> None:
    """CUDA in use and nobody to say how much: None."""
    modules = {"none": None, "broken": FakeNvml(broken=True), "no number": FakeNvml((user, None))}
    monkeypatch.setattr(device_memory, "_nvml", lambda: None)
    assert held_bytes({user}, modules[nvml]) is None


@pytest.mark.parametrize("on_host", [True, False])
def test_not_listed_counts_where_all_processes_are_seen(
    user: int, monkeypatch: pytest.MonkeyPatch, on_host: bool
) -> None:
    """A process that NVML does not list holds nothing, but in a container it may go by another number."""
    monkeypatch.setattr(device_memory, "_sees_all_processes", lambda: on_host)
    assert held_bytes({user}, FakeNvml((1, 7))) == (0 if on_host else None)


def test_children_count(user: int) -> None:
    """A helper process that a task started belongs to it."""
    assert user in family(os.getpid())
    assert held_by_family(os.getpid()) != 0


def test_waits_until_a_process_is_gone(user: int) -> None:
    """A killed process counts as gone before anybody has asked for its exit code."""
    assert not wait_until_gone(user, 0.05)
    os.kill(user, 9)
    assert wait_until_gone(user, 10.0)


HALF_GONE = """
import ctypes, threading, time
threading.Thread(target=lambda: time.sleep(600)).start()
print("begun", flush=True)
ctypes.CDLL(None).syscall(60, 0)  # exit, of this thread alone
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of exit is that of x86-64")
def test_one_whose_first_thread_alone_has_ended_is_there() -> None:
    """The kernel calls such a process a zombie, while its other threads have all it had, on devices too: as a large
    process does that is killed, for a moment. It is waited for, and counts as a lease's."""
    begun = subprocess.Popen([sys.executable, "-c", HALF_GONE], stdout=subprocess.PIPE, text=True)
    try:
        assert begun.stdout is not None
        begun.stdout.readline()
        until = time.monotonic() + 30
        while Path(f"/proc/{begun.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < until
            time.sleep(0.01)
        assert not wait_until_gone(begun.pid, 0.05)
        assert processes.process(begun.pid) is not None
        begun.kill()
        assert wait_until_gone(begun.pid, 10.0)
        assert processes.process(begun.pid) is None
    finally:
        begun.kill()
        begun.communicate()
