"""What NVML says of this host's devices, asked again and again by a thread of its own.

A driver that hangs holds up this thread and nothing else: the devices are not heard of then, which a rule may look at.
NVML stays open, because errors (XID) are events, which are told only to who has asked for them before.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from egs_core.client.watching import DeviceHealth

LOG = logging.getLogger("uvicorn.error")
T = TypeVar("T")
LOOK_S = 1.0
MOST_EVENTS = 100  # at a look
# NVML's bits (nvmlClocksEventReason…, before driver 535 nvmlClocksThrottleReason…)
POWER, HEAT, HARDWARE = 0x04 | 0x80, 0x20 | 0x40, 0x08
SLOWDOWNS = {"power": POWER, "heat": HEAT}


class Nvml:
    """An open NVML. ids: UUIDs of the devices that are asked for. Raises NVMLError where it cannot be had."""

    def __init__(self, ids: Sequence[str]) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        try:
            self._handles = {one: pynvml.nvmlDeviceGetHandleByUUID(one) for one in ids}
            self._events = self._listen()
        except BaseException:
            pynvml.nvmlShutdown()
            raise

    def close(self) -> None:
        with contextlib.suppress(Exception):  # of a driver that is gone
            self._nvml.nvmlShutdown()

    def read(self) -> list[DeviceHealth]:
        """Of each device that answers. Raises NVMLError where none does."""
        xids = self._xids()
        found, problem = list[DeviceHealth](), None
        for one, handle in self._handles.items():
            try:
                self._nvml.nvmlDeviceGetUUID(handle)  # one that has fallen off the bus does not answer even this
            except self._nvml.NVMLError as error:
                problem = error
                found.append(DeviceHealth(device=one, answers=False, xids=tuple(xids.get(one, ()))))
                continue
            found.append(self._read(one, handle, xids.get(one, [])))
        if problem is not None and not any(one.answers or one.xids for one in found):
            raise problem
        return found

    def _read(self, one: str, handle: Any, xids: list[int]) -> DeviceHealth:
        nvml = self._nvml
        memory = self._try(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        busy = self._try(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        power = self._try(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        limit = self._try(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        kind, since = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        return DeviceHealth(
            device=one,
            temperature_c=self._try(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            memory_used=min(1.0, memory.used / memory.total) if memory is not None and memory.total else None,
            busy=None if busy is None else min(1.0, busy / 100),
            ecc_errors=self._try(lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, kind, since)),
            throttled=throttled(self._try(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))),
            xids=tuple(xids),
        )

    def _try(self, ask: Callable[[], T]) -> T | None:
        """None for what a device, or its driver, does not tell."""
        try:
            return ask()
        except (self._nvml.NVMLError, AttributeError):  # the second: a binding that is older than the question
            return None

    def _listen(self) -> Any:
        """For XID errors; None where no device tells of any."""
        nvml = self._nvml
        events = self._try(nvml.nvmlEventSetCreate)
        if events is None:
            return None
        for handle in self._handles.values():
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        return events

    def _xids(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for _ in range(MOST_EVENTS if self._events is not None else 0):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError:  # none is waiting
                break
            whose = [one for one, handle in self._handles.items() if _address(handle) == _address(event.device)]
            for one in whose:  # by its handle: one that has fallen off the bus tells no UUID any more
                found[one].append(int(event.eventData))
        return found


def _address(handle: Any) -> object:
    """What two handles of one device have in common."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def throttled(bits: int | None) -> tuple[str, ...] | None:
    """Whatever holds clocks back that is no wish of a user's.

    >>> throttled(0x1), throttled(0x4), throttled(0x48), throttled(0x8)
    ((), ('power',), ('heat',), ('hardware',))
    """
    if bits is None:
        return None
    found = [name for name, mask in SLOWDOWNS.items() if bits & mask]
    if bits & HARDWARE and not found:  # the bit that stands for either, where the driver knows no more
        found.append("hardware")
    return tuple(found)


class Readings:
    """See the module. ids: none where the devices are emulated: then nobody is asked."""

    def __init__(self, ids: Sequence[str]) -> None:
        self._ids = tuple(ids)
        self._latest: dict[str, DeviceHealth] = {}
        self._lock, self._is_over = threading.Lock(), threading.Event()
        self._said = ""
        self._thread = threading.Thread(target=self._run, name="egs-health", daemon=True)

    def start(self) -> None:
        if self._ids:
            self._thread.start()

    def close(self) -> None:
        """Does not wait for a driver that hangs."""
        self._is_over.set()

    def take(self) -> list[DeviceHealth]:
        """What was measured since the last call, the latest of each device, with all of its errors."""
        with self._lock:
            found, self._latest = list(self._latest.values()), {}
        return found

    def give_back(self, found: Sequence[DeviceHealth]) -> None:
        """Nobody has heard these: their errors are told again, all else is measured anew."""
        with self._lock:
            for one in found:
                if one.xids:
                    latest = self._latest.get(one.device, one)
                    newer = latest.xids if latest is not one else ()
                    self._latest[one.device] = latest.model_copy(update={"xids": (*one.xids, *newer)[-MOST_EVENTS:]})

    def _run(self) -> None:
        nvml: Nvml | None = None
        while not self._is_over.is_set():
            try:
                nvml = nvml or Nvml(self._ids)
                self._note(nvml.read())
                self._say("")
            except Exception as error:  # no library, no driver, none of the devices: tried again
                self._say(f"{type(error).__name__}: {error}")
                if nvml is not None:
                    nvml.close()
                nvml = None
            self._is_over.wait(LOOK_S)
        if nvml is not None:
            nvml.close()

    def _note(self, found: list[DeviceHealth]) -> None:
        with self._lock:
            for one in found:
                before = self._latest.get(one.device)
                xids = (*(before.xids if before else ()), *one.xids)[-MOST_EVENTS:]
                is_gone = before is not None and before.answers and not one.answers
                latest = before if is_gone and before is not None else one  # it did answer since it was asked for
                self._latest[one.device] = latest.model_copy(update={"xids": xids})

    def _say(self, text: str) -> None:
        if text and text != self._said:
            LOG.warning("the devices' health cannot be read: %s", text)
        self._said = text
