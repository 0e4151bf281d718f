"""What a host offers: real GPUs (NVML), each with a lock so that two servers never offer one, or emulated ones."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
from pydantic import TypeAdapter, ValidationError

from egs_core.client.hosts import HostName
from egs_core.client.places import RUNTIME
from egs_core.client.processes import Snapshot
from egs_core.errors import InputError, listed
from egs_core.flavor_names import flavor_of_product, nearest
from egs_core.server.logic import Watch
from egs_core.server.runs import EMULATED, Device, Offer

CUDA_VISIBLE = "CUDA_VISIBLE_DEVICES"
HOST = "EGS_HOST"  # what this host is called, where that is not its own name
MOST_EMULATED = 1024
MOST_DIGITS = 18
EMULATED_BYTES = 80 << 30


class DeviceLocks:
    """One lock a GPU and host, which ends with this process, however it ends. Two servers of one site share it, so that
    one can take over while the other is stopped:

        egs-GPU.lock         a site with one server: alone        a site with several: shared
        egs-GPU.SITE.lock                                         shared; of each other site: must be free
    """

    def __init__(self) -> None:
        self._handles: list[int] = []

    def take(self, devices: Sequence[Device], site: str = "") -> None:
        """site: an id, of one that may have several servers. Raises InputError for a device that another one offers."""
        folder = _lock_folder()
        for device in devices:
            name = f"egs-{device.id}".replace("/", "_")  # which MIG's first drivers have in a UUID
            if not site:
                self._lock(folder / f"{name}.lock", device, fcntl.LOCK_EX)
                continue
            own = folder / f"{name}.{site}.lock"
            self._lock(folder / f"{name}.lock", device, fcntl.LOCK_SH)
            self._lock(own, device, fcntl.LOCK_SH)  # before others are looked at: of two at once one sees the other
            for other in folder.glob(f"{glob.escape(name)}.*.lock"):
                if other != own:
                    os.close(_locked(other, device, fcntl.LOCK_EX))

    def close(self) -> None:
        """They are free for others."""
        for handle in self._handles:
            os.close(handle)
        self._handles = []

    def _lock(self, path: Path, device: Device, kind: int) -> None:
        self._handles.append(_locked(path, device, kind))


def host_offer(emulated: str, chosen: Sequence[str]) -> Offer:
    """What `egs serve` offers, with and without `--join`. emulated: so many emulated devices instead of real ones, as
    2, or of which flavors, as a100=1,t4=2; chosen: ids of those that may be offered, none named: all. Raises
    InputError."""
    name = host_name()
    real = [device for device in _real_devices() if _is_visible(device)]
    if emulated:
        flavors = _emulated_flavors(emulated)
        if chosen:
            raise InputError("--emulated-gpus", "cannot be combined with --devices")
        if real:
            raise InputError("--emulated-gpus", f"this host has real GPUs: {listed([d.id for d in real])}")
        devices = tuple([Device(str(n), EMULATED, EMULATED_BYTES, flavor) for n, flavor in enumerate(flavors)])
    else:
        known = {device.id: device for device in real}
        if unknown := [one for one in chosen if one not in known]:
            raise InputError("--devices", f"no GPU {unknown[0]!r} here", f"there are: {listed(list(known))}")
        devices = tuple([known[one] for one in dict.fromkeys(chosen)] or real)
    cpus, memory_bytes = float(os.cpu_count() or 1), psutil.virtual_memory().total
    return Offer(name, devices, cpus, memory_bytes, is_watched=not emulated)


def with_memory(devices: Sequence[Device], memory: Mapping[str, int]) -> tuple[Device, ...]:
    """Emulated ones have what the site's file says of their flavor, as no driver tells it. memory: bytes of one GPU, by
    name."""
    return tuple(
        [
            msgspec.structs.replace(one, memory_bytes=memory[named])
            if one.label == EMULATED and (named := nearest(memory, one.kind))
            else one
            for one in devices
        ]
    )


def why_none() -> str:
    """Why `host_offer` finds no real GPU, as far as that is known."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return "the package nvidia-ml-py is not installed: pip install 'egs-core[server]'"
    except pynvml.NVMLError as error:
        return f"NVIDIA's driver does not answer: {error}"
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        count = len([device for handle in handles for device in _offered_of(handle)])
    finally:
        pynvml.nvmlShutdown()
    if handles and not count:
        return "all its GPUs are split by MIG, and none has a slice (nvidia-smi mig -cgi … -C)"
    if count and CUDA_VISIBLE in os.environ:
        return f"{CUDA_VISIBLE}={os.environ[CUDA_VISIBLE]} leaves none of {count} to see"
    return "NVIDIA's driver knows none"


def _emulated_flavors(text: str) -> list[str]:
    """Of each emulated device, "" where none is said.

    >>> _emulated_flavors("2"), _emulated_flavors("a100=1,t4=2")
    (['', ''], ['a100', 't4', 't4'])
    """
    found: list[str] = []
    for part in [text] if text.isdecimal() else text.split(","):
        flavor, _, count = part.strip().rpartition("=")
        is_count = count.isascii() and count.isdecimal() and len(count) <= MOST_DIGITS
        if not is_count or (not flavor and len(text) > len(count)) or flavor != flavor_of_product(flavor):
            hint = "say how many, as 2, or how many of which flavor, as a100=1,t4=2"
            raise InputError("--emulated-gpus", f"{part.strip()[:40]!r} is no number of GPUs", hint)
        if len(found) + int(count) > MOST_EMULATED:
            raise InputError("--emulated-gpus", f"must be 0 to {MOST_EMULATED}, not {len(found) + int(count)}")
        found += [flavor] * int(count)
    return found


def host_name() -> str:
    """What this host is called at the site. Raises InputError."""
    name = os.environ.get(HOST) or socket.gethostname()
    try:
        return TypeAdapter(HostName).validate_python(name)
    except ValidationError:
        problem = f"{name!r} is no name of a host: letters, digits, and . _ - behind the first one"
        raise InputError(HOST, problem, "set it to a name for this host, at most 200 characters long") from None


def working(ids: Sequence[str]) -> list[str]:
    """Those of these GPUs that NVML says compute now, and those of which it cannot say. Raises NVMLError."""
    import pynvml

    pynvml.nvmlInit()
    try:
        return [one for one in ids if _is_working(pynvml.nvmlDeviceGetHandleByUUID(one))]
    finally:
        pynvml.nvmlShutdown()


def _is_working(handle: Any) -> bool:
    import pynvml

    try:
        return bool(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu > 0)
    except pynvml.NVMLError_NotSupported:
        return True


def strangers(users: Mapping[str, Sequence[int]], holders: Mapping[str, Sequence[Watch]]) -> dict[str, tuple[int, ...]]:
    """Of each GPU the processes that belong to no lease on it; GPUs without any are left out."""
    used = {one: pids for one, pids in users.items() if pids}
    if not used:
        return {}
    snapshot = Snapshot()
    found = {}
    for one, pids in used.items():
        own: set[int] = set()
        for watch in holders.get(one, ()):
            roots = [known.asked() for known in (watch.supervisor, *watch.named)]
            own |= {process.pid for process in snapshot.living(roots, watch.mark)}
        if others := tuple(pid for pid in pids if pid not in own):
            found[one] = others
    return found


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
        handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        return [device for handle in handles for device in _offered_of(handle)]
    finally:
        pynvml.nvmlShutdown()


def _offered_of(handle: Any) -> list[Device]:
    """The GPU, or, where it is split by MIG, its slices: as a whole no process can use it then."""
    import pynvml

    try:
        is_split = pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    except (pynvml.NVMLError, AttributeError):  # not supported; or a binding that is older than MIG
        is_split = False
    if not is_split:
        return [_real_device(handle)]
    found = []
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with contextlib.suppress(pynvml.NVMLError_NotFound):  # numbers may have gaps
            found.append(_slice(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number), handle))
    return found


def _slice(handle: Any, whole: Any) -> Device:
    """One of a GPU. Its flavor begins with its kind, so that who wishes for the GPU's does not get a part of it:

    NVIDIA A100-SXM4-80GB MIG 1g.10gb ─► MIG-1g.10gb-A100-SXM4-80GB         --flavor mig, --flavor mig-1g.10gb
    """
    import pynvml

    device = _real_device(handle)
    product = flavor_of_product(_text(pynvml.nvmlDeviceGetName(whole)))
    profile = device.label.rpartition(" MIG ")[2].strip() if " MIG " in device.label else ""
    flavor = flavor_of_product("-".join(["MIG", *filter(None, [profile, product])]))
    return Device(device.id, device.label, device.memory_bytes, flavor)


def _real_device(handle: Any) -> Device:
    import pynvml

    memory_bytes = 0  # a device that shares the host's memory tells none
    with contextlib.suppress(pynvml.NVMLError):
        memory_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    name = _text(pynvml.nvmlDeviceGetName(handle))
    return Device(_text(pynvml.nvmlDeviceGetUUID(handle)), name, memory_bytes)


def _is_visible(device: Device) -> bool:
    """Whether an inherited `CUDA_VISIBLE_DEVICES` names it. One that names by number is not used: numbers depend on
    CUDA's own order."""
    named = os.environ.get(CUDA_VISIBLE)
    if named is None:
        return True
    ids = [one.strip() for one in named.split(",") if one.strip()]
    if any(not one.startswith(("GPU-", "MIG-")) for one in ids):
        raise InputError(CUDA_VISIBLE, f"{named!r} names GPUs by number", "name UUIDs (nvidia-smi -L), or unset it")
    return any(device.id.startswith(one) for one in ids)


def _locked(path: Path, device: Device, kind: int) -> int:
    handle = _lock_file(path)
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        hint = "end it, or choose others by --devices"
        raise InputError("egs serve", f"another server offers the GPU {device.id}", hint) from None
    return handle


def _lock_file(path: Path) -> int:
    """Opened to be read: that is enough for a lock, and another user's file can be."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except PermissionError:  # where others' files may not be opened with O_CREAT (`fs.protected_regular`)
        try:
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError as error:
            raise InputError("egs serve", f"{path}: {error.strerror}", "let all users read it") from None
    except OSError as error:
        raise InputError("egs serve", f"{path}: {error.strerror}", "remove it") from None


def _lock_folder() -> Path:
    places = [Path(one) for one in (os.environ.get(RUNTIME), "/run/lock", "/tmp") if one]
    folder = next((one for one in places if one.is_dir()), None)
    if folder is None:
        raise InputError("egs serve", "there is no folder for locks", "make /run/lock")
    return folder


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
