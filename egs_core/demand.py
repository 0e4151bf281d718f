"""Processes that stand ready before work comes: for what, how many, and when, by when work of the kind came before.

    work of nightly         |||                        |||                        |||
    stand ready             .                          ▒▒▒  from just before      ▒▒▒
    work of etl             |   |   |   |   |   |
    stand ready             ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒       one: it comes one by one

A process that stands ready holds memory; work that finds none waits until one has loaded. The n-th stands while work
comes soon enough:

    rate(n) = (arrivals in the next second, where none has come until now) · (share of bursts that need n)
            ≥ 1 / worth_s

A burst needs those of its arrivals that come before one could load that begins with the first, and that find no other
time to load in: what waits for something else for longer than loading takes needs none.

The rate is that of the gaps between bursts that were seen: each as a window around it, as wide as its neighbours are
far, since the next one will not be the same. What nobody has seen counts as PRIOR of a gap of which is known only that
it is as long again as it has lasted. Of several kinds the one with the most seconds to save.

Pure. Executors of a workflow system have it for processes that have read a pipeline's file, `egs run --keep-ready` and
an adapter's keeper of worker processes for those that have imported modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from math import ceil
from typing import NamedTuple, Protocol, TypeVar

WORTH_S = 60.0
"""So long a process stands ready, in the mean, for one piece of work that finds it. Loading costs and saves alike, so
its length does not count here."""
PRIOR = 0.25
"""As much as so many gaps, or bursts, that were seen."""
LEAST_SHARE = 0.05
"""Of bursts that have a second, a third: where fewer have, none stands for it."""
LEAD_S = 1.0
"""So long before it is to have loaded a process is thought of: it is looked each second."""
LEAST_WIDTH_S, LONE_WIDTH = 1.0, 0.05
"""Of a window, to each side: seconds; and of the only one, as a share of its gap."""
TOGETHER_S = 1.0
"""Work that comes no further apart, or than loading takes, is a burst: no other process is ready so soon."""
MOST_TIMES = 64
"""Arrivals of a kind that are to be remembered, the newest."""
MOST_KNOWN = 64


class Arrivals(Protocol):
    """What is known of one kind of work. came_s: when it came, the newest last; needs: of each, whether it had no time
    to load in by itself, empty where none has; load_s: what loading takes; standing: how many processes stand ready for
    it, or begin to."""

    @property
    def came_s(self) -> list[float]: ...
    @property
    def needs(self) -> Sequence[bool]: ...
    @property
    def load_s(self) -> float: ...
    @property
    def standing(self) -> int: ...


A = TypeVar("A", bound=Arrivals)
Window = tuple[float, float]


class Burst(NamedTuple):
    """first_s, last_s: its moments; size: its arrivals; needing: those without time to load in by themselves; at_once:
    of those, how many come before one could load that begins with the first."""

    first_s: float
    last_s: float
    size: int
    needing: int
    at_once: int


def bursts_of(came_s: Sequence[float], load_s: float = 0.0, needs: Sequence[bool] = ()) -> list[Burst]:
    """Of what comes no further apart than loading takes.

    >>> [(one.size, one.at_once) for one in bursts_of([0.0, 4.0, 8.0, 60.0], 5.0)]
    [(3, 2), (1, 1)]
    """
    found: list[Burst] = []
    for number, at in enumerate(came_s):
        is_needing = needs[number] if needs else True
        if found and at - found[-1].last_s <= max(TOGETHER_S, load_s):
            first_s, _, size, needing, at_once = found[-1]
            is_at_once = is_needing and at - first_s <= load_s + LEAD_S
            found[-1] = Burst(first_s, at, size + 1, needing + is_needing, at_once + is_at_once)
        else:
            found.append(Burst(at, at, 1, int(is_needing), int(is_needing)))
    return found


def windows_of(bursts: Sequence[Burst]) -> list[Window]:
    """Of each gap between bursts, shortest first: when after a burst the next one may begin, by it.

    >>> windows_of(bursts_of([0.0, 60.0])), windows_of(bursts_of([0.0, 60.0, 120.5, 121.0]))
    ([(57.0, 63.0)], [(59.0, 61.0), (59.5, 61.5)])
    """
    gaps = sorted(after.first_s - before.last_s for before, after in pairwise(bursts))
    apart = max(1, round(len(gaps) ** 0.5))
    found = []
    for number, gap in enumerate(gaps):
        near = [abs(gaps[other] - gap) for other in (number - apart, number + apart) if 0 <= other < len(gaps)]
        width_s = max(LEAST_WIDTH_S, min(near, default=LONE_WIDTH * gap))
        found.append((gap - width_s, gap + width_s))
    return found


def rate(one: Arrivals, number: int, now_s: float) -> float:
    """How many a second need the process of this number, counted from 1: the most there are from now until a process
    that begins now has loaded."""
    if not one.came_s:
        return 0.0
    bursts, windows = _known(tuple(one.came_s), one.load_s, tuple(one.needs))
    together = (sum(burst.at_once >= number for burst in bursts) + PRIOR) / (len(bursts) + PRIOR)
    if together < LEAST_SHARE:
        return 0.0
    since_s, ahead_s = now_s - bursts[-1].last_s, one.load_s + LEAD_S
    steps = ceil(ahead_s / (2 * LEAST_WIDTH_S))  # no window lies between two of them
    return together * max(_rate_at(windows, since_s + ahead_s * step / steps) for step in range(steps + 1))


@lru_cache(MOST_KNOWN)
def _known(came_s: tuple[float, ...], load_s: float, needs: tuple[bool, ...]) -> tuple[list[Burst], list[Window]]:
    """Bursts and windows: they are asked for again and again between two arrivals."""
    bursts = bursts_of(came_s, load_s, needs)
    return bursts, windows_of(bursts)


def _rate_at(windows: Sequence[Window], since_s: float) -> float:
    """Of bursts, so long after the last one."""
    unseen_s = max(TOGETHER_S, since_s)
    ending, left = PRIOR / unseen_s**2, PRIOR / unseen_s
    for begin_s, end_s in windows:
        if since_s < end_s:
            ending += 1 / (end_s - begin_s) if begin_s <= since_s else 0.0
            left += min(1.0, (end_s - since_s) / (end_s - begin_s))
    return ending / left


def best(seen: Iterable[A], now_s: float) -> A | None:
    """The kind for which one more should stand ready now; None where none is worth it."""
    found, most = None, 0.0
    for one in seen:
        wanted = rate(one, one.standing + 1, now_s)
        if wanted * WORTH_S >= 1.0 and wanted * one.load_s > most:
            found, most = one, wanted * one.load_s
    return found


def stays(one: Arrivals, now_s: float) -> bool:
    """Whether what stands ready for the kind goes on to: the first of them is worth it, or a burst may still go on."""
    is_amid = bool(one.came_s) and now_s - one.came_s[-1] <= TOGETHER_S + LEAD_S
    return is_amid or rate(one, 1, now_s) * WORTH_S >= 1.0


def how_many(one: Arrivals, now_s: float, most: int, worth_s: float = WORTH_S) -> int:
    """How many should stand ready now. Amid of a burst also as many as half of those that were as large had still to
    come: they come sooner than another could load."""
    if not one.came_s:
        return 0
    bursts, _ = _known(tuple(one.came_s), one.load_s, tuple(one.needs))
    last_s, size = bursts[-1].last_s, bursts[-1].size
    by_rate, to_come = 0, 0
    while by_rate < most and rate(one, by_rate + 1, now_s) * worth_s >= 1.0:
        by_rate += 1
    if now_s - last_s > max(TOGETHER_S, one.load_s) + LEAD_S:
        return by_rate
    larger = sorted(((other.size, other.needing) for other in bursts[:-1] if other.size >= size), reverse=True)
    if larger:
        whole, needing = larger[(len(larger) - 1) // 2]
        to_come = min(whole - size, needing)
        by_rate = min(by_rate, one.standing)  # another one would be late for this burst
    return max(min(most, to_come), by_rate)


def next_s(seen: Iterable[Arrivals], now_s: float, within_s: float) -> float:
    """When what is worth it may be another, at the latest after `within_s`: when a window comes; amid of one, soon."""
    due = now_s + within_s
    for one in seen:
        bursts, windows = _known(tuple(one.came_s), one.load_s, tuple(one.needs))
        for begin_s, end_s in windows:
            begin_at, end_at = (bursts[-1].last_s + at_s for at_s in (begin_s - one.load_s - LEAD_S, end_s))
            if end_at > now_s:
                due = min(due, max(now_s + LEAD_S, begin_at))
    return due


def last_s(one: Arrivals) -> float:
    """When the last of its windows is over; of what has none, when it came last; 0.0 for what never came."""
    if not one.came_s:
        return 0.0
    bursts, windows = _known(tuple(one.came_s), one.load_s, tuple(one.needs))
    return bursts[-1].last_s + max((end_s for _, end_s in windows), default=0.0)
