"""How soon a GPU task is at work after its predecessor's end, where its imports and its load take seconds cold.

    python -m benchmarks.preload --runs 30 --cold-runs 5

    before (CPU, its length known) ──► use (GPU: imports pandas and scikit-learn, loads for 1 s)

`first_line_s` runs from the predecessor's last line to the first line of `use`; `at_work_s` to the line after its
imports and its load. With EGS every run has a fresh process: an environment variable of its own keeps Ray from giving
it an old one, and a load function of its own keeps EGS from knowing it. Natively Ray starts a process for each GPU
task anyway. Both on one real local Ray with 2 CPUs and 1 emulated GPU, the cold runs first. Targets: first line p50 at
most 50 ms, p95 at most 150 ms. With --check the exit code is 1 when they are missed.
"""

# mypy: disable-error-code="untyped-decorator"
# Ray's types are not followed (see pyproject.toml), so its decorators have none.

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray

import egs_core as egs
from egs_ray.local import local_ray
from egs_ray.session.api import run
from egs_ray.session.session import Options, Session

CPUS, GPUS = 2, 1
BEFORE_S, LOAD_S = 9.0, 1.0  # long enough to start a process, import and load meanwhile, on slow cores
TARGET_P50_S, TARGET_P95_S = 0.050, 0.150


@ray.remote
@egs.task(expect=BEFORE_S)
def before() -> float:
    time.sleep(BEFORE_S)
    return time.time()


def make_use(number: int, **options: Any) -> Any:
    """The GPU task of one run, with a load function that no other run has."""

    def load() -> int:
        time.sleep(LOAD_S)
        return number

    @ray.remote(num_gpus=1, **options)
    @egs.task(preload=[egs.modules("pandas", "sklearn.linear_model"), egs.call(load)], expect=0.1)
    def use(ended: float) -> tuple[float, float]:
        first_line = time.time() - ended
        import pandas
        import sklearn.linear_model

        assert (pandas, sklearn.linear_model, egs.loaded(load)) is not None
        return first_line, time.time() - ended

    return use


def run_cold(runs: int) -> list[tuple[float, float]]:
    """Natively: Ray starts the process when the predecessor has ended."""
    return [ray.get(make_use(number).remote(before.remote())) for number in range(runs)]


def run_warmed(runs: int, folder: str) -> list[tuple[float, float]]:
    """With EGS, each run's process fresh."""
    times = []
    with Session(Options(runlog=f"{folder}/log.jsonl", history=f"sqlite:///{folder}/history.sqlite")) as session:
        for number in range(runs):
            use = make_use(number, runtime_env={"env_vars": {"EGS_BENCH_RUN": str(number)}})
            times.append(run(use.bind(before.bind()), name="preload", session=session).get(120))
            print(f"run {number + 1}/{runs}: first line after {times[-1][0] * 1000:.0f} ms", file=sys.stderr)
    return times


def figures_of(times: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Percentiles of both moments, in seconds."""
    out: dict[str, float] = {"runs": len(times)}
    for name, column in zip(("first_line_s", "at_work_s"), zip(*times, strict=True), strict=True):
        p50, p95 = np.percentile(column, [50, 95])
        out |= {f"{name}_p50": round(float(p50), 4), f"{name}_p95": round(float(p95), 4)}
        out |= {f"{name}_min": round(min(column), 4), f"{name}_max": round(max(column), 4)}
    return out


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.preload", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--cold-runs", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--check", action="store_true", help="exit code 1 when the target is missed")
    arguments = parser.parse_args()
    if min(arguments.runs, arguments.cold_runs) < 1:
        parser.error("at least one run of each")
    with tempfile.TemporaryDirectory(prefix="egs-preload-") as folder, local_ray(CPUS, GPUS):
        found = {
            "cold": figures_of(run_cold(arguments.cold_runs)),
            "egs": figures_of(run_warmed(arguments.runs, folder)),
        }
    met = found["egs"]["first_line_s_p50"] <= TARGET_P50_S and found["egs"]["first_line_s_p95"] <= TARGET_P95_S
    print(json.dumps({**found, "target_met": met}, indent=None if arguments.json else 2))
    return 1 if arguments.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
