"""How many processes should stand ready, for which DAG file and when: the rule, and what it is worth in streams of
short pipelines, by counts. No Airflow, no process, no clock."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterable
from typing import Any

import pytest

from egs_airflow.executors.demand import (
    LEAST,
    MOST_BYTES,
    MOST_FILES,
    MOST_TIMES,
    DagFile,
    Seen,
    Shared,
    Times,
    best,
    chance,
    next_s,
)

TIMES = Times(30.0, 300.0)
HOUR_S = 3600.0
ETL, NIGHTLY = DagFile("b", None, "etl.py"), DagFile("b", None, "nightly.py")
HOURLY = [HOUR_S * hour + 0.1 * task for hour in range(10) for task in range(3)]


def test_tasks_of_each_hour_have_processes_just_before_and_none_between() -> None:
    """Three, as they come together; a fourth was never wanted."""
    last = HOURLY[-1]
    assert chance(HOURLY, 1, last + 200.0, TIMES) < LEAST
    assert chance(HOURLY, 1, last + 1800.0, TIMES) == 0.0
    assert [chance(HOURLY, number, last + HOUR_S - 20.0, TIMES) > 0.9 for number in (1, 2, 3)] == [True] * 3
    assert chance(HOURLY, 4, last + HOUR_S - 20.0, TIMES) < LEAST
    assert last < next_s([Seen(NIGHTLY, HOURLY)], last + 1.0, TIMES) <= last + 31.0
    assert next_s([Seen(NIGHTLY, HOURLY)], last + HOUR_S - 40.0, TIMES) == pytest.approx(last + HOUR_S - 30.2)


def test_where_nobody_knows_some_stand_ready_for_a_while_after_a_task() -> None:
    assert chance([], 1, 0.0, TIMES) == 0.0
    assert [chance([0.0], number, 299.0, TIMES) >= LEAST for number in (1, 2, 3)] == [True] * 3
    assert chance([0.0], 1, 301.0, TIMES) == 0.0


def test_tasks_that_come_one_by_one_have_one_process() -> None:
    chain = [10.0 * number for number in range(12)]
    assert chance(chain, 1, 111.0, TIMES) > 0.9
    assert chance(chain, 2, 111.0, TIMES) < LEAST


def test_of_several_files_the_one_with_most_seconds_to_save() -> None:
    """Both are wanted; one takes ten times as long to read. Unfit ones are left out, and what stands already counts."""
    chain = [10.0 * number for number in range(12)]
    quick, slow = Seen(ETL, chain, 0.1), Seen(NIGHTLY, chain, 1.0)
    assert best([quick, slow], 111.0, TIMES) is slow
    assert best([quick, slow], 111.0, TIMES, [NIGHTLY]) is quick
    slow.standing = 1
    assert best([quick, slow], 111.0, TIMES) is quick
    quick.standing = 1
    assert best([quick, slow], 111.0, TIMES) is None


def test_all_processes_share_what_they_know_and_it_stays_small() -> None:
    """The newest tasks of the files that had tasks last; what was written in part is nothing; a lock that nobody gives
    back any more is not waited for for long, and what is not known then is no error."""
    memory = multiprocessing.get_context("fork").Array("c", MOST_BYTES)
    one, two = Shared(memory), Shared(memory)
    for number in range(MOST_TIMES + 5):
        one.came(ETL, float(number))
    two.took(ETL, 0.5)
    (seen,) = one.read()
    assert (seen.file, len(seen.came_s), seen.came_s[-1], seen.read_s) == (ETL, 64, 68.0, 0.5)
    for number in range(30):
        one.came(DagFile("b", None, "x" * 900 + str(number)), 100.0 + number)
    assert len(two.read()) <= MOST_FILES
    assert two.read()[-1].file.path.endswith("29")
    text: Any = memory.get_obj()
    text.value = text.value[:50]
    assert two.read() == []
    two.came(ETL, 1.0)
    assert [seen.file for seen in one.read()] == [ETL]
    holder = multiprocessing.get_context("fork").Process(target=memory.get_lock().acquire)
    holder.start()
    holder.join()
    assert one.read() == []
    one.came(ETL, 2.0)


Stream = list[tuple[float, DagFile]]


def files(count: int) -> list[DagFile]:
    return [DagFile("b", None, f"dag{number}.py") for number in range(count)]


def stream(seed: int, length_s: float = 3 * HOUR_S) -> Stream:
    """Short pipelines of several users: some each few minutes, some each hour, some by chance; chains and bursts."""
    draw, found = random.Random(seed), list[tuple[float, DagFile]]()
    for number, file in enumerate(files(6)):
        at, every = draw.uniform(0.0, 600.0), (120.0, 600.0, 1800.0)[number % 3]
        while at < length_s:
            tasks = (1, 3, 6)[number // 2]
            found += [
                (at + task * (0.1 if number % 2 else 4.0) + draw.uniform(0.0, 0.05), file) for task in range(tasks)
            ]
            at += every * draw.uniform(0.98, 1.02) if number < 4 else draw.expovariate(1 / every)
    return sorted(found)


READ_S = 0.5
PROCESSES = 4  # of the executor, each with at most one that stands ready


class Played:
    """An executor's processes, to which tasks come. A process that stands ready does so for 30 s, then it is thought of
    again; one that is taken is replaced. A task is taken by who has a process for its file, else by each in turn."""

    def __init__(self, is_learned: bool) -> None:
        self.is_learned = is_learned  # else each has one stand ready for the file of its own last task, for 300 s
        self.seen: dict[DagFile, Seen] = {}
        self.standing: list[tuple[float, DagFile] | None] = [None] * PROCESSES
        self.last: list[tuple[float, DagFile] | None] = [None] * PROCESSES
        self.warm = self.tasks = 0
        self.held_s = 0.0

    def look(self, now_s: float, step_s: float) -> None:
        for number, stands in enumerate(self.standing):
            if stands is not None and stands[0] + TIMES.within_s > now_s:
                continue
            self.standing[number] = None
            for one in self.seen.values():
                one.standing = sum(other is not None and other[1] == one.file for other in self.standing)
            if (file := self._wanted(number, now_s)) is not None:
                self.standing[number] = now_s, file
        self.held_s += step_s * sum(one is not None for one in self.standing)

    def _wanted(self, number: int, now_s: float) -> DagFile | None:
        if self.is_learned:
            found = best(list(self.seen.values()), now_s, TIMES)
            return found.file if found is not None else None
        last = self.last[number]
        return last[1] if last is not None and now_s - last[0] <= TIMES.recent_s else None

    def come(self, at: float, file: DagFile) -> None:
        fitting = [n for n, one in enumerate(self.standing) if one is not None and one[1] == file]
        taker = fitting[0] if fitting else self.tasks % PROCESSES
        stands = self.standing[taker]
        self.tasks += 1
        self.warm += bool(fitting) and stands is not None and stands[0] + READ_S <= at
        self.standing[taker], self.last[taker] = None, (at, file)
        own = self.seen.setdefault(file, Seen(file, [], READ_S))
        own.came_s = [*own.came_s, at][-MOST_TIMES:]


def played(came: Iterable[tuple[float, DagFile]], is_learned: bool) -> Played:
    found, now_s = Played(is_learned), 0.0
    for at, file in came:
        while now_s < at:
            step_s = min(1.0, at - now_s)
            found.look(now_s, step_s)
            now_s += step_s
        found.come(at, file)
    return found


@pytest.mark.parametrize("seed", range(2))
def test_what_it_is_worth_in_streams_of_short_pipelines(seed: int) -> None:
    """More warm starts than where each process has one for the file of its last task, which stand for fewer seconds.
    Not all: the first ones of a file, and what comes by chance, nobody can know."""
    came = stream(seed)
    learned, plain = played(came, True), played(came, False)
    words = [f"{one.warm / one.tasks:.0%} of {one.tasks} warm, {one.held_s:,.0f} s" for one in (learned, plain)]
    print(f"seed {seed}: by demand {words[0]}; by the last task {words[1]}")
    assert learned.warm > 1.5 * plain.warm
    assert learned.held_s < 0.85 * plain.held_s
