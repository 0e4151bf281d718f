"""The scheduler's sleep between two passes ends when a task has ended, or a DAG run has come.

A pass that found nothing to do is followed by a second of sleep (`[scheduler] scheduler_idle_sleep_time`), in which the
slots that come free stay empty. To sleep less would cost every idle scheduler; to look whether there is news does not.

    task      ███ success, its slot is free ──── its process ends (up to half a second later)
    executor                                         hears of it
    scheduler                  ▲ wakes here

A run that a user starts would else wait for up to a second before its first task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from egs_airflow import compat
from egs_airflow.executors import reading

LOOK_S = 0.05
"""How often it is looked for news of which nobody tells."""
ASK_S = 0.1
"""How often the metadata database is asked, one statement for all tasks of this executor; at once where one rings."""
RUNS_S = 0.25
"""How often it is asked for new DAG runs: one read of an index, of which a pass that finds nothing makes dozens."""
GIVE_WAY_S = 0.5
"""The longest that a pass waits until the code of tasks begins that were just given slots."""
MOST_SHARE = 0.25
"""Of the time, for such waits where nobody waited for the slots."""
MOST_TASKS = 16  # as many as Airflow's scheduler hands out at once, where nobody says otherwise


@dataclass
class Runs:
    """The DAG runs that have come. newest: the last that was news, so one that has to stay queued is no news twice."""

    newest: int = 0
    asked_s: float = 0.0

    def have_come(self) -> bool:
        """Whether one has come since this was last True; False where it was asked just now."""
        now_s = time.monotonic()
        if now_s - self.asked_s < RUNS_S:
            return False
        self.asked_s = now_s
        with compat.connect() as connection:
            newest = reading.newest_queued_run(connection)
        is_news, self.newest = newest > self.newest, max(newest, self.newest)
        return is_news


@dataclass
class Running:
    """The tasks that an executor has started, and whose ends are still to come. ids: those of their rows; over: the
    ends that were news, until somebody takes them; is_followed: whether somebody does."""

    ids: set[Any] = field(default_factory=set)
    over: list[reading.End] = field(default_factory=list)
    is_followed: bool = False
    asked_s: float = 0.0

    def note(self, workloads: Iterable[Any]) -> None:
        """These were handed to processes."""
        self.ids.update(workload.ti.id for workload in workloads if hasattr(workload, "ti"))

    def ask_now(self) -> None:
        """Somebody says that one has ended."""
        self.asked_s = float("-inf")

    def have_ended(self) -> bool:
        """Whether some have ended by their own word, which is said once of each; False where it was asked just now."""
        now_s = time.monotonic()
        if not self.ids or now_s - self.asked_s < ASK_S:
            return False
        self.asked_s = now_s
        with compat.connect() as connection:
            ended = reading.ended(connection, list(self.ids))
        self.ids -= {end.id for end in ended}
        if self.is_followed:
            self.over += ended
        return bool(ended)

    def take_over(self) -> list[reading.End]:
        """The ends that were news since this was asked."""
        over, self.over = self.over, []
        return over


@dataclass
class Manners:
    """How long a pass may wait for tasks that were just given slots: it would take the processors, and on SQLite the
    lock, that their processes and the api-server need before their code begins. again_s: from then on it may again;
    was_vain: the last wait was to its end, as of tasks that never say that they begin."""

    again_s: float = 0.0
    was_vain: bool = False

    @contextmanager
    def waiting(self, tasks: Set[bytes], *, follows: bool) -> Iterator[float]:
        """Until when (monotonic) to wait at most inside for tasks to begin, which are then taken out of the set.
        follows: they have slots that others gave back, so somebody waits for these; for what else begins, and after a
        wait in vain, waits take no more than their share of the time, and but for what follows none is for MOST_TASKS,
        behind which there are more."""
        first, begin_s = frozenset(tasks), time.monotonic()
        may = bool(tasks) and (
            (follows and not (self.was_vain and begin_s < self.again_s))
            or (len(tasks) < MOST_TASKS and begin_s >= self.again_s)
        )
        try:
            yield begin_s + GIVE_WAY_S if may else begin_s
        finally:
            now_s = time.monotonic()
            if may:
                self.was_vain = now_s - begin_s >= GIVE_WAY_S and not first.isdisjoint(tasks)
                self.again_s = now_s + (now_s - begin_s) * (1 - MOST_SHARE) / MOST_SHARE


def sleep_until(has_news: Callable[[], bool], longest_s: float, hear: Callable[[float], object] = time.sleep) -> None:
    """Sleep, until there is news or the time is over. hear: sleeps for so many seconds, or until somebody tells."""
    end_s = time.monotonic() + longest_s
    while (left_s := end_s - time.monotonic()) > 0 and not has_news():
        hear(min(LOOK_S, left_s))
