"""Streams: how long workloads take from arrival to end when DAGs of many kinds arrive at random, by policy.

    EGS_DATA=DIR python -m benchmarks.streams --loads 0.7,0.9,1.1 --seeds 10 --plot FILE.png

A stream is 60 workloads, each one of the instances of `single_dags` (DIR's files or wfcommons' graphs) of at most 220
tasks, drawn with a seed; Poisson arrivals, so that the work that arrives in a second is `load` times the slots. Every
task takes one of 32 slots. Its duration is the file's times a seeded log-normal factor (sigma 0.3), so no two runs of a
workflow are alike. At a load above 1 the queue grows until the stream ends.

--at-once: instead of a stream all workflows of DIR at the same moment, in as many random orders as there are seeds.

exact: durations are known. blind: nothing is known. predicted: the median and P95 of a predictor that has seen, when a
workload arrives, all tasks of the workloads that came before it, in their order. Sides are the engine's policies, and
peers (`streams_peers`) in a list simulation. Figures are means over seeds of each stream's mean, 95th and 99th
percentile; over_egs is the mean of ratios stream by stream, over_best a ratio of means.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.plots import drawing_library, is_printed
from benchmarks.single_dags_instances import Instance, load_instances
from benchmarks.streams_peers import PEERS, USE_BELIEFS, Arrival, missing_peers, run_peer
from egs_core.engine.order.policy import POLICIES
from egs_core.errors import InputError
from egs_core.graph.columns import Shape
from egs_core.graph.load import LoadedWorkload
from egs_core.predict import Predictor, signature_of
from egs_core.sim import Durations, SimConfig, simulate

SIGMA = 0.3
KNOWS_NOTHING = frozenset({"fifo", "airflow-downstream", "random", "dask-order"})  # the same whatever is known
MEASURES = ("mean", "p95", "p99")
Beliefs = list[list[tuple[float, float]]]  # workload -> task -> median, P95


class Options(msgspec.Struct, frozen=True):
    """length: workloads of a stream. placements: budget of the engine's look-ahead, which needs an idle cluster."""

    loads: tuple[float, ...] = (0.7, 0.9, 1.1)
    seeds: int = 10
    slots: int = 32
    length: int = 60
    placements: int = 0
    durations: tuple[str, ...] = (Durations.EXACT.value, Durations.PREDICTED.value)
    sides: tuple[str, ...] = ()
    at_once: bool = False


class Run(msgspec.Struct):
    """One stream under one side."""

    load: float
    seed: int
    durations: str
    side: str
    mean_s: float
    p95_s: float
    p99_s: float


def drawn_workloads(instances: Sequence[Instance], length: int, seed: int) -> list[LoadedWorkload]:
    """Instances drawn with the seed, every duration times a factor of its own, all at time 0."""
    rng, drawn = random.Random(seed), []
    for number in range(length):
        given = rng.choice(instances).workload
        graph = given.graph
        seconds: list[float | None] = [(s or 0.0) * rng.lognormvariate(0.0, SIGMA) for s in graph.phase_duration_s]
        single = msgspec.structs.replace(
            graph, shapes=[Shape()], phase_shape=[0] * graph.n_phases, phase_duration_s=seconds
        )
        drawn.append(msgspec.structs.replace(given, id=f"{number}:{given.id}", graph=single))
    return drawn


def shuffled(instances: Sequence[Instance], seed: int) -> list[LoadedWorkload]:
    """Every instance once, as it is, at time 0: in the order given for seed 0, else in a random one."""
    order = list(instances)
    if seed:
        random.Random(f"order {seed}").shuffle(order)
    out = []
    for number, instance in enumerate(order):
        graph = instance.workload.graph
        single = msgspec.structs.replace(graph, shapes=[Shape()], phase_shape=[0] * graph.n_phases)
        name = f"{number}:{instance.workload.id}"
        out.append(msgspec.structs.replace(instance.workload, id=name, graph=single, arrival_s=0.0))
    return out


def arrive(workloads: Sequence[LoadedWorkload], load: float, slots: int, seed: int) -> list[LoadedWorkload]:
    """Poisson arrivals: on average `load` times the slots' work in a second."""
    rng, at, out = random.Random(f"arrivals {seed}"), 0.0, []
    mean_work_s = sum(sum(s or 0.0 for s in w.graph.phase_duration_s) for w in workloads) / len(workloads)
    for workload in workloads:
        at += rng.expovariate(load * slots / mean_work_s)
        out.append(msgspec.structs.replace(workload, arrival_s=at))
    return out


def learned(workloads: Sequence[LoadedWorkload]) -> Beliefs:
    """What a predictor says of each workload when it has seen all tasks of those before it."""
    predictor, beliefs = Predictor(), []
    for workload in workloads:
        graph = workload.graph
        signatures = [signature_of("w2", name, 0, Shape()) for name in graph.names]
        found = {s: predictor.estimate(s) for s in set(signatures)}
        beliefs.append([(found[s].p50_s, found[s].p95_s) for s in signatures])
        for signature, seconds in zip(signatures, graph.phase_duration_s, strict=True):
            predictor.observe(signature, seconds or 0.0)
    return beliefs


def jct_of_engine(
    policy: str, workloads: Sequence[LoadedWorkload], durations: str, beliefs: Beliefs, options: Options
) -> list[float]:
    """Seconds from arrival to end of each workload under one of the engine's policies."""
    numbers = {w.id: number for number, w in enumerate(workloads)}
    config = SimConfig(
        slots=options.slots,
        policy=policy,
        durations=Durations(durations),
        search_placements=options.placements if policy == "egs" else 0,
        records=False,
    )
    return simulate(workloads, config, lambda w, phase: beliefs[numbers[w.id]][phase]).jct_s


def jct_of_peer(
    peer: str, workloads: Sequence[LoadedWorkload], durations: str, beliefs: Beliefs, slots: int
) -> list[float]:
    """The same under a peer's rule."""
    arrivals = []
    for workload, believed in zip(workloads, beliefs, strict=True):
        seconds = [s or 0.0 for s in workload.graph.phase_duration_s]
        known = seconds if durations == Durations.EXACT else [p50 for p50, _ in believed]
        arrivals.append(Arrival(workload.arrival_s, workload.graph, seconds, known))
    return run_peer(peer, arrivals, slots)


def measure(instances: Sequence[Instance], options: Options) -> list[Run]:
    """Every stream under every side and both kinds of knowledge."""
    runs: list[Run] = []
    peers = [peer for peer in PEERS if peer not in missing_peers() and Durations.BLIND not in options.durations]
    sides = options.sides or (*POLICIES, *peers)
    for seed in range(options.seeds):
        started = time.perf_counter()
        drawn = shuffled(instances, seed) if options.at_once else drawn_workloads(instances, options.length, seed)
        beliefs = learned(drawn)
        for load in options.loads:
            stream = drawn if options.at_once else arrive(drawn, load, options.slots, seed)
            for side in sides:
                jct: list[float] = []
                for durations in options.durations:
                    if not jct or side not in KNOWS_NOTHING:
                        jct = (
                            jct_of_engine(side, stream, durations, beliefs, options)
                            if side in POLICIES
                            else jct_of_peer(side, stream, durations, beliefs, options.slots)
                        )
                    runs.append(run_of(load, seed, durations, side, jct))
        print(f"seed {seed}: {time.perf_counter() - started:.1f} s", file=sys.stderr)
    return runs


def run_of(load: float, seed: int, durations: str, side: str, jct: Sequence[float]) -> Run:
    """The measures of one stream."""
    values = np.asarray(jct)
    quantiles = [float(q) for q in np.quantile(values, (0.95, 0.99))]
    return Run(load, seed, durations, side, float(values.mean()), *quantiles)


def summarise(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One row a load, kind of knowledge and side: means over seeds; spread of the mean between seeds as a deviation of
    its ratio to egs on the same stream; over_best: the mean over that of the best side."""
    groups: dict[tuple[float, str], dict[str, list[Run]]] = {}
    for run in runs:
        groups.setdefault((run.load, run.durations), {}).setdefault(run.side, []).append(run)
    rows = []
    for (load, durations), sides in sorted(groups.items()):
        means = {side: float(np.mean([r.mean_s for r in found])) for side, found in sides.items()}
        for side, found in sides.items():
            ratios = [r.mean_s / e.mean_s for r, e in zip(found, sides.get("egs", found), strict=True)]
            rows.append(
                {
                    "load": load,
                    "durations": durations,
                    "side": side,
                    "mean_s": means[side],
                    "p95_s": float(np.mean([r.p95_s for r in found])),
                    "p99_s": float(np.mean([r.p99_s for r in found])),
                    "over_egs": float(np.mean(ratios)),
                    "over_egs_deviation": float(np.std(ratios)),
                    "over_best": means[side] / min(means.values()),
                }
            )
    return rows


def plot(result: dict[str, Any], path: Path) -> None:
    """Mean, p95 and p99 against the load, a panel each; a row a kind of knowledge."""
    figure = drawing_library().Figure(figsize=(13, 8))
    kinds = sorted({row["durations"] for row in result["rows"]})
    sides = list(dict.fromkeys(row["side"] for row in result["rows"]))
    grid = figure.subplots(len(kinds), len(MEASURES), squeeze=False)
    for panels, durations in zip(grid, kinds, strict=True):
        for axes, name in zip(panels, MEASURES, strict=True):
            for number, side in enumerate(sides):
                rows = [r for r in result["rows"] if (r["durations"], r["side"]) == (durations, side)]
                style = {"linestyle": "--" if side in PEERS else "-", "linewidth": 3 if side == "egs" else 1.2}
                points = [r["load"] for r in rows], [r[f"{name}_s"] for r in rows]
                axes.plot(*points, marker="o", color=f"C{number}", label=side, **style)
            axes.set(title=f"{name}, {durations}", xlabel="load", ylabel="completion time, s", yscale="log")
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="lower center", ncols=len(sides), fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def show(result: dict[str, Any], console: Console) -> None:
    table = Table(*result["rows"][0])
    for row in result["rows"]:
        table.add_row(*[f"{v:,.3f}" if isinstance(v, float) else str(v) for v in row.values()])
    console.print(table)
    for peer, why in result["missing"].items():
        console.print(f"missing: {peer}: {why}", highlight=False, markup=False)


def result_of(instances: Sequence[Instance], options: Options) -> dict[str, Any]:
    """Everything as one JSON object."""
    started = time.perf_counter()
    runs = measure(instances, options)
    return {
        "suite": "streams",
        "options": msgspec.to_builtins(options),
        "instances": {i.name: i.workload.graph.n_tasks for i in instances},
        "missing": missing_peers(),
        "use_beliefs": sorted(USE_BELIEFS),
        "rows": summarise(runs),
        "runs": msgspec.to_builtins(runs),
        "seconds": round(time.perf_counter() - started, 1),
    }


def options_of(arguments: argparse.Namespace) -> Options:
    """InputError for what is no list of loads or no number above 0."""
    try:
        loads = tuple(float(part) for part in arguments.loads.split(","))
    except ValueError:
        loads = (0.0,)
    if min(loads) <= 0:
        raise InputError("--loads", f"{arguments.loads!r} is no list of numbers above 0", "--loads 0.7,0.9,1.1")
    for place in ("seeds", "slots", "length"):
        if getattr(arguments, place) < 1:
            raise InputError(f"--{place}", "is not above 0", f"--{place} 10")
    known = [d.value for d in Durations]
    durations = _words("--durations", arguments.durations, known)
    sides = _words("--sides", arguments.sides, [*POLICIES, *PEERS]) if arguments.sides else ()
    slots, placements = arguments.slots, arguments.placements
    loads = (1.0,) if arguments.at_once else loads
    return Options(loads, arguments.seeds, slots, arguments.length, placements, durations, sides, arguments.at_once)


def _words(place: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    words = tuple(text.split(","))
    for word in words:
        if word not in known:
            raise InputError(place, f"unknown {word!r}", f"of {', '.join(known)}")
    return words


def parser() -> argparse.ArgumentParser:
    defaults = Options()
    p = argparse.ArgumentParser(prog="python -m benchmarks.streams", description=(__doc__ or "").splitlines()[0])
    p.add_argument("--data", default=os.environ.get("EGS_DATA"), help="folder with workflows/ (default: EGS_DATA)")
    p.add_argument("--largest", type=int, default=220, help="leave out instances with more tasks (default 220)")
    p.add_argument("--loads", default=",".join(map(str, defaults.loads)))
    p.add_argument("--seeds", type=int, default=defaults.seeds)
    p.add_argument("--slots", type=int, default=defaults.slots)
    p.add_argument("--length", type=int, default=defaults.length, help="workloads of a stream")
    p.add_argument("--durations", default=",".join(defaults.durations), help="of exact, predicted, blind")
    p.add_argument("--sides", default="", help="policies and peers, comma separated (default: all)")
    p.add_argument("--at-once", action="store_true", help="all workflows at the same moment instead of streams")
    p.add_argument("--placements", type=int, default=0, help="budget of the look-ahead (default 0: none)")
    p.add_argument("--json", nargs="?", const="-", metavar="FILE", help="the result as JSON, to stdout or a file")
    p.add_argument("--plot", type=Path, metavar="FILE.png")
    return p


def main() -> int:
    arguments = parser().parse_args()
    try:
        options = options_of(arguments)
        if arguments.plot:
            drawing_library()  # before the long part
        result = result_of(load_instances(arguments.data, arguments.largest), options)
        if arguments.plot:
            plot(result, arguments.plot)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    if not is_printed(result, arguments.json):
        show(result, Console(width=160))
    return 0


if __name__ == "__main__":
    sys.exit(main())
