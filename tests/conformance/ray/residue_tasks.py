"""Tasks that leave something on a device, or seem to: what `test_ray_residue` gives to Ray.

Without a GPU a folder with files of the devices' names stands for /dev, and a process uses "CUDA" when it has CUDA's
file open, which is what it is recognised by. All else is real: processes, leases, Ray's books.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import ray

import egs_core as egs
from egs_ray.worker.device_memory import CUDA_FILE, FOLDER
from tests.conformance.ray.run_tasks import note, step

OPEN: list[Any] = []


def make_devices(folder: Path) -> Path:
    """A folder that shows one device."""
    found = folder / "dev"
    found.mkdir()
    for name in ("nvidia0", "nvidiactl", CUDA_FILE):
        (found / name).touch()
    return found


def use_cuda() -> None:
    """From here on this process is one that has initialised CUDA."""
    OPEN.append(open(Path(os.environ[FOLDER], CUDA_FILE)))  # noqa: SIM115  # it stays open, as CUDA's does


@ray.remote(num_cpus=1, num_gpus=1)
def block(folder: str, name: str, uses: bool, again: bool = False) -> list[Any]:
    """A block that leaves something or not, then a CPU phase, then perhaps another block."""
    seen: list[Any] = [os.getpid()]
    with egs.gpu() as devices:
        seen.append(devices)
        if uses:
            use_cuda()
        step(folder, f"{name}.fit")
    step(folder, f"{name}.write")
    if again:
        with egs.gpu() as devices:
            seen.append(devices)
    return seen


@ray.remote(num_cpus=1)
def plain(folder: str, name: str) -> int:
    """A CPU task that uses CUDA all the same."""
    use_cuda()
    step(folder, name)
    return os.getpid()


@ray.remote(num_cpus=1, num_gpus=1)
def whole(folder: str, name: str) -> int:
    """A task that is all GPU."""
    use_cuda()
    step(folder, f"{name}.fit")
    return os.getpid()


def load_weights() -> dict[str, Any]:
    return {"pid": os.getpid(), "devices": os.environ.get("CUDA_VISIBLE_DEVICES")}


def _decode(folder: str, how: str) -> tuple[str, str, list[Any]]:
    return folder, how, [os.getpid()]


def _fit(given: tuple[str, str, list[Any]]) -> tuple[str, str, list[Any]]:
    folder, how, seen = given
    if FOLDER in os.environ:
        use_cuda()
    step(folder, "fit")
    if how == "raises":
        raise KeyError("no fit")
    if how == "dies" and not Path(folder, "died").exists():
        note(folder, "died", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    weights = egs.loaded(load_weights)
    return folder, how, [*seen, os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"], weights]


def _write(given: tuple[str, str, list[Any]]) -> list[Any]:
    folder, _, seen = given
    step(folder, "write")
    return [*seen, os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"]]


_preload = egs.task(preload=[egs.modules("wave"), egs.call(load_weights)])
phased = ray.remote(num_cpus=1, num_gpus=1)(_preload(egs.phases(_decode, egs.on_gpu(_fit), _write, name="steps")))
