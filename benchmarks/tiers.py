"""Which GPU each job should ask for: what `egs profile`'s advice saves, and how far it is from what was best.

    python -m benchmarks.tiers [--jobs 3000] [--runs 3] [--noise 0.1]

How fast each type of job is on each flavor is Gavel's measured table, prices are those of `heterogeneous` (without
EGS_DATA the table is drawn, and the result says so). Two suites:

    drawn        jobs of one GPU as in `heterogeneous`, types uniform over the table
    trace        Gavel's trace (MIT) of a cluster at Microsoft: arrivals, lengths and GPUs, 1 to 4, of its jobs, which
                 Gavel gave types; the worth of an hour is set on the first half, figures are of the second (EGS_DATA)

A type, on so many GPUs, is profiled: `runs` times on each flavor, each time with a log-normal error of so much. Then
each job asks for one flavor, by:

    newest       all ask for a V100, as who knows nothing of their job does
    habit        each type asks for one that was drawn for it
    static       the one flavor for all that is best, known afterwards
    egs          what `recommend` says of the profile
    best         the best flavor for each job by its true speeds, known afterwards

At equal time: what an hour is worth is set on other jobs so that the mean time of egs is that of the one that it is
compared with. Devices are there for all, so a job's time is its run time: no queue. Regret is of what is counted then:
money and the worth of time. With deadlines, and with at most twice the fastest time, it is of money, counted only
where more was paid, beside the share of jobs that are late, or slower than that.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.heterogeneous import FLAVORS, NAMES, STRICT, Job, Speeds, draw_jobs, load_speeds
from egs_core.engine.specs import HOUR_S, STRETCH
from egs_core.profiling.tiers import Measured, Tier, Wishes, recommend

PRICES = {flavor.name: flavor.gpu_hour for flavor in FLAVORS}
TIERS = tuple([Tier(name, price) for name, price in PRICES.items()])
SAMPLE_S = 300.0  # of a profile's run on a V100
TUNE_SEEDS, TEST_SEEDS, PROFILE_SEEDS = range(3), range(10, 13), range(100, 105)
Profile = dict[str, list[Measured]]  # by type of job
Pick = Callable[[Job], str]


def trace_of(data: str, speeds: Speeds) -> list[Job]:
    """The trace's jobs of a size that the table has, in order; their deadlines are drawn as `heterogeneous` does."""
    draw, jobs = random.Random(0), []
    rows = (Path(data) / "gpu" / "gavel_msr_seed0_103959.trace").read_text().splitlines()
    for number, row in enumerate(rows):
        kind, _, _, _, steps, at, gpus = row.split("\t")
        if rates := speeds.get((kind, int(gpus))):
            seconds = {flavor: float(steps) / rate for flavor, rate in rates.items()}
            deadline = draw.choice(STRICT) * min(seconds.values())
            jobs.append(Job(str(number), type_of(kind, int(gpus)), float(at), seconds, int(gpus), deadline))
    return jobs


def type_of(kind: str, gpus: int) -> str:
    return kind if gpus == 1 else f"{kind}, {gpus} GPUs"


def profile_of(speeds: Speeds, kinds: Container[str], runs: int, noise: float, seed: int) -> Profile:
    """Runs of each of these types on each flavor that has it; noise: of the logarithm of their seconds."""
    draw, found = random.Random(seed), Profile()
    for (name, gpus), rates in sorted(speeds.items()):
        kind = type_of(name, gpus)
        for flavor, rate in rates.items() if kind in kinds else ():
            for _ in range(runs):
                seconds = SAMPLE_S * rates[NAMES[0]] / rate * math.exp(draw.gauss(0.0, noise))
                found.setdefault(kind, []).append(Measured(flavor, seconds, gpus))
    return found


def advised(profile: Profile, wishes: Callable[[Job], Wishes]) -> Pick:
    """What `recommend` says of each job. A deadline is told in seconds of the profile's short run."""
    known: dict[tuple[str, Wishes], str] = {}

    def pick(job: Job) -> str:
        key = job.type, wishes(job)
        if key not in known:
            found = recommend(profile[job.type], TIERS, key[1])
            assert found is not None
            known[key] = found.flavor
        return known[key]

    return pick


def best(value: Callable[[Job, str], float]) -> Pick:
    return lambda job: min(job.seconds, key=lambda flavor: (value(job, flavor), flavor))


def cost(job: Job, flavor: str) -> float:
    return PRICES[flavor] * job.gpus * job.seconds[flavor] / HOUR_S


def with_worth(worth: float) -> Callable[[Job, str], float]:
    return lambda job, flavor: cost(job, flavor) + worth * job.seconds[flavor] / HOUR_S


def mean(jobs: Sequence[Job], pick: Pick, value: Callable[[Job, str], float]) -> float:
    return sum(value(job, pick(job)) for job in jobs) / len(jobs)


def seconds(job: Job, flavor: str) -> float:
    return job.seconds[flavor]


def worth_for(jobs: Sequence[Job], profile: Profile, time_s: float) -> float:
    """The least worth of an hour with which the mean time of what is advised is at most this."""
    low, high = 0.0, 64.0
    for _ in range(12):
        middle = (low + high) / 2
        wishes = Wishes(hour_worth=middle)
        chosen = {kind: found.flavor for kind, each in profile.items() if (found := recommend(each, TIERS, wishes))}
        if mean(jobs, lambda job, chosen=chosen: chosen[job.type], seconds) > time_s:  # type: ignore[misc]  # its default
            low = middle
        else:
            high = middle
    return high


def drawn(speeds: Speeds, count: int, seeds: Sequence[int]) -> list[Job]:
    return [job for seed in seeds for job in draw_jobs(speeds, count, 4.0, seed, sizes=False)]


def measure(speeds: Speeds, tuned: Sequence[Job], jobs: Sequence[Job], runs: int, noise: float) -> dict[str, Any]:
    """All figures, each the mean over profiles of several seeds; `most_regret` the largest of them."""
    tuned, jobs = _everywhere(tuned), _everywhere(jobs)
    draw = random.Random(5)
    kinds = {job.type for job in (*tuned, *jobs)}
    habits = {kind: draw.choice(NAMES) for kind in sorted(kinds)}
    rivals: dict[str, Pick] = {"newest": lambda _: NAMES[0], "habit": lambda job: habits[job.type]}
    rivals |= {f"static {name}": (lambda _, name=name: name) for name in NAMES[1:]}  # type: ignore[misc]  # its default
    profiles = [profile_of(speeds, kinds, runs, noise, seed) for seed in PROFILE_SEEDS]
    against = [_mean([_against(name, rival, tuned, jobs, one) for one in profiles]) for name, rival in rivals.items()]
    bounded = [_mean(list(rows)) for rows in zip(*[_bounded(jobs, one) for one in profiles], strict=True)]
    return {"jobs": len(jobs), "types": len({job.type for job in jobs}), "equal_time": against, "bounded": bounded}


def _mean(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of numbers the mean, of words what most say."""
    found: dict[str, Any] = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        found[name] = max(values, key=values.count) if isinstance(first, str) else round(sum(values) / len(values), 4)
    return found | {"most_regret": max(row["regret"] for row in rows)}


def _everywhere(jobs: Sequence[Job]) -> list[Job]:
    """Those whose type runs on all flavors: else some could not be asked for."""
    return [job for job in jobs if len(job.seconds) == len(NAMES)]


def _against(name: str, rival: Pick, tuned: Sequence[Job], jobs: Sequence[Job], profile: Profile) -> dict[str, Any]:
    """At equal mean time: money, and the regret against the best flavor for each job."""
    worth = worth_for(tuned, profile, mean(tuned, rival, seconds))
    value = with_worth(worth)
    own = advised(profile, lambda _: Wishes(hour_worth=worth))
    statics = {
        flavor: mean(jobs, lambda _, flavor=flavor: flavor, value)  # type: ignore[misc]  # its default
        for flavor in NAMES
    }
    static = min(statics, key=lambda flavor: statics[flavor])
    paid, theirs = mean(jobs, own, cost), mean(jobs, rival, cost)
    return {
        "against": name,
        "hour_worth": round(worth, 3),
        "cost": round(theirs, 3),
        "egs_cost": round(paid, 3),
        "saved": round(1 - paid / theirs, 4),
        "time_ratio": round(mean(jobs, own, seconds) / mean(jobs, rival, seconds), 4),
        "best_static": static,
        "below_best_static": round(1 - mean(jobs, own, value) / statics[static], 4),
        "regret": round(mean(jobs, own, value) / mean(jobs, best(value), value) - 1, 4),
    }


def _bounded(jobs: Sequence[Job], profile: Profile) -> list[dict[str, Any]]:
    """Money alone, where time is bounded by a deadline, or by a multiple of the fastest."""

    def deadline(job: Job) -> Wishes:
        return Wishes(deadline_s=job.deadline_s * SAMPLE_S / job.seconds[NAMES[0]])

    limits: dict[str, tuple[Callable[[Job], Wishes], Callable[[Job], float]]] = {
        "deadline": (deadline, lambda job: job.deadline_s),
        "stretch": (lambda _: Wishes(), lambda job: STRETCH * min(job.seconds.values())),
    }
    rows = []
    for name, (wishes, until) in limits.items():
        own, more, late, paid, hindsight, newest = advised(profile, wishes), 0.0, 0, 0.0, 0.0, 0.0
        for job in jobs:
            allowed = [flavor for flavor in job.seconds if job.seconds[flavor] <= until(job)]
            least = min(cost(job, flavor) for flavor in allowed)
            picked = own(job)
            late += picked not in allowed
            more += max(0.0, cost(job, picked) - least) if picked in allowed else 0.0
            paid, hindsight, newest = paid + cost(job, picked), hindsight + least, newest + cost(job, NAMES[0])
        rows.append(
            {
                "bound": name,
                "saved_of_newest": round(1 - paid / newest, 4),
                "best_saves": round(1 - hindsight / newest, 4),
                "regret": round(more / hindsight, 4),
                "over_bound": round(late / len(jobs), 4),
            }
        )
    return rows


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join("  ".join(f"{name} {value}" for name, value in row.items()) for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=3000, help="of each seed")
    parser.add_argument("--runs", type=int, default=3, help="of each type on each flavor, in a profile")
    parser.add_argument("--noise", type=float, default=0.1, help="of the logarithm of what a run takes")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    data = os.environ.get("EGS_DATA")
    speeds = load_speeds(data)
    count = arguments.jobs
    suites = {"drawn": (drawn(speeds, count, TUNE_SEEDS), drawn(speeds, count, TEST_SEEDS))}
    if data:
        traced = trace_of(data, speeds)
        suites["trace"] = traced[: len(traced) // 2], traced[len(traced) // 2 :]
    for name, (tuned, jobs) in suites.items():
        found = measure(speeds, tuned, jobs, arguments.runs, arguments.noise) | {"suite": name}
        found |= {"runs": arguments.runs, "noise": arguments.noise, "table": "Gavel's" if data else "drawn"}
        if arguments.json:
            print(json.dumps(found))
            continue
        print(f"{name}: {found['jobs']} jobs of {found['types']} types, {found['table']} table")
        print(_table([*found["equal_time"], *found["bounded"]]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
