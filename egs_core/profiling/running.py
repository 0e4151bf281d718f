"""A command on each flavor of GPU of this host, where there is no site server."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping, Sequence

import msgspec

from egs_core.client.told_work import WorkFolder
from egs_core.errors import EgsError
from egs_core.flavor_names import flavor_of_product
from egs_core.profiling.sampling import Sampler
from egs_core.profiling.tiers import Measured

NO_GPU = "emulated"
BATCH = "{batch}"


class Ran(msgspec.Struct, frozen=True):
    """measured: None where the command failed."""

    flavor: str
    batch: int | None
    exit_code: int
    measured: Measured | None = None


def local_gpus() -> dict[str, list[str]]:
    """UUIDs of this host's GPUs that no process computes on, by flavor; {} where there are none."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library, or no driver
        return {}
    found: dict[str, list[str]] = {}
    try:
        for number in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(number)
            name, uuid = _text(pynvml.nvmlDeviceGetName(handle)), _text(pynvml.nvmlDeviceGetUUID(handle))
            with contextlib.suppress(pynvml.NVMLError):
                if not pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                    found.setdefault(flavor_of_product(name), []).append(uuid)
    finally:
        pynvml.nvmlShutdown()
    return found


def with_batch(command: Sequence[str], batch: int | None) -> list[str]:
    """
    >>> with_batch(["train", "--batch={batch}"], 8), with_batch(["train"], None)
    (['train', '--batch=8'], ['train'])
    """
    return list(command) if batch is None else [word.replace(BATCH, str(batch)) for word in command]


def run_here(command: Sequence[str], gpus: Mapping[str, Sequence[str]], flavor: str, batch: int | None) -> Ran:
    """To its end. gpus: ids by flavor; without any of this flavor it has none. Raises EgsError where it cannot be
    started."""
    words, work, devices = with_batch(command, batch), WorkFolder(), gpus.get(flavor, ())
    environment = os.environ | work.variables() | ({"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {})
    sampler = Sampler(lambda: devices, os.getpid())
    began = time.monotonic()
    try:
        process = subprocess.Popen(words, env=environment)
    except OSError as error:
        work.told()
        raise EgsError(f"{words[0]}: cannot be started: {error.strerror}") from None
    sampler.start()
    try:
        code = process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
        sampled, seconds = sampler.stop(), time.monotonic() - began
        told = work.told()  # its folder is gone then
    if code:
        return Ran(flavor, batch, code if code > 0 else 128 - code)  # of a signal, as a shell and `egs run` say it
    seen = msgspec.structs.asdict(sampled)
    measured = Measured(flavor, seconds, float(len(devices) or 1), batch=batch, work=told, ended_at=time.time(), **seen)
    return Ran(flavor, batch, 0, measured)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
