"""Kueue: the engine's order as priorities of Workloads that wait, written before quota frees; later is too late.

    user's priority   0                              10
    Workloads         0  0 │ 120  241 │              10 10 │ 1000000
                      as made│ raised: the first of all    │ never past the next priority of a user

Kueue looks at Workloads of one shape and one priority as at one: where the first has no room, none is tried. So each
raised one costs it a look of its own whenever quota frees, and each patch a write and another look. Hence only so many
of a queue's each priority are raised as may get quota until it is looked again, only those are written that do not
stand in the right order already, and what was raised keeps that for as long as it is in nobody's way.

Where quota frees, Kueue looks at what waits a second later, but at a Workload that was written at once. So the first
that has room in what was freed is written again (`hurried`).
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from egs_core.graph.columns import Shape
from egs_core.kubernetes import names
from egs_core.kubernetes.objects import Object, items, part, quantity, text
from egs_core.kubernetes.pods import shape_of

AHEAD = 12
"""So many of a queue's each priority at most: more than Kueue admits (20 a second) until what follows is written."""
LEAST = 2
"""And so many at least, however few have quota and may give it back until then."""
ROOM = 1_000_000
"""So far above its user's priority may one be raised, where no other user's priority is nearer."""
STEPS = 1000
"""So many may follow one after another at the end of the raised ones until all of them are written anew."""


class Workload(msgspec.Struct, frozen=True):
    """A Workload of Kueue. base: what its user gave it; priority: what it has now; pods: uids of what it was made for.
    queue: namespace and name of its LocalQueue. holds: it has quota; asks: how much its pods ask for together."""

    namespace: str
    name: str
    queue: str
    base: int
    priority: int
    pods: tuple[str, ...] = ()
    waits: bool = True
    created: str = ""
    holds: bool = False
    asks: Shape = Shape(0)


class Raise(msgspec.Struct, frozen=True):
    """A priority to write."""

    namespace: str
    name: str
    priority: int
    base: int


def workload_of(raw: Object) -> Workload:
    """A Workload as the API server has it."""
    meta, spec, status = part(raw, "metadata"), part(raw, "spec"), part(raw, "status")
    on = {text(one, "type") for one in items(status, "conditions") if text(one, "status") == "True"}
    priority = _whole(spec.get("priority"))
    noted = part(meta, "annotations").get(names.BASE)
    holds = bool(on & {"QuotaReserved", "Admitted"}) and "Finished" not in on
    waits = not on & {"QuotaReserved", "Admitted", "Finished"} and spec.get("active") is not False
    return Workload(
        text(meta, "namespace"),
        text(meta, "name"),
        f"{text(meta, 'namespace')}/{text(spec, 'queueName')}",
        priority if noted is None else _whole(noted),
        priority,
        ()
        if names.ORIGIN in part(meta, "labels")
        else tuple(text(one, "uid") for one in items(meta, "ownerReferences")),
        waits and "deletionTimestamp" not in meta,
        text(meta, "creationTimestamp"),
        holds,
        _asks(spec),
    )


def _asks(spec: Object) -> Shape:
    """All of its pods together."""
    found = Shape(0)
    for one in items(spec, "podSets"):
        count, each = _whole(one.get("count", 1)), shape_of(part(part(one, "template"), "spec"))
        found = together(found, each, count)
    return found


def together(first: Shape, other: Shape, times: int = 1) -> Shape:
    """The amounts of the first one and so many times the other's."""
    return Shape(
        first.cpu_milli + times * other.cpu_milli,
        first.gpu_milli + times * other.gpu_milli,
        first.memory_bytes + times * other.memory_bytes,
    )


def may_raise(cluster_queue: Object) -> bool:
    """Whether a raised Workload that waits evicts none that runs, in that ClusterQueue or its cohort."""
    stated = part(part(cluster_queue, "spec"), "preemption")
    return all(stated.get(which) in (None, "", "Never") for which in ("withinClusterQueue", "reclaimWithinCohort"))


def quiet_queues(local: Iterable[Object], cluster: Iterable[Object]) -> dict[str, str]:
    """LocalQueues whose order may be changed, as `Workload.queue`, each with its ClusterQueue."""
    quiet = {text(part(one, "metadata"), "name") for one in cluster if may_raise(one)}
    found = {}
    for one in local:
        meta, of = part(one, "metadata"), text(part(one, "spec"), "clusterQueue")
        if of in quiet:
            found[f"{text(meta, 'namespace')}/{text(meta, 'name')}"] = of
    return found


def raises(
    workloads: Collection[Workload], order: Sequence[str], quiet: Mapping[str, str], ahead: int = AHEAD
) -> list[Raise]:
    """The priorities to write now. workloads: all that there are, as none is raised up to another user's priority;
    order: uids of the pods of those that may be, the first first; quiet: queues whose order may be changed."""
    bases = sorted({one.base for one in workloads if one.waits})
    holding = Counter(quiet[one.queue] for one in workloads if one.holds and one.queue in quiet)
    most = {queue: min(ahead, max(LEAST, holding[of] or ahead)) for queue, of in quiet.items()}
    found: list[Raise] = []
    for base, group in itertools.groupby(_ranked(workloads, order, quiet), key=lambda one: one.base):
        found += _raised(list(group), base, _ceiling(base, bases), most)
    return found


def hurried(
    freed: Mapping[str, Shape],
    workloads: Collection[Workload],
    order: Sequence[str],
    quiet: Mapping[str, str],
    raised: Iterable[Raise] = (),
) -> list[Raise]:
    """What Kueue is to look at now: the first that have room in what was freed. freed: by ClusterQueue; raised: what is
    written anyway; what goes up with it is in here with that priority, others get one that keeps their place."""
    coming = {(one.namespace, one.name): one.priority for one in raised}
    ranked = _ranked(workloads, order, quiet)
    values = [coming.get((one.namespace, one.name), one.priority) for one in ranked]
    bases = sorted({one.base for one in workloads if one.waits})
    behind: dict[tuple[str, int], int] = {}  # the highest of those behind it in its queue; then the lowest before it
    over = [0] * len(ranked)
    for at in range(len(ranked) - 1, -1, -1):
        group = ranked[at].queue, ranked[at].base
        over[at] = max(values[at], behind.get(group, values[at]))
        behind[group] = over[at]
    left, found = dict(freed), []
    before: dict[tuple[str, int], int] = {}
    for at, one in enumerate(ranked):
        group, room = (one.queue, one.base), left.get(quiet[one.queue])
        below = before.get(group, _ceiling(one.base, bases) + 1)
        value = values[at] if values[at] > one.priority else over[at] + 1
        before[group] = min(below, values[at])
        if room is None or not _fits(one.asks, room):
            continue
        left[quiet[one.queue]] = together(room, one.asks, -1)
        if value < below:
            found.append(Raise(one.namespace, one.name, value, one.base))
            before[group] = value
    return found


def _fits(asked: Shape, room: Shape) -> bool:
    return (
        asked.cpu_milli <= room.cpu_milli
        and asked.gpu_milli <= room.gpu_milli
        and asked.memory_bytes <= room.memory_bytes
    )


def _ranked(workloads: Iterable[Workload], order: Sequence[str], quiet: Mapping[str, str]) -> list[Workload]:
    """Those that wait and may be raised, by their users' priorities, the highest first, and then in this order."""
    place = {uid: number for number, uid in enumerate(order)}
    found = []
    for one in workloads:
        at = min((place[uid] for uid in one.pods if uid in place), default=-1)
        if at >= 0 and one.waits and one.queue in quiet:
            found.append((-one.base, at, one.name, one))
    return [one for *_, one in sorted(found, key=lambda pair: pair[:3])]


def _ceiling(base: int, bases: Sequence[int]) -> int:
    """The most that one of this user's priority may have: less than any of the next one."""
    above = bisect.bisect_right(bases, base)
    return min(base + ROOM, bases[above] - 1) if above < len(bases) else base + ROOM


def _raised(ranked: Sequence[Workload], base: int, ceiling: int, ahead: Mapping[str, int]) -> list[Raise]:
    """The first of each queue get falling priorities between base and ceiling; others have base, or keep what fits.
    ahead: how many, by queue."""
    most, before = max(0, ceiling - base), Counter[str]()
    must: list[int] = []
    may: list[int] = []
    for at, one in enumerate(ranked):
        before[one.queue] += 1
        if before[one.queue] <= ahead[one.queue] and len(must) < most:
            must.append(at)
        elif one.priority > base and before[one.queue] <= 2 * ahead[one.queue]:
            may.append(at)
    both = sorted([*must, *may[: most - len(must)]])
    kept = {both[at] for at in _longest_falling([ranked[at].priority for at in both], base, ceiling)}
    first = sorted({*must, *(at for at in both if at in kept)})
    values = dict(zip(first, _falling([ranked[at].priority for at in first], base, ceiling), strict=True))
    wanted = [(one, values.get(at, base)) for at, one in enumerate(ranked)]
    return [Raise(one.namespace, one.name, value, base) for one, value in wanted if value != one.priority]


def _falling(present: Sequence[int], base: int, ceiling: int) -> list[int]:
    """Falling numbers above base, most of them the present ones: the longest falling part stays, gaps are filled. What
    comes before or after it stands a step away: halves of what is left would be used up after a few."""
    step = max(1, (ceiling - base) // STEPS)
    kept = _longest_falling(present, base, ceiling)
    found: list[int] = []
    bounds = [(-1, ceiling + 1), *((at, present[at]) for at in kept), (len(present), base)]
    for (left, high), (right, low) in itertools.pairwise(bounds):
        between = right - left - 1
        if high - low <= between or not kept:  # no room, or nothing there: all anew
            return _anew(len(present), base, ceiling, step)
        if left < 0:
            high = min(high, low + step * (between + 1))
        elif right == len(present):
            low = max(low, high - step * (between + 1))
        found += [high - (high - low) * (number + 1) // (between + 1) for number in range(between)]
        found += [present[right]] if right < len(present) else []
    return found


def _anew(count: int, base: int, ceiling: int, step: int) -> list[int]:
    """So many falling numbers from the middle on, a step apart: there is room before and behind them."""
    first = base + (ceiling - base) // 2
    if first - step * count > base:
        return [first - step * number for number in range(count)]
    return [base + (count - number) * (ceiling - base) // count for number in range(count)]


def _longest_falling(values: Sequence[int], base: int, ceiling: int) -> list[int]:
    """Places of a longest strictly falling part of the values that are above base and not above the ceiling."""
    tails: list[int] = []  # of a falling part of each length: the place of its last, the largest there is
    before: dict[int, int] = {}
    for at, value in enumerate(values):
        if not base < value <= ceiling:
            continue
        length = bisect.bisect_left([-values[tail] for tail in tails], -value)
        if length:
            before[at] = tails[length - 1]
        tails[length : length + 1] = [at]
    found: list[int] = []
    at_now: int | None = tails[-1] if tails else None
    while at_now is not None:
        found.append(at_now)
        at_now = before.get(at_now)
    return found[::-1]


def _whole(value: object) -> int:
    sign = -1 if str(value).startswith("-") else 1
    return sign * int(quantity(str(value).lstrip("-"))) if value is not None else 0
