"""GPU jobs of many teams: a week of jobs on a cluster, in every policy, with what each knows about durations.

    python -m benchmarks.gpu_jobs --gpus 384,512 [--cases plain,quotas,preempt] [--max-wait-s S] [--plot FILE]

Jobs come from `$EGS_DATA/gpu/philly_jobs.csv` (a week of Microsoft's Philly traces, CC BY 4.0); without EGS_DATA they
are drawn with a seed: Poisson arrivals, log-normal durations by team and size. A job of up to 8 GPUs is one task on one
node of 8; a larger one is a gang of such tasks. Its team is its queue. `predicted` is learned from the jobs that have
ended so far, by team and number of GPUs; nothing else is known. Strict FIFO, which waits for the first job even if
others fit, is a list simulation of its own on a pool without nodes.

Cases: `plain` has neither quotas nor preemption. With `quotas` each team's nominal quota is its share of the GPU time
times a seeded factor (0.5 to 2), all teams in one cohort without limits on borrowing. With `preempt` what was lent is
taken back as well: a job then goes on from its last checkpoint, every `--checkpoint-s`, `--restart-s` later.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.gpu_jobs_teams import Hold, draw_cdfs, rows_by_team
from benchmarks.plots import drawing_library
from egs_core.engine.specs import UNLIMITED, QueueSpec
from egs_core.errors import InputError
from egs_core.graph.columns import GPU, Graph, Shape, TaskOptions
from egs_core.graph.load import LoadedWorkload
from egs_core.predict import Predictor
from egs_core.predict.estimate import Signature, signature_of
from egs_core.runlog import records as r
from egs_core.sim.config import Durations, SimConfig, SimNode
from egs_core.sim.simulator import Simulation

NODE_GPUS = 8
CASES = ("plain", "quotas", "preempt")
VARIANTS = (
    ("fifo", "exact"),
    ("sjf", "exact"),
    ("sjf", "predicted"),
    ("egs", "exact"),
    ("egs", "predicted"),
    ("egs", "blind"),
)


Curves = dict[str, tuple[list[float], list[float]]]


class Job(msgspec.Struct, frozen=True):
    """arrival_s from the first job's submission; seconds: how long it runs once it has its GPUs."""

    id: str
    team: str
    arrival_s: float
    seconds: float
    gpus: int


class Outcome(msgspec.Struct):
    """wait_s and jct_s by job, in order of arrival; holds: when which team held GPUs."""

    wait_s: list[float]
    jct_s: list[float]
    makespan_s: float
    wall_s: float
    lost_s: float = 0.0
    preemptions: int = 0
    holds: list[Hold] = []


def load_jobs(data: str | None, limit: int) -> list[Job]:
    """The trace's jobs, or drawn ones; the first `limit` when it is not 0."""
    jobs = _drawn_jobs() if not data else _read_jobs(Path(data) / "gpu" / "philly_jobs.csv")
    return jobs[:limit] if limit else jobs


def _read_jobs(path: Path) -> list[Job]:
    with path.open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if float(row["duration"]) > 0 and int(row["num_gpus"]) > 0]
    times = [datetime.fromisoformat(row["timestamp"]) for row in rows]
    return [
        Job(str(i), row["cluster"], (at - times[0]).total_seconds(), float(row["duration"]), int(row["num_gpus"]))
        for i, (row, at) in enumerate(zip(rows, times, strict=True))
    ]


def _drawn_jobs(number: int = 6000, seed: int = 0) -> list[Job]:
    draw = random.Random(seed)
    at, jobs = 0.0, []
    for i in range(number):
        at += draw.expovariate(number / 604800)
        team = draw.choices(range(10), [2.0**-t for t in range(10)])[0]
        gpus = draw.choices((1, 2, 4, 8, 16, 32), (70, 10, 8, 8, 3, 1))[0]
        seconds = min(draw.lognormvariate(6.5 + 0.2 * team + 0.3 * math.log2(gpus), 1.8), 500_000.0)
        jobs.append(Job(str(i), f"team{team}", at, seconds, gpus))
    return jobs


def workload_of(job: Job) -> LoadedWorkload:
    """The job as the engine sees it."""
    graph, left, number = Graph(), job.gpus, 0
    gang = TaskOptions(gang="job") if job.gpus > NODE_GPUS else None
    while left > 0:
        shape = Shape(0, 1000 * min(left, NODE_GPUS))
        graph.add_task(str(number), (), ((GPU, shape, job.seconds),), name="job", options=gang)
        left -= NODE_GPUS
        number += 1
    return LoadedWorkload(job.id, job.team, job.team, job.team, job.arrival_s, graph)


class Learner:
    """Predictions from jobs that have ended, while a simulation runs."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = {job.id: job for job in jobs}
        self.predictor = Predictor()
        self.simulation: Simulation | None = None
        self._read = 0

    def __call__(self, workload: LoadedWorkload, _phase: int) -> tuple[float, float]:
        self._catch_up()
        found = self.predictor.estimate(_signature(self.jobs[workload.id]))
        return found.p50_s, found.p95_s

    def _catch_up(self) -> None:
        assert self.simulation is not None
        records = self.simulation.records
        for record in records[self._read :]:
            if isinstance(record, r.Ended) and record.task == "0" and record.outcome == "succeeded":
                job = self.jobs[record.workload]
                self.predictor.observe(_signature(job), job.seconds)
        self._read = len(records)


def _signature(job: Job) -> Signature:
    return signature_of(job.team, "job", 0, Shape(0, 1000 * job.gpus))


def quotas_of(jobs: Sequence[Job], gpus: int, seed: int) -> tuple[QueueSpec, ...]:
    """Nominal quotas that together are the cluster, by each team's share of the GPU time times a seeded factor."""
    draw = random.Random(seed)
    teams = sorted({job.team for job in jobs})
    used = {team: sum(j.seconds * j.gpus for j in jobs if j.team == team) * 2 ** draw.uniform(-1, 1) for team in teams}
    total = sum(used.values())
    return tuple([QueueSpec(t, "all", (UNLIMITED, round(1000 * gpus * used[t] / total), UNLIMITED)) for t in teams])


def run_engine(jobs: Sequence[Job], config: SimConfig) -> Outcome:
    """One simulation of all jobs."""
    learner = Learner(jobs)
    simulation = Simulation([workload_of(job) for job in jobs], config, learner)
    learner.simulation = simulation
    result = simulation.run()
    lost = sum(w.lost_s for w in simulation.state.workloads)
    stops = sum(isinstance(x, r.Ended) and x.outcome == "preempted" for x in simulation.records)
    waits = [max(0.0, jct - job.seconds) for jct, job in zip(result.jct_s, jobs, strict=True)]
    holds = holds_of(simulation.records, {job.id: job for job in jobs})
    return Outcome(waits, result.jct_s, result.makespan_s, result.wall_s, lost, stops, holds)


def holds_of(records: Sequence[r.Record], jobs: Mapping[str, Job]) -> list[Hold]:
    """What each attempt held, from the run log."""
    began: dict[tuple[str, str], r.Started] = {}
    out = []
    for record in records:
        if isinstance(record, r.Started):
            began[record.workload, record.task] = record
        elif isinstance(record, r.Ended):
            start = began.pop((record.workload, record.task))
            out.append(Hold(jobs[record.workload].team, start.t, record.t, round(start.gpus)))
    return out


def run_strict_fifo(jobs: Sequence[Job], gpus: int) -> Outcome:
    """The first job in line holds up all others until it fits; GPUs are one pool."""
    free, now, began = gpus, 0.0, time.perf_counter()
    running: list[tuple[float, int]] = []
    waits, jcts = [], []
    for job in jobs:
        now = max(now, job.arrival_s)
        while running and (running[0][0] <= now or free < job.gpus):
            end, held = heappop(running)
            now, free = max(now, end), free + held
        free -= job.gpus
        heappush(running, (now + job.seconds, job.gpus))
        waits.append(now - job.arrival_s)
        jcts.append(now + job.seconds - job.arrival_s)
    return Outcome(
        waits, jcts, max(j.arrival_s + jct for j, jct in zip(jobs, jcts, strict=True)), time.perf_counter() - began
    )


def row_of(gpus: int, policy: str, known: str, found: Outcome, case: str = "plain") -> dict[str, Any]:
    """A line of the table; times in seconds."""
    wait, jct = np.asarray(found.wait_s), np.asarray(found.jct_s)
    return {
        "gpus": gpus,
        "case": case,
        "policy": policy,
        "durations": known,
        "mean_jct_s": round(float(jct.mean())),
        "p95_jct_s": round(float(np.quantile(jct, 0.95))),
        "p99_jct_s": round(float(np.quantile(jct, 0.99))),
        "max_jct_s": round(float(jct.max())),
        "mean_wait_s": round(float(wait.mean())),
        "p99_wait_s": round(float(np.quantile(wait, 0.99))),
        "max_wait_s": round(float(wait.max())),
        "makespan_s": round(found.makespan_s),
        "preemptions": found.preemptions,
        "lost_s": round(found.lost_s),
        "wall_s": round(found.wall_s, 1),
    }


def measure(jobs: Sequence[Job], gpus: int, arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], Curves]:
    """All variants in all cases on a cluster of this size: the table's lines, and (waits, JCTs) by name."""
    strict = run_strict_fifo(jobs, gpus)
    rows = [row_of(gpus, "strict fifo (pool)", "none", strict)]
    curves = {f"{gpus} GPUs, strict FIFO": (strict.wait_s, strict.jct_s)}
    quotas, teams = quotas_of(jobs, gpus, arguments.seed), [job.team for job in jobs]
    for case in arguments.cases.split(","):
        for policy, known in VARIANTS:
            if arguments.only and f"{policy}:{known}" not in arguments.only.split(","):
                continue
            found = run_engine(jobs, config_of(case, policy, known, gpus, quotas, arguments))
            row = row_of(gpus, policy, known, found, case)
            print(row, file=sys.stderr, flush=True)
            nominal = {spec.name: spec.nominal[1] / 1000 for spec in quotas} if case != "plain" else {}
            work = [job.seconds * job.gpus for job in jobs]
            row["teams"] = rows_by_team(teams, found.wait_s, found.jct_s, work, found.holds, nominal)
            rows.append(row)
            curves[f"{gpus} GPUs, {case}, {policy}, {known}"] = (found.wait_s, found.jct_s)
    return rows, curves


def config_of(
    case: str, policy: str, known: str, gpus: int, quotas: tuple[QueueSpec, ...], arguments: argparse.Namespace
) -> SimConfig:
    """One variant in one case."""
    return SimConfig(
        tuple([SimNode(f"n{i}", 1024.0, NODE_GPUS) for i in range(gpus // NODE_GPUS)]),
        policy=policy,
        durations=Durations(known),
        queues=quotas if case != "plain" else (),
        default_max_wait_s=arguments.max_wait_s,
        preempt=case == "preempt",
        checkpoint_s=arguments.checkpoint_s,
        restart_s=arguments.restart_s,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_jobs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", default="384,512")
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {', '.join(CASES)}, comma separated")
    parser.add_argument("--checkpoint-s", type=float, default=1800.0, help="between checkpoints")
    parser.add_argument("--restart-s", type=float, default=60.0, help="to go on after a stop")
    parser.add_argument("--max-wait-s", type=float, default=None, help="after which a job goes first")
    parser.add_argument("--limit", type=int, default=0, help="only the first jobs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="policy:durations, comma separated")
    parser.add_argument("--plot", metavar="FILE", help="distributions of waits and completion times")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if unknown := set(arguments.cases.split(",")) - set(CASES):
        parser.error(f"unknown case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    if arguments.plot:
        try:
            drawing_library()  # before the long part
        except InputError as error:
            print(error, file=sys.stderr)
            return 2
    data = os.environ.get("EGS_DATA")
    jobs = load_jobs(data, arguments.limit)
    rows: list[dict[str, Any]] = []
    curves: Curves = {}
    for gpus in arguments.gpus.split(","):
        lines, drawn = measure(jobs, int(gpus), arguments)
        rows += lines
        curves.update(drawn)
    if arguments.plot:
        draw_cdfs(curves, Path(arguments.plot))
    source = "Philly, a week" if data else "drawn (set EGS_DATA for the trace)"
    print(json.dumps({"jobs": len(jobs), "source": source, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
