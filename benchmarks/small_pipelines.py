"""Whether small pipelines lose by EGS: four of them natively on Ray and with `egs_ray.run`, by the script's own clock.

    python -m benchmarks.small_pipelines                 # five interleaved pairs of each
    python -m benchmarks.small_pipelines --check         # and exit code 1 where EGS is slower than the limit

    hinted   one task with a CPU and a GPU phase and a preload hint      nine   eight CPU tasks, then one that takes all
    chain    four GPU tasks, one after the other                         fan    four GPU tasks side by side on one GPU

Each run is a script of its own that starts a local Ray inside (`ray.init(num_cpus=2, num_gpus=1)`), as users do. The
clock starts when `ray.init` has returned and ends with the value, so it has all that EGS adds: its imports, its
processes, its decisions. Task bodies wait, but for the nine, which compute. The history is empty, as in a first run.
The limit: native x 1.03, plus 0.5 s a driver, or 1.0 s where a hinted task needs a process of its own. `again` is the
same pipeline a second time in the same driver.
"""

# mypy: disable-error-code="untyped-decorator"
# Ray's types are not followed (see pyproject.toml), so its decorators have none.

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

SHARE, MORE_S = 1.03, {"hinted": 1.0}
USUALLY_S = 0.5
PIPELINES = ("hinted", "nine", "chain", "fan")
WAYS = ("native", "egs")
TIMEOUT_S = 300
Call = Callable[..., Any]


def tasks(pipeline: str) -> Callable[[Call], Any]:
    """What makes the pipeline, given how a function and its arguments become a task; returns its last node."""
    import ray

    import egs_core as egs

    @ray.remote(num_gpus=1)
    @egs.task(gpus=1, preload=[egs.modules("decimal")])
    def train(x: int) -> int:
        time.sleep(0.2)
        with egs.gpu():
            time.sleep(0.3)
        return x + 1

    @ray.remote
    def compute(x: int) -> int:
        for _ in range(1_000_000):
            x = (x * 31 + 7) % 1_000_003
        return x

    @ray.remote
    def gather(*values: int) -> int:
        return sum(values)

    @ray.remote(num_gpus=1)
    def fit(x: int) -> int:
        time.sleep(0.3)
        return x + 1

    def build(call: Call) -> Any:
        if pipeline == "hinted":
            return call(train, 1)
        if pipeline == "nine":
            return call(gather, *[call(compute, i) for i in range(8)])
        if pipeline == "fan":
            return call(gather, *[call(fit, i) for i in range(4)])
        value = call(fit, 0)
        for _ in range(3):
            value = call(fit, value)
        return value

    return build


def run_here(pipeline: str, way: str) -> dict[str, Any]:
    """One run in this process, which must be a fresh one."""
    import ray

    build = tasks(pipeline)
    ray.init(
        num_cpus=2, num_gpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False, address="local"
    )
    found = {}
    for name in ("first", "again"):
        began = time.perf_counter()
        value = _native(build) if way == "native" else _with_egs(build)
        found[name] = time.perf_counter() - began
    ray.shutdown()
    return {**found, "value": value}


def _native(build: Callable[[Call], Any]) -> Any:
    import ray

    return ray.get(build(lambda function, *args: function.remote(*args)))


def _with_egs(build: Callable[[Call], Any]) -> Any:
    import egs_ray

    return egs_ray.run(build(lambda function, *args: function.bind(*args))).get()


def run_apart(pipeline: str, way: str) -> dict[str, Any]:
    """`run_here` in a process and a home of its own."""
    command = [sys.executable, "-m", "benchmarks.small_pipelines", "--run", pipeline, way]
    with tempfile.TemporaryDirectory(prefix="egs-small-") as folder:
        own = {"XDG_DATA_HOME": folder, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        own["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
        done = subprocess.run(
            command, env={**os.environ, **own}, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    if done.returncode:
        raise SystemExit(f"{pipeline}, {way} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(pipeline: str, pairs: int) -> dict[str, Any]:
    """The medians of interleaved pairs, and the limit of each pair's EGS run."""
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for number in range(pairs):
        for way in WAYS if number % 2 == 0 else WAYS[::-1]:
            runs[way].append(run_apart(pipeline, way))
    values = {run["value"] for way in WAYS for run in runs[way]}
    if len(values) != 1:
        raise SystemExit(f"{pipeline}: the values differ: {values}")
    more_s = MORE_S.get(pipeline, USUALLY_S)
    over_s = [
        egs["first"] - native["first"] * SHARE - more_s for native, egs in zip(runs["native"], runs["egs"], strict=True)
    ]
    row: dict[str, Any] = {"pipeline": pipeline, "pairs": pairs}
    for way in WAYS:
        for name in ("first", "again"):
            row[f"{way}_{name}_s"] = round(statistics.median(run[name] for run in runs[way]), 3)
        row[f"{way}_firsts_s"] = [round(run["first"], 2) for run in runs[way]]
    row["over_limit_s"] = round(statistics.median(over_s), 3)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.small_pipelines", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=PIPELINES, default=PIPELINES)
    parser.add_argument("--check", action="store_true", help="exit code 1 where the median is over the limit")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--run", nargs=2, metavar=("PIPELINE", "WAY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps(run_here(*arguments.run)))
        return 0
    rows = [measure(pipeline, arguments.pairs) for pipeline in arguments.only]
    print(json.dumps({"rows": rows}, indent=None if arguments.json else 2))
    return int(arguments.check and any(row["over_limit_s"] > 0 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
