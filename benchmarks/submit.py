"""What a submission costs on Ray: natively, with the hook observing, and with the hook on.

    python -m benchmarks.submit --tasks 2000 --rounds 5
    python -m benchmarks.submit --only 'native gpu' 'local gate' --lengths-ms 0 5 20 100

Each run is a driver process of its own, all on one local Ray, interleaved: every round runs every variant once, in the
other direction than the round before. `cpu` tasks are known to be short, so the hook lets them pass; `gpu` tasks (of
logical GPUs) go through a gate. Tasks do nothing, or sleep for each of `--lengths-ms` in turn (GPU tasks only, as many
as take some seconds): a gate costs about the same for each, so its share falls with their length. The warm-up is 500
tasks; by then the gate has seen how long they take. `tasks_per_s` runs from the first submission to the last result;
the latency is that of the call of `.remote()`. Shares and differences are to native in the same round: their median,
and the lowest and highest. `said` is what EGS told the user where it could not act.

On a machine that others use, time says little: `driver_ms` is the processor time (user and system) of the driver for
each task, in milliseconds, `all_ms` that of the driver with all processes of its Ray.
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
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Literal

import msgspec
import psutil

CPUS = 2
GPUS = 4
WARM_UP_TASKS = 500
MOST_S = 4.0  # of work for each GPU in one run of tasks that sleep
TIMEOUT_S = 300
HOOK = {"RAY_RUNTIME_ENV_HOOK": "egs_ray.hook"}

Kind = Literal["cpu", "gpu"]
Runs = dict[tuple[str, float], list[dict[str, Any]]]
"""What was found, by variant and the length of its tasks in seconds."""


class Variant(msgspec.Struct, frozen=True):
    """Which tasks are submitted, and the environment of their driver."""

    kind: Kind
    environment: dict[str, str]


VARIANTS = {
    "native": Variant("cpu", {}),
    "observe": Variant("cpu", {**HOOK, "EGS_MODE": "observe"}),
    "on, ungated": Variant("cpu", {**HOOK, "EGS_MODE": "on"}),
    "native gpu": Variant("gpu", {}),
    "local gate": Variant("gpu", {**HOOK, "EGS_MODE": "on", "EGS_GATE": "local"}),
}
if find_spec("egs_ray.site"):  # an installation without an actor's site falls back to the local gate
    VARIANTS["one for all drivers"] = Variant("gpu", {**HOOK, "EGS_MODE": "on", "EGS_GATE": "cluster"})
NATIVE: dict[Kind, str] = {"cpu": "native", "gpu": "native gpu"}


def measure(kind: Kind, tasks: int, length_s: float) -> dict[str, float]:
    """Submit the tasks in this process, which must be a fresh one: a hook stays in place."""
    import numpy as np
    import ray

    import egs_core as egs

    @ray.remote
    @egs.task(expect=0.001)
    def short() -> None:
        return None

    @ray.remote(num_gpus=1, num_cpus=CPUS / GPUS, max_calls=0)
    def on_gpu() -> None:
        if length_s:
            time.sleep(length_s)

    task = short if kind == "cpu" else on_gpu
    ray.init(logging_level="ERROR", log_to_driver=False)
    ray.get(
        [task.remote() for _ in range(_at_most(WARM_UP_TASKS, length_s))]
    )  # processes started, function exported, hook's parts made
    latencies, refs, cpu_before, began = [], [], _cpu_s(), time.perf_counter()
    for _ in range(tasks):
        before = time.perf_counter()
        refs.append(task.remote())
        latencies.append(time.perf_counter() - before)
    ray.get(refs)
    took = time.perf_counter() - began
    own_ms, all_ms = [(after - before) * 1000 / tasks for before, after in zip(cpu_before, _cpu_s(), strict=True)]
    p50, p99 = [float(value) * 1000 for value in np.percentile(latencies, [50, 99])]
    rate = {"tasks_per_s": tasks / took, "submit_p50_ms": p50, "submit_p99_ms": p99}
    return {**rate, "driver_ms": own_ms, "all_ms": all_ms}


def _cpu_s() -> tuple[float, float]:
    """Processor time so far: of this process, and with all that its starter, which runs Ray, has started."""
    own, total = psutil.Process(), 0.0
    for process in psutil.Process(os.getppid()).children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            total += _seconds(process)
    return _seconds(own), total


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _at_most(tasks: int, length_s: float) -> int:
    return min(tasks, int(MOST_S * GPUS / length_s)) if length_s else tasks


def run_variant(name: str, tasks: int, length_s: float, address: str) -> dict[str, Any]:
    """`measure` in a process of its own, and what EGS said."""
    variant = VARIANTS[name]
    command = [sys.executable, "-m", "benchmarks.submit", "--kind", variant.kind]
    command += ["--tasks", str(_at_most(tasks, length_s)), "--lengths-ms", str(length_s * 1000)]
    with tempfile.TemporaryDirectory(prefix="egs-submit-") as folder:
        own = {"EGS_RUNLOG": f"{folder}/log.jsonl", "EGS_HISTORY": f"sqlite:///{folder}/history.sqlite"}
        environment = {**os.environ, "RAY_ADDRESS": address, **own, **variant.environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    said = [line for line in done.stderr.splitlines() if line.startswith("egs:") and "run log:" not in line]
    return found | {"said": said}


def run_all(tasks: int, rounds: int, names: Sequence[str], lengths_s: Sequence[float]) -> dict[str, Any]:
    """One row for each variant and length of its tasks."""
    import ray

    from egs_ray.local import local_ray

    cases = [(name, s) for s in lengths_s for name in names if not s or VARIANTS[name].kind == "gpu"]
    runs: Runs = {case: [] for case in cases}
    with local_ray(CPUS, GPUS):
        address = ray.get_runtime_context().gcs_address
        for number in range(rounds):
            for name, length_s in cases[:: 1 if number % 2 == 0 else -1]:
                runs[name, length_s].append(run_variant(name, tasks, length_s, address))
    return {"tasks": tasks, "rounds": rounds, "rows": [row_of(name, length_s, runs) for name, length_s in cases]}


def row_of(name: str, length_s: float, runs: Runs) -> dict[str, Any]:
    """Medians over the rounds, and the comparison with native in the same round."""
    found, native = runs[name, length_s], runs[NATIVE[VARIANTS[name].kind], length_s]
    row: dict[str, Any] = {"variant": name, "length_ms": length_s * 1000}
    for figure in ("tasks_per_s", "submit_p50_ms", "submit_p99_ms", "driver_ms", "all_ms"):
        row[figure] = round(statistics.median(run[figure] for run in found), 3)
    pairs = list(zip(found, native, strict=True))
    row["of native"] = spread_of([run["tasks_per_s"] / other["tasks_per_s"] for run, other in pairs])
    row["cpu of native"] = spread_of([run["all_ms"] / other["all_ms"] for run, other in pairs])
    row["p99 more, ms"] = spread_of([run["submit_p99_ms"] - other["submit_p99_ms"] for run, other in pairs])
    return {**row, "said": "; ".join(found[0]["said"])}


def spread_of(values: list[float]) -> str:
    """The median, and the lowest and highest."""
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.submit", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--only", nargs="+", choices=list(VARIANTS), metavar="VARIANT", help="with native of their kind"
    )
    parser.add_argument("--lengths-ms", nargs="+", type=float, default=[0.0], metavar="MS", help="of GPU tasks")
    parser.add_argument("--kind", choices=list(NATIVE), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    lengths_s = [length_ms / 1000 for length_ms in arguments.lengths_ms]
    if arguments.tasks < 1 or arguments.rounds < 1 or min(lengths_s) < 0:
        parser.error("at least one task and one round, and no negative length")
    if arguments.kind:
        print(json.dumps(measure(arguments.kind, arguments.tasks, lengths_s[0])))
        return 0
    wanted = arguments.only or list(VARIANTS)
    compared = {NATIVE[VARIANTS[name].kind] for name in wanted}
    names = [name for name in VARIANTS if name in compared or name in wanted]
    found = run_all(arguments.tasks, arguments.rounds, names, lengths_s)
    print(json.dumps(found, indent=None if arguments.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
