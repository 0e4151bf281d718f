"""How many phases a second the engine handles as workloads grow, on a large cluster with much queued, and its memory.

    python -m benchmarks.throughput --json FILE --plot FILE.png

growth    one random DAG of 1,000 to 1,000,000 one-phase tasks on 32 slots (that of `rate`): submission to last end
cluster   125 nodes of 8 GPUs; 200 workloads with 100,000 tasks of mixed shapes submitted at once
          (`throughput_cluster`); the rate of the middle 80 % of the phases. Target: 20,000 a second
memory    what the engine keeps a queued task: the same workloads where there is no node, as tracemalloc counts it,
          without the graphs that were handed over

Sides of `growth` run interleaved: the engine alone, its loop around it included; a bare list scheduler; dask's
scheduler state, up to 10,000 tasks. A rate is per second of this process's CPU time, which on an idle machine is the
wall's; the wall's stands beside it, since other work on the machine makes it longer. Median of the rounds; one round
beyond 100,000 tasks.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.plots import drawing_library, figure_of, is_printed
from benchmarks.rate import random_graph
from benchmarks.rate_peers import run_dask, run_list_scheduler
from benchmarks.throughput_cluster import Progress, cluster, drive, mixed_graphs, queued_engine
from egs_core.engine import EngineConfig
from egs_core.engine import messages as m
from egs_core.errors import InputError
from egs_core.graph.columns import Graph

SEED = 1
TARGET_PER_S = 20_000.0
SLOTS = 32
DASK_LARGEST = 10_000
CONFIG = EngineConfig(search_placements=0)  # the look-ahead is paid once a submission, and not on mixed shapes


class Options(msgspec.Struct, frozen=True):
    """tasks, nodes and workloads are of `cluster`; sizes of `growth`."""

    sizes: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    tasks: int = 100_000
    nodes: int = 125
    workloads: int = 200
    rounds: int = 3


def rates_of(run: Callable[[], int]) -> tuple[float, float]:
    """Phases a CPU second and a wall second of one run, which returns how many it handled."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    phases = run()
    return phases / (time.process_time() - cpu), phases / (time.perf_counter() - wall)


def growth(options: Options) -> list[dict[str, Any]]:
    """A row a size: each side's median rate."""
    rows = []
    for tasks in options.sizes:
        graph = random_graph(tasks, SEED)
        sides = growth_sides(graph)
        found: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
        for _ in range(options.rounds if tasks <= 100_000 else 1):
            for side, run in sides.items():
                found[side].append(rates_of(run))
        row: dict[str, Any] = {"tasks": tasks}
        for side, rates in found.items():
            row[side] = statistics.median([cpu for cpu, _ in rates])
        row["egs_per_wall_s"] = statistics.median([wall for _, wall in found["egs"]])
        rows.append(row)
        print(row, file=sys.stderr, flush=True)
    return rows


def growth_sides(graph: Graph) -> dict[str, Callable[[], int]]:
    """What takes this graph from submission to its end, by name."""
    tasks = graph.n_tasks

    def run_egs() -> int:
        return drive([m.NodeAdded("slots", float(SLOTS))], [graph], CONFIG).phases

    def run_list() -> int:
        run_list_scheduler(graph, SLOTS)
        return tasks

    def run_dask_state() -> int:
        run_dask(graph, SLOTS)
        return tasks

    sides: dict[str, Callable[[], int]] = {"egs": run_egs, "list_scheduler": run_list}
    if tasks <= DASK_LARGEST and not missing_peers():
        sides["dask_scheduler_state"] = run_dask_state
    return sides


def missing_peers() -> dict[str, str]:
    """Peers that cannot run here, and why."""
    try:
        import distributed  # noqa: F401 - only whether it is there
    except ImportError as error:
        return {"dask_scheduler_state": f"{error} (pip install 'egs-core[bench]')"}
    return {}


def on_cluster(options: Options) -> dict[str, Any]:
    """The rates with much queued; wall is of the whole run and of all its phases."""
    graphs = mixed_graphs(options.workloads, options.tasks, SEED)
    nodes = cluster(options.nodes)
    found: list[Progress] = []
    for _ in range(options.rounds):
        gc.collect()
        found.append(drive(nodes, graphs, CONFIG))
        print(f"cluster: {found[-1].steady_per_s:,.0f} phases a CPU second", file=sys.stderr, flush=True)
    steady = [run.steady_per_s for run in found]
    return {
        "tasks": options.tasks,
        "workloads": options.workloads,
        "nodes": options.nodes,
        "devices": options.nodes * nodes[0].gpus,
        "phases": found[0].phases,
        "steady_per_s": statistics.median(steady),
        "steady_least_per_s": min(steady),
        "steady_most_per_s": max(steady),
        "whole_per_s": statistics.median([run.phases / (run.submit_s + run.run_s) for run in found]),
        "submit_tasks_per_s": statistics.median([options.tasks / run.submit_s for run in found]),
        "per_wall_s": statistics.median([run.phases / run.wall_s for run in found]),
        "target_per_s": TARGET_PER_S,
        "reached": statistics.median(steady) >= TARGET_PER_S,
    }


def memory(options: Options) -> dict[str, Any]:
    """Bytes that stay allocated once the engine has taken the workloads in, for each task and phase."""
    graphs = mixed_graphs(options.workloads, options.tasks, SEED)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    engine = queued_engine(graphs, CONFIG)
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    state = engine.state
    queued = sum(1 for task in range(len(state.task_ids)) if not state.waiting[task])
    phases = len(state.status)
    return {
        "tasks": options.tasks,
        "phases": phases,
        "ready_tasks": queued,
        "bytes": used,
        "bytes_a_task": used / options.tasks,
        "bytes_a_phase": used / phases,
    }


# --- showing ---


def plot(result: dict[str, Any], path: Path) -> None:
    """Phases a second against tasks, both logarithmic; the cluster as one point."""
    figure = figure_of(7, 5)
    axes = figure.subplots()
    rows, at = result["growth"], result["cluster"]
    for side in ("egs", "list_scheduler", "dask_scheduler_state"):
        points = [(row["tasks"], row[side]) for row in rows if side in row]
        if points:
            width = 3 if side == "egs" else 1
            axes.plot(*zip(*points, strict=True), marker="o", linewidth=width, label=f"{side}, {SLOTS} slots")
    label = f"egs, {at['devices']} devices, {at['workloads']} workloads queued"
    axes.plot([at["tasks"]], [at["steady_per_s"]], marker="*", markersize=15, linestyle="", label=label)
    axes.axhline(TARGET_PER_S, color="grey", linestyle=":", label=f"target with {at['devices']} devices")
    axes.set(xscale="log", yscale="log", xlabel="tasks", ylabel="phases a CPU second")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def show(result: dict[str, Any], console: Console) -> None:
    columns = list(dict.fromkeys(name for row in result["growth"] for name in row))
    table = Table(*columns)
    for row in result["growth"]:
        table.add_row(*[f"{row[name]:,.0f}" if name in row else "" for name in columns])
    console.print(table)
    for part in ("cluster", "memory"):
        shown = ", ".join(f"{k} {v:,.0f}" if isinstance(v, float) else f"{k} {v}" for k, v in result[part].items())
        console.print(f"{part}: {shown}", highlight=False)


def result_of(options: Options) -> dict[str, Any]:
    """Everything as one JSON object."""
    return {
        "suite": "throughput",
        "options": msgspec.to_builtins(options),
        "missing": missing_peers(),
        "cluster": on_cluster(options),
        "memory": memory(options),
        "growth": growth(options),
    }


def main() -> int:
    defaults = Options()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.throughput", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--sizes", default=",".join(map(str, defaults.sizes)), help="tasks of the single DAGs")
    parser.add_argument("--tasks", type=int, default=defaults.tasks, help="of all workloads on the cluster")
    parser.add_argument("--nodes", type=int, default=defaults.nodes)
    parser.add_argument("--workloads", type=int, default=defaults.workloads)
    parser.add_argument("--rounds", type=int, default=defaults.rounds)
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE", help="the result as JSON, to stdout or a file")
    parser.add_argument("--plot", type=Path, metavar="FILE.png")
    parser.add_argument("--check", action="store_true", help="exit code 1 when the target is missed")
    arguments = parser.parse_args()
    try:
        sizes = sizes_of(arguments.sizes)
        if arguments.plot:
            drawing_library()  # before the long part
        options = Options(sizes, arguments.tasks, arguments.nodes, arguments.workloads, arguments.rounds)
        result = result_of(options)
        if arguments.plot:
            plot(result, arguments.plot)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    if not is_printed(result, arguments.json):
        show(result, Console(width=140))
    return 1 if arguments.check and not result["cluster"]["reached"] else 0


def sizes_of(text: str) -> tuple[int, ...]:
    """InputError for what is no list of whole numbers above 0."""
    parts: Sequence[str] = text.split(",")
    if not all(part.isdigit() and int(part) for part in parts):
        raise InputError("--sizes", f"{text!r} is no list of whole numbers above 0", "--sizes 1000,10000")
    return tuple([int(part) for part in parts])


if __name__ == "__main__":
    sys.exit(main())
