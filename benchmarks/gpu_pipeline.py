"""One pipeline on a real GPU, natively and with EGS: a plain Ray script with PyTorch and hints, each run a process.

    python -m benchmarks.gpu_pipeline [--rounds 3] [--items 4] [--json]

Each item is decoded on a CPU, trains a transformer on the GPU, and is written by a CPU: one task of one GPU, as people
write them, whose model is made in the host's memory first. The script is the same in all ways; `native` runs it as it
is, `egs` under the hook (`EGS_MODE=on`; the first round knows nothing, the later ones what the rounds before took).
`bare` is the least: the GPU parts alone in one process that is warm. The clock runs from before Python starts until the
process has ended. Meanwhile NVML says how much of the time the GPU works. Every way must give the same results.

Without a GPU, or without PyTorch, it says so.
"""

# mypy: disable-error-code="untyped-decorator"
# Ray's types are not followed (see pyproject.toml), so its decorators have none.

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import egs_core as egs
from benchmarks.gpu_paths import why_not
from egs_core.profiling.sampling import Sampler

ROOT = Path(__file__).resolve().parents[1]
WAYS = ("native", "egs")
HOOK = {"RAY_RUNTIME_ENV_HOOK": "egs_ray.hook", "EGS_MODE": "on"}
CALM = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "TOKENIZERS_PARALLELISM": "false"}
LIMIT_S = 300.0
LAYERS, WIDTH, LENGTH, BATCH, STEPS = 12, 1024, 256, 32, 40
DECODES, WRITES = 18, 50


def load_model() -> Any:
    """A transformer in the host's memory, the same each time. Its layers are real, its weights random."""
    import torch

    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, batch_first=True, dropout=0.0)
    return torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)


def decode(item: int) -> Any:
    """Some two seconds of one CPU: what reading and transforming images costs."""
    draws = np.random.default_rng(item)
    batch = draws.standard_normal((BATCH, LENGTH, WIDTH), dtype=np.float32)
    for _ in range(DECODES):
        batch = np.fft.irfft(np.fft.rfft(batch, axis=2), n=WIDTH, axis=2).astype(np.float32)
    return item, batch


def fit(decoded: Any) -> Any:
    """Two seconds and more of the GPU, and what PyTorch needs before."""
    import torch

    item, batch = decoded
    model = egs.loaded(load_model).to("cuda").train()
    data = torch.from_numpy(batch).to("cuda")
    update = torch.optim.SGD(model.parameters(), lr=1e-3)
    loss = torch.zeros((), device="cuda")
    for _ in range(STEPS):
        update.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = (model(data) - data).square().mean()
        loss.backward()
        update.step()
    return item, float(loss), model.layers[0].linear1.weight.detach().float().cpu().numpy()


def write(fitted: Any) -> tuple[int, float, int]:
    """Some two seconds of one CPU: compress what was learned."""
    item, loss, weights = fitted
    size = 0
    for _ in range(WRITES):
        size = len(zlib.compress(weights.tobytes()[: 1 << 20], 6))
    return item, round(loss, 2), size > 0


def script(items: int) -> None:
    """What a user writes: prints the results and how long they took."""
    import ray

    one = egs.phases(decode, egs.on_gpu(fit), write, name="train")
    hinted = egs.task(preload=[egs.modules("torch"), egs.call(load_model)])(one)
    train = ray.remote(num_cpus=1, num_gpus=1)(hinted)
    ray.init(num_gpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    began = time.monotonic()
    results = ray.get([train.remote(item) for item in range(items)])
    print(json.dumps({"results": sorted(results), "seconds": time.monotonic() - began}), flush=True)


def bare(items: int) -> None:
    """The GPU's parts alone, one after the other in this process, which has loaded and begun before."""
    decoded = decode(0)
    fit(decoded)
    began = time.monotonic()
    for _ in range(items):
        fit(decoded)
    print(json.dumps({"results": [], "seconds": time.monotonic() - began}), flush=True)


def run_way(way: str, items: int, folder: str, gpu: str) -> dict[str, Any]:
    """One process to its end: wall_s, the script's own seconds, the share of time in which the GPU worked."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "plugins" / "ray"), os.environ.get("PYTHONPATH", "")])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EGS_")}
    environment |= CALM | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": gpu, "HOME": folder}
    if way == "egs":
        environment |= HOOK | {"EGS_HISTORY": f"sqlite:///{folder}/history.sqlite", "EGS_RUNLOG": f"{folder}/run.jsonl"}
    do = "bare" if way == "bare" else "script"
    command = [sys.executable, "-c", f"from benchmarks.gpu_pipeline import {do}; {do}({items})"]
    sampler = Sampler(lambda: (gpu,), os.getpid())
    sampler.start()
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    wall_s = time.monotonic() - began
    busy = sampler.stop().busy or 0.0
    if done.returncode:
        raise RuntimeError(f"{way} ended with {done.returncode}: {done.stderr[-3000:]}")
    told = json.loads(done.stdout.strip().splitlines()[-1])
    said = [line for line in done.stderr.splitlines() if "egs" in line.lower()]
    return {"way": way, "wall_s": wall_s, "busy": busy, "said": said, **told}


def measure(rounds: int, items: int, gpu: str) -> dict[str, Any]:
    """Rounds of all ways, in turn. Raises RuntimeError where results differ."""
    with tempfile.TemporaryDirectory(prefix="egs-gpu-") as folder:
        least = run_way("bare", items, folder, gpu)
        print(f"the GPU's parts alone: {least['seconds']:.1f} s", file=sys.stderr)
        found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for number in range(rounds):
            for way in WAYS if number % 2 == 0 else WAYS[::-1]:
                found[way].append(run_way(way, items, folder, gpu))
                print(f"{number} {way}: {found[way][-1]['wall_s']:.1f} s", file=sys.stderr)
    results = [one["results"] for runs in found.values() for one in runs]
    if any(one != results[0] for one in results):
        raise RuntimeError(f"results differ: {results}")
    return {"items": items, "bare": least, **found}


def table(found: dict[str, Any]) -> str:
    lines = [f"the GPU's parts alone, one process: {found['bare']['seconds']:.1f} s for {found['items']} items"]
    for way in WAYS:
        walls, own = ([one[key] for one in found[way]] for key in ("wall_s", "seconds"))
        busy = statistics.mean(one["busy"] for one in found[way])
        listed = ", ".join(f"{one:.1f}" for one in walls)
        lines.append(f"{way:7} {listed} s; by its own clock {statistics.median(own):.1f} s; GPU works {busy:.0%}")
    ratios = [old["wall_s"] / new["wall_s"] for old, new in zip(found["native"], found["egs"], strict=True)]
    lines.append(f"native ÷ egs: {', '.join(f'{one:.2f}' for one in ratios)}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_pipeline", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--items", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args(arguments)
    problem = why_not()
    if not problem and importlib.util.find_spec("torch") is None:
        problem = "PyTorch is not installed"
    if problem:
        print(json.dumps({"skipped": problem}) if chosen.json else f"nothing measured: {problem}")
        return 0
    from egs_core.server.devices import host_offer

    found = measure(chosen.rounds, chosen.items, host_offer("", ()).devices[0].id)
    print(json.dumps(found) if chosen.json else table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
