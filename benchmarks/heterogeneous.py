"""Unlike GPUs: jobs on a cluster of V100, P100 and K80, by policy and by how a flavor is chosen.

    python -m benchmarks.heterogeneous [--rates 3,4,5] [--jobs 900] [--seeds 3] [--plot FILE]

How fast each type of job runs on each flavor is Gavel's measured table (`$EGS_DATA/gpu/
gavel_simulation_throughputs.json.gz`, MIT; Narayanan et al., OSDI 2020); without EGS_DATA it is drawn with a seed, and
the result says so. As in that paper: 36 GPUs of each flavor, Poisson arrivals, a job's length on a V100 is 10^x minutes
with x uniform in 1.5 to 3 (80 %) or 3 to 4, its type uniform over the table; prices are Google's of 2020. Each job has
a deadline, 1.2, 2 or 10 times its length on the fastest flavor. Figures are of the middle two thirds of the jobs; the
same jobs go through every policy. A job is one GPU; with `--sizes` 2 and 4 GPUs too, in nodes of four.

egs, sjf and fifo run in the shipped engine, which knows the lengths and leaves a job where it started. The last two
rows are baselines that move jobs between devices every six minutes at no cost, see `heterogeneous_peers`: `srpt` knows
the lengths as well, `gavel max-min` does not need them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.heterogeneous_peers import Allocate, max_min, run_rounds, srpt
from egs_core.engine.specs import FlavorSpec
from egs_core.graph.columns import GPU, Graph, Shape, TaskOptions
from egs_core.graph.load import LoadedWorkload
from egs_core.runlog import records as r
from egs_core.sim.config import SimConfig, SimNode
from egs_core.sim.simulator import Simulation

FLAVORS = (FlavorSpec("v100", 2.48), FlavorSpec("p100", 1.46, speed=0.75), FlavorSpec("k80", 0.45, speed=0.25))
NAMES = tuple([flavor.name for flavor in FLAVORS])
NODE_GPUS, NODES = 4, 9  # of each flavor
STRICT = (1.2, 2.0, 10.0)
ENGINE_RUNS = (
    ("fifo, flavor-blind", "fifo", "blind"),
    ("shortest first, flavor-blind", "sjf", "blind"),
    ("shortest first, fastest free", "sjf", "greedy"),
    ("egs, soonest", "egs", "soonest"),
    ("egs, finish", "egs", "finish"),
    ("egs, cost", "egs", "cost"),
)
Speeds = dict[tuple[str, int], dict[str, float]]  # (job type, GPUs) -> flavor -> steps per second


class Job(msgspec.Struct, frozen=True):
    """seconds: of the whole job by flavor. deadline_s: after its arrival."""

    id: str
    type: str
    arrival_s: float
    seconds: dict[str, float]
    gpus: int
    deadline_s: float


class Outcome(msgspec.Struct):
    """By job, in order of arrival. held_s: seconds by flavor."""

    jct_s: list[float]
    held_s: list[dict[str, float]]
    wall_s: float


def load_speeds(data: str | None) -> Speeds:
    """Gavel's table, or a drawn one of 26 types: faster on newer flavors by a factor that differs by type."""
    if data:
        with gzip.open(Path(data) / "gpu" / "gavel_simulation_throughputs.json.gz") as stream:
            table = json.load(stream)
        return _read_speeds(table)
    draw = random.Random(0)
    speeds: Speeds = {}
    for number in range(26):
        p100, k80 = 1 / draw.uniform(0.8, 1.8), 1 / draw.uniform(0.8, 11.0)
        speeds.update({(f"type{number}", n): {"v100": n, "p100": n * p100, "k80": n * k80} for n in (1, 2, 4)})
    return speeds


def _read_speeds(table: Mapping[str, Any]) -> Speeds:
    speeds: Speeds = {}
    for key in table[NAMES[0]]:
        name, _, gpus = key.strip("()").rpartition(", ")
        steps = {f: float(table[f][key]["null"]) for f in NAMES if key in table[f]}
        if int(gpus) <= NODE_GPUS and steps.get(NAMES[0]):
            speeds[name.strip("'"), int(gpus)] = {f: rate for f, rate in steps.items() if rate > 0}
    return speeds


def draw_jobs(speeds: Speeds, count: int, per_hour: float, seed: int, sizes: bool) -> list[Job]:
    """Jobs by Gavel's rules."""
    draw, at, jobs = random.Random(seed), 0.0, []
    for number in range(count):
        at += draw.expovariate(per_hour / 3600)
        gpus = draw.choices((1, 2, 4), (70, 10, 20))[0] if sizes else 1
        kind = draw.choice(sorted(name for name, n in speeds if n == gpus))
        low, high = (1.5, 3.0) if draw.random() < 0.8 else (3.0, 4.0)
        on_first = 60 * 10 ** draw.uniform(low, high)
        rates = speeds[kind, gpus]
        seconds = {flavor: on_first * rates[NAMES[0]] / rate for flavor, rate in rates.items()}
        deadline = draw.choice(STRICT) * min(seconds.values())
        jobs.append(Job(str(number), kind, at, seconds, gpus, deadline))
    return jobs


def workload_of(job: Job) -> LoadedWorkload:
    """The job as the engine sees it; V100 is the reference."""
    allowed = () if len(job.seconds) == len(NAMES) else tuple(job.seconds)
    options = TaskOptions(deadline_s=job.deadline_s, flavors=allowed)
    graph = Graph(phase_flavor_s={0: job.seconds})
    graph.add_task("0", (), ((GPU, Shape(0, 1000 * job.gpus), job.seconds[NAMES[0]]),), name=job.type, options=options)
    return LoadedWorkload(job.id, job.type, "", "", job.arrival_s, graph)


def run_engine(jobs: Sequence[Job], policy: str, objective: str) -> Outcome:
    """One simulation; nodes of the flavors take turns, so that their order favours none."""
    nodes = [SimNode(f"{f}-{i}", 64.0, NODE_GPUS, flavor=f) for i in range(NODES) for f in NAMES]
    config = SimConfig(tuple(nodes), policy=policy, flavors=FLAVORS, objective=objective)
    result = Simulation([workload_of(job) for job in jobs], config).run()
    placed = {x.workload: x.node.partition("-")[0] for x in result.records if isinstance(x, r.Started)}
    held = [{placed[job.id]: job.seconds[placed[job.id]]} for job in jobs]
    return Outcome(result.jct_s, held, result.wall_s)


def run_peer(jobs: Sequence[Job], allocate: Allocate, again: bool) -> Outcome:
    began = time.perf_counter()
    ends, held = run_rounds(jobs, dict.fromkeys(NAMES, NODE_GPUS * NODES), allocate, again)
    jct = [end - job.arrival_s for job, end in zip(jobs, ends, strict=True)]
    return Outcome(jct, held, time.perf_counter() - began)


def figures_of(jobs: Sequence[Job], found: Outcome) -> dict[str, float]:
    """Of the middle two thirds: JCT in hours, price of a job in dollars, share of deadlines missed."""
    price = {flavor.name: flavor.gpu_hour for flavor in FLAVORS}
    middle = range(len(jobs) // 6, len(jobs) - len(jobs) // 6)
    jct = np.asarray([found.jct_s[i] for i in middle]) / 3600
    cost = [sum(jobs[i].gpus * price[f] * s / 3600 for f, s in found.held_s[i].items()) for i in middle]
    late = [found.jct_s[i] > jobs[i].deadline_s + 1e-6 for i in middle]
    return {
        "mean_jct_h": float(jct.mean()),
        "p95_jct_h": float(np.quantile(jct, 0.95)),
        "cost": float(np.mean(cost)),
        "late_percent": 100 * float(np.mean(late)),
        "wall_s": found.wall_s,
    }


def measure(speeds: Speeds, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each rate and policy: means over the seeds."""
    rows = []
    for rate in arguments.rates.split(","):
        seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
        drawn = [draw_jobs(speeds, arguments.jobs, float(rate), seed, arguments.sizes) for seed in seeds]
        for name, runs in _runs(drawn, arguments.only):
            mean = {key: round(float(np.mean([run[key] for run in runs])), 2) for key in runs[0]}
            rows.append({"jobs_per_h": float(rate), "policy": name, **mean})
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def _runs(drawn: Sequence[Sequence[Job]], only: str) -> Any:
    for name, policy, objective in ENGINE_RUNS:
        if not only or only in name:
            yield name, [figures_of(jobs, run_engine(jobs, policy, objective)) for jobs in drawn]
    if not only or only in "srpt every round":
        yield "srpt every round", [figures_of(jobs, run_peer(jobs, srpt, True)) for jobs in drawn]
    if (not only or only in "gavel max-min") and find_spec("scipy"):
        yield "gavel max-min", [figures_of(jobs, run_peer(jobs, max_min, False)) for jobs in drawn]


def draw_plot(rows: Sequence[Mapping[str, Any]], path: Path, label: str) -> None:
    """Mean JCT over the rate of jobs, and over the price of a job."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.5))
    for name in dict.fromkeys(row["policy"] for row in rows):
        of_policy = [row for row in rows if row["policy"] == name]
        jct = [row["mean_jct_h"] for row in of_policy]
        left.plot([row["jobs_per_h"] for row in of_policy], jct, marker="o", label=name)
        right.plot([row["cost"] for row in of_policy], jct, marker="o", label=name)
    rates = sorted({row["jobs_per_h"] for row in rows})
    left.set(xlabel="jobs per hour", ylabel="mean JCT, hours", xticks=rates, title="Job completion time")
    right.set(xlabel="price of a job, dollars", ylabel="mean JCT, hours", title="… and what it costs")
    for axis in (left, right):
        axis.grid(alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="lower center", ncols=4, fontsize=8)
    figure.suptitle(f"108 GPUs (36 V100, 36 P100, 36 K80); {label}", fontsize=10)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.heterogeneous", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--rates", default="3,4,5", help="jobs an hour")
    parser.add_argument("--jobs", type=int, default=900)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--sizes", action="store_true", help="jobs of 2 and 4 GPUs too")
    parser.add_argument("--only", default="", help="policies whose name has this in it")
    parser.add_argument("--plot", type=Path, default=None)
    parser.add_argument("--json", action="store_true", help="print one JSON object (else a table)")
    arguments = parser.parse_args()
    data = os.environ.get("EGS_DATA")
    label = "Gavel's throughputs" if data else "SYNTHETIC throughputs (set EGS_DATA for Gavel's)"
    rows = measure(load_speeds(data), arguments)
    if arguments.plot:
        draw_plot(rows, arguments.plot, label)
    print(json.dumps({"source": label, "jobs": arguments.jobs, "seeds": arguments.seeds, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
