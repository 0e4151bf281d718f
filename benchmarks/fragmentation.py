"""How much GPU stays unallocated when a cluster is full, by packing.

    EGS_DATA=<folder> python -m benchmarks.fragmentation --seeds 5 --json w4.json --plot w4.png
    python -m benchmarks.fragmentation --pods openb_pod_list_default.csv --published

The experiment of FGD's paper (Weng et al., USENIX ATC 2023): phases arrive and none ends; each goes where the packing
wants it or, fitting nowhere, is turned away. The pods of the trace come once, shuffled, then drawn with replacement,
until they have asked for 130 % of the cluster's GPUs. Measured when they have asked for 100 %, and at the end. With
EGS_DATA the openb trace: its 1,213 nodes with 6,212 GPUs, without GPU models (its pods ask for none). Without, a
SYNTHETIC cluster and mix, stated in `openb` and in the output.

Whole clusters run in numpy (`packing_arrays`); the same on a tenth of the nodes also runs in the shipped engine, and
"differ" counts the pods that the two put elsewhere. fgd and fgd_fill know what has come so far, as the engine does.
With --published the rules are those of the paper's simulator, rounding, ties and knowledge of the whole trace
included, to hold ours against its figures; these are of the full trace (openb_pod_list_default.csv, 8,152 pods).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.openb import arrivals, read_problem
from benchmarks.packing_arrays import ArrayCluster
from benchmarks.packings import PACKINGS
from benchmarks.plots import drawn, figure_of
from egs_core.engine import Engine, EngineConfig
from egs_core.engine import messages as m
from egs_core.engine.rules.fit import Place
from egs_core.engine.rules.packer import milestone
from egs_core.engine.rules.packing import TYPICAL_PERCENT, TypicalWorkload, typical_workload
from egs_core.engine.specs import SHIPPED
from egs_core.errors import EgsError, InputError
from egs_core.graph.columns import CPU, GPU, Graph, Shape

UP_TO = 1.3  # of the cluster's GPUs, asked for
SMALL = 0.1  # share of the nodes in the engine's own run
PUBLISHED_PACKINGS = ("dot_product", "weighted_best_fit", "fgd")
PUBLISHED = {  # median, least, most of ten seeds in percent at 100 % arrived, from its analysis_allo_discrete.csv
    "dot_product": (9.45, 9.00, 9.66),
    "weighted_best_fit": (7.09, 6.96, 7.36),
    "fgd": (4.77, 4.62, 4.94),
}


class Outcome(msgspec.Struct):
    """places: of every pod that came. unallocated: by hundredths of the capacity asked for, in percent."""

    places: list[Place | None]
    unallocated: list[float]
    seconds: float

    @property
    def at_100(self) -> float:
        return self.unallocated[100]

    @property
    def at_end(self) -> float:
        return self.unallocated[-1]


# --- the runs ---


def run_arrays(nodes: Sequence[m.NodeAdded], pods: Sequence[Shape], packing: str) -> Outcome:
    """As the engine would: it learns what is typical from the pods that have come."""
    cluster, started = ArrayCluster(nodes, packing), time.perf_counter()
    typical: TypicalWorkload = ()
    learns, counts, known = PACKINGS[packing].learns, Counter[Shape](), 0
    places: list[Place | None] = []
    for number, pod in enumerate(pods, start=1):
        if learns and (now := milestone(number)) != known:
            counts.update(pods[known:now])
            known, found = now, typical_workload(counts.items())
            if found != typical:
                typical = found
                cluster.learn(typical)
        places.append(cluster.place(pod))
    return _outcome(nodes, pods, places, started)


def run_published(nodes: Sequence[m.NodeAdded], pods: Sequence[Shape], packing: str, trace: Sequence[Shape]) -> Outcome:
    """By the rules of the paper's simulator."""
    cluster, started = ArrayCluster(nodes, packing, rounded=True), time.perf_counter()
    cluster.learn(published_typical(trace))
    return _outcome(nodes, pods, [cluster.place(pod) for pod in pods], started)


def published_typical(trace: Sequence[Shape]) -> TypicalWorkload:
    """The most frequent (CPUs, GPUs) that make up 95 % of the trace, those without GPU included."""
    counts = Counter(Shape(s.cpu_milli, s.gpu_milli) for s in trace)
    found, covered = [], 0
    for shape, count in sorted(counts.items(), key=lambda item: (-item[1], msgspec.structs.astuple(item[0]))):
        if covered * 100 >= len(trace) * TYPICAL_PERCENT:
            break
        found.append((shape, count))
        covered += count
    return tuple(found)


def run_engine(nodes: Sequence[m.NodeAdded], pods: Sequence[Shape], packing: str) -> Outcome:
    """The shipped engine: each pod is a task of one workload that grows; none ends, so what waits waits for ever."""
    engine = Engine(EngineConfig("fifo", preload=False, packing=packing))
    number = {node.node: i for i, node in enumerate(nodes)}
    for node in nodes:
        engine.handle(node, 0.0)
    engine.handle(m.WorkloadSubmitted("w4"), 0.0)
    places: list[Place | None] = []
    started = time.perf_counter()
    for i, pod in enumerate(pods):
        graph = Graph()
        graph.add_task(f"pod{i}", phases=((GPU if pod.gpu_milli else CPU, pod, 1.0),), name="pod")
        grants = [d for d in engine.handle(m.TasksAdded("w4", graph), float(i)) if isinstance(d, m.Grant)]
        places.append((number[grants[0].node], grants[0].devices) if grants else None)
    outcome = _outcome(nodes, pods, places, started)
    engine.validate_state()
    return outcome


def _outcome(
    nodes: Sequence[m.NodeAdded], pods: Sequence[Shape], places: list[Place | None], started: float
) -> Outcome:
    seconds, capacity = time.perf_counter() - started, sum(node.gpus for node in nodes) * 1000
    asked = allocated = 0
    unallocated: list[float] = []
    for pod, place in zip(pods, places, strict=True):
        while asked + pod.gpu_milli > len(unallocated) * capacity / 100:
            unallocated.append(100.0 * (1 - allocated / capacity))
        asked += pod.gpu_milli
        allocated += pod.gpu_milli if place is not None else 0
    unallocated.append(100.0 * (1 - allocated / capacity))
    return Outcome(places, unallocated, seconds)


# --- the suite ---


class Options(msgspec.Struct, frozen=True):
    seeds: int
    share: float
    published: bool
    packings: tuple[str, ...]


def measure(nodes: Sequence[m.NodeAdded], pods: Sequence[Shape], options: Options) -> tuple[dict[str, Any], list[Any]]:
    """The figures, and curves of unallocated GPU for the plot."""
    rows, curves = [], []
    outcomes: dict[str, list[Outcome]] = {}
    nodes = _sample(nodes, options.share, random.Random(0))
    gpus = sum(node.gpus for node in nodes)
    orders = [arrivals(pods, gpus, UP_TO, random.Random(seed)) for seed in range(options.seeds)]
    for packing in options.packings:
        found = outcomes[packing] = [run_arrays(nodes, order, packing) for order in orders]
        rows.append({"packing": packing, "rules": "egs", **_figures(found)})
        curves.append((packing, _median_curve(found)))
        print(rows[-1], file=sys.stderr)
    for packing in PUBLISHED_PACKINGS if options.published else ():
        found = [run_published(nodes, order, packing, pods) for order in orders]
        paper = f"{PUBLISHED[packing][0]} ({PUBLISHED[packing][1]} to {PUBLISHED[packing][2]})"
        rows.append({"packing": packing, "rules": "paper's", **_figures(found), "published_at_100": paper})
        curves.append((f"{packing}, paper's rules", _median_curve(found)))
        print(rows[-1], file=sys.stderr)
    figures = {"nodes": len(nodes), "gpus": gpus, "seeds": options.seeds, "rows": rows, **_against_fgd(outcomes)}
    return figures, curves


def _against_fgd(outcomes: dict[str, list[Outcome]]) -> dict[str, Any]:
    """The target: the shipped packing leaves no more unallocated than FGD, seed by seed and in the median."""
    if not {SHIPPED, "fgd"} <= set(outcomes):
        return {}
    ours, theirs = outcomes[SHIPPED], outcomes["fgd"]
    less = {
        "at_100": [round(b.at_100 - a.at_100, 3) for a, b in zip(ours, theirs, strict=True)],
        "at_130": [round(b.at_end - a.at_end, 3) for a, b in zip(ours, theirs, strict=True)],
    }
    reached = all(statistics.median(values) >= 0 for values in less.values())
    return {"shipped": SHIPPED, "points_below_fgd": less, "reached": reached}


def measure_engine(nodes: Sequence[m.NodeAdded], pods: Sequence[Shape], options: Options) -> list[dict[str, Any]]:
    """The engine on a share of the nodes, beside the arrays on the same."""
    nodes = _sample(nodes, min(SMALL, options.share), random.Random(1))
    gpus = sum(node.gpus for node in nodes)
    orders = [arrivals(pods, gpus, UP_TO, random.Random(seed)) for seed in range(options.seeds)]
    rows = []
    for packing in options.packings:
        found = [run_engine(nodes, order, packing) for order in orders]
        other = [run_arrays(nodes, order, packing) for order in orders]
        differ = sum(a != b for x, y in zip(found, other, strict=True) for a, b in zip(x.places, y.places, strict=True))
        count = sum(len(o.places) for o in found)
        timed = {"us_a_pod": round(1e6 * sum(o.seconds for o in found) / count, 1)}
        rows.append({"packing": packing, "pods": count, "differ": differ, **_figures(found), **timed})
        print(rows[-1], file=sys.stderr)
    return rows


def _sample(nodes: Sequence[m.NodeAdded], share: float, rng: random.Random) -> list[m.NodeAdded]:
    chosen = set(rng.sample(range(len(nodes)), max(round(len(nodes) * share), 1)))
    return [node for i, node in enumerate(nodes) if i in chosen]


def _figures(found: Sequence[Outcome]) -> dict[str, Any]:
    at_100, at_end = [o.at_100 for o in found], [o.at_end for o in found]
    return {
        "unallocated_at_100": round(statistics.median(at_100), 3),
        "least": round(min(at_100), 3),
        "most": round(max(at_100), 3),
        "unallocated_at_130": round(statistics.median(at_end), 3),
        "least_at_130": round(min(at_end), 3),
        "most_at_130": round(max(at_end), 3),
        "seconds": round(statistics.median(o.seconds for o in found), 2),
    }


def _median_curve(found: Sequence[Outcome]) -> list[float]:
    return [statistics.median(values) for values in zip(*(o.unallocated for o in found), strict=False)]


def plot(curves: Sequence[tuple[str, list[float]]], path: Path, title: str) -> None:
    """Unallocated GPU over what has been asked for, a line a packing."""
    figure = figure_of(8, 5)
    axes = figure.subplots()
    for name, values in curves:
        axes.plot(range(len(values)), values, label=name, linestyle="--" if "paper" in name else "-")
    axes.set(xlim=(75, 130), ylim=(0, 25), xlabel="GPU asked for, % of the cluster", ylabel="GPU unallocated, %")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    drawn(figure, path)


def _text(found: dict[str, Any]) -> str:
    lines = [f"{found['source']}: {found['nodes']} nodes, {found['gpus']} GPUs, {found['seeds']} seeds"]
    lines.append("unallocated GPU in percent, median (least to most), at 100 % and at 130 % asked for")
    for row in found["rows"]:
        name = f"{row['packing']} ({row['rules']} rules)"
        lines.append(f"  {name:34}{_spread(row)}   {row['seconds']} s  {row.get('published_at_100', '')}")
    if "reached" in found:
        less = ", ".join(f"{value:+.2f}" for value in found["points_below_fgd"]["at_100"])
        verdict = "reached" if found["reached"] else "missed"
        lines.append(f"  target, {found['shipped']} no more than fgd: {verdict}; points below fgd by seed: {less}")
    lines.append(f"the shipped engine on {SMALL:.0%} of the nodes")
    for row in found["engine"]:
        share = f"{row['differ']} of {row['pods']} pods differ, {row['us_a_pod']} us a pod"
        lines.append(f"  {row['packing']:34}{_spread(row)}   {share}")
    return "\n".join(lines)


def _spread(row: dict[str, Any]) -> str:
    first = f"{row['unallocated_at_100']:6.2f} ({row['least']:.2f} to {row['most']:.2f})"
    return f"{first}   {row['unallocated_at_130']:6.2f} ({row['least_at_130']:.2f} to {row['most_at_130']:.2f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0, help="of the nodes, sampled")
    parser.add_argument("--packings", default=",".join(PACKINGS), help="comma separated")
    parser.add_argument("--pods", help="another list of pods, in the trace's format")
    parser.add_argument("--published", action="store_true", help="also by the rules of the paper's simulator")
    parser.add_argument("--json", metavar="FILE", help="write the figures there; - prints them instead of the table")
    parser.add_argument("--plot", metavar="FILE.png")
    args = parser.parse_args()
    packings = tuple(name for name in args.packings.split(",") if name)
    try:
        if unknown := set(packings) - set(PACKINGS):
            raise InputError("--packings", f"unknown {sorted(unknown)}", f"of {', '.join(PACKINGS)}")
        options = Options(args.seeds, args.share, args.published, packings)
        nodes, pods, source = read_problem(args.pods)
        found, curves = measure(nodes, pods, options)
        found = {"source": source, **found, "engine": measure_engine(nodes, pods, options)}
        if args.plot:
            plot(curves, Path(args.plot), f"{source}, {found['gpus']} GPUs")
    except EgsError as error:
        print(error, file=sys.stderr)
        return 2
    if args.json and args.json != "-":
        Path(args.json).write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found) if args.json == "-" else _text(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
