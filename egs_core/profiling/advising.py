"""Which flavor, and how many GPUs, each task should have, from what is known of its runs. Pure.

    A100      100 s, 104 s    3.00 / h        ask for T4: 150 s, and it costs 75% less
    T4        150 s, 149 s    0.50 / h
    2 x T4     90 s           0.50 / h each   a size is compared like a flavor
    ?         120 s                           nobody knows on what: it is counted, and said
    V100      never           1.20 / h        other tasks take 0.8 times as long there as on a T4: about 120 s

A flavor on which its last run ended by lack of memory is not advised, nor one with less memory than that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from egs_core.engine.specs import HOUR_S
from egs_core.errors import counted, listed
from egs_core.profiling.tiers import NO_WISHES, Advice, Measured, Tier, Wishes, of_best_batch, recommend, span

MORE_MEMORY = 2  # times what was not enough


class Kind(NamedTuple):
    """Runs of one kind are taken to be the same work. pipeline: "" for commands; phase: its number in the task."""

    pipeline: str
    task: str
    phase: int = 0


class Died(NamedTuple):
    """An attempt that ended because memory was not enough. size: as `size_of` has it; at: Unix time."""

    size: str
    at: float


class Starved(NamedTuple):
    """An attempt that ended because its host's memory was not enough. memory_bytes: that it had asked for, 0: for no
    certain amount."""

    memory_bytes: int
    at: float


class Seen(msgspec.Struct):
    """All that is known of one kind. measured: their flavor is "" where nobody knows it; lost: GPU seconds that each
    attempt held which did not succeed."""

    measured: list[Measured] = []
    lost: list[float] = []
    died: list[Died] = []
    starved: list[Starved] = []


class Untried(msgspec.Struct, frozen=True):
    """A flavor on which it never ran. seconds: None where nothing says how long it takes; others: so many tasks that
    ran on both say it, 0: what the site states of speeds does; cost: 0 without a price."""

    flavor: str
    seconds: float | None
    others: int
    cost: float


class Advised(msgspec.Struct, frozen=True):
    """What one kind should have. runs: that succeeded; flavor, gpus: to ask for, "" where there is no advice; size:
    both in words. unknown: what would be needed to say more, in sentences. gpu_h: GPU hours that these runs held;
    lost, lost_gpu_h: attempts that did not succeed, and theirs; nameless: of the runs, on a flavor that nobody knows.
    memory_bytes: of the host, to ask for where it ended by a lack of that: twice what it had, 0: nothing to say."""

    pipeline: str
    task: str
    phase: int
    runs: int
    gpu_h: float
    lost: int
    lost_gpu_h: float
    nameless: int
    flavor: str
    gpus: float
    size: str
    advice: Advice | None
    untried: tuple[Untried, ...]
    died: tuple[Died, ...]
    starved: tuple[Starved, ...]
    memory_bytes: int
    unknown: tuple[str, ...]


def size_of(flavor: str, gpus: float) -> str:
    """
    >>> size_of("T4", 1.0), size_of("T4", 2.0), size_of("T4", 0.25)
    ('T4', '2 x T4', '0.25 x T4')
    """
    return flavor if gpus == 1 else f"{gpus:g} x {flavor}"


def advise(
    seen: dict[Kind, Seen],
    tiers: Sequence[Tier],
    speeds: dict[str, float],
    wishes: Wishes = NO_WISHES,
    gone: Collection[str] = (),
) -> list[Advised]:
    """For each kind that ran on GPUs, those that held most GPU time first. tiers: flavors that can be had, with those
    on which something ran; speeds: relative ones that a site states, by flavor; gone: flavors that commands cannot
    have, though some ran on them once."""
    left = [tier for tier in tiers if tier.flavor not in gone]
    found = [
        _advised(kind, one, seen, tiers if kind.pipeline else left, speeds, wishes, () if kind.pipeline else gone)
        for kind, one in seen.items()
    ]
    return sorted(found, key=lambda one: (-one.gpu_h - one.lost_gpu_h, one.pipeline, one.task, one.phase))


def _advised(
    kind: Kind,
    own: Seen,
    seen: dict[Kind, Seen],
    tiers: Sequence[Tier],
    speeds: dict[str, float],
    wishes: Wishes,
    gone: Collection[str],
) -> Advised:
    by_flavor = {tier.flavor: tier for tier in tiers}
    known = [one for one in own.measured if one.flavor and one.flavor not in gone]
    sizes = {size_of(one.flavor, one.gpus): (one.flavor, one.gpus) for one in known}
    dead = _dead(own, sizes, by_flavor)
    offered = [_tier(size, by_flavor.get(flavor, Tier(flavor)), gpus) for size, (flavor, gpus) in sizes.items()]
    compared = [msgspec.structs.replace(one, flavor=size_of(one.flavor, one.gpus)) for one in known]
    advice = recommend(of_best_batch(compared), [one for one in offered if one.flavor not in dead], wishes)
    flavor, gpus = sizes[advice.flavor] if advice is not None else ("", 0.0)
    untried = _untried(own, known, seen, tiers, speeds)
    return Advised(
        *kind,
        len(own.measured),
        sum(one.gpus * one.seconds for one in own.measured) / HOUR_S,
        len(own.lost),
        sum(own.lost) / HOUR_S,
        sum(not one.flavor for one in own.measured),
        flavor,
        gpus,
        advice.flavor if advice is not None else "",
        advice,
        tuple(untried),
        tuple(sorted(own.died, key=lambda one: one.at)),
        tuple(sorted(own.starved, key=lambda one: one.at)),
        MORE_MEMORY * max([one.memory_bytes for one in own.starved], default=0),
        tuple(_unknown(own, known, advice, dead, by_flavor, gone)),
    )


def _tier(size: str, tier: Tier, gpus: float) -> Tier:
    """Memory is that of one GPU, and of a part so much of it."""
    return Tier(size, tier.gpu_hour, int(tier.memory_bytes * min(gpus, 1.0)))


def _dead(own: Seen, sizes: dict[str, tuple[str, float]], tiers: dict[str, Tier]) -> set[str]:
    """Sizes on which its memory was not enough when it was last there, and those that have no more than such a one."""
    ended: dict[str, float] = defaultdict(float)
    for one in own.measured:
        size = size_of(one.flavor, one.gpus)
        ended[size] = max(ended[size], one.ended_at)
    dead = {one.size for one in own.died if one.at >= ended.get(one.size, 0.0)}
    bytes_of = {size: tiers[flavor].memory_bytes for size, (flavor, _) in sizes.items() if flavor in tiers}
    most = max([bytes_of.get(size, 0) for size in dead], default=0)
    return dead | {size for size, count in bytes_of.items() if 0 < count < most}


def _untried(
    own: Seen, known: Sequence[Measured], seen: dict[Kind, Seen], tiers: Sequence[Tier], speeds: dict[str, float]
) -> list[Untried]:
    if not known:
        return []
    tried = {one.flavor for one in known} | {one.size for one in own.died}
    gpus = max(one.gpus for one in known)
    medians = _medians(own)
    found = []
    for tier in tiers:
        if tier.flavor in tried:
            continue
        guesses, others = list[float](), set[Kind]()
        for flavor, seconds in medians.items():
            both = _both(flavor, tier.flavor, seen)
            if both:
                guesses.append(seconds * median(both.values()))
                others |= set(both)
            elif flavor in speeds and tier.flavor in speeds:
                guesses.append(seconds * speeds[flavor] / speeds[tier.flavor])
        seconds_there = median(guesses) if guesses else None
        cost = tier.gpu_hour * gpus * (seconds_there or 0.0) / HOUR_S
        found.append(Untried(tier.flavor, seconds_there, len(others), cost))
    return found


def _both(flavor: str, other: str, seen: dict[Kind, Seen]) -> dict[Kind, float]:
    """How many times as long tasks that ran on both take on the other one."""
    found = {}
    for kind, one in seen.items():
        times = _medians(one)
        if flavor in times and other in times:
            found[kind] = times[other] / times[flavor]
    return found


def _medians(one: Seen) -> dict[str, float]:
    by_flavor: dict[str, list[float]] = defaultdict(list)
    for run in one.measured:
        if run.flavor and run.seconds > 0:
            by_flavor[run.flavor].append(run.seconds)
    return {flavor: median(seconds) for flavor, seconds in by_flavor.items()}


def _unknown(
    own: Seen,
    known: Sequence[Measured],
    advice: Advice | None,
    dead: set[str],
    tiers: dict[str, Tier],
    gone: Collection[str],
) -> list[str]:
    found = []
    if not own.measured:
        found.append("how long it takes: no run of it has succeeded")
    if nameless := [one.seconds for one in own.measured if not one.flavor]:
        took = f"{span(median(nameless))} in the middle"
        found.append(f"on which flavor it was in {counted(len(nameless), 'run')} ({took})")
    if elsewhere := [one.flavor for one in own.measured if one.flavor in gone]:
        names = listed(list(dict.fromkeys(elsewhere)))
        found.append(f"how the site compares with {names}, which it does not have ({counted(len(elsewhere), 'run')})")
    if not known:
        return found
    if advice is None:
        found.append(f"where its memory is enough: it was not on {listed(sorted(dead))}")
    flavors = list(dict.fromkeys(one.flavor for one in known))
    if len(flavors) == 1:
        found.append(f"how long it takes on anything but {flavors[0]}")
    if unpriced := [one for one in flavors if one not in tiers or not tiers[one].gpu_hour]:
        found.append(f"what an hour of {listed(unpriced)} costs")
    if not any(one.peak_bytes and not one.is_emulated for one in known):
        found.append("how much of a GPU's memory it uses, so whether a part of one, or one with less, would do")
    return found
