"""Why tasks waited for slots, and by what they then went first: Airflow keeps no reasons, so from when each task of a
pool had its slots, and its weight.

    fit_2   scheduled ─────────────┬──────────────────────── queued ── runs
            Held: the pool is full   Held: fit_1 went first    Granted, with EGS: its weight, and the next one's
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import groupby

from egs_airflow.history.kept import held_back
from egs_airflow.history.records import pool_sizes
from egs_airflow.history.seen import KeptSlots, Seen, Try, workload_of
from egs_airflow.order.durations import Durations
from egs_core.runlog.records import Granted, Held, Record

CAPACITY = "capacity"
MOST_NAMED = 3
END, READY, AGAIN, TAKEN, END_AT_ONCE = range(5)
"""What happens; at one moment in this order. AGAIN: nothing is kept for others any more."""
Event = tuple[float, int, int]
Place = tuple[int, float, int]


def reasons_of(seen: Seen, begin_s: float, known_s: Durations | None) -> list[Record]:
    """The holds and grants of all tasks that waited for slots of a pool. begin_s: Unix time of t = 0; known_s: what EGS
    knew of durations, by DAG and task, where it ordered; None: Airflow alone, of which no grant is told."""
    came = {(run.dag_id, run.run_id): run.submitted_s for run in seen.runs}
    out: list[Record] = []
    for pool, size in pool_sizes(seen).items():
        tries = [one for one in seen.tries if one.pool == pool and one.held_slots and not one.was_deferred]
        told = _Pool(pool, size, tries, came, [one for one in seen.kept if one.pool == pool])
        out += told.records(begin_s, known_s)
    return out


class _Pool:
    """One pool, gone through by time. came: when each run was submitted."""

    def __init__(
        self, name: str, size: int, tries: list[Try], came: dict[tuple[str, str], float], kept: list[KeptSlots]
    ) -> None:
        self._name, self._size, self._tries, self._kept = name, size, tries, kept
        self._place: list[Place] = [
            (-one.weight, came.get((one.dag_id, one.run_id), 0.0), one.map_index) for one in tries
        ]
        self._holders: dict[int, None] = {}  # in the order in which they got their slots
        self._taken = 0
        self._heap: list[tuple[Place, int]] = []
        self._waiting: set[int] = set()

    def records(self, begin_s: float, known_s: Durations | None) -> Iterator[Record]:
        last: tuple[float, int, tuple[str, ...]] | None = None  # who got slots last, and who held some then
        for (at_s, what), at_once in groupby(sorted(self._events()), key=lambda event: event[:2]):
            numbers = [n for _, _, n in at_once]
            if what == TAKEN:
                self._waiting.difference_update(numbers)
            before = last
            for n in numbers:
                one, t = self._tries[n], round(max(0.0, at_s - begin_s), 6)
                place = workload_of(one.dag_id, one.run_id), one.task, 0
                if what in (END, END_AT_ONCE):
                    self._holders.pop(n, None)
                    self._taken -= one.slots
                elif what == READY:
                    self._waiting.add(n)
                    heapq.heappush(self._heap, (self._place[n], n))
                if what in (READY, AGAIN) and n in self._waiting and self._is_full(one):
                    yield Held(t, *place, CAPACITY, self._words(one), self._named())
                if what != TAKEN:
                    continue
                if before is not None and before[0] > _ready_s(one):
                    when = round(max(0.0, before[0] - begin_s), 6)
                    yield Held(when, *place, CAPACITY, self._first(before[1], one), before[2])
                if known_s is not None:
                    seconds = known_s.get(one.dag_id, {}).get(one.task_id)
                    yield Granted(t, *place, one.number, reason=self._decided(n), estimate_p50_s=seconds)
                self._holders[n] = None
                self._taken += one.slots
                last = at_s, n, self._named()

    def _events(self) -> Iterator[Event]:
        for n, one in enumerate(self._tries):
            ready_s, taken_s = _ready_s(one), _taken_s(one)
            if ready_s < taken_s:
                yield ready_s, READY, n
                for at_s, kind, _ in held_back(one, ready_s, taken_s, self._kept):
                    if kind == CAPACITY:
                        yield at_s, AGAIN, n
            yield taken_s, TAKEN, n
            if one.ended_s is not None:
                yield max(one.ended_s, taken_s), END if one.ended_s > taken_s else END_AT_ONCE, n

    def _is_full(self, one: Try) -> bool:
        return 0 <= self._size < self._taken + one.slots

    def _words(self, one: Try) -> str:
        open_slots = max(0, self._size - self._taken)
        return f"pool {self._name}: needs {one.slots} of {self._size} slots, {open_slots} open"

    def _named(self) -> tuple[str, ...]:
        return tuple([self._tries[n].task for n in self._holders][:MOST_NAMED])

    def _first(self, n: int, one: Try) -> str:
        other = self._tries[n]
        by = ""
        if other.weight > one.weight:
            by = f" by its weight: {other.weight}, this one's is {one.weight}"
        elif other.weight == one.weight:
            by = "; both weigh the same"
        return f"pool {self._name}: {other.task} went first{by}"

    def _decided(self, n: int) -> str:
        """By what it went before the next of those that wait; "" where it did not, or none waits."""
        while self._heap and self._heap[0][1] not in self._waiting:
            heapq.heappop(self._heap)
        if not self._heap:
            return ""
        own, after = self._place[n], self._heap[0][0]
        if own[0] < after[0]:
            return f"its weight: {-own[0]}, the next one's is {-after[0]}"
        return "its run, which came first; both weigh the same" if own[0] == after[0] and own[1] < after[1] else ""


def _ready_s(one: Try) -> float:
    return min(one.scheduled_s, _taken_s(one)) if one.scheduled_s is not None else _taken_s(one)


def _taken_s(one: Try) -> float:
    """When it had its slots."""
    return min(time for time in (one.queued_s, one.started_s) if time is not None)
