"""For which DAG files processes should stand ready, how many, and when: by when their tasks came before.

    tasks of nightly.py     |||                        |||                        |||
    stand ready             ...                        ▒▒▒  from just before       ▒▒▒
    tasks of etl.py         |   |   |   |   |   |
    stand ready             ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒        one: they come one by one

A process that stands ready costs what reading its file takes, each time that it is too old (`within_s`); a task that
finds none waits so long with its slot held. The n-th is worth it where it is wanted with at least the chance

    chance(n) = (chance that tasks come within within_s) · (chance that n come together)
              ≥ EARLY_COST / (EARLY_COST + LATE_COST)                      the newsvendor's rule, as for preloads

Both are shares of what was seen: of the gaps between bursts that were longer than what has passed since the last one,
those that ended within it; of the bursts, those of n and more. What nobody has seen counts as PRIOR of one that says
yes, and for `recent_s` after the last task it says so alone. Of several files the one with the most seconds to save.

Pure, but for `Shared`, in which all processes of an executor keep what they know.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

EARLY_COST, LATE_COST = 1.0, 19.0
"""Of a second in which a process stands ready in vain, and of one that a task waits: as of what is loaded ahead."""
LEAST = EARLY_COST / (EARLY_COST + LATE_COST)
PRIOR = 0.25
"""As much as so many gaps, or bursts, that were seen."""
TOGETHER_S = 1.0
"""Tasks of a file that come no further apart are a burst: no other process stands ready so soon."""
MOST_TIMES, MOST_FILES = 64, 12
"""That are remembered: of a file the newest tasks, and the files that had tasks last."""
FIRST_READ_S = 0.1
"""What reading a file is taken to need before one has."""
LOCK_S = 1.0
"""So long the shared memory's lock is waited for; without it nothing is learned, and what is there is not trusted."""
MOST_BYTES = 16384
"""For all of it, as JSON."""


class DagFile(NamedTuple):
    """A DAG file as Airflow names it to a task's process."""

    bundle: str
    version: str | None
    path: str


class Seen(msgspec.Struct):
    """What is known of a file. came_s: when its tasks came, the newest last; read_s: what reading it took last;
    standing: how many stand ready for it, which is not kept: whoever asks counts them."""

    file: DagFile
    came_s: list[float] = []
    read_s: float = FIRST_READ_S
    standing: int = 0


class Times(NamedTuple):
    """within_s: so long a process is good; recent_s: so long after a task another one is thought likely, where nobody
    knows."""

    within_s: float
    recent_s: float


def bursts_of(came_s: Sequence[float]) -> list[tuple[float, float, int]]:
    """First and last moment of each burst, and how many tasks it has.

    >>> bursts_of([0.0, 0.5, 60.0])
    [(0.0, 0.5, 2), (60.0, 60.0, 1)]
    """
    found: list[tuple[float, float, int]] = []
    for at in came_s:
        if found and at - found[-1][1] <= TOGETHER_S:
            found[-1] = found[-1][0], at, found[-1][2] + 1
        else:
            found.append((at, at, 1))
    return found


def chance(came_s: Sequence[float], number: int, now_s: float, times: Times) -> float:
    """That the process of this number, counted from 1, is wanted while it is good.

    >>> each_minute = [60.0 * number for number in range(20)]
    >>> round(chance(each_minute, 1, 1141.0, Times(30, 300)), 3), chance(each_minute, 1, 1175.0, Times(30, 300)) > 0.9
    (0.013, True)
    """
    if not came_s:
        return 0.0
    bursts = bursts_of(came_s)
    since_s = now_s - bursts[-1][1]
    gaps = [after[0] - before[1] for before, after in pairwise(bursts)]
    longer = [gap for gap in gaps if gap > since_s]
    soon = sum(gap <= since_s + times.within_s for gap in longer)
    comes = (soon + PRIOR * (since_s <= times.recent_s)) / (len(longer) + PRIOR)
    together = (sum(count >= number for _, _, count in bursts) + PRIOR) / (len(bursts) + PRIOR)
    return comes * (together if number > 1 else 1.0)


def best(seen: Sequence[Seen], now_s: float, times: Times, without: Collection[DagFile] = ()) -> Seen | None:
    """The file for which one more should stand ready now; None where none is worth it."""
    found, most = None, 0.0
    for one in seen:
        is_wanted = chance(one.came_s, one.standing + 1, now_s, times) if one.file not in without else 0.0
        if is_wanted >= LEAST and is_wanted * one.read_s > most:
            found, most = one, is_wanted * one.read_s
    return found


def next_s(seen: Sequence[Seen], now_s: float, times: Times) -> float:
    """When what is worth it may be another, at the latest after `within_s`: when one more gap that was seen may end."""
    due = [now_s + times.within_s]
    for one in seen:
        bursts = bursts_of(one.came_s)
        for before, after in pairwise(bursts):
            at = bursts[-1][1] + (after[0] - before[1]) - times.within_s
            if at > now_s:
                due.append(at)
    return min(due)


class Shared:
    """What all processes of an executor know. memory: an array of MOST_BYTES characters that they share, made before
    the forks, with a lock of its own."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def read(self) -> list[Seen]:
        with self._locked() as is_ours:
            return self._decoded() if is_ours else []

    def came(self, file: DagFile, now_s: float) -> None:
        """A task of it has come."""
        with self._changed(file) as one:
            one.came_s = [*one.came_s, now_s][-MOST_TIMES:]

    def took(self, file: DagFile, read_s: float) -> None:
        """So long reading it took."""
        with self._changed(file) as one:
            one.read_s = read_s

    @contextmanager
    def _changed(self, file: DagFile) -> Iterator[Seen]:
        with self._locked() as is_ours:
            seen = self._decoded()
            own = next((one for one in seen if one.file == file), None) or Seen(file)
            yield own
            if not is_ours:
                return
            kept = [one for one in seen if one.file != file]
            kept.sort(key=_last_s)
            found = [*kept[-(MOST_FILES - 1) :], own]
            while len(text := msgspec.json.encode(found)) >= MOST_BYTES:
                found = found[1:] if len(found) > 1 else []
            self._memory.get_obj().value = text

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Whether it is: one that was killed with the lock must not hold up all others' tasks."""
        lock = self._memory.get_lock()
        is_ours = lock.acquire(True, LOCK_S)
        try:
            yield is_ours
        finally:
            if is_ours:
                lock.release()

    def _decoded(self) -> list[Seen]:
        text = self._memory.get_obj().value  # without the lock, which may be nobody's any more
        try:
            return msgspec.json.decode(text, type=list[Seen]) if text else []
        except msgspec.MsgspecError:  # written in part
            return []


def _last_s(one: Seen) -> float:
    return one.came_s[-1] if one.came_s else 0.0
