"""Which flavor of GPU a task should have: from what was measured of it, what GPUs cost, and what is wished. Pure.

    measured      K80   900 s      V100   300 s                the fastest: V100
    prices        K80   0.45 / h   V100   2.48 / h             0.11 against 0.21: K80 costs half as much
    may take      2 times as long as on the fastest            K80 takes 3 times: V100
                  an hour is worth 0.50                        0.11 + 0.13 against 0.21 + 0.04: K80

What may be chosen is what meets the deadline by its 95th percentile, where one is stated; else, where no worth of an
hour is stated, what takes at most `stretch` times as long as the fastest. Of these the one that costs least, the worth
of its time counted. Where nothing has a price, the fastest; of those as fast the one with the least memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import sqrt
from statistics import median

import msgspec

from egs_core.engine.specs import AS_FAST, HOUR_S, STRETCH
from egs_core.predict.estimate import sample_estimate

GIB = 1 << 30
TIGHT = 0.9  # more of its memory than that, and a little more input may be too much
IDLE = 0.5  # a GPU that works less of the time has room for others
FEW = 3  # runs


class Tier(msgspec.Struct, frozen=True):
    """A flavor that can be had. memory_bytes: of one GPU, 0 where that is not known; gpu_hour: 0 without a price."""

    flavor: str
    gpu_hour: float = 0.0
    memory_bytes: int = 0


class Measured(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run of a task. peak_bytes: most memory of a GPU at once, 0 where that was not measured; busy: share of the
    time in which its GPU worked; batch: what stood for `{batch}`; work: what the command told by `egs.work`, by unit;
    is_emulated: no GPU was there, memory and work are those of its processes. ended_at: Unix time."""

    flavor: str
    seconds: float
    gpus: float = 1.0
    peak_bytes: int = 0
    busy: float | None = None
    batch: int | None = None
    work: dict[str, float] = {}
    is_emulated: bool = False
    ended_at: float = 0.0
    memory_bytes: int = 0


class Wishes(msgspec.Struct, frozen=True):
    """deadline_s: in so long it should have ended; stretch: so many times as long as on the fastest it may take;
    hour_worth: what it is worth to have it an hour sooner; asked: the flavor that its user asks for now."""

    deadline_s: float | None = None
    stretch: float = STRETCH
    hour_worth: float = 0.0
    asked: str = ""


NO_WISHES = Wishes()


class Choice(msgspec.Struct, frozen=True):
    """What a task takes on a flavor. p95_s: of few runs wider than what was seen."""

    flavor: str
    seconds: float
    p95_s: float
    cost: float
    runs: int
    memory_bytes: int = 0
    peak_bytes: int = 0
    busy: float | None = None


class Advice(msgspec.Struct, frozen=True):
    """flavor: to ask for; instead: what it is compared with: what was asked for, else the fastest. saving: share of
    that one's cost, None without prices. part: of a GPU that would be enough, 1 for all of it. risk: low, some or
    high; risks: what may go wrong; fallback: where it runs if its memory is not enough, "" for nowhere."""

    flavor: str
    reason: str
    seconds: float
    cost: float
    instead: str
    saving: float | None
    risk: str
    risks: tuple[str, ...]
    part: float
    fallback: str
    choices: tuple[Choice, ...]


def throughput(one: Measured) -> tuple[str, float]:
    """What a run did a second, and of what: what the command told of its work, of the first of several units by name;
    else its batch; else runs."""
    if one.work:
        unit = min(one.work)
        return unit, one.work[unit] / one.seconds
    return ("samples", one.batch / one.seconds) if one.batch else ("runs", 1 / one.seconds)


def of_best_batch(measured: Sequence[Measured]) -> list[Measured]:
    """Where batches were tried: of each flavor those of the batch with the most throughput, with their seconds for as
    much as the run with the largest amount did, so that flavors compare by equal work.

    Runs without a batch do other work than those with one, unless they told of it in the same unit: what was measured
    on most flavors counts, of as many what was measured last."""
    units = {throughput(one)[0] for one in measured if one.batch}
    groups: dict[str, list[Measured]] = defaultdict(list)
    for one in measured:
        unit = throughput(one)[0]
        groups[unit if unit in units else ""].append(one)
    if groups:
        measured = max(
            groups.values(), key=lambda runs: (len({one.flavor for one in runs}), max(one.ended_at for one in runs))
        )
    if not any(one.batch for one in measured):
        return list(measured)
    amount = max(throughput(one)[1] * one.seconds for one in measured)
    found: list[Measured] = []
    for flavor in dict.fromkeys(one.flavor for one in measured):
        by_batch: dict[int, list[Measured]] = defaultdict(list)
        for one in measured:
            if one.flavor == flavor:
                by_batch[one.batch or 0].append(one)
        best = max(by_batch, key=lambda batch: (median([throughput(one)[1] for one in by_batch[batch]]), -batch))
        found += [msgspec.structs.replace(one, seconds=amount / throughput(one)[1]) for one in by_batch[best]]
    return found


def choices_of(measured: Iterable[Measured], tiers: Iterable[Tier]) -> list[Choice]:
    """What was measured on each of the tiers, by flavor; those that were never tried are left out."""
    by_flavor: dict[str, list[Measured]] = defaultdict(list)
    for one in measured:
        by_flavor[one.flavor].append(one)
    spread = _spread([[one.seconds for one in runs] for runs in by_flavor.values()])
    return [_choice(tier, by_flavor[tier.flavor], spread) for tier in tiers if tier.flavor in by_flavor]


def _spread(times: Sequence[Sequence[float]]) -> float:
    """95th percentile over median. A task is taken to vary alike on all flavors, so that few runs on each say together
    what those on one alone do not; a single run says nothing of that."""
    ratios = [1.0]
    for runs in times:
        middle, count = median(runs), len(runs)
        if count > 1:  # of so few the median is nearer to them than the true one
            ratios += [(one / middle) ** sqrt(count / (count - 1)) for one in runs]
    ratios = sorted(ratios[1:] or ratios)
    found = sample_estimate(ratios, range(1, len(ratios) + 1))
    return max(1.0, found.p95_s / found.p50_s)


def _choice(tier: Tier, runs: Sequence[Measured], spread: float) -> Choice:
    seconds = median([run.seconds for run in runs])
    cost = tier.gpu_hour * max(run.gpus for run in runs) * seconds / HOUR_S
    busy = [run.busy for run in runs if run.busy is not None]
    return Choice(
        tier.flavor,
        seconds,
        seconds * spread,
        cost,
        len(runs),
        tier.memory_bytes or max(run.memory_bytes for run in runs),
        max(run.peak_bytes for run in runs),
        median(busy) if busy else None,
    )


def recommend(measured: Sequence[Measured], tiers: Sequence[Tier], wishes: Wishes = NO_WISHES) -> Advice | None:
    """None where nothing was measured on any of the tiers."""
    choices = sorted(choices_of(measured, tiers), key=lambda one: (one.seconds, one.flavor))
    if not choices:
        return None
    allowed, bound = _allowed(choices, wishes)
    best = min(allowed, key=_order(choices, wishes))
    instead = next((one for one in choices if one.flavor == wishes.asked), choices[0])
    saving = 1.0 - best.cost / instead.cost if instead.cost else None
    part = _part(best, measured)
    risks = _risks(best, measured, wishes)
    return Advice(
        best.flavor,
        _reason(best, instead, choices, bound, saving) if bound else _late(best, instead, wishes.deadline_s or 0.0),
        best.seconds,
        best.cost,
        instead.flavor,
        saving,
        ("low", "some", "high")[min(len(risks), 2)],
        (*risks, *([SHARED] if part < 1 else [])),
        part,
        _fallback(best, choices),
        tuple(choices),
    )


SHARED = "on a part of a GPU others slow it down, and nothing keeps their memory apart, but a MIG slice"


def _allowed(choices: Sequence[Choice], wishes: Wishes) -> tuple[Sequence[Choice], str]:
    """And what bounds them, in words; "" where none ends in time and the soonest are left."""
    if wishes.deadline_s is not None:
        meets = [one for one in choices if one.p95_s <= wishes.deadline_s]
        if meets:
            return meets, f"of those that end within {span(wishes.deadline_s)}"
        soonest = min(one.p95_s for one in choices)
        return [one for one in choices if one.p95_s == soonest], ""
    if wishes.hour_worth > 0:
        return choices, f"with {wishes.hour_worth:g} for each hour that it takes"
    slowest = choices[0].seconds * max(wishes.stretch, 1.0)
    within = f"of those that take at most {max(wishes.stretch, 1.0):g} times as long as the fastest"
    return [one for one in choices if one.seconds <= slowest], within


def _order(choices: Sequence[Choice], wishes: Wishes) -> Callable[[Choice], tuple[float, float, float, str]]:
    if any(one.cost for one in choices):
        worth = wishes.hour_worth / HOUR_S
        return lambda one: (one.cost + worth * one.seconds, one.seconds, one.memory_bytes, one.flavor)
    fast = choices[0].seconds * AS_FAST
    return lambda one: (float(one.seconds > fast), one.memory_bytes, one.seconds, one.flavor)


def _reason(best: Choice, instead: Choice, choices: Sequence[Choice], bound: str, saving: float | None) -> str:
    if len(choices) == 1:
        return f"it was measured on {best.flavor} alone"
    other = "" if best.flavor == instead.flavor else f", {span(instead.seconds)} on {instead.flavor}"
    took = f"{span(best.seconds)}{other}"
    if saving is None:
        return f"the fastest ({took}); no prices are known"
    if best.flavor == instead.flavor:
        less = min(choices, key=lambda one: one.cost)
        longer = less.seconds / best.seconds if best.seconds else 1.0
        is_left_out = less.cost < best.cost and longer > 1.0
        slower = f"; {less.flavor} costs {1 - less.cost / best.cost:.0%} less and takes {longer:.2g} times as long"
        return f"the cheapest {bound}{slower if is_left_out else ''}"
    much = f"{saving:.0%} less than" if saving > 0 else f"{-saving:.0%} more than" if saving < 0 else "as much as"
    return f"the cheapest {bound}: {took}; it costs {much} {instead.flavor}"


def _late(best: Choice, instead: Choice, deadline_s: float) -> str:
    other = "" if best.flavor == instead.flavor else f", {span(instead.seconds)} on {instead.flavor}"
    return f"none surely ends within {span(deadline_s)}; {best.flavor} is the soonest ({span(best.seconds)}{other})"


def _part(best: Choice, measured: Sequence[Measured]) -> float:
    """Of the GPU: as much as its memory and its work need, in steps of a twentieth; 1 where that is not known."""
    is_real = not any(one.is_emulated for one in measured if one.flavor == best.flavor)
    is_whole = all(one.gpus == 1 for one in measured if one.flavor == best.flavor)
    if not (is_real and is_whole and best.busy is not None and best.peak_bytes and best.memory_bytes):
        return 1.0
    needed = max(best.busy, best.peak_bytes / best.memory_bytes / TIGHT)
    return 1.0 if best.busy > IDLE or needed > IDLE else max(1, -(-needed // 0.05)) * 0.05


def _risks(best: Choice, measured: Sequence[Measured], wishes: Wishes) -> tuple[str, ...]:
    found = []
    if best.peak_bytes and best.memory_bytes and best.peak_bytes > TIGHT * best.memory_bytes:
        used = f"{best.peak_bytes / GIB:.1f} of {best.memory_bytes / GIB:.1f} GiB"
        found.append(f"its memory is nearly full ({used}): more input, and it dies")
    if best.runs < FEW:
        found.append(f"measured {'once' if best.runs == 1 else 'twice'} on {best.flavor}")
    if wishes.deadline_s is not None and best.p95_s > wishes.deadline_s:
        found.append("it may end after its deadline")
    if any(one.is_emulated for one in measured if one.flavor == best.flavor):
        found.append("no GPU was there: nothing is known of its memory and its work on one")
    return tuple(found)


def _fallback(best: Choice, choices: Sequence[Choice]) -> str:
    larger = [one for one in choices if one.memory_bytes > best.memory_bytes]
    return min(larger, key=lambda one: (one.memory_bytes, one.cost, one.flavor)).flavor if larger else ""


def span(seconds: float) -> str:
    """
    >>> span(0.5), span(150.0), span(9000.0)
    ('0.5 s', '2.5 min', '2.5 h')
    """
    return (
        f"{seconds:.3g} s"
        if seconds < 120
        else f"{seconds / 60:.3g} min"
        if seconds < 7200
        else f"{seconds / 3600:.3g} h"
    )
