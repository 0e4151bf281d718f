"""Baselines for `heterogeneous` that the engine is not made for: jobs change devices at every round, without a cost.

    max-min   Gavel's least attained service made aware of flavors: the allocation (share of time of each job on each
              flavor) whose worst-off job, against an equal share of the cluster, is best off; a linear program
    srpt      each round the job with the least left goes first, to the flavor on which it is fastest of those left

Both follow Gavel's mechanism (Narayanan et al., OSDI 2020): rounds of six minutes, jobs that have had the least of what
they are due first. Jobs are not packed together on one device (space sharing), and moving costs nothing: that favours
them against an engine that leaves a job where it has started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

import numpy as np

ROUND_S = 360.0
Shares = dict[tuple[int, str], float]  # (job, flavor) -> share of the time that is due to it


class Job(Protocol):
    """What a baseline needs to know of a job; seconds by flavor, left out where it cannot run."""

    @property
    def arrival_s(self) -> float: ...
    @property
    def seconds(self) -> Mapping[str, float]: ...
    @property
    def gpus(self) -> int: ...


Allocate = Callable[[Sequence[int], Sequence[Any], Mapping[int, float], Mapping[str, int]], Shares]


def max_min(
    active: Sequence[int], jobs: Sequence[Any], _left: Mapping[int, float], capacity: Mapping[str, int]
) -> Shares:
    """Gavel's objective: maximise the least normalised throughput; ties by the sum, which keeps devices at work."""
    optimize, sparse = import_module("scipy.optimize"), import_module("scipy.sparse")
    columns = [(job, flavor) for job in active for flavor in jobs[job].seconds]
    rows: list[tuple[int, int, float]] = []
    number = {job: i for i, job in enumerate(active)}
    flavors = {flavor: len(active) + i for i, flavor in enumerate(capacity)}
    first_speed = len(active) + len(capacity)
    total, gain = sum(capacity.values()), np.zeros(len(columns) + 1)
    for column, (job, flavor) in enumerate(columns):
        equal = sum(capacity[f] / total / s for f, s in jobs[job].seconds.items())
        speed = jobs[job].gpus / jobs[job].seconds[flavor] / equal
        rows += [(number[job], column, 1.0), (flavors[flavor], column, float(jobs[job].gpus))]
        rows.append((first_speed + number[job], column, -speed))
        gain[column] = -1e-4 * speed / len(active)
    rows += [(first_speed + i, len(columns), 1.0) for i in range(len(active))]
    gain[-1] = -1.0
    limits = [1.0] * len(active) + [float(c) for c in capacity.values()] + [0.0] * len(active)
    i, j, value = zip(*rows, strict=True)
    matrix = sparse.coo_matrix((value, (i, j)), shape=(len(limits), len(columns) + 1))
    found = optimize.linprog(gain, A_ub=matrix, b_ub=limits, method="highs")
    return {column: float(share) for column, share in zip(columns, found.x[:-1], strict=True) if share > 1e-6}


def srpt(active: Sequence[int], jobs: Sequence[Any], left: Mapping[int, float], capacity: Mapping[str, int]) -> Shares:
    """Shortest remaining time first, each on the fastest flavor with room."""
    free, shares = dict(capacity), Shares()
    for job in sorted(active, key=lambda j: (left[j] * min(jobs[j].seconds.values()), j)):
        room = [f for f in jobs[job].seconds if free[f] >= jobs[job].gpus]
        if room:
            best = min(room, key=lambda f: jobs[job].seconds[f])
            free[best] -= jobs[job].gpus
            shares[job, best] = 1.0
    return shares


def run_rounds(
    jobs: Sequence[Any], capacity: Mapping[str, int], allocate: Allocate, again: bool
) -> tuple[list[float], list[dict[str, float]]]:
    """When each job ends, and the seconds it held each flavor for. again: allocate in every round, not only when jobs
    have come or gone. A job that ends within a round frees its devices at the end of the round."""
    left = dict.fromkeys(range(len(jobs)), 1.0)  # share of its work
    ends, held = [0.0] * len(jobs), [dict[str, float]() for _ in jobs]
    had: dict[tuple[int, str], float] = {}  # rounds that a job was given, by flavor, since the last allocation
    shares: Shares = {}
    active: list[int] = []
    at, arrived, changed = 0.0, 0, True
    while arrived < len(jobs) or active:
        if not active and jobs[arrived].arrival_s > at:
            at = jobs[arrived].arrival_s
        while arrived < len(jobs) and jobs[arrived].arrival_s <= at:
            active.append(arrived)
            arrived, changed = arrived + 1, True
        if changed or again:
            shares, had, changed = allocate(active, jobs, left, capacity), {}, False
        for job, flavor in _pick(active, jobs, shares, had, capacity):
            seconds = jobs[job].seconds[flavor]
            had[job, flavor] = had.get((job, flavor), 0.0) + 1.0
            used = min(ROUND_S, left[job] * seconds)
            held[job][flavor] = held[job].get(flavor, 0.0) + used
            left[job] -= used / seconds
            if left[job] <= 1e-9:
                ends[job], changed = at + used, True
        active = [job for job in active if left[job] > 1e-9]
        at += ROUND_S
    return ends, held


def _pick(
    active: Sequence[int],
    jobs: Sequence[Any],
    shares: Shares,
    had: Mapping[tuple[int, str], float],
    capacity: Mapping[str, int],
) -> list[tuple[int, str]]:
    """Who runs where in this round: those furthest behind what is due to them first, then whoever fits (a device is
    not left idle while a job has none)."""
    due = sorted(shares, key=lambda pair: (-shares[pair] / (had.get(pair, 0.0) + 1e-3), pair))
    rest = [(job, flavor) for job in active for flavor in sorted(jobs[job].seconds, key=jobs[job].seconds.__getitem__)]
    free, busy, picked = dict(capacity), set[int](), list[tuple[int, str]]()
    for job, flavor in [*due, *rest]:
        if job not in busy and free[flavor] >= jobs[job].gpus:
            free[flavor] -= jobs[job].gpus
            busy.add(job)
            picked.append((job, flavor))
    return picked
