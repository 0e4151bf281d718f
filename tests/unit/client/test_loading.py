"""What it is worth to load while a run waits, in streams of short pipelines, by counts: no server, no process."""

from __future__ import annotations

import heapq
import random
from typing import NamedTuple

import pytest

from egs_core.client.loading import SOON_S
from tests.unit.streams import short_pipelines

LOAD_S = 5.0
LENGTH_S = 3 * 3600.0


class Worth(NamedTuple):
    """Of runs: warm: that find all loaded; waited: that had to wait for longer than loading takes; held_s: that
    processes stood, loading included; work_s: that runs took, without loading; saved_s: of loading, with GPUs held."""

    runs: int
    warm: int
    waited: int
    held_s: float
    work_s: float
    saved_s: float

    @property
    def memory(self) -> float:
        """Times that of an oracle, which begins to load so long before each turn as that takes; with the runs' own."""
        cold_s = self.runs * LOAD_S - self.saved_s  # loaded in its turn
        return (self.work_s + self.held_s + cold_s) / (self.work_s + self.runs * LOAD_S)


def played(seed: int, gpus: int, load: float, *, is_known: bool) -> Worth:
    """Runs of one GPU in the order in which they come, on so many; each is loaded for while it is among the next, see
    `RunView.rounds`; with is_known, its lengths are, no sooner than SOON_S before its turn. load: the part of the time
    for which the GPUs have work."""
    came = short_pipelines(seed)
    draw = random.Random(seed)
    shares = [draw.expovariate(1.0) for _ in range(6)]
    lengths = [shares[number] * draw.uniform(0.9, 1.1) for _, number in came]
    whole_s = load * gpus * LENGTH_S
    lengths = [one * whole_s / sum(lengths) for one in lengths]
    free = [0.0] * gpus
    starts: list[float] = []
    warm = waited = 0
    held_s = saved_s = 0.0
    for (at, _), length_s in zip(came, lengths, strict=True):
        start = max(at, free[0])
        is_next = max(at, starts[-gpus] if len(starts) >= gpus else 0.0)
        begin = max(is_next, start - SOON_S) if is_known else is_next
        starts.append(start)
        stood_s = max(0.0, start - begin)
        held_s, saved_s = held_s + stood_s, saved_s + min(LOAD_S, stood_s)
        warm, waited = warm + (stood_s >= LOAD_S), waited + (start - at >= LOAD_S)
        heapq.heapreplace(free, start + length_s + LOAD_S - min(LOAD_S, stood_s))
    return Worth(len(came), warm, waited, held_s, sum(lengths), saved_s)


@pytest.mark.parametrize("gpus", [1, 2, 4])
@pytest.mark.parametrize("load", [0.5, 0.7, 0.9])
def test_what_it_is_worth_in_streams_of_short_pipelines(gpus: int, load: float) -> None:
    """Of what runs wait, nearly all that can be is used for loading; with the runs' own memory, less than twice that of
    an oracle stands, at any load."""
    for seed in range(2):
        for is_known in (False, True):
            found = played(seed, gpus, load, is_known=is_known)
            print(
                f"{gpus} GPUs, load {load}, seed {seed}, lengths {'known' if is_known else 'unknown'}: "
                f"{found.warm / found.runs:.1%} of {found.runs} warm, {found.waited / found.runs:.1%} waited; "
                f"{found.saved_s / (found.runs * LOAD_S):.1%} of loading not with a GPU; stood {found.held_s:,.0f} s, "
                f"{found.memory:.2f} of an oracle's memory"
            )
            assert found.saved_s > 0.9 * found.waited * LOAD_S
            assert found.memory < 2.0
