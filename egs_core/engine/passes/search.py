"""Look-ahead within one graph: an order that ends sooner than longest path first, by a search of bounded length.

List scheduling by rank starts the longest remaining path first and never looks at how the pieces pack:

    two slots, five tasks of 3, 3, 2, 2, 2 s that wait for nothing
    by rank   |===3===|==2==|==2==|    7 s      found   |===3===|===3===|      6 s
              |===3===|==2==|                           |==2==|==2==|==2==|

1. Schedule as the engine would: by rank, then dependents, then ready order.
2. Justify: schedule backwards from the end by falling ends, then forwards again by falling backward ends, as long as
   that gains (Valls, Ballestin, Quintanilla: Justification and RCPSP, a technique that pays, EJOR 165(2), 2005).
3. Rounds: shift the starts of some tasks at random, schedule in that order, justify once; go on from what is no worse.
4. Say the best plan as lifts: the least seconds to add to ranks so that list scheduling repeats the plan.

The length is counted in placements (one task given its time once), never in seconds, so a run can be repeated.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import msgspec

PATIENCE = 200  # rounds without a gain after which the search ends
TOLERANCE = 1e-9  # of a makespan: shorter by less is no gain
PIGEONHOLE_CUTS = 12  # a bound that only says when to stop need not be the tightest


class Improvement(msgspec.Struct, frozen=True):
    """rank_boost_s: item -> seconds to add to its rank, {} when nothing is gained. before_s, after_s: makespans
    by rank, and by rank + boost, in the search's own model. bound_s: no order ends sooner. placements: what the search
    has used."""

    rank_boost_s: dict[int, float]
    before_s: float
    after_s: float
    bound_s: float
    placements: int


class Plan(msgspec.Struct, frozen=True):
    """started: items in the order of their starts. ends_s: by item."""

    makespan_s: float
    started: list[int]
    ends_s: list[float]


def improve(
    seconds: Sequence[float],
    parents: Sequence[Sequence[int]],
    rank_s: Sequence[float],
    slots: int,
    placements: int,
    seed: int = 0,
) -> Improvement:
    """Lifts under which list scheduling of these items on `slots` equal slots ends sooner than by rank_s alone.

    Parents' numbers are below their children's. Never worse in this model: what gains nothing is not returned.
    """
    search = _Search(seconds, parents, slots, placements, seed)
    base = search.by_value(rank_s)
    bound = search.bound_s(base.makespan_s)
    best = search.run(base, bound)
    lifts: dict[int, float] = {}
    after = base.makespan_s
    if best.makespan_s < base.makespan_s * (1 - TOLERANCE):
        lifts, after = _checked_lifts(search, best, rank_s, base.makespan_s)
    return Improvement(lifts, base.makespan_s, after, bound, placements - search.left)


class _Search:
    """left: placements that may still be used."""

    def __init__(
        self, seconds: Sequence[float], parents: Sequence[Sequence[int]], slots: int, placements: int, seed: int
    ) -> None:
        self.seconds, self.parents = list(seconds), parents
        self.slots, self.left = slots, placements
        self.size = len(self.seconds)
        self.children: list[list[int]] = [[] for _ in self.seconds]
        for item, above in enumerate(parents):
            for parent in above:
                self.children[parent].append(item)
        self._n_parents = [len(above) for above in parents]
        self._n_children = [len(below) for below in self.children]
        self._draw = random.Random(seed).random

    def bound_s(self, enough_s: float) -> float:
        """A lower bound on the makespan, the dearer ones computed only while the cheaper are below enough_s."""
        head, tail, seconds = *self._paths(), self.seconds
        longest = max(map(sum, zip(head, seconds, tail, strict=True)), default=0.0)
        bound = max(longest, sum(seconds) / self.slots)
        if bound >= enough_s * (1 - TOLERANCE):
            return bound
        from egs_core.graph.bounds import compute_bound, pigeonhole_bound  # brings numpy: most graphs never get here

        bound = compute_bound(head, tail, seconds, self.slots).seconds
        if bound < enough_s * (1 - TOLERANCE):
            bound = max(bound, pigeonhole_bound(head, tail, seconds, self.slots, PIGEONHOLE_CUTS))
        return bound

    def run(self, base: Plan, bound_s: float) -> Plan:
        """The best plan found from this one."""
        goal, quiet = bound_s * (1 + TOLERANCE), 0
        best = current = self._justified(base)
        while best.makespan_s > goal and quiet < PATIENCE and self.left >= 3 * self.size:
            plan = self._justified_once(self._forward(self._shaken(current)))
            quiet += 1
            if plan.makespan_s < best.makespan_s * (1 - TOLERANCE):
                best, quiet = plan, 0
            if plan.makespan_s <= current.makespan_s:
                current = plan
        return best

    # --- plans ---

    def by_value(self, value_s: Sequence[float]) -> Plan:
        """As the engine starts them: greatest value first, then one with dependents, then who was ready first."""
        seconds, children, waiting = self.seconds, self.children, self._n_parents[:]
        ready = [(-value_s[i], not children[i], i, i) for i in range(self.size) if not waiting[i]]
        heapify(ready)
        running: list[tuple[float, int]] = []
        started: list[int] = []
        ends = [0.0] * self.size
        now, free, order = 0.0, self.slots, self.size
        while ready or running:
            while ready and free:
                item = heappop(ready)[3]
                ends[item] = now + seconds[item]
                heappush(running, (ends[item], len(started)))
                started.append(item)
                free -= 1
            now, number = heappop(running)
            free += 1
            for child in children[started[number]]:
                waiting[child] -= 1
                if not waiting[child]:
                    order += 1
                    heappush(ready, (-value_s[child], not children[child], order, child))
        self.left -= self.size
        return Plan(now, started, ends)

    def _forward(self, order: Sequence[int]) -> Plan:
        return self._scheduled(order, self.children, self._n_parents)

    def _backward(self, order: Sequence[int]) -> Plan:
        """The mirror image: from the end, each item after its children; times count from the end."""
        return self._scheduled(order, self.parents, self._n_children)

    def _scheduled(self, order: Sequence[int], after: Sequence[Sequence[int]], n_before: Sequence[int]) -> Plan:
        """List schedule by place in `order`. The inner loop of everything: plain lists and whole numbers."""
        seconds, waiting = self.seconds, list(n_before)
        place = [0] * self.size
        for at, item in enumerate(order):
            place[item] = at
        ready = [at for at, item in enumerate(order) if not waiting[item]]  # sorted, so a heap
        running: list[tuple[float, int]] = []
        started: list[int] = []
        ends = [0.0] * self.size
        now, free, count = 0.0, self.slots, 0
        while ready or running:
            while ready and free:
                item = order[heappop(ready)]
                ends[item] = end = now + seconds[item]
                heappush(running, (end, count))
                started.append(item)
                count += 1
                free -= 1
            now, number = heappop(running)
            free += 1
            for item in after[started[number]]:
                waiting[item] -= 1
                if not waiting[item]:
                    heappush(ready, place[item])
        self.left -= self.size
        return Plan(now, started, ends)

    # --- moves ---

    def _justified(self, plan: Plan) -> Plan:
        """Backwards and forwards again as long as that gains."""
        while self.left >= 2 * self.size:
            again = self._forward(_by_falling_end(self._backward(_by_falling_end(plan))))
            if again.makespan_s >= plan.makespan_s:
                break
            plan = again
        return plan

    def _justified_once(self, plan: Plan) -> Plan:
        """The better of the plan and what one pass backwards and forwards makes of it."""
        again = self._forward(_by_falling_end(self._backward(_by_falling_end(plan))))
        return again if again.makespan_s <= plan.makespan_s else plan

    def _shaken(self, plan: Plan) -> list[int]:
        """Items by start, with some of the starts shifted: from many by a little to few by much, drawn each time."""
        draw, seconds = self._draw, self.seconds
        reach = plan.makespan_s * 10.0 ** (-3.0 + 3.3 * draw())
        share = 10.0 ** (-2.0 * draw())
        keys = [end - own for end, own in zip(plan.ends_s, seconds, strict=True)]
        for item in plan.started:
            if draw() < share:
                keys[item] += reach * (draw() - 0.5)
        return sorted(plan.started, key=keys.__getitem__)

    def _paths(self) -> tuple[list[float], list[float]]:
        """Longest path before and after each item."""
        head, tail = [0.0] * self.size, [0.0] * self.size
        for item, above in enumerate(self.parents):
            head[item] = max((head[p] + self.seconds[p] for p in above), default=0.0)
        for item in range(self.size - 1, -1, -1):
            tail[item] = max((tail[c] + self.seconds[c] for c in self.children[item]), default=0.0)
        return head, tail


def _by_falling_end(plan: Plan) -> list[int]:
    order = plan.started[::-1]
    order.sort(key=plan.ends_s.__getitem__, reverse=True)
    return order


# --- from a plan to lifts ---


def _checked_lifts(
    search: _Search, plan: Plan, rank_s: Sequence[float], before_s: float
) -> tuple[dict[int, float], float]:
    """The least lifts that repeat the plan and the makespan they give; where ties get in the way, with all of them
    broken; the better of both, {} when neither gains."""
    best: tuple[dict[int, float], float] = {}, before_s
    for margin_s in (0.0, TOLERANCE * plan.makespan_s):
        lifts = _least_lifts(search, plan, rank_s, margin_s)
        after = search.by_value([rank + lifts.get(i, 0.0) for i, rank in enumerate(rank_s)]).makespan_s
        if after < best[1] * (1 - TOLERANCE):
            best = lifts, after
        if after <= plan.makespan_s:
            break
    return best


def _least_lifts(search: _Search, plan: Plan, rank_s: Sequence[float], margin_s: float) -> dict[int, float]:
    """What must be added to ranks so that each item beats those that were ready when it started, but started later.

    From the last start to the first: those that start later are in a heap by value, and leave it for good once they
    are found not to be ready yet, as all that is still to come started earlier.
    """
    seconds, ends = search.seconds, plan.ends_s
    later: list[tuple[float, float]] = []  # (-value, ready at)
    lifts: dict[int, float] = {}
    for item in reversed(plan.started):
        start = ends[item] - seconds[item]
        while later and later[0][1] > start:
            heappop(later)
        value = rank_s[item]
        if later and -later[0][0] + margin_s > value:
            value = -later[0][0] + margin_s
            lifts[item] = value - rank_s[item]
        ready = max((ends[p] for p in search.parents[item]), default=0.0)
        heappush(later, (-value, ready))
    return lifts
