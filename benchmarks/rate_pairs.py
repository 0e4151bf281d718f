"""How many times as fast as another checkout the engine is: CPU time, in interleaved pairs.

    python -m benchmarks.rate_pairs --against ../other --pairs 10

rate     the random graph of `benchmarks.rate`: 5,000 tasks on 32 slots, under the simulator's loop without records
large    125 nodes with 1,000 devices, 200 workloads with 100,000 tasks at once (`throughput_cluster`), once they have
         been taken in: the first --phases phases

Every figure is from a process of its own, which runs one side's code with that checkout's `.venv` where it has one; the
sides take turns at going first. A ratio is the other's CPU seconds over ours, so above 1 this checkout is faster; its
lower bound is that of the 95 % confidence interval of the mean of its logarithms (Student's t). With --check the exit
code is 1 where a lower bound is below the given factor.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RATE = """
import gc, time
from benchmarks.rate import random_graph, run_engine
graph, found = random_graph(5000), []
for _ in range({repeats}):
    gc.collect()
    began = time.process_time()
    run_engine(graph, 32, records=False)
    found.append(time.process_time() - began)
print(min(found))
"""
LARGE = """
from benchmarks.throughput_cluster import cluster, drive, mixed_graphs
from egs_core.engine import EngineConfig
graphs = mixed_graphs(200, 100_000, 1)
print(drive(cluster(125), graphs, EngineConfig(search_placements=0), most={phases}).run_s)
"""
# Student's t, two-sided 95 %, by degrees of freedom
T95 = (
    12.71,
    4.30,
    3.18,
    2.78,
    2.57,
    2.45,
    2.36,
    2.31,
    2.26,
    2.23,
    2.20,
    2.18,
    2.16,
    2.14,
    2.13,
    2.12,
    2.11,
    2.10,
    2.09,
)


def cpu_s(checkout: Path, script: str) -> float:
    """What the script says that it took, run in the checkout."""
    own = checkout / ".venv" / "bin" / "python"
    python = str(own) if own.exists() else sys.executable
    done = subprocess.run([python, "-c", script], cwd=checkout, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def bounds_of(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Mean of the ratios (geometric), and its 95 % confidence interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), 0.0, math.inf
    t = T95[min(len(logs) - 2, len(T95) - 1)]
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def measure(against: Path, script: str, pairs: int) -> dict[str, Any]:
    """Both sides of every pair, the one that goes first taking turns."""
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(pairs):
        for checkout in (ROOT, against) if number % 2 else (against, ROOT):
            (ours if checkout is ROOT else theirs).append(cpu_s(checkout, script))
        print(f"pair {number + 1}: {theirs[-1] / ours[-1]:.3f}", file=sys.stderr, flush=True)
    ratio, low, high = bounds_of([b / a for a, b in zip(ours, theirs, strict=True)])
    return {"ratio": ratio, "low": low, "high": high, "pairs": pairs, "ours_cpu_s": ours, "theirs_cpu_s": theirs}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rate_pairs", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--against", type=Path, required=True, metavar="CHECKOUT")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=7, help="of `rate` in one process; the least counts")
    parser.add_argument("--phases", type=int, default=20_000, help="of `large` that end; 0: all")
    parser.add_argument("--only", choices=("rate", "large"))
    parser.add_argument("--check", type=float, metavar="FACTOR")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    scripts = {"rate": RATE.format(repeats=arguments.repeats), "large": LARGE.format(phases=arguments.phases)}
    chosen = [arguments.only] if arguments.only else list(scripts)
    found = {name: measure(arguments.against.resolve(), scripts[name], arguments.pairs) for name in chosen}
    if arguments.json:
        print(json.dumps(found))
    else:
        for name, row in found.items():
            print(f"{name}: {row['ratio']:.2f} times as fast, 95 % from {row['low']:.2f} to {row['high']:.2f}")
    slow = arguments.check is not None and any(row["low"] < arguments.check for row in found.values())
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
