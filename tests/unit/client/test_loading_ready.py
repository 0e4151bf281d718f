"""What it is worth that processes stand ready between runs, too, in the streams of `test_loading`, by counts."""

from __future__ import annotations

import heapq
import random
from typing import NamedTuple

import pytest

from egs_core.client.keeper import WORTH_S
from egs_core.demand import MOST_TIMES, how_many, next_s
from tests.unit.streams import short_pipelines

LOAD_S = 5.0
LENGTH_S = 3 * 3600.0
MOST = 6
LINES = 6


class Line:
    """What a keeper knows of one. begun: when the loading of each began that stands."""

    load_s = LOAD_S

    def __init__(self) -> None:
        self.came_s: list[float] = []
        self.begun: list[float] = []
        self.held_s = 0.0

    @property
    def standing(self) -> int:
        return len(self.begun)

    def go_on(self, now_s: float, until_s: float, worth_s: float) -> None:
        while now_s < until_s:
            wanted = how_many(self, now_s, MOST, worth_s)
            self.begun = self.begun[:wanted] + [now_s] * (wanted - len(self.begun))
            step_s = 1.0 if self.begun else next_s([self], now_s, 60.0) - now_s
            step_s = min(step_s, until_s - now_s)
            self.held_s += step_s * len(self.begun)
            now_s += step_s


class Worth(NamedTuple):
    """warm: the share of runs that find all loaded; memory: times that of an oracle, with the runs' own."""

    warm: float
    memory: float


def played(seed: int, gpus: int, load: float, worth_s: float = WORTH_S) -> Worth:
    """Runs of one GPU in the order in which they come, on so many: each takes what stands ready when it is among the
    next, else it begins to load then. Those that wait for longer than that are no demand. load: the part of the time
    for which the GPUs have work."""
    came = short_pipelines(seed)
    draw = random.Random(seed)
    shares = [draw.expovariate(1.0) for _ in range(LINES)]
    lengths = [shares[number] * draw.uniform(0.9, 1.1) for _, number in came]
    work_s = load * gpus * LENGTH_S
    lengths = [one * work_s / sum(lengths) for one in lengths]
    lines = [Line() for _ in range(LINES)]
    free, starts, now_s, warm, held_s, cold_s = [0.0] * gpus, list[float](), 0.0, 0, 0.0, 0.0
    for (at, number), length_s in zip(came, lengths, strict=True):
        is_next = max(at, starts[-gpus] if len(starts) >= gpus else 0.0)
        for line in lines:
            line.go_on(now_s, is_next, worth_s)
        now_s, line = is_next, lines[number]
        start = max(is_next, free[0])
        starts.append(start)
        if start - now_s < LOAD_S:
            line.came_s = [*line.came_s, now_s][-MOST_TIMES:]
        begun = line.begun.pop(0) if line.begun else now_s
        held_s += start - now_s
        missing_s = max(0.0, LOAD_S - (start - begun))
        warm, cold_s = warm + (not missing_s), cold_s + missing_s
        heapq.heapreplace(free, start + length_s + missing_s)
    held_s += sum(line.held_s for line in lines)
    return Worth(warm / len(came), (work_s + held_s + cold_s) / (work_s + len(came) * LOAD_S))


@pytest.mark.parametrize("gpus", [1, 2, 4])
@pytest.mark.parametrize("load", [0.5, 0.7, 0.9])
def test_what_it_is_worth_in_streams_of_short_pipelines(gpus: int, load: float) -> None:
    """At any load more than four in five find all loaded; without, at half load, a third of those on four GPUs did. It
    takes less than twice an oracle's memory where runs take several times what loading takes."""
    for seed in range(2):
        found = played(seed, gpus, load)
        print(f"{gpus} GPUs, load {load}, seed {seed}: {found.warm:.1%} warm, {found.memory:.2f} of an oracle's memory")
        assert found.warm > 0.8
        assert found.memory < (2.0 if load * gpus > 0.75 else 2.7)
