"""For which DAG files processes should stand ready, how many, and when: by when their tasks came before.

    tasks of nightly.py     |||                        |||                        |||
    stand ready             .                          ▒▒▒  from just before      ▒▒▒
    tasks of etl.py         |   |   |   |   |   |
    stand ready             ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒       one: they come one by one

A process that stands ready holds memory, and reads its file again each time that it is too old (`within_s`); a task
that finds none waits so long with its slot held. The n-th stands while tasks come soon enough:

    rate(n) = (tasks of the file in the next second, where none has come until now) · (share of bursts with n tasks)
            ≥ 1 / WORTH_S

The rate is that of the gaps between bursts that were seen: each as a window around it, as wide as its neighbours are
far, since the next one will not be the same. What nobody has seen counts as PRIOR of a gap of which is known only that
it is as long again as it has lasted. Of several files the one with the most seconds to save.

Pure, but for `Shared`, in which all processes of an executor keep what they know.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

WORTH_S = 60.0
"""So long a process stands ready, in the mean, for one task that finds it. Reading costs and saves alike, so its length
does not count here."""
PRIOR = 0.25
"""As much as so many gaps, or bursts, that were seen."""
LEAST_SHARE = 0.05
"""Of bursts that have a second, a third: where fewer have, none stands for it."""
LEAD_S = 1.0
"""So long before it is to have read its file a process is thought of: it is looked each second."""
LEAST_WIDTH_S, MOST_WIDTH = 1.0, 0.05
"""Of a window, to each side: seconds, and as a share of its gap."""
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


def windows_of(bursts: Sequence[tuple[float, float, int]]) -> list[tuple[float, float]]:
    """Of each gap between bursts, shortest first: when after a burst the next one may begin, by it.

    >>> windows_of([(0.0, 0.0, 1), (60.0, 60.0, 1)]), windows_of([(0.0, 0.0, 1), (60.0, 60.0, 1), (120.5, 121.0, 2)])
    ([(57.0, 63.0)], [(59.0, 61.0), (59.5, 61.5)])
    """
    gaps = sorted(after[0] - before[1] for before, after in pairwise(bursts))
    apart = max(1, round(len(gaps) ** 0.5))
    found = []
    for number, gap in enumerate(gaps):
        near = [abs(gaps[other] - gap) for other in (number - apart, number + apart) if 0 <= other < len(gaps)]
        width_s = max(LEAST_WIDTH_S, min([MOST_WIDTH * gap, *near]))
        found.append((gap - width_s, gap + width_s))
    return found


def rate(one: Seen, number: int, now_s: float) -> float:
    """How many a second, now or when a process that begins now has read the file, need the process of this number,
    counted from 1.

    >>> each_minute = Seen(DagFile("b", None, "etl.py"), [60.0 * number for number in range(20)])
    >>> [rate(each_minute, 1, 1140.0 + after_s) * WORTH_S > 1 for after_s in (20.0, 50.0, 58.5, 62.0)]
    [False, False, True, False]
    """
    if not one.came_s:
        return 0.0
    bursts, windows = _known(tuple(one.came_s))
    together = (sum(count >= number for _, _, count in bursts) + PRIOR) / (len(bursts) + PRIOR) if number > 1 else 1.0
    if together < LEAST_SHARE:
        return 0.0
    since_s = now_s - bursts[-1][1]
    return together * max(_rate_at(windows, since_s), _rate_at(windows, since_s + one.read_s + LEAD_S))


@lru_cache(4 * MOST_FILES)
def _known(came_s: tuple[float, ...]) -> tuple[list[tuple[float, float, int]], list[tuple[float, float]]]:
    """Bursts and windows: they are asked for again and again between two tasks."""
    bursts = bursts_of(came_s)
    return bursts, windows_of(bursts)


def _rate_at(windows: Sequence[tuple[float, float]], since_s: float) -> float:
    """Of bursts, so long after the last one."""
    unseen_s = max(TOGETHER_S, since_s)
    ending, left = PRIOR / unseen_s**2, PRIOR / unseen_s
    for begin_s, end_s in windows:
        if since_s < end_s:
            ending += 1 / (end_s - begin_s) if begin_s <= since_s else 0.0
            left += min(1.0, (end_s - since_s) / (end_s - begin_s))
    return ending / left


def best(seen: Sequence[Seen], now_s: float, without: Collection[DagFile] = ()) -> Seen | None:
    """The file for which one more should stand ready now; None where none is worth it."""
    found, most = None, 0.0
    for one in seen:
        wanted = rate(one, one.standing + 1, now_s) if one.file not in without else 0.0
        if wanted * WORTH_S >= 1.0 and wanted * one.read_s > most:
            found, most = one, wanted * one.read_s
    return found


def stays(one: Seen, now_s: float) -> bool:
    """Whether what stands ready for the file goes on to: the first of them is worth it, or a burst may still go on."""
    is_amid = bool(one.came_s) and now_s - one.came_s[-1] <= TOGETHER_S + LEAD_S
    return is_amid or rate(one, 1, now_s) * WORTH_S >= 1.0


def next_s(seen: Sequence[Seen], now_s: float, within_s: float) -> float:
    """When what is worth it may be another, at the latest after `within_s`: when a window comes; amid of one, soon."""
    due = now_s + within_s
    for one in seen:
        bursts, windows = _known(tuple(one.came_s))
        for begin_s, end_s in windows:
            begin_at, end_at = (bursts[-1][1] + at_s for at_s in (begin_s - one.read_s - LEAD_S, end_s))
            if end_at > now_s:
                due = min(due, max(now_s + LEAD_S, begin_at))
    return due


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
