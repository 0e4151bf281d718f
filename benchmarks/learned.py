"""Orders that are learned: mean completion time beside the best fixed order, chosen in hindsight for each suite.

    EGS_DATA=DIR python -m benchmarks.learned [--suites streams,mixed,short,jobs,week] [--seeds 2] [--first-seed 100]

Each suite is a few streams of workloads in one queue, simulated once with each order that a queue may state, and once
with `order: learned` (`egs_core.sim.advisor`), whose roll-outs know what the engine believes and nothing else.

    streams   as `benchmarks.streams`, 120 workloads each, durations predicted or unknown (blind)
    mixed     as `benchmarks.cold_starts`: workflows with CPU and GPU phases and processes that load, on 16 GPUs
    short     400 jobs of 5 to 30 s on four slots, whose lengths are believed with a log-normal error (sigma 0.3)
    jobs      a thousand GPU jobs in a row of a week of Philly's (drawn without EGS_DATA), durations predicted
    week      the first 3,000 of them on 192 GPUs, which have too much to do for a day

The seeds are none of those by which anything was tuned (0 to 9). `over_best` is the mean over that of the best fixed
order, `hindsight` what that one gains over the default, `share` what part of it the learned order gained.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import exp
from typing import Any

import msgspec
import numpy as np

from benchmarks import cold_starts, gpu_jobs, overlay, streams
from benchmarks.single_dags_instances import load_instances
from egs_core.engine.specs import LEARNED, ORDERS, QueueSpec
from egs_core.engine.state.histories import Z95
from egs_core.errors import InputError
from egs_core.graph.columns import CPU, Graph, Shape
from egs_core.graph.load import LoadedWorkload
from egs_core.sim import Durations, SimConfig, SimNode
from egs_core.sim.simulator import Estimator, Simulation

SIDES = (*ORDERS, LEARNED)
LENGTH, LARGEST, SLOTS = 120, 220, 32  # of a stream: workloads, tasks of the largest, slots
MIXED = 40  # workflows of a mixed stream
JOBS = 1000
JOB_GPUS = (96, 128)
SHORT_JOBS, SHORT_SLOTS = 400, 4
QUEUE = "q"


class Stream(msgspec.Struct):
    """Workloads of one suite. estimator: made anew for each run, as it may learn while that lasts."""

    suite: str
    workloads: list[LoadedWorkload]
    config: SimConfig
    estimator: Callable[[], Estimator | gpu_jobs.Learner] | None = None


def in_queue(workloads: Sequence[LoadedWorkload]) -> list[LoadedWorkload]:
    return [msgspec.structs.replace(workload, queue=QUEUE) for workload in workloads]


def stream_suites(data: str | None, seeds: Sequence[int]) -> Iterator[Stream]:
    """Loads of 0.9 and 1.1, with predictions and without."""
    instances = load_instances(data, LARGEST)
    for seed in seeds:
        drawn = streams.drawn_workloads(instances, LENGTH, seed)
        beliefs = streams.learned(drawn)
        numbers = {workload.id: number for number, workload in enumerate(drawn)}

        def believed(workload: LoadedWorkload, phase: int) -> tuple[float, float]:
            return beliefs[numbers[workload.id]][phase]  # noqa: B023  # used before the next seed is drawn

        for load in (0.9, 1.1):
            came = in_queue(streams.arrive(drawn, load, SLOTS, seed))
            for durations in (Durations.PREDICTED, Durations.BLIND):
                config = SimConfig(slots=SLOTS, durations=durations, search_placements=0, records=False)
                yield Stream(f"streams {load:g} {durations}", came, config, lambda: believed)  # as above


def mixed_suites(seeds: Sequence[int]) -> Iterator[Stream]:
    """Loads of 0.8 and 1.2."""
    templates = overlay.make_templates(overlay.load_graphs(), cold_starts.RULE_SEED)
    gpus = cold_starts.NODES * cold_starts.GPUS_A_NODE
    earlier = overlay.make_stream(templates, cold_starts.EARLIER, gpus, 1.0, cold_starts.EARLIER_SEED)
    beliefs = overlay.Beliefs(earlier)
    config = SimConfig(nodes=cold_starts.cluster(), durations=Durations.PREDICTED, records=False)
    for seed in seeds:
        for load in (0.8, 1.2):
            came = in_queue(overlay.make_stream(templates, MIXED, gpus, load, seed))
            yield Stream(f"mixed {load:g}", came, config, lambda: beliefs)


def short_suites(seeds: Sequence[int]) -> Iterator[Stream]:
    """All of one class of remaining work. Loads of 0.9 and 1.1."""
    for seed in seeds:
        for load in (0.9, 1.1):
            draw, at_s, came = random.Random(f"short {seed} {load}"), 0.0, []
            beliefs: dict[str, tuple[float, float]] = {}
            for number in range(SHORT_JOBS):
                seconds, graph = draw.uniform(5.0, 30.0), Graph()
                at_s += draw.expovariate(load * SHORT_SLOTS / 17.5)
                graph.add_task("job", (), ((CPU, Shape(), seconds),))
                came.append(LoadedWorkload(str(number), "job", "", QUEUE, at_s, graph))
                median = seconds * draw.lognormvariate(0.0, streams.SIGMA)
                beliefs[str(number)] = (median, median * exp(streams.SIGMA * Z95))
            config = SimConfig(slots=SHORT_SLOTS, durations=Durations.PREDICTED, search_placements=0, records=False)
            yield Stream(f"short {load:g}", came, config, partial(_believed_by_id, beliefs))


def _believed_by_id(beliefs: dict[str, tuple[float, float]]) -> Estimator:
    return lambda workload, _: beliefs[workload.id]


def job_suites(data: str | None, name: str, count: int, length: int, sizes: Sequence[int]) -> Iterator[Stream]:
    """Every other so many of the jobs, on clusters of these sizes."""
    jobs = gpu_jobs.load_jobs(data, 0)
    for number in range(count):
        some = jobs[2 * number * length : (2 * number + 1) * length]
        if not some:
            return
        some = [msgspec.structs.replace(job, arrival_s=job.arrival_s - some[0].arrival_s) for job in some]
        came = in_queue([gpu_jobs.workload_of(job) for job in some])
        for gpus in sizes:
            nodes = tuple([SimNode(f"n{i}", 1024.0, gpu_jobs.NODE_GPUS) for i in range(gpus // gpu_jobs.NODE_GPUS)])
            config = SimConfig(nodes, durations=Durations.PREDICTED)
            yield Stream(f"{name} {gpus} GPUs", came, config, lambda: gpu_jobs.Learner(some))  # noqa: B023  # run at once


def run(stream: Stream, order: str) -> tuple[float, int, float]:
    """Mean completion time, changes of the order, and seconds that it took."""
    config = msgspec.structs.replace(stream.config, queues=(QueueSpec(QUEUE, order=order),))
    estimator = stream.estimator() if stream.estimator is not None else None
    began = time.perf_counter()
    simulation = Simulation(stream.workloads, config, estimator)
    if isinstance(estimator, gpu_jobs.Learner):
        estimator.simulation = simulation
    jct_s = simulation.run().jct_s
    changes = simulation.advisors.by_queue[QUEUE].changes if simulation.advisors is not None else 0
    return float(np.mean(jct_s)), changes, time.perf_counter() - began


def measure(suites: Iterator[Stream]) -> list[dict[str, Any]]:
    """A row a suite: means over its streams, which count alike."""
    found: dict[str, dict[str, list[tuple[float, int, float]]]] = {}
    for stream in suites:
        sides = found.setdefault(stream.suite, {side: [] for side in SIDES})
        for side in SIDES:
            sides[side].append(run(stream, side))
        print(stream.suite, {side: round(sides[side][-1][0], 1) for side in SIDES}, file=sys.stderr, flush=True)
    return [row_of(suite, sides) for suite, sides in found.items()]


def row_of(suite: str, sides: dict[str, list[tuple[float, int, float]]]) -> dict[str, Any]:
    means = {side: float(np.mean([mean for mean, _, _ in runs])) for side, runs in sides.items()}
    best = min(ORDERS, key=lambda order: means[order])
    gained, possible = means[ORDERS[0]] - means[LEARNED], means[ORDERS[0]] - means[best]
    return {
        "suite": suite,
        "streams": len(sides[LEARNED]),
        **{f"{side}_s": round(mean, 1) for side, mean in means.items()},
        "best": best,
        "over_best": round(means[LEARNED] / means[best], 4),
        "hindsight": round(possible / means[ORDERS[0]], 4),
        "share": round(gained / possible, 3) if possible > 0 else None,
        "changes": round(float(np.mean([changes for _, changes, _ in sides[LEARNED]])), 1),
        "wall_s": round(sum(seconds for _, _, seconds in sides[LEARNED]), 1),
    }


def suites_of(names: str, data: str | None, seeds: Sequence[int]) -> Iterator[Stream]:
    """InputError for an unknown name."""
    makers: dict[str, Callable[[], Iterator[Stream]]] = {
        "streams": lambda: stream_suites(data, seeds),
        "mixed": lambda: mixed_suites(seeds),
        "short": lambda: short_suites(seeds),
        "jobs": lambda: job_suites(data, "jobs", len(seeds), JOBS, JOB_GPUS),
        "week": lambda: job_suites(data, "week", 1, 3 * JOBS, (192,)),
    }
    for name in names.split(","):
        if name not in makers:
            raise InputError("--suites", f"unknown {name!r}", f"of {', '.join(makers)}")
    for name in names.split(","):
        yield from makers[name]()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learned", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suites", default="streams,mixed,short,jobs,week", help="comma separated")
    parser.add_argument("--seeds", type=int, default=2, help="streams of each suite")
    parser.add_argument("--first-seed", type=int, default=100)
    arguments = parser.parse_args()
    data = os.environ.get("EGS_DATA")
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    try:
        rows = measure(suites_of(arguments.suites, data, seeds))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    source = "EGS_DATA" if data else "drawn (set EGS_DATA for public graphs and jobs)"
    print(json.dumps({"suite": "learned", "source": source, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
