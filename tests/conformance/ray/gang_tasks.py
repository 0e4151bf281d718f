"""Tasks of gangs, for the tests; workers import this module."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import ray

import egs_core as egs
from tests.conformance.ray.run_tasks import note, signal_to, wait_for


def tell_start(folder: str, name: str) -> str:
    """Note when this started and on which device; returns the device."""
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    note(folder, f"{name}.started", f"{time.time()} {device} {os.getpid()}")
    return device


def started(folder: Path, name: str) -> tuple[float, str, int]:
    """What `tell_start` noted."""
    at, device, pid = (folder / f"{name}.started").read_text().split(" ")
    return float(at), device, int(pid)


@ray.remote(num_gpus=1, num_cpus=0.5, max_retries=0)
@egs.task(gang="shards", expect="0.2s")
def shard(folder: str, name: str, *_: object) -> str:
    """One of a gang; ends on a signal."""
    device = tell_start(folder, name)
    wait_for(folder, f"{name}.end")
    return device


@ray.remote(num_gpus=1, num_cpus=0.5, max_retries=0)
@egs.task(gang="others", expect="0.2s")
def other_shard(folder: str, name: str) -> str:
    """One of another gang."""
    device = tell_start(folder, name)
    wait_for(folder, f"{name}.end")
    return device


@ray.remote(num_gpus=1, num_cpus=0.5, max_retries=0)
@egs.task(gang="mixed")
def mixed_shard(folder: str, name: str) -> str:
    """A CPU phase and a GPU phase, each together with its gang."""
    note(folder, f"{name}.decoding", str(os.getpid()))
    wait_for(folder, f"{name}.decoded")
    with egs.gpu():
        device = tell_start(folder, name)
        wait_for(folder, f"{name}.end")
    return device


@ray.remote(num_gpus=1, num_cpus=0.5, max_retries=1)
@egs.task(gang="shards", expect="0.2s")
def dying_shard(folder: str, name: str, kills: bool) -> str:
    """Notes each try; the first try of the one that `kills` ends its own process."""
    tries = len(list(Path(folder).glob(f"{name}.try*")))
    signal_to(folder, f"{name}.try{tries}")
    tell_start(folder, f"{name}{tries}")
    if kills and not tries:
        wait_for(folder, "kill")
        os.kill(os.getpid(), signal.SIGKILL)
    if tries:
        return "second"
    wait_for(folder, f"{name}.end")
    return "first"


@ray.remote(num_gpus=1, num_cpus=0.5, max_retries=0)
@egs.task(gang="shards", expect="0.2s")
def failing_shard(folder: str, name: str) -> str:
    tell_start(folder, name)
    wait_for(folder, "fail")
    raise ValueError(f"{name} is broken")


@ray.remote(num_gpus=1, num_cpus=0.5)
@egs.task(expect="0.2s")
def single(folder: str, name: str, length_s: float) -> float:
    """One GPU for a while."""
    begun = time.time()
    time.sleep(length_s)
    note(folder, name, str(begun))
    return begun
