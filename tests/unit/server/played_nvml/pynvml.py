"""As much of NVML's binding as EGS uses, for a server process of a test: it says what a JSON file says.

{"GPU-a": {"temperature": 50, "busy": 0, …, "lost": false}, …}       GPUs; a field left out: not supported
{"GPU-a": {…, "pids": [4711]}}                                       the processes that compute there
{"GPU-b": {"mig": {"0": {"id": "MIG-x", "profile": "1g.10gb", "gib": 10}, "2": …}}}       split: by number, with gaps
{"events": [["GPU-a", 79], …], "hangs": false}                       XID errors so far; whether no call returns
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NVML_TEMPERATURE_GPU, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 0, 1, 0
nvmlEventTypeXidCriticalError = 8
NVML_DEVICE_MIG_ENABLE, MOST_SLICES = 1, 7
FIRST_SLICE = 1000  # of handles


class NVMLError(Exception):
    """Base of what it raises."""


class NVMLError_NotSupported(NVMLError):
    """The device does not tell that."""


class NVMLError_NotFound(NVMLError):
    """No slice of this number."""


class NVMLError_Timeout(NVMLError):
    """No event."""


def _played() -> dict[str, Any]:
    while True:
        found: dict[str, Any] = json.loads(Path(os.environ["EGS_PLAYED_NVML"]).read_text())
        if not found.get("hangs"):
            return found
        time.sleep(0.05)


def _names() -> list[str]:
    return [name for name in _played() if name.startswith("GPU-")]


def _slices() -> list[tuple[str, dict[str, Any]]]:
    played = _played()
    return [(one["id"], one) for name in _names() for one in played[name].get("mig", {}).values()]


def _of(handle: Any) -> tuple[str, dict[str, Any]]:
    if handle.value >= FIRST_SLICE:
        return _slices()[int(handle.value) - FIRST_SLICE]
    name = _names()[int(handle.value) - 1]
    found = _played()[name]
    if found.get("lost"):
        raise NVMLError("GPU is lost")
    return name, found


def _field(handle: Any, name: str) -> Any:
    found = _of(handle)[1]
    if name not in found:
        raise NVMLError_NotSupported(name)
    return found[name]


def nvmlInit() -> None: ...


def nvmlShutdown() -> None: ...


def nvmlDeviceGetCount() -> int:
    return len(_names())


def nvmlDeviceGetHandleByIndex(number: int) -> Any:
    return ctypes.c_void_p(number + 1)


def nvmlDeviceGetHandleByUUID(name: str) -> Any:
    if name.startswith("MIG-"):
        return ctypes.c_void_p(FIRST_SLICE + [one for one, _ in _slices()].index(name))
    return ctypes.c_void_p(_names().index(name) + 1)


def nvmlDeviceGetMigMode(handle: Any) -> list[int]:
    is_split = int("mig" in _of(handle)[1])
    if not is_split:
        raise NVMLError_NotSupported("mig")
    return [is_split, is_split]


def nvmlDeviceGetMaxMigDeviceCount(_handle: Any) -> int:
    return MOST_SLICES


def nvmlDeviceGetMigDeviceHandleByIndex(handle: Any, number: int) -> Any:
    found = _of(handle)[1]["mig"].get(str(number))
    if found is None:
        raise NVMLError_NotFound(str(number))
    return nvmlDeviceGetHandleByUUID(found["id"])


def nvmlDeviceGetUUID(handle: Any) -> str:
    return _of(handle)[0]


def nvmlDeviceGetName(handle: Any) -> str:
    told = _of(handle)[1]
    return f"NVIDIA Played MIG {told['profile']}" if "profile" in told else told.get("name", "played")


def nvmlDeviceGetMemoryInfo(handle: Any) -> Any:
    if "gib" in (told := _of(handle)[1]):
        return SimpleNamespace(total=told["gib"] << 30, used=0)
    return SimpleNamespace(total=80 << 30, used=int(_field(handle, "memory") * (80 << 30)))


def nvmlDeviceGetComputeRunningProcesses(handle: Any) -> list[Any]:
    return [SimpleNamespace(pid=pid) for pid in _of(handle)[1].get("pids", [])]


def nvmlDeviceGetUtilizationRates(handle: Any) -> Any:
    return SimpleNamespace(gpu=_field(handle, "busy"))


def nvmlDeviceGetTemperature(handle: Any, _sensor: int) -> int:
    return int(_field(handle, "temperature"))


def nvmlDeviceGetPowerUsage(handle: Any) -> int:
    return int(_field(handle, "power") * 1000)


def nvmlDeviceGetEnforcedPowerLimit(handle: Any) -> int:
    return int(_field(handle, "power_limit") * 1000)


def nvmlDeviceGetTotalEccErrors(handle: Any, _kind: int, _since: int) -> int:
    return int(_field(handle, "ecc"))


def nvmlDeviceGetCurrentClocksThrottleReasons(handle: Any) -> int:
    return int(_field(handle, "throttle"))


def nvmlEventSetCreate() -> list[int]:
    return [len(_played().get("events", []))]  # how many were told: only what comes later is


def nvmlDeviceRegisterEvents(_handle: Any, _kind: int, _events: Any) -> None: ...


def nvmlEventSetWait_v2(events: list[int], _timeout_ms: int) -> Any:
    told = _played().get("events", [])
    if events[0] >= len(told):
        raise NVMLError_Timeout("none")
    name, number = told[events[0]]
    events[0] += 1
    return SimpleNamespace(device=ctypes.c_void_p(_names().index(name) + 1), eventData=number)
