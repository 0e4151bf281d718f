"""What a host offers: real GPUs (NVML), each with a lock so that two servers never offer one, or emulated ones."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Sequence
from pathlib import Path

import psutil

from egs_core.client.places import RUNTIME
from egs_core.errors import InputError, listed
from egs_core.server.runs import Device, Offer

CUDA_VISIBLE = "CUDA_VISIBLE_DEVICES"
MOST_EMULATED = 1024


class DeviceLocks:
    """One lock a GPU and host, which ends with this process, however it ends."""

    def __init__(self) -> None:
        self._handles: list[int] = []

    def take(self, devices: Sequence[Device]) -> None:
        """Raises InputError for a device that another server offers."""
        folder = _lock_folder()
        for device in devices:
            handle = os.open(folder / f"egs-{device.id}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(handle)
                raise InputError(
                    "egs serve", f"another server offers the GPU {device.id}", "end it, or choose others by --devices"
                ) from None
            self._handles.append(handle)


def host_offer(emulated: int | None, chosen: Sequence[str]) -> Offer:
    """What `egs serve` offers. emulated: so many emulated devices instead of real ones; chosen: ids of those
    that may be offered, none named: all. Raises InputError."""
    real = [device for device in _real_devices() if _is_visible(device)]
    if emulated is not None:
        if chosen:
            raise InputError("--emulated-gpus", "cannot be combined with --devices")
        if real:
            raise InputError("--emulated-gpus", f"this host has real GPUs: {listed([d.id for d in real])}")
        if not 0 <= emulated <= MOST_EMULATED:
            raise InputError("--emulated-gpus", f"must be 0 to {MOST_EMULATED}, not {emulated}")
        devices = tuple([Device(str(number), "emulated") for number in range(emulated)])
    else:
        known = {device.id: device for device in real}
        if unknown := [one for one in chosen if one not in known]:
            raise InputError("--devices", f"no GPU {unknown[0]!r} here", f"there are: {listed(list(known))}")
        devices = tuple([known[one] for one in dict.fromkeys(chosen)] or real)
    return Offer(socket.gethostname(), devices, float(os.cpu_count() or 1), psutil.virtual_memory().total)


def _real_devices() -> list[Device]:
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
        return [Device(_text(pynvml.nvmlDeviceGetUUID(one)), _text(pynvml.nvmlDeviceGetName(one))) for one in handles]
    finally:
        pynvml.nvmlShutdown()


def _is_visible(device: Device) -> bool:
    """Whether an inherited `CUDA_VISIBLE_DEVICES` names it. One that names by number is not used: numbers depend on
    CUDA's own order."""
    named = os.environ.get(CUDA_VISIBLE)
    if named is None:
        return True
    ids = [one.strip() for one in named.split(",") if one.strip()]
    if any(not one.startswith("GPU-") for one in ids):
        raise InputError(CUDA_VISIBLE, f"{named!r} names GPUs by number", "name UUIDs (nvidia-smi -L), or unset it")
    return any(device.id.startswith(one) for one in ids)


def _lock_folder() -> Path:
    places = [Path(one) for one in (os.environ.get(RUNTIME), "/run/lock", "/tmp") if one]
    folder = next((one for one in places if one.is_dir()), None)
    if folder is None:
        raise InputError("egs serve", "there is no folder for locks", "make /run/lock")
    return folder


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
