"""What the GPUs of this host do, as NVML says. Not the server asks: a driver that hangs holds up no lease."""

from __future__ import annotations

from typing import Any

import msgspec


class Use(msgspec.Struct, frozen=True):
    """busy: share of the last moments in which it computed, 0 to 1; memory_bytes: in use. None: it does not say."""

    busy: float | None = None
    memory_bytes: int | None = None


def measured() -> dict[str, Use]:
    """By UUID; empty where there is no GPU, or nothing to ask."""
    try:
        import pynvml
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
        return {_text(pynvml.nvmlDeviceGetUUID(handle)): _use(pynvml, handle) for handle in handles}
    except pynvml.NVMLError:
        return {}
    finally:
        pynvml.nvmlShutdown()


def _use(nvml: Any, handle: Any) -> Use:
    try:
        busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    except nvml.NVMLError:
        busy = None
    try:
        memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
    except nvml.NVMLError:
        memory_bytes = None
    return Use(busy, memory_bytes)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
