"""In which of several clusters a workload should end first, by what their controllers tell of their queues. Pure.

    blue    quota ████████████ held, 300 s left ██ 1 waits, 60 s ░░ it would start in 360 s
    green   quota ████ 40 s left ··                              ░░ it would start in 40 s   ◄── named

Each queue is gone through as its cluster's would: what is first and fits gets quota, and gives it back when it ends. It
knows nothing of nodes, of what cohorts lend and of what flavor a pod may have. So what is foretold may be wrong; then
all clusters are named, and whoever is first has it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from egs_core.client.outlooks import STALE_S, Amounts, Candidate, Naming, Outlook, Question, Queue, Work
from egs_core.server.principals import Principal
from egs_core.server.runs import Refusal

NEVER = math.inf
MOVE_S, MOVE_SHARE = 60.0, 0.1
"""What waits in one cluster stays there unless it should end by so much sooner in another: there it is the last."""
PATIENCE_S = 60.0
"""What should have started at once and has not for so long waits for something that is not foretold."""
MOST_CLUSTERS = 200
MOST_OF_ONE = 20
"""So many clusters one account may tell of: it cannot put away what others have told."""
YOUNG_S = 60.0
"""For so long after its start a server may not have been told of clusters yet: what is named somewhere stays there."""
ONLY_WHERE_IT_HAS_QUOTA = {"pods"}
"""Resources that count where a queue has a quota of them, and that nobody lacks elsewhere."""
Demand = tuple[tuple[tuple[str, float], ...], ...]
Free = dict[str, dict[str, float]]


class _Kept(msgspec.Struct):
    """An outlook, and who has told it when (seconds of any clock that never goes back)."""

    outlook: Outlook
    user: str
    team: str
    at: float


class _There(msgspec.Struct):
    """A queue as it was told ago_s before, and what was named for its cluster since."""

    queue: Queue
    ago_s: float
    coming: list[Work]


class Outlooks:
    """What was told of clusters, for as long as it is believed. Used from one thread."""

    def __init__(self, now: float) -> None:
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._since = now

    def tell(self, who: Principal, outlook: Outlook, now: float) -> None:
        """It takes the place of what the same one has told of that cluster. Raises Refusal (429) for a cluster too
        many of one account."""
        self._forget(now)
        self._kept.pop((who.name, outlook.cluster), None)
        if sum(name == who.name for name, _ in self._kept) >= MOST_OF_ONE:
            raise Refusal(429, f"{who.name} tells of {MOST_OF_ONE} clusters already: use another account", STALE_S)
        if len(self._kept) >= MOST_CLUSTERS:
            del self._kept[next(iter(self._kept))]
        self._kept[who.name, outlook.cluster] = _Kept(outlook, who.name, who.team, now)

    def seen(self, who: Principal, now: float) -> dict[str, tuple[Outlook, float]]:
        """Of each cluster that this one sees, what was told and how long ago. One that two tell differently is left
        out: nobody can say whose it is."""
        self._forget(now)
        found: dict[str, list[_Kept]] = {}
        for one in self._kept.values():
            if who.sees(one):
                found.setdefault(one.outlook.cluster, []).append(one)
        return {name: (told[0].outlook, now - told[0].at) for name, told in found.items() if len(told) == 1}

    def is_young(self, now: float) -> bool:
        return now - self._since < YOUNG_S

    def _forget(self, now: float) -> None:
        self._kept = {key: one for key, one in self._kept.items() if now - one.at <= STALE_S}


def named(
    question: Question,
    outlooks: Mapping[str, tuple[Outlook, float]],
    *,
    is_late: Callable[[], bool] = lambda: False,
    is_young: bool = False,
) -> list[Naming]:
    """One for each that is asked for. outlooks: what was told of clusters, and how long ago in seconds. What is named
    for one of them takes its room before the next is looked at. is_late: from then on no start is known; is_young: the
    server has only just started, see `chosen`."""
    queues: dict[tuple[str, str], _There] = {}
    for cluster, (outlook, ago_s) in outlooks.items():
        for queue in outlook.queues:
            queues |= dict.fromkeys(((cluster, door) for door in queue.doors), _There(queue, ago_s, []))
    found = []
    for one in question.candidates:
        if one.settled:
            found.append(Naming(one.work.name, (one.settled,)))
        else:
            starts: dict[str, float | None] = {}
            for cluster in one.clusters:
                if (there := queues.get((cluster, one.door))) is not None:
                    starts[cluster] = start_of(one.work, there.queue, there.coming, there.ago_s, is_late)
                else:  # where others were told of, it would wait for ever: there is no queue of that name
                    starts[cluster] = NEVER if cluster in outlooks else None
            found.append(chosen(one, starts, is_young=is_young))
        if len(found[-1].clusters) == 1 and (its := queues.get((found[-1].clusters[0], one.door))) is not None:
            its.coming.append(one.work)
    return found


def chosen(one: Candidate, starts: Mapping[str, float | None], *, is_young: bool = False) -> Naming:
    """Where it should wait. starts: by cluster in seconds from now; None: not known; NEVER: it cannot run there.
    is_young: what is not known of any may soon be told."""
    takes_s = one.work.takes_s or 0.0
    ends = {cluster: at + takes_s for cluster in one.clusters if (at := starts.get(cluster)) is not None and at < NEVER}
    told = {cluster: starts[cluster] or 0.0 for cluster in ends}
    unknown = tuple(cluster for cluster in one.clusters if starts.get(cluster) is None)
    if is_young and len(unknown) == len(one.clusters) and (present := set(one.present) & set(unknown)):
        return Naming(one.work.name, tuple(cluster for cluster in unknown if cluster in present))
    if not ends:
        return Naming(one.work.name, unknown or one.clusters)
    best = min(ends, key=lambda cluster: ends[cluster])  # of equal ones the first that is listed
    stays = one.present[0] if len(one.present) == 1 else ""
    # where it would start now nobody is before it there, so it goes
    grace_s = max(MOVE_S, ends[best] * MOVE_SHARE) if told[best] > 0 else 0.0
    if stays in ends and ends[stays] <= ends[best] + grace_s:
        best = stays
    if told[best] > 0:  # a cluster of which nothing is known may be sooner
        return Naming(one.work.name, (best, *unknown), told)
    return Naming(one.work.name, one.clusters if one.waited_s > PATIENCE_S else (best,), told)


def start_of(
    work: Work,
    queue: Queue,
    coming: Sequence[Work] = (),
    ago_s: float = 0.0,
    is_late: Callable[[], bool] = lambda: False,
) -> float | None:
    """When work should get quota of a queue, in seconds from now. None: nobody can say; NEVER: its quota is too little,
    also where nobody else is there. coming: what is about to come there; ago_s: so old is what was told; is_late: from
    then on it is not gone through, and nobody can say."""
    if not queue.is_known or is_late():
        return None
    if _fits(_quotas(queue), queue, work) is None:
        return None if queue.may_borrow else NEVER
    if any(one.name == work.name for one in queue.holding):
        return 0.0
    return _Going(queue, (*coming, work), ago_s).start_of(work.name, is_late)


class _Going:
    """A queue, gone through from now on."""

    def __init__(self, queue: Queue, coming: Iterable[Work], ago_s: float) -> None:
        self._queue = queue
        self._free = _quotas(queue)
        self._ends: list[tuple[float, int, Mapping[str, Amounts]]] = []
        for number, one in enumerate(queue.holding):
            self._take(one.takes)
            left_s = None if one.left_s is None else max(0.0, one.left_s - ago_s)
            self._will_end(left_s, number, one.takes)
        there = {one.name for one in queue.holding} | {one.name for one in queue.waiting}
        self._waiting = list(queue.waiting)
        for work in coming:
            if work.name not in there:
                at = next((n for n, one in enumerate(self._waiting) if one.priority < work.priority), None)
                self._waiting.insert(len(self._waiting) if at is None else at, work)
        self._demands = {one.name: tuple(tuple(asks.items()) for asks in one.asks) for one in self._waiting}

    def start_of(self, name: str, is_late: Callable[[], bool]) -> float | None:
        """None: not before something ends of which nobody knows when, or it is late."""
        at_s, number = 0.0, len(self._queue.holding)
        while True:
            left: list[Work] = []
            refused = set[Demand]()  # until something ends there is only ever less room
            for n, one in enumerate(self._waiting):
                if is_late():
                    return None
                demand = self._demands[one.name]
                takes = None if demand in refused else _fits(self._free, self._queue, one)
                if takes is None:
                    refused.add(demand)
                    left.append(one)
                    if self._queue.is_strict:
                        left += self._waiting[n + 1 :]
                        break
                    continue
                if one.name == name:
                    return at_s
                self._take(takes)
                self._will_end(None if one.takes_s is None else at_s + one.takes_s, number, takes)
                number += 1
            self._waiting = left
            if not self._ends:
                return None  # what is before it never starts, or never ends
            at_s = self._ends[0][0]
            while self._ends and self._ends[0][0] <= at_s:
                self._give_back(heapq.heappop(self._ends)[2])

    def _will_end(self, at_s: float | None, number: int, takes: Mapping[str, Amounts]) -> None:
        if at_s is not None:
            heapq.heappush(self._ends, (at_s, number, takes))

    def _take(self, takes: Mapping[str, Amounts]) -> None:
        for flavor, amounts in takes.items():
            free = self._free.setdefault(flavor, {})
            for resource, amount in amounts.items():
                free[resource] = free.get(resource, 0.0) - amount

    def _give_back(self, takes: Mapping[str, Amounts]) -> None:
        for flavor, amounts in takes.items():
            for resource, amount in amounts.items():
                self._free[flavor][resource] += amount


def _quotas(queue: Queue) -> Free:
    return {flavor: dict(quota) for group in queue.groups for flavor, quota in group.items()}


def _fits(free: Mapping[str, Mapping[str, float]], queue: Queue, work: Work) -> dict[str, Amounts] | None:
    """What it would take of which flavors: of each group of resources a set of pods takes the first that has room for
    all of them. None: there is none, or no group has what it asks for."""
    taken: dict[str, dict[str, float]] = {}
    for asks in work.asks:
        wanted = {resource: amount for resource, amount in asks.items() if amount > 0}
        for group in queue.groups:
            covered = {resource for quota in group.values() for resource in quota}
            some = {resource: wanted.pop(resource) for resource in covered & wanted.keys()}
            flavor = next((one for one in group if _has(free.get(one, {}), taken.get(one, {}), some)), None)
            if some and flavor is None:
                return None
            for resource, amount in some.items():
                of = taken.setdefault(flavor or "", {})
                of[resource] = of.get(resource, 0.0) + amount
        if wanted.keys() - ONLY_WHERE_IT_HAS_QUOTA:
            return None
    return taken


def _has(free: Mapping[str, float], taken: Mapping[str, float], wanted: Mapping[str, float]) -> bool:
    return all(free.get(one, 0.0) - taken.get(one, 0.0) >= amount for one, amount in wanted.items())
