"""Phases and cold starts: what splitting, preloading and ordering each bring, and what preloading costs.

    EGS_DATA=… python -m benchmarks.cold_starts --json FILE --plot FILE.png

SYNTHETIC: GPU phases, warm-up times and input sizes are laid over workflows by the seeded rule in `benchmarks.overlay`;
submissions are a Poisson process. Everything runs in the simulator, which is the shipped engine under a virtual clock,
told only medians and 95 % quantiles of each category in an earlier stream. All variants run on the same submissions:

    native          a task holds what it needs at most, GPU included, cold start to end; first come first served
    native, kept    the same, but a process that is left over serves the next task of its category
    + …             one feature added to `native`; processes are kept where they are preloaded
    egs             all of them: phases hold what they need, processes are warm ahead of time, longest path first
    egs - …         all but one

Throughput is finished workloads an hour, from the first submission to the last end. Wastage is of GPUs, in per cent.
No variant can end sooner than the longest path of any submission allows, nor than the GPU phases fill all GPUs; how
many times `native` that would be is printed too: short streams and low loads leave no room for twice.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from operator import truediv
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.overlay import Beliefs, gpu_seconds, load_graphs, make_stream, make_templates, used_in_merged
from egs_core.errors import InputError
from egs_core.graph.analysis import critical_path
from egs_core.graph.load import LoadedWorkload
from egs_core.runlog.metrics import metrics_of
from egs_core.runlog.timeline import build_timeline
from egs_core.sim import Durations, SimConfig, SimNode, SimResult, simulate

NODES, GPUS_A_NODE, CPUS_A_NODE = 4, 4, 48
PRELOAD_SLOTS, PROCESS_SLOTS = 4, 24
RULE_SEED, EARLIER_SEED = 1, 1000
EARLIER = 60  # submissions that beliefs come from
TARGETS = {"times_native": 2.0, "wastage_effective_by_volume": 0.02, "gpu_phases_warm": 0.95, "unused_share": 0.05}


class Variant(msgspec.Struct, frozen=True):
    """keep: a process left over serves the next task of its category; without it every task loads for itself."""

    policy: str = "fifo"
    split: bool = False
    preload: bool = False
    keep: bool = False


VARIANTS = {
    "native": Variant(),
    "native, kept": Variant(keep=True),
    "+ split": Variant(split=True),
    "+ preload": Variant(preload=True, keep=True),
    "+ order": Variant("egs"),
    "egs": Variant("egs", split=True, preload=True, keep=True),
    "egs - preload": Variant("egs", split=True, keep=True),
    "egs - split": Variant("egs", preload=True, keep=True),
    "egs - order": Variant("fifo", split=True, preload=True, keep=True),
}

# Preloads without split take many minutes: thousands of ready GPU tasks wait for a process at each look of the planner.
BY_DEFAULT = [name for name, variant in VARIANTS.items() if variant.split or not variant.preload]


def cluster() -> tuple[SimNode, ...]:
    """Equal nodes with GPUs."""
    return tuple(
        SimNode(f"n{i}", CPUS_A_NODE, GPUS_A_NODE, preload_slots=PRELOAD_SLOTS, process_slots=PROCESS_SLOTS)
        for i in range(NODES)
    )


def for_itself(workload: LoadedWorkload) -> LoadedWorkload:
    """The same workload with a key of its own for every task: no process serves another."""
    options = {
        task: msgspec.structs.replace(option, warm_key=f"{option.warm_key}#{workload.id}#{task}")
        for task, option in workload.graph.options.items()
    }
    return msgspec.structs.replace(workload, graph=msgspec.structs.replace(workload.graph, options=options))


def run(variant: Variant, stream: Sequence[LoadedWorkload], beliefs: Beliefs) -> SimResult:
    """One simulation of one variant."""
    config = SimConfig(
        nodes=cluster(),
        policy=variant.policy,
        durations=Durations.PREDICTED,
        preload=variant.preload,
        split=variant.split,
    )
    return simulate(stream if variant.keep else [for_itself(w) for w in stream], config, beliefs)


def figures_of(result: SimResult, variant: Variant, stream: Sequence[LoadedWorkload]) -> dict[str, float]:
    """What the table shows of one run."""
    used = [] if variant.split else used_in_merged(stream, result.records)
    line = build_timeline([*result.records, *used])
    metrics = metrics_of(line)
    gpu, cost = metrics.kinds["gpu"], metrics.preload
    on_gpu = [hold for hold in line.holds if hold.demand.gpus > 0]
    loads = [preload for preload in line.preloads if preload.cpus > 0]
    in_vain = sum(preload.outcome != "used" for preload in loads)
    return {
        "workloads_per_h": len(stream) / result.makespan_s * 3600,
        "makespan_s": result.makespan_s,
        "mean_jct_s": metrics.mean_jct_s or 0.0,
        "p95_jct_s": metrics.p95_jct_s or 0.0,
        "wastage_effective_by_volume": gpu.effective.by_volume or 0.0,
        "wastage_effective_by_time": gpu.effective.by_time or 0.0,
        "wastage_nominal_by_volume": gpu.nominal.by_volume or 0.0,
        "wastage_nominal_by_time": gpu.nominal.by_time or 0.0,
        "gpu_utilisation_useful": gpu.utilisation_useful or 0.0,
        "gpu_phases_warm": 1 - sum(hold.cold_started for hold in on_gpu) / len(on_gpu),
        "cold_starts": metrics.cold_starts,
        "preloads": cost.preloads,
        "loads": len(loads),
        "unused_share": cost.unused / cost.preloads if cost.preloads else 0.0,
        "loads_in_vain_share": in_vain / len(loads) if loads else 0.0,
        "preload_cpu_s": cost.cpu_s,
        "preload_gib_s": cost.memory_gib_s,
        "phases_per_s": result.phases_per_s,
    }


def least_makespan_s(stream: Sequence[LoadedWorkload], gpus: int) -> float:
    """What no order and no preload can beat: each submission's longest path, and all GPU phases on all GPUs."""
    first = min(w.arrival_s for w in stream)
    paths = [w.arrival_s - first + critical_path(w.graph)[0] for w in stream]
    return max(*paths, sum(map(gpu_seconds, stream)) / gpus)


def measure(names: Sequence[str], loads: Sequence[float], seeds: int, count: int) -> dict[str, Any]:
    """Every variant on the streams of every load and seed; means over the seeds."""
    templates = make_templates(load_graphs(), RULE_SEED)
    gpus = NODES * GPUS_A_NODE
    beliefs = Beliefs(make_stream(templates, EARLIER, gpus, 1.0, EARLIER_SEED))
    out: dict[str, Any] = {"synthetic": True, "rule": "benchmarks/overlay.py", "workloads": count, "seeds": seeds}
    out |= {"nodes": NODES, "gpus": gpus, "targets": TARGETS, "loads": {}, "rows": []}
    for load in loads:
        found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        least_s = []
        for seed in range(1, seeds + 1):
            stream = make_stream(templates, count, gpus, load, seed)
            least_s.append(least_makespan_s(stream, gpus))
            for name in names:
                found[name].append(figures_of(run(VARIANTS[name], stream, beliefs), VARIANTS[name], stream))
                print(f"load {load} seed {seed} {name}: {found[name][-1]['makespan_s']:.0f} s", file=sys.stderr)
        out["loads"][str(load)] = _summary(found, least_s)
        summary = out["loads"][str(load)]
        out["rows"] += [_row(load, name, facts) for name, facts in summary["variants"].items()]
        if "most_times_native" in summary:
            out["rows"].append(
                {"load": f"{load:g}", "variant": "bound", "x native": f"{summary['most_times_native']:.2f}"}
            )
    return out


def _summary(found: dict[str, list[dict[str, float]]], least_s: list[float]) -> dict[str, Any]:
    variants = {}
    native = [run["makespan_s"] for run in found.get("native", [])]
    for name, runs in found.items():
        facts = {figure: statistics.fmean(run[figure] for run in runs) for figure in runs[0]}
        if native:
            ratios = [n / own["makespan_s"] for n, own in zip(native, runs, strict=True)]
            facts |= {"times_native": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
        variants[name] = facts
    most = {"most_times_native": statistics.median(map(truediv, native, least_s))} if native else {}
    return {"least_makespan_s": statistics.fmean(least_s), **most, "variants": variants}


def _row(load: float, name: str, facts: dict[str, float]) -> dict[str, Any]:
    return {
        "load": f"{load:g}",
        "variant": name,
        "workloads/h": f"{facts['workloads_per_h']:.1f}",
        "x native": f"{facts['times_native']:.2f}" if "times_native" in facts else "",
        "JCT s mean": f"{facts['mean_jct_s']:.0f}",
        "p95": f"{facts['p95_jct_s']:.0f}",
        "wasted, effective vol": f"{facts['wastage_effective_by_volume']:.1%}",
        "time": f"{facts['wastage_effective_by_time']:.1%}",
        "nominal vol": f"{facts['wastage_nominal_by_volume']:.1%}",
        "time ": f"{facts['wastage_nominal_by_time']:.1%}",
        "GPU phases warm": f"{facts['gpu_phases_warm']:.1%}",
        "cold": f"{facts['cold_starts']:.0f}",
        "loads": f"{facts['loads']:.0f}",
        "unused": f"{facts['unused_share']:.1%}",
        "CPU·s": f"{facts['preload_cpu_s']:.0f}",
        "GiB·s": f"{facts['preload_gib_s']:.0f}",
    }


def plot(found: dict[str, Any], path: str) -> None:
    """Throughput and wastage by variant, one group a load."""
    try:
        figure = importlib.import_module("matplotlib.figure").Figure(figsize=(13, 5))
    except ImportError:
        raise InputError("--plot", "needs matplotlib", "pip install matplotlib") from None
    axes = figure.subplots(1, 2)
    panels = (("workloads_per_h", "workloads an hour"), ("wastage_effective_by_volume", "effective GPU wastage, share"))
    count = len(found["loads"])
    for axis, (key, title) in zip(axes, panels, strict=True):
        for shift, (load, part) in enumerate(found["loads"].items()):
            names = list(part["variants"])
            places = [i + 0.8 * (shift - (count - 1) / 2) / count for i in range(len(names))]
            values = [part["variants"][name][key] for name in names]
            axis.barh(places, values, 0.8 / count, label=f"load {load}")
        axis.set_yticks(range(len(names)), names)
        axis.invert_yaxis()
        axis.set_title(title)
    axes[0].legend()
    figure.suptitle("Phases and cold starts (synthetic overlay, simulated)")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cold_starts", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--workloads", type=int, default=40, help="submissions of one stream")
    parser.add_argument("--seeds", type=int, default=1, help="streams")
    parser.add_argument("--loads", default="0.8,1.2", help="comma separated")
    parser.add_argument(
        "--variants", default=";".join(BY_DEFAULT), help=f"semicolon separated, of {'; '.join(VARIANTS)}"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures as one JSON object; - prints it")
    parser.add_argument("--plot", metavar="FILE.png")
    arguments = parser.parse_args()
    names = arguments.variants.split(";")
    if not set(names) <= set(VARIANTS):
        parser.error(f"variants are: {'; '.join(VARIANTS)}")
    started = time.perf_counter()
    try:
        found = measure(names, [float(x) for x in arguments.loads.split(",")], arguments.seeds, arguments.workloads)
        found["seconds"] = time.perf_counter() - started
        if arguments.plot:
            plot(found, arguments.plot)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.json == "-":
        print(json.dumps(found))
        return 0
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=2) + "\n")
    for row in found["rows"]:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
