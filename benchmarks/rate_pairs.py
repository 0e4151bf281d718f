"""How many times as fast as another checkout the engine is: CPU time, in interleaved pairs.

    python -m benchmarks.rate_pairs --against ../other --pairs 10

rate     the random graph of `benchmarks.rate`: 5,000 tasks on 32 slots, under the simulator's loop without records
large    125 nodes with 1,000 devices, 200 workloads with 100,000 tasks at once (`throughput_cluster`), once they have
         been taken in: the first --phases phases

Every figure is from a process of its own, as in `benchmarks.pairs`, which does the same for any command. A ratio is the
other's CPU seconds over ours, the median of the pairs', so above 1 this checkout is faster; its lower bound is that of
the 95 % confidence interval of the mean of its logarithms (Student's t). With --check the exit code is 1 where a lower
bound is below the given factor.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.pairs import Side, Way, in_turns, side_of, take
from egs_core.errors import InputError
from egs_core.runlog.claims import claim_of

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


def measure(sides: Sequence[Side], script: str, pairs: int) -> dict[str, Any]:
    """Both sides of every pair, the other checkout and this one: how many times as fast this one is."""
    command = ["python", "-c", script]
    found = in_turns(pairs, lambda number: take(sides[number], command, Way(printed=True)))
    claim = claim_of(found, least_s=0.0)
    assert claim is not None, "each run takes seconds"
    theirs, ours = zip(*found, strict=True)
    row = {"ratio": claim.ratio, "low": claim.low, "high": claim.high, "pairs": pairs}
    return row | {"ours_cpu_s": ours, "theirs_cpu_s": theirs}


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
    try:
        with tempfile.TemporaryDirectory(prefix="egs-pairs-") as own:
            sides = [side_of(arguments.against, Path(own) / "theirs"), side_of(ROOT, Path(own) / "ours")]
            found = {name: measure(sides, scripts[name], arguments.pairs) for name in chosen}
    except InputError as error:
        print(f"benchmarks.rate_pairs: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps(found))
    else:
        for name, row in found.items():
            print(f"{name}: {row['ratio']:.2f} times as fast, 95 % from {row['low']:.2f} to {row['high']:.2f}")
    slow = arguments.check is not None and any(row["low"] < arguments.check for row in found.values())
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
