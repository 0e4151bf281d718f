"""What is looked at while a command runs: GPUs by NVML where they are its, else the command's processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from egs_core.profiling.running import local_gpus
from egs_core.profiling.sampling import Sampler
from egs_core.profiling.tiers import GIB

PATIENCE_S = 60.0


class Nvml:
    """As much of pynvml as is used, played, with two GPUs. used: bytes in use on each now; busy: on which a process
    computes."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.used = [1 * GIB, 2 * GIB]
        self.looks = 0
        self.busy: set[str] = set()

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> str:
        return f"GPU-{number}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in ("GPU-0", "GPU-1"):
            raise self.NVMLError("not found")
        return uuid

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetName(self, handle: str) -> str:
        return {"GPU-0": "NVIDIA A100-SXM4-80GB", "GPU-1": "Tesla T4"}[handle]

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        self.looks += 1
        return SimpleNamespace(used=self.used[int(handle[-1])], total=(80 * GIB, 16 * GIB)[int(handle[-1])])

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(gpu=40 if handle == "GPU-0" else 80)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[int]:
        return [1] if handle in self.busy else []


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    made = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


def until(nvml: Nvml, more: int) -> None:
    """So often it was looked again."""
    wanted, end = nvml.looks + more, time.monotonic() + PATIENCE_S
    while nvml.looks < wanted:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_gpus_are_looked_at_by_nvml(nvml: Nvml) -> None:
    """The most memory beyond what was in use before, of the fullest of them, and the mean of how much they worked."""
    sampler = Sampler(lambda: ["GPU-0", "GPU-1"], os.getpid())
    sampler.start()
    until(nvml, 6)
    nvml.used = [4 * GIB, 3 * GIB]
    until(nvml, 6)
    nvml.used = [1 * GIB, 2 * GIB]
    until(nvml, 6)
    found = sampler.stop()
    assert (found.peak_bytes, found.memory_bytes, found.is_emulated) == (3 * GIB, 16 * GIB, False)
    assert found.busy == pytest.approx(0.6)


def test_without_a_gpu_of_nvmls_the_commands_processes_stand_in(nvml: Nvml) -> None:
    """Emulated ids: resident memory and CPU time of what is below, and it says so."""
    code = "x = bytearray(80_000_000)\nwhile True: sum(range(1000))"
    child = subprocess.Popen([sys.executable, "-c", code])
    sampler = Sampler(lambda: ["0"], os.getpid())
    sampler.start()
    try:
        end = time.monotonic() + PATIENCE_S
        while sampler._found.peak_bytes < 80_000_000 or not sampler._found.busy:
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        child.kill()
        child.wait()
        found = sampler.stop()
    assert found.is_emulated
    assert found.busy is not None
    assert 0 < found.busy <= 1
    assert nvml.looks == 0


def test_nothing_is_looked_at_before_there_are_devices(nvml: Nvml) -> None:
    """A command that never got its turn: nothing is known, and nobody waits for it."""
    sampler = Sampler(lambda: None, os.getpid())
    sampler.start()
    found = sampler.stop()
    assert (found.peak_bytes, found.busy, nvml.looks) == (0, None, 0)


def test_gpus_of_this_host_by_flavor(nvml: Nvml) -> None:
    """But those on which somebody computes; and none where there is no NVML."""
    assert local_gpus() == {"A100-SXM4-80GB": ["GPU-0"], "T4": ["GPU-1"]}
    nvml.busy = {"GPU-0"}
    assert local_gpus() == {"T4": ["GPU-1"]}
    nvml.nvmlInit = _fail  # type: ignore[method-assign]  # no driver
    assert local_gpus() == {}


def _fail() -> None:
    raise Nvml.NVMLError("no driver")
