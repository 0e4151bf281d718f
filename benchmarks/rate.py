"""How many phases a second the engine takes from ready to ended, beside dask's scheduler state and a list scheduler.

    python -m benchmarks.rate --tasks 5000 --slots 32 --json

One seeded random graph of one-phase tasks on equal slots; all sides run it in the same process, interleaved, and each
figure is the median of the rounds. The engine runs under the simulator's loop, as shipped: every event handled on its
own, every decision with its reason, every phase told to have started and to have ended; once without and once with run
log records. Building the graph is not measured; handing it over and ranking it is. Target: 50,000/s without records.
With --check the exit code is 1 when it is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.rate_peers import Measured, run_dask, run_list_scheduler
from egs_core.graph.bounds import lower_bound
from egs_core.graph.columns import CPU, Graph, Shape
from egs_core.graph.load import LoadedWorkload
from egs_core.sim import SimConfig, simulate

SEED = 1
TARGET_PER_S = 50_000.0
WINDOW = 200  # parents come from so many tasks before


def random_graph(tasks: int, seed: int = SEED) -> Graph:
    """Tasks of 0.5 to 10 s with up to three parents among the `WINDOW` before them; seven task names."""
    rng, graph = random.Random(seed), Graph()
    for number in range(tasks):
        wanted = rng.choice((0, 1, 1, 2, 2, 3)) if number else 0
        parents = sorted({rng.randrange(max(0, number - WINDOW), number) for _ in range(wanted)})
        phase = (CPU, Shape(), rng.uniform(0.5, 10.0))
        graph.add_task(f"t{number}", tuple(parents), (phase,), name=f"kind{number % 7}")
    return graph


def run_engine(graph: Graph, slots: int, *, records: bool) -> Measured:
    """The engine under the simulator's loop."""
    workload = LoadedWorkload("bench", "bench", "", "", 0.0, graph)
    result = simulate([workload], SimConfig(slots=slots, records=records))
    return result.wall_s, result.makespan_s


def measure(tasks: int, slots: int, rounds: int) -> dict[str, Any]:
    """Every side `rounds` times in turn; a side that cannot be imported is left out with the reason."""
    graph = random_graph(tasks)
    sides: dict[str, Callable[[], Measured]] = {
        "egs": lambda: run_engine(graph, slots, records=False),
        "egs_with_records": lambda: run_engine(graph, slots, records=True),
        "list_scheduler": lambda: run_list_scheduler(graph, slots),
        "dask_scheduler_state": lambda: run_dask(graph, slots),
    }
    walls: dict[str, list[float]] = {name: [] for name in sides}
    makespans: dict[str, float] = {}
    skipped: dict[str, str] = {}
    for _ in range(rounds):
        for name, side in sides.items():
            if name in skipped:
                continue
            gc.collect()
            try:
                wall, makespans[name] = side()
            except ImportError as error:
                skipped[name] = f"skipped: {error} (pip install 'egs-core[bench]')"
                continue
            walls[name].append(wall)
    rates = {name: [tasks / wall for wall in found] for name, found in walls.items() if found}
    median = {name: statistics.median(found) for name, found in rates.items()}
    return {
        "tasks": tasks,
        "slots": slots,
        "rounds": rounds,
        "target_per_s": TARGET_PER_S,
        "reached": median["egs"] >= TARGET_PER_S,
        "lower_bound_s": lower_bound(graph, slots),
        "sides": {
            name: {
                "phases_per_s": median[name],
                "least_per_s": min(rates[name]),
                "most_per_s": max(rates[name]),
                "makespan_s": makespans[name],
                "egs_times": median["egs"] / median[name],
            }
            for name in median
        },
        "skipped": skipped,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--check", action="store_true", help="exit code 1 when the target is missed")
    args = parser.parse_args()
    started = time.perf_counter()
    found = measure(args.tasks, args.slots, args.rounds)
    found["seconds"] = time.perf_counter() - started
    print(json.dumps(found) if args.json else _text(found))
    return 1 if args.check and not found["reached"] else 0


def _text(found: dict[str, Any]) -> str:
    lines = [f"{found['tasks']:,} tasks, {found['slots']} slots, median of {found['rounds']} rounds, phases per second"]
    for name, side in found["sides"].items():
        spread = f"{side['least_per_s']:,.0f} to {side['most_per_s']:,.0f}"
        lines.append(f"  {name:22} {side['phases_per_s']:>10,.0f}   ({spread}), makespan {side['makespan_s']:,.1f} s")
    lines += [f"  {name:22} {why}" for name, why in found["skipped"].items()]
    lines.append(f"  target {found['target_per_s']:,.0f}: {'reached' if found['reached'] else 'missed'}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
