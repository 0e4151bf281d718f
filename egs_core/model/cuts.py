"""An order of the operators cut into runs, one a device, by dynamic programming: `a b c│d e│f g h`.

As PipeDream (SOSP 2019) does for chains; here devices may differ. A state is how many devices of each kind are used:

    value[state, j] = min over kind and i of  value[state without one of this kind, i] ⊕ run(i, j on this kind) ⊕ cut(i)

with ⊕ the sum for `request` and the maximum for `stream`. What a cut costs is taken as if all that crosses it went over
one link, so who calls evaluates what comes out anew.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise, product
from math import prod
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from egs_core.model.instance import Device
from egs_core.model.levels import Level
from egs_core.model.loss import Objective

MOST_CUTS = 256
MOST_STATES = 500
GIVEN = 3
"""Assignments for one order, with different devices in use."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


Run = tuple[int, int, int]
"""A device, and the first place of its run and of the next one."""


class _Stage(msgspec.Struct, frozen=True):
    """One step of the program: a device appended to those of an earlier state. number None: none appended."""

    before: int
    number: int | None


class _Values(msgspec.Struct):
    """Of one state: the least seconds up to each cut; with which last stage, and from which cut on."""

    seconds: Floats
    stage: list[_Stage | None]
    begun: list[int]


def contiguous(
    level: Level, order: Sequence[int], devices: Sequence[Device], objective: Objective, idle_s: float
) -> Iterator[list[int]]:
    """The best cuts of an order for some sets of devices, the most promising set first. idle_s: as in `starts`."""
    cut_s = np.asarray(cut_seconds(level, order, objective))

    def best(cuts: Ints) -> list[list[Run]]:
        runs = _runs(level, order, cuts, cut_s[cuts], devices, objective)
        return _ranked(_program(devices, runs, len(cuts), objective), cuts, devices, idle_s)

    cuts = _cut_points(cut_s)
    found = best(cuts)
    if found and len(cuts) < len(cut_s):
        found += best(_around(found[0], len(order)))
    for split in found:
        assignment = [0] * len(order)
        for d, begin, end in split:
            for p in range(begin, end):
                assignment[order[p]] = d
        yield assignment


def _ranked(values: list[_Values], cuts: Ints, devices: Sequence[Device], idle_s: float) -> list[list[Run]]:
    """The runs of the best states, idle memory considered: it depends on the devices alone."""
    ranked = []
    for k, value in enumerate(values):
        if np.isfinite(value.seconds[-1]):
            held = sum(devices[d].memory for d, _, _ in _walked(values, k))
            ranked.append((float(value.seconds[-1]) + idle_s * held, k))
    return [
        [(d, int(cuts[begin]), int(cuts[end])) for d, begin, end in _walked(values, k)]
        for _, k in sorted(ranked)[:GIVEN]
    ]


def cut_seconds(level: Level, order: Sequence[int], objective: Objective) -> list[float]:
    """What a cut before each position of the order costs, and after the last: the transfers across it, one after the
    other in `stream`, the longest in `request`."""
    place = [0] * len(order)
    for p, i in enumerate(order):
        place[i] = p
    found, open_, total = [0.0], list[tuple[float, int]](), 0.0
    ending = [0.0] * (len(order) + 1)
    for p in range(len(order) - 1):
        total -= ending[p]
        for j, transfer_s in level.outputs[order[p]]:
            total += transfer_s
            ending[place[j]] += transfer_s
            heapq.heappush(open_, (-transfer_s, place[j]))
        while open_ and open_[0][1] <= p:
            heapq.heappop(open_)
        longest = -open_[0][0] if open_ else 0.0
        found.append(max(total, 0.0) if objective == "stream" else longest)
    return [*found, 0.0]


def _cut_points(cut_s: Floats) -> Ints:
    """Where it may be cut: everywhere, or at the cheapest place of each of MOST_CUTS stretches; both ends besides."""
    last = len(cut_s) - 1
    bounds = np.unique(np.linspace(1, last, min(MOST_CUTS, last) + 1).astype(np.int64)).tolist()
    inner = [a + int(np.argmin(cut_s[a:b])) for a, b in pairwise(bounds)]
    return np.array(sorted({0, last, *inner}), dtype=np.int64)


def _around(runs: list[Run], last: int) -> Ints:
    """Every place near the cuts of a split, as far as there may be places; the coarse cuts fill no device."""
    inner = [begin for _, begin, _ in runs if begin]
    reach = MOST_CUTS // max(1, len(inner))
    near = {p for cut in inner for p in range(max(0, cut - reach), min(last, cut + reach + 1))}
    return np.array(sorted({0, last, *near}), dtype=np.int64)


def _states(devices: Sequence[Device]) -> list[list[_Stage]]:
    """The states of the program, each after those that it comes from: how many devices of each kind are used, or, where
    these are too many, the first devices of one order, fastest first."""
    kinds: dict[tuple[int, float], list[int]] = {}
    for d, device in enumerate(devices):
        kinds.setdefault((device.memory, device.speed), []).append(d)
    groups = list(kinds.values())
    if prod(len(group) + 1 for group in groups) > MOST_STATES:
        order = sorted(range(len(devices)), key=lambda d: (-devices[d].speed, -devices[d].memory))
        return [[], *([_Stage(k, d), _Stage(k, None)] for k, d in enumerate(order))]
    counts = list(product(*(range(len(group) + 1) for group in groups)))
    number = {count: k for k, count in enumerate(counts)}
    return [
        [
            _Stage(number[(*count[:g], count[g] - 1, *count[g + 1 :])], group[count[g] - 1])
            for g, group in enumerate(groups)
            if count[g]
        ]
        for count in counts
    ]


def _runs(
    level: Level, order: Sequence[int], cuts: Ints, cut_s: Floats, devices: Sequence[Device], objective: Objective
) -> list[Floats]:
    """For each device the seconds of a run from one cut to another, the cut before it included; infinite where it does
    not fit. Equal devices share theirs."""
    seconds, sizes = (_between([of[i] for i in order], cuts) for of in (level.seconds, level.sizes))
    forward = np.arange(len(cuts))[:, None] < np.arange(len(cuts))[None, :]
    found: dict[tuple[int, float], Floats] = {}
    for device in devices:
        if (device.memory, device.speed) not in found:
            run_s = np.where(forward & (sizes <= device.memory), seconds / device.speed, np.inf)
            both = run_s + cut_s[:, None] if objective == "request" else np.maximum(run_s, cut_s[:, None])
            found[device.memory, device.speed] = both
    return [found[device.memory, device.speed] for device in devices]


def _between(amounts: Sequence[float], cuts: Ints) -> npt.NDArray[Any]:
    """The sum of what lies between each two cuts. Whole numbers stay exact."""
    sums = [0, *accumulate(amounts)]
    at = np.array([sums[p] for p in cuts])
    return np.asarray(at[None, :] - at[:, None])


def _program(devices: Sequence[Device], runs: list[Floats], width: int, objective: Objective) -> list[_Values]:
    """The states' values, in the order of `_states`."""
    found: list[_Values] = []
    every = np.arange(width)
    for stages in _states(devices):
        value = _Values(np.full(width, np.inf), [None] * width, [0] * width)
        if not stages:
            value.seconds[0] = 0.0
        for stage in stages:
            before = found[stage.before].seconds
            if stage.number is None:
                seconds, begun = before, every
            else:
                run_s = runs[stage.number]
                ways = before[:, None] + run_s if objective == "request" else np.maximum(before[:, None], run_s)
                begun = ways.argmin(axis=0)
                seconds = ways[begun, every]
            for j in np.flatnonzero(seconds < value.seconds).tolist():
                value.stage[j], value.begun[j] = stage, int(begun[j])
            value.seconds = np.minimum(value.seconds, seconds)
        found.append(value)
    return found


def _walked(values: list[_Values], k: int) -> Iterator[tuple[int, int, int]]:
    """The runs of a state back from the end: device, first and last cut."""
    at = len(values[k].begun) - 1
    while (stage := values[k].stage[at]) is not None:
        if stage.number is not None:
            yield stage.number, values[k].begun[at], at
        k, at = stage.before, values[k].begun[at]
