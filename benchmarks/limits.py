"""What deadlines bring, and what limits and deadlines cost the engine.

    python -m benchmarks.limits --seeds 5 --json

Streams: random DAGs with log-normal durations arrive at 16 slots by a Poisson process; three of four have a deadline of
2, 4 or 8 times their critical path. Each stream runs twice, once with the engine told of the deadlines and once not;
deadlines met, and the completion times of the workloads that have none. Cost: the random graph of `benchmarks.rate`
with nothing stated, with a limit of time for every task, and with limit and deadline for all of it; CPU time,
interleaved, the median of the rounds.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from benchmarks.rate import random_graph
from egs_core.graph.analysis import upward_rank
from egs_core.graph.columns import CPU, Graph, Shape, TaskOptions
from egs_core.graph.load import LoadedWorkload
from egs_core.sim import SimConfig, simulate

SLOTS = 16
LOADS = (0.7, 0.9, 1.1)
FACTORS = (None, 2.0, 4.0, 8.0)  # of the critical path
FOREVER_S = 1e9


def stream(seed: int, load: float, workloads: int) -> list[LoadedWorkload]:
    """Workloads of 5, 20 or 40 tasks that arrive so fast that they ask for `load` of the slots on average."""
    rng, at, out = random.Random(seed), 0.0, []
    for number in range(workloads):
        graph = Graph()
        for i in range(rng.choice((5, 20, 40))):
            parents = {rng.randrange(max(0, i - 6), i) for _ in range(rng.randrange(1, 3))} if i else set()
            phase = (CPU, Shape(), rng.lognormvariate(2, 0.8))
            graph.add_task(f"t{i}", tuple(sorted(parents)), (phase,))
        work_s = sum(seconds or 0.0 for seconds in graph.phase_duration_s)
        at += rng.expovariate(load * SLOTS / work_s)
        factor = rng.choice(FACTORS)
        deadline_s = None if factor is None else factor * float(max(upward_rank(graph)))
        out.append(LoadedWorkload(f"w{number}", "stream", "", "", at, graph, deadline_s))
    return out


def run_stream(workloads: Sequence[LoadedWorkload], *, told: bool) -> dict[str, float]:
    """Share of the deadlines met, and seconds of completion of the workloads without one."""
    given = [w if told else msgspec.structs.replace(w, deadline_s=None) for w in workloads]
    jct_s = simulate(given, SimConfig(slots=SLOTS, records=False)).jct_s
    pairs = list(zip(jct_s, workloads, strict=True))
    free = [seconds for seconds, w in pairs if w.deadline_s is None]
    met = [seconds <= w.deadline_s for seconds, w in pairs if w.deadline_s is not None]
    return {"met": statistics.mean(met), "other_jct_s": statistics.mean(free), "longest_other_s": max(free)}


def measure_streams(seeds: int, workloads: int) -> list[dict[str, Any]]:
    """One row a load and side: means over the seeds."""
    rows = []
    for load in LOADS:
        drawn = [stream(seed, load, workloads) for seed in range(seeds)]
        for told in (False, True):
            runs = [run_stream(one, told=told) for one in drawn]
            rows.append({"load": load, "told": told, **{k: statistics.mean(run[k] for run in runs) for k in runs[0]}})
    return rows


def measure_cost(tasks: int, rounds: int) -> dict[str, float]:
    """Phases a second of CPU time by what is stated."""
    plain, limited = random_graph(tasks), random_graph(tasks)
    limited.options = {task: TaskOptions(max_runtime_s=FOREVER_S) for task in range(tasks)}
    sides = {
        "nothing": LoadedWorkload("w", "w", "", "", 0.0, plain),
        "limit of every task": LoadedWorkload("w", "w", "", "", 0.0, limited),
        "deadline": LoadedWorkload("w", "w", "", "", 0.0, plain, FOREVER_S),
        "limit and deadline of the workload": LoadedWorkload("w", "w", "", "", 0.0, plain, FOREVER_S, FOREVER_S),
    }
    seen: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, workload in sides.items():
            gc.collect()
            started = time.process_time()
            simulate([workload], SimConfig(slots=32, records=False))
            seen[name].append(tasks / (time.process_time() - started))
    return {name: statistics.median(rates) for name, rates in seen.items()}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workloads", type=int, default=200)
    parser.add_argument("--tasks", type=int, default=5000, help="of the graph whose cost is measured")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows, cost = measure_streams(options.seeds, options.workloads), measure_cost(options.tasks, options.rounds)
    if options.json:
        print(json.dumps({"streams": rows, "phases_per_cpu_s": cost}))
        return
    for row in rows:
        told = "told of deadlines" if row["told"] else "not told"
        others = f"others {row['other_jct_s']:.0f} s, at most {row['longest_other_s']:.0f} s"
        print(f"load {row['load']}  {told:17}  met {row['met']:6.1%}  {others}")
    for name, rate in cost.items():
        print(f"{rate:8,.0f} phases per CPU second  {name}")


if __name__ == "__main__":
    main()
