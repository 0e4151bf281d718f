"""What EGS's GPU paths do on a real GPU: contexts, device memory, preload, CUDA_VISIBLE_DEVICES. One command.

    python -m benchmarks.gpu_paths            a table; --json: one JSON object

    block    decode ─ with egs.gpu(): 256 MiB on the device ─ write      what stays is held until the process is gone
    steps    egs.phases(decode, egs.on_gpu(fit), write)                  the device is clean, and free, in `write`
    whole    a task that is all GPU, cold, and loaded ahead              host to device from a model that is loaded

Every stage notes CUDA_VISIBLE_DEVICES, how many devices CUDA shows it, the device's memory in use (NVML), and what is
free in Ray's books. `held_bytes` is what `worker.device_memory` says of the process. CUDA is called through ctypes,
so nothing but the driver is needed; nvidia-ml-py (extra `gpu`) tells the bytes. Without a device it says so.
"""

# mypy: disable-error-code="untyped-decorator"
# Ray's types are not followed (see pyproject.toml), so its decorators have none.

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

import egs_core as egs
from benchmarks.cuda_memory import copy_to_device, in_sight, take_device_memory, used_bytes, visible_count
from egs_ray.local import local_ray
from egs_ray.session.api import run
from egs_ray.session.session import Options, Session
from egs_ray.worker import device_memory

MIB = 1 << 20
TAKEN_BYTES, MODEL_BYTES = 256 * MIB, 1024 * MIB
BEFORE_S, STAY_S, LIMIT_S = 12.0, 1.0, 120.0
DEVICE = 0  # the only one that Ray is given
ROOT = Path(__file__).resolve().parents[1]


def look(stage: str, *, cuda: bool = False) -> dict[str, Any]:
    """What this process sees. cuda: ask CUDA too, which only a stage that may initialise it should do."""
    return {
        "stage": stage,
        "pid": os.getpid(),
        "CUDA_VISIBLE_DEVICES": in_sight(),
        "cuda_devices": visible_count() if cuda else None,
        "held_bytes": device_memory.held_by_family(os.getpid()),
        "device_used_bytes": used_bytes(DEVICE),
        "gpus_free": round(ray.available_resources().get("GPU", 0.0), 2),
    }


def use_device(stage: str) -> dict[str, Any]:
    """The GPU's part: a context and some memory, then time for Ray's books to show it."""
    take_device_memory(TAKEN_BYTES)
    time.sleep(STAY_S)
    return look(stage, cuda=True)


@ray.remote(num_cpus=1, num_gpus=1)
def block() -> list[dict[str, Any]]:
    seen = [look("cpu")]
    with egs.gpu():
        seen.append(use_device("gpu"))
    time.sleep(STAY_S)
    return [*seen, look("cpu behind it")]


def _decode() -> list[dict[str, Any]]:
    return [look("cpu")]


def _fit(seen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*seen, use_device("gpu")]


def _write(seen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    time.sleep(STAY_S)
    return [*seen, look("cpu behind it")]


steps = ray.remote(num_cpus=1, num_gpus=1)(egs.phases(_decode, egs.on_gpu(_fit), _write, name="steps"))


def load_model() -> tuple[bytearray, int]:
    """A model in the memory of the device's host, and the process that loaded it."""
    return bytearray(os.urandom(MIB) * (MODEL_BYTES // MIB)), os.getpid()


@ray.remote
@egs.task(expect=BEFORE_S)
def before() -> float:
    """A predecessor, long enough that what follows it can be warm."""
    time.sleep(BEFORE_S)
    return time.time()


@ray.remote(num_cpus=1, num_gpus=1)
@egs.task(preload=[egs.call(load_model)], expect=2.0)
def whole(ended: float) -> dict[str, Any]:
    """From its predecessor's end: to its first line, to the model in hand, to the model on the device."""
    first_line_s = time.time() - ended
    model, loaded_by = egs.loaded(load_model)
    in_hand_s = time.time() - ended
    take_device_memory(MODEL_BYTES)
    copy_to_device(model)
    on_device_s = time.time() - ended
    warm = {"loaded_by_this_process": loaded_by == os.getpid()}
    return {
        "first_line_s": first_line_s,
        "model_in_hand_s": in_hand_s,
        "model_on_device_s": on_device_s,
        **warm,
        **look("gpu", cuda=True),
    }


def after(pids: set[int]) -> dict[str, Any]:
    """When the GPU is free again: whether the processes are gone by then, and what the device has in use."""
    began = time.time()
    while ray.available_resources().get("GPU", 0.0) < 1 and time.time() - began < LIMIT_S:
        time.sleep(0.02)
    gone = all(device_memory.wait_until_gone(pid, 0.0) for pid in pids)
    return {
        "stage": "GPU free again",
        "gpus_free": round(ray.available_resources().get("GPU", 0.0), 2),
        "processes_gone": gone,
        "device_used_bytes": used_bytes(DEVICE),
    }


def measure() -> dict[str, Any]:
    """All paths, one after the other, on a Ray with one real GPU."""
    out: dict[str, Any] = {"devices": device_memory.has_devices(), "device_used_bytes_at_start": used_bytes(DEVICE)}
    path = os.pathsep.join([str(ROOT), str(ROOT / "plugins" / "ray"), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": path, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(DEVICE)}
    with tempfile.TemporaryDirectory(prefix="egs-gpu-") as folder, local_ray(4, 1, environment):
        native = ray.get(whole.remote(before.remote()))
        out["whole, native"] = [native, after({native["pid"]})]
        options = Options(runlog=f"{folder}/log.jsonl", history=f"sqlite:///{folder}/history.sqlite")
        with Session(options) as session:
            paths: dict[str, Callable[[], Any]] = {
                "block": block.bind,
                "steps": steps.bind,
                "whole, loaded ahead": lambda: whole.bind(before.bind()),
            }
            for name, bind in paths.items():
                print(f"{name} …", file=sys.stderr)
                found = run(bind(), name=name, session=session).get(LIMIT_S)
                seen = found if isinstance(found, list) else [found]
                on_gpu = {stage["pid"] for stage in seen if stage["stage"] == "gpu"}
                out[name] = [*seen, after(on_gpu)]
    return out


def why_not() -> str:
    """Why there is no GPU here, asked in a process of its own: this one must not initialise CUDA."""
    code = "from benchmarks.cuda_memory import why_no_gpu; print(why_no_gpu())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if not done.returncode else done.stderr.strip().splitlines()[-1]


def table(found: dict[str, Any]) -> str:
    """One line a stage."""
    lines = []
    for name, stages in found.items():
        if isinstance(stages, list):
            for stage in stages:
                facts = ", ".join(f"{key} {_shown(key, value)}" for key, value in stage.items() if key != "stage")
                lines.append(f"{name:20} {stage['stage']:15} {facts}")
    return "\n".join(lines)


def _shown(key: str, value: Any) -> str:
    if value is not None and key.endswith("_bytes"):
        return f"{value / MIB:,.0f} MiB"
    return f"{value:.3f}" if key.endswith("_s") else "not known" if value is None else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_paths", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if problem := why_not():
        print(json.dumps({"skipped": problem}) if arguments.json else f"nothing measured: {problem}")
        return 0
    found = measure()
    print(json.dumps(found) if arguments.json else table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
