"""`python -m benchmarks`: run the suites, print their figures, and write them as JSON into build/bench/.

    scale     a large WfFormat file to a ranked plan: seconds and memory
    rate      phases taken from ready to ended per second, beside dask's scheduler state and a bare list scheduler
    throughput  phases a second from 1,000 to 1,000,000 tasks, and with 100,000 queued for 1,000 devices; memory a task
    streams   DAGs that arrive at random: completion times by policy, beside other orders (EGS_DATA names the workflows)
    cold      what splitting, preloading and ordering bring on workflows with synthetic GPU phases, simulated
    preload   how soon a GPU task's first line runs after its predecessor's end: cold, and with EGS; and what loading
              costs the tasks that run meanwhile
    learned   queues that learn their order, beside the best fixed one in hindsight (EGS_DATA)
    gpu_jobs  a week of GPU jobs of many teams, in every policy (the trace needs EGS_DATA)
    costs     what single calls cost that every task pays: a forecast, an estimate, Airflow's listener; a log's figures
    submit    what a submission costs on Ray: natively, observed, with the hook on, and through the gates
    ray_ready  what `egs ray keep-ready` saves drivers that come one after the other, beside a cluster as it is and one
              with preloaded modules alone
    dags      single graphs: makespan over the lower bound, beside other schedulers (EGS_DATA names the workflows);
              not with --quick: beside the best that CP-SAT finds, where OR-tools is installed
    predictors  how well durations are predicted: pinball loss and coverage in arrival order (EGS_DATA), with a plot
    tiers     what advice on the kind of GPU saves, and its regret against the best known afterwards (EGS_DATA)
    flavors   jobs on three kinds of GPU: completion time and cost by policy (EGS_DATA has the measured speeds)
    fidelity  replays on a real Ray beside their simulation: how far the makespans are apart
    gpu_paths what happens on a real GPU: device memory, contexts, what each phase sees, and a
              pipeline with PyTorch natively and with EGS (says so where there is none)
    server    durable leases a second from the site server, beside a shell without an engine
    limits    deadlines met when the engine is told of them and not, and what limits and deadlines cost it
    packing   GPU left unallocated when a cluster is full, by packing
    split     a model's operators over devices: loss beside plain rules, CP-SAT and accelerate where they are installed
    demo      the demo's pipelines in all variants, interleaved
    kubeflow_local  what the local runner of Kubeflow pipelines adds to a task, beside kfp's own
    demo_kubeflow  the same on kfp's own local runner and on EGS's

Each suite runs as a command of its own, which is stated with its figures; so are the machine and the versions.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.demo import VARIANTS

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "bench"
PACKAGES = ("egs-core", "egs-ray", "ray", "numpy", "msgspec", "distributed", "pandas", "scikit-learn")
SUITES = (
    "scale",
    "rate",
    "cold",
    "preload",
    "gpu_jobs",
    "costs",
    "submit",
    "ray_ready",
    "dags",
    "predictors",
    "packing",
    "throughput",
    "streams",
    "learned",
    "flavors",
    "tiers",
    "limits",
    "server",
    "fidelity",
    "gpu_paths",
    "split",
    "demo",
    "kubeflow_local",
    "demo_kubeflow",
)


class Options(msgspec.Struct, frozen=True):
    """rounds: of `demo`; 0 leaves every suite its own number of repetitions."""

    rounds: int = 0
    variants: str = ""
    quick: bool = False


def commands_of(suite: str, options: Options) -> list[list[str]]:
    """The commands of a suite, after the interpreter's name; each prints one JSON object."""
    quick = options.quick
    if suite == "scale":
        sizes = (100_000,) if quick else (100_000, 1_000_000)
        return [["benchmarks/scale.py", "--tasks", str(tasks)] for tasks in sizes]
    if suite == "rate":
        return [["-m", "benchmarks.rate", "--json", *(("--rounds", "1") if quick else ())]]
    if suite == "throughput":
        less = ["--sizes", "1000,10000", "--tasks", "20000", "--workloads", "40", "--rounds", "1"] if quick else []
        return [["-m", "benchmarks.throughput", "--json", "-", *less, *_plot("throughput")]]
    if suite == "streams":
        less = ["--seeds", "2", "--length", "40"] if quick else []
        return [["-m", "benchmarks.streams", "--json", "-", *less, *_plot("streams")]]
    if suite == "learned":
        return [["-m", "benchmarks.learned", *(("--suites", "streams", "--seeds", "1") if quick else ())]]
    if suite == "cold":
        small = ("--workloads", "15", "--loads", "1.2") if quick else ()
        return [["-m", "benchmarks.cold_starts", "--json", "-", *small, *_plot("cold_starts")]]
    if suite == "preload":
        beside = ["-m", "benchmarks.preload_beside", "--json", *(("--rounds", "2") if quick else ())]
        return [["-m", "benchmarks.preload", "--json", *(("--runs", "5", "--cold-runs", "2") if quick else ())], beside]
    if suite == "gpu_jobs":
        small = ("--gpus", "384", "--limit", "6000") if quick else ()
        waits = (("any_wait",), ("max_wait", "--max-wait-s", "129600"))
        calls = [["-m", "benchmarks.gpu_jobs", "--json", *small, *wait] for _, *wait in waits]
        for call, (name, *_) in zip(calls, waits, strict=True):
            call += _plot(f"gpu_jobs_{name}")
        return calls
    if suite == "server":
        once = ("--seconds", "3", "--rounds", "1", "--queued", "0", "--tasks", "0")
        return [["-m", "benchmarks.server", "--json", *(once if quick else ())]]
    if suite == "costs":
        return [["-m", "benchmarks.costs", "--json"]]
    if suite == "submit":
        return [["-m", "benchmarks.submit", "--json", *(("--rounds", "1") if quick else ())]]
    if suite == "ray_ready":
        return [["-m", "benchmarks.ray_ready", "--json", "-", *(("--drivers", "4", "--rounds", "1") if quick else ())]]
    if suite == "dags":
        few = ("--largest", "200", "--slots", "8,32") if quick else ("--networks", "instant,125MB/s")
        incumbent = ["-m", "benchmarks.single_dags_incumbent", "--json", "-", *_plot("incumbent")]
        return [["-m", "benchmarks.single_dags", "--json", *few, *_plot("dags")], *([] if quick else [incumbent])]
    if suite == "predictors":
        return [["-m", "benchmarks.predictors", "--json", "--plot", str(OUT / "predictors.svg")]]
    if suite == "packing":
        small = ("--seeds", "2", "--share", "0.2") if quick else ()
        return [["-m", "benchmarks.fragmentation", "--json", "-", *small, *_plot("packing")]]
    if suite == "limits":
        return [["-m", "benchmarks.limits", "--json", *(("--seeds", "1", "--rounds", "1") if quick else ())]]
    if suite == "fidelity":
        return [["-m", "benchmarks.fidelity", "--json", *(("--limit", "4") if quick else ())]]
    if suite == "split":
        less = ["--parts", "peers", "--sizes", "60"] if quick else []
        return [["-m", "benchmarks.model_split", "--json", "-", *less]]
    if suite == "gpu_paths":
        return [["-m", f"benchmarks.{one}", "--json"] for one in ("gpu_paths", "gpu_pipeline")]
    if suite == "tiers":
        return [["-m", "benchmarks.tiers", "--json", *(("--jobs", "300") if quick else ())]]
    if suite == "flavors":
        fewer = ("--rates", "5", "--jobs", "300", "--seeds", "1") if quick else ()
        return [["-m", "benchmarks.heterogeneous", "--json", *fewer, *_plot("flavors")]]
    rounds = options.rounds or (1 if quick else 5)
    if suite == "kubeflow_local":
        return [["-m", "benchmarks.kubeflow_local", "--json", *(("--rounds", "1") if quick else ())]]
    if suite == "demo_kubeflow":
        return [["-m", "benchmarks.demo", "--json", "--on", "kubeflow", "--rounds", str(rounds)]]
    variants = options.variants or ("native,tuned,egs" if quick else ",".join(VARIANTS))
    return [["-m", "benchmarks.demo", "--json", "--rounds", str(rounds), "--variants", variants]]


def _plot(name: str) -> tuple[str, ...]:
    """Where a suite draws its plot; nowhere without the library for it."""
    return ("--plot", str(OUT / f"{name}.png")) if find_spec("matplotlib") else ()


def run_command(command: Sequence[str]) -> tuple[int, dict[str, Any]]:
    """Its exit code and what it printed; its progress goes to stderr."""
    plugins = [str(ROOT / "plugins" / name) for name in ("ray", "airflow", "kubeflow")]
    path = os.pathsep.join([str(ROOT), *plugins, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    try:
        return done.returncode, json.loads(lines[-1]) if lines else {}
    except ValueError:
        return done.returncode or 1, {"printed": done.stdout[-2000:]}


def machine() -> dict[str, Any]:
    """What the figures were taken on, and how busy it was with other things just before."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_1min": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _cpu_name() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def run_suite(suite: str, options: Options, console: Console) -> bool:
    """Run, show and keep one suite; whether all of its commands went well."""
    well = True
    runs = []
    for command in commands_of(suite, options):
        shown = " ".join(["python", *command])
        console.rule(f"{suite}: {shown}", align="left")
        began, before = time.time(), machine()
        code, figures = run_command(command)
        runs.append({"command": shown, "exit_code": code, "wall_s": round(time.time() - began, 1), "figures": figures})
        runs[-1]["machine"] = before
        well = well and code == 0
        console.print(table_of(figures) if code == 0 else f"failed with exit code {code}: {figures}")
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"{suite}.json"
    path.write_text(json.dumps({"suite": suite, "versions": versions(), "runs": runs}, indent=2) + "\n")
    console.print(f"written: {path.relative_to(ROOT)}", highlight=False)
    return well


def table_of(figures: dict[str, Any]) -> Table:
    """A suite's figures: one row each, or, where it prints `rows`, its own table."""
    if rows := figures.get("rows"):
        table = Table(*rows[0].keys())
        for row in rows:
            table.add_row(*(_shown(value) for value in row.values()))
        return table
    table = Table("figure", "value")
    for name, value in _flat(figures):
        table.add_row(name, _shown(value))
    return table


def _flat(figures: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for name, value in figures.items():
        out += _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]
    return out


def _shown(value: Any) -> str:
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suite", action="append", choices=SUITES, help="only this one; may be given several times")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of the demo (default 5)")
    parser.add_argument("--variants", default="", help=f"of the demo, comma separated: {', '.join(VARIANTS)}")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: minutes instead of an hour")
    arguments = parser.parse_args()
    console = Console()
    console.print(f"{machine()}\n{versions()}", highlight=False)
    options = Options(arguments.rounds, arguments.variants, arguments.quick)
    results = [run_suite(suite, options, console) for suite in arguments.suite or SUITES]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
