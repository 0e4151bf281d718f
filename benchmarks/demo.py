"""The demo's pipelines in all variants, interleaved: each run in a process, and on a Ray, of its own.

    python -m benchmarks.demo --rounds 5 --variants native,tuned,egs
    python -m benchmarks.demo --on kubeflow --rounds 5

Every round runs each variant once, beginning with another one each time, so that what changes on the machine meanwhile
hits all of them. Ratios are taken within a round: how many times as long native as written, and tuned native, took as
the variant. All variants must give the same results, else the exit code is 1.

The clock of every variant starts with its first submission. By then Ray has started its processes, and in the `egs`
variants EGS its own: `with Session(...)` waits for them, as `ray.init` does for Ray's. On Kubeflow there is nothing to
wait for: kfp is imported, and the pipeline compiled.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.gpu_time import gpu_time_of
from egs_core.runlog.io import read_run

VARIANTS = ("native", "tuned", "egs", "hook", "egs-no-preload", "egs-no-split", "egs-no-order")
VARIANTS_ON = {"ray": VARIANTS, "kubeflow": ("native", "fifo", "tuned", "egs")}
REFERENCES = ("native", "fifo", "tuned")
TIMEOUT_S = 600
FIGURES = ("makespan_s", "wastage_effective", "gpu_held_s", "gpu_used_s", "cold_starts")


def run_variant(name: str, on: str) -> dict[str, Any]:
    """One run in a process of its own; `said`: what EGS told the user."""
    with tempfile.TemporaryDirectory(prefix="egs-demo-") as out:
        command = [
            sys.executable,
            "-m",
            "egs_core.cli.app",
            "demo",
            "--on",
            on,
            "--variant",
            name,
            "--out",
            out,
            "--json",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if done.returncode:
            raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        if on == "ray":
            found["gpu_time"] = gpu_time_of(read_run(found["runlog"]).records)
    found["said"] = [line for line in done.stderr.splitlines() if line.startswith("egs:")]
    return found


def run_rounds(rounds: int, variants: Sequence[str], on: str) -> dict[str, list[dict[str, Any]]]:
    """All runs, by variant, in the order of the rounds."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in variants}
    for number in range(rounds):
        first = number % len(variants)
        for name in [*variants[first:], *variants[:first]]:
            found = run_variant(name, on)
            runs[name].append(found)
            print(f"round {number + 1}/{rounds} {name}: {found['makespan_s']:.1f} s", *found["said"], file=sys.stderr)
    return runs


def compare(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians, spreads and ratios; `rows` is what a table shows."""
    every = [run for of_variant in runs.values() for run in of_variant]
    summary = {name: _summary(of_variant, runs) for name, of_variant in runs.items()}
    return {
        "ideal_bound_s": every[0]["ideal_bound_s"],
        "emulated_gpus": every[0]["emulated_gpus"],
        "clock": "from the first submission; the framework, and EGS, have started their processes by then",
        "results_identical": len({run["digest"] for run in every}) == 1,
        "variants": summary,
        "rows": [_row(name, facts, every[0]["ideal_bound_s"]) for name, facts in summary.items()],
    }


def _summary(of_variant: list[dict[str, Any]], runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    out: dict[str, Any] = {figure: _spread(run[figure] for run in of_variant) for figure in FIGURES}
    for name in REFERENCES:
        if name in runs:
            pairs = zip(runs[name], of_variant, strict=True)
            out[f"times_{name}"] = _spread(other["makespan_s"] / own["makespan_s"] for other, own in pairs)
    parts = of_variant[0].get("gpu_time", {})
    out["gpu_time"] = {key: statistics.median(run["gpu_time"][key] for run in of_variant) for key in parts}
    out["said"] = sorted({line for run in of_variant for line in run["said"]})
    return out


def _spread(values: Iterable[float]) -> dict[str, float]:
    listed = list(values)
    return {
        "median": round(statistics.median(listed), 4),
        "min": round(min(listed), 4),
        "max": round(max(listed), 4),
        "n": len(listed),
    }


def _row(name: str, facts: dict[str, Any], ideal_s: float) -> dict[str, Any]:
    time, spent = facts["makespan_s"], facts["gpu_time"]
    row = {
        "variant": name,
        "median s": time["median"],
        "min-max s": f"{time['min']:.1f}-{time['max']:.1f}",
        "over ideal": f"{time['median'] / ideal_s - 1:.0%}",
        "wasted": f"{facts['wastage_effective']['median']:.1%}",
        "cold": facts["cold_starts"]["median"],
    }
    for reference in REFERENCES:
        if ratio := facts.get(f"times_{reference}"):
            row[f"x {reference}"] = f"{ratio['median']:.2f} ({ratio['min']:.2f}-{ratio['max']:.2f})"
    where = {"used": "used", "held_cold": "cold", "held_else": "held in CPU phases", "idle_before": "idle before"}
    where |= {"idle_between": "between", "idle_after": "after"}
    return row | {f"GPU·s {title}": spent[key] for key, title in where.items() if key in spent}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--on", default="ray", choices=VARIANTS_ON, help="the framework")
    parser.add_argument("--variants", default="", help="comma separated; all, where none is named")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    known = VARIANTS_ON[arguments.on]
    variants = arguments.variants.split(",") if arguments.variants else known
    if arguments.rounds < 1 or not set(variants) <= set(known):
        parser.error(f"at least one round, of: {', '.join(known)}")
    found = compare(run_rounds(arguments.rounds, variants, arguments.on))
    if arguments.json:
        print(json.dumps(found))
    else:
        for row in found["rows"]:
            print("  ".join(f"{key} {value}" for key, value in row.items()))
    if not found["results_identical"]:
        print("the results of the variants differ", file=sys.stderr)
    return 0 if found["results_identical"] else 1


if __name__ == "__main__":
    sys.exit(main())
