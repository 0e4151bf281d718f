"""GPU seconds that tasks of frameworks' drivers held, by stretches of time, team, framework and place. Pure.

    a task's GPUs, from when to when ─► spread over stretches of five minutes (two days), and of an hour (31 days)

Kept as long as the server's process: frameworks' books have what is durable.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from egs_core.client.driver_use import MOST_S, DriverUse, UsedBy
from egs_core.server.steps import Steps
from egs_core.site.held import Held

FINE_S, COARSE_S = 300.0, 3600.0
FINE_FOR_S, COARSE_FOR_S = 2 * 86400.0, MOST_S
MOST_TASKS = 10_000  # of which it is known until when they were counted
MOST_KEYS = 500  # of a stretch; nodes may come and go
IN_A_STEP = 100  # stretches
Key = tuple[str, str, str]  # team, framework, place
Sums = dict[Key, list[float]]  # held, used


class Stretches:
    """Of equal length, those that are over for too long left out. Moments are of one clock."""

    def __init__(self, width_s: float, for_s: float) -> None:
        self.width_s, self._for_s = width_s, for_s
        self.sums: dict[int, Sums] = {}

    def add(self, key: Key, part: Held, until: float) -> None:
        """What was held until then, no longer ago than is kept."""
        since = max(part.since, until - self._for_s)
        used_since = until if part.used_since is None else max(since, part.used_since)
        first, last = int(since // self.width_s), int(until // self.width_s)
        if first == last:  # as most are
            found = self._sums(first, key, until)
            found[0] += part.gpus * max(0.0, until - since)
            found[1] += part.gpus * max(0.0, until - used_since)
            return
        for number in range(first, last + 1):
            begin, end = number * self.width_s, (number + 1) * self.width_s
            found = self._sums(number, key, until)
            found[0] += part.gpus * max(0.0, min(end, until) - max(begin, since))
            found[1] += part.gpus * max(0.0, min(end, until) - max(begin, used_since))

    def _sums(self, number: int, key: Key, now: float) -> list[float]:
        """Of a stretch, to be added to."""
        sums = self.sums.get(number)
        if sums is None:
            self._forget(now)  # only now: there may be hundreds, and a task may end each millisecond
            sums = self.sums[number] = {}
        found = sums.get(key)
        if found is None:
            found = sums.setdefault(key if len(sums) < MOST_KEYS else (*key[:2], ""), [0.0, 0.0])
        return found

    def _forget(self, now: float) -> None:
        first = (now - self._for_s) // self.width_s
        for number in [one for one in self.sums if one < first]:
            del self.sums[number]


class DriverUses:
    """See the module. zero: second since 1970 at which the pools' clock is 0, when the process began."""

    def __init__(self, zero: float) -> None:
        self._zero = zero
        self._counted = OrderedDict[tuple[str, str, tuple[str, str]], float]()
        """The oldest first, which a plain dict of which many are gone looks for long."""
        self._kept = Stretches(FINE_S, FINE_FOR_S), Stretches(COARSE_S, COARSE_FOR_S)

    def over(self, part: Held) -> None:
        """What a task has held."""
        until = part.until or 0.0
        task, key = _task(part), _key(part)
        self._counted[task] = until
        self._counted.move_to_end(task)
        if len(self._counted) > MOST_TASKS:
            self._counted.popitem(last=False)
        for kept in self._kept:
            kept.add(key, part, until)

    def counted_until(self, part: Held) -> float:
        """Of a task that a driver has brought along: it may have left and come back; minus infinity
        where it is new."""
        return self._counted.get(_task(part), -math.inf)

    def told_steps(
        self, over_s: float, running: Iterable[Held], now: float, sees: Callable[[str], bool]
    ) -> Steps[DriverUse]:
        """What whoever sees these teams is told of the last so many seconds; running: what is held now."""
        kept = self._kept[0 if over_s <= FINE_FOR_S else 1]
        open_now = Stretches(kept.width_s, over_s + kept.width_s)
        gpus = 0.0
        for one in running:
            if sees(one.owner.team):
                gpus += one.gpus
                open_now.add(_key(one), one, now)
        first = int((now - over_s) // kept.width_s)
        rows: list[UsedBy] = []
        for count, number in enumerate(sorted(one for one in {*kept.sums, *open_now.sums} if one >= first)):
            if count and not count % IN_A_STEP:
                yield
            rows += self._rows(number, kept, open_now, now, sees)
        return DriverUse(self._zero + now, self._zero, gpus, tuple(rows))

    def _rows(
        self, number: int, kept: Stretches, open_now: Stretches, now: float, sees: Callable[[str], bool]
    ) -> Iterator[UsedBy]:
        start, end = number * kept.width_s, min(now, (number + 1) * kept.width_s)
        found: Sums = {}
        for sums in (kept.sums.get(number, {}), open_now.sums.get(number, {})):
            for key, (held, used) in sums.items():
                before = found.get(key, [0.0, 0.0])
                found[key] = [before[0] + held, before[1] + used]
        for (team, framework, place), (held, used) in found.items():
            if held > 0 and end > start and sees(team):
                yield UsedBy(self._zero + start, self._zero + end, team, framework, place, held, used)


def _key(part: Held) -> Key:
    return part.owner.team, part.owner.framework, part.place


def _task(part: Held) -> tuple[str, str, tuple[str, str]]:
    return part.owner.user, part.owner.framework, part.task
