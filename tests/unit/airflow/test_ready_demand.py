"""How many processes should stand ready, for which DAG file and when: the rule, and what it is worth in streams of
short pipelines, by counts. No Airflow, no process, no clock."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable
from typing import Any

import pytest

from egs_airflow.executors.demand import MOST_BYTES, MOST_FILES, DagFile, Seen, Shared
from egs_core.demand import MOST_TIMES, WORTH_S, best, next_s, rate, stays
from tests.unit.streams import short_pipelines

WITHIN_S = 30.0
HOUR_S = 3600.0
ETL, NIGHTLY = DagFile("b", None, "etl.py"), DagFile("b", None, "nightly.py")
HOURLY = [HOUR_S * hour + 0.1 * task for hour in range(10) for task in range(3)]


def wanted(came_s: list[float], number: int, now_s: float) -> bool:
    return rate(Seen(NIGHTLY, came_s), number, now_s) * WORTH_S >= 1.0


def test_tasks_of_each_hour_have_processes_just_before_and_none_between() -> None:
    """Three, as they come together; a fourth was never wanted. They stand from seconds before, and go soon after."""
    last, seen = HOURLY[-1], Seen(NIGHTLY, HOURLY)
    assert not wanted(HOURLY, 1, last + 200.0)
    assert not wanted(HOURLY, 1, last + HOUR_S - 5.0)
    assert [wanted(HOURLY, number, last + HOUR_S - 1.0) for number in (1, 2, 3, 4)] == [True, True, True, False]
    assert not wanted(HOURLY, 1, last + HOUR_S + 5.0)
    assert [stays(seen, last + after_s) for after_s in (1.0, 200.0, HOUR_S - 0.2, HOUR_S + 5.0)] == [
        True,
        False,
        True,
        False,
    ]
    assert next_s([seen], last + 1.0, WITHIN_S) == last + 31.0
    assert last + HOUR_S - 3.0 < next_s([seen], last + HOUR_S - 20.0, WITHIN_S) < last + HOUR_S - 1.0
    assert next_s([seen], last + HOUR_S, WITHIN_S) == last + HOUR_S + 1.0


def test_what_was_seen_to_vary_is_waited_for_as_long_as_it_varies() -> None:
    """Gaps of 90 to 110 s: from the shortest to the longest. By gaps that vary by half an hour no process stands."""
    varied = [at for number in range(20) for at in (200.0 * number, 200.0 * number + 90.0 + number)]
    assert [wanted(varied, 1, varied[-1] + after_s) for after_s in (60.0, 92.0, 100.0, 108.0, 125.0)] == [
        False,
        True,
        True,
        True,
        False,
    ]
    by_chance = [number * 1800.0 + (number * 7 % 10) * 170.0 for number in range(30)]
    assert not any(wanted(sorted(by_chance), 1, max(by_chance) + after_s) for after_s in (600.0, 1200.0, 1700.0))


def test_where_nobody_knows_some_stand_ready_for_a_while_after_a_task() -> None:
    assert not wanted([], 1, 0.0)
    assert [wanted([0.0], number, 10.0) for number in (1, 2, 3)] == [True] * 3
    assert [wanted([0.0], number, 50.0) for number in (1, 2)] == [True, False]
    assert not wanted([0.0], 1, 61.0)


def test_tasks_that_come_one_by_one_have_one_process() -> None:
    chain = [10.0 * number for number in range(12)]
    assert wanted(chain, 1, 118.5)
    assert not wanted(chain, 2, 118.5)


def test_of_several_files_the_one_with_most_seconds_to_save() -> None:
    """Both are wanted; one takes ten times as long to read. What stands already counts."""
    chain = [10.0 * number for number in range(12)]
    quick, slow, now_s = Seen(ETL, chain, 0.1), Seen(NIGHTLY, chain, 1.0), 119.2
    assert best([quick, slow], now_s) is slow
    assert best([quick], now_s) is quick
    slow.standing = 1
    assert best([quick, slow], now_s) is quick
    quick.standing = 1
    assert best([quick, slow], now_s) is None


def test_all_processes_share_what_they_know_and_it_stays_small() -> None:
    """The newest tasks of the files that had tasks last; what was written in part is nothing; a lock that nobody gives
    back any more is not waited for for long, and what is not known then is no error."""
    memory = multiprocessing.get_context("fork").Array("c", MOST_BYTES)
    one, two = Shared(memory), Shared(memory)
    for number in range(MOST_TIMES + 5):
        one.came(ETL, float(number))
    two.took(ETL, 0.5)
    (seen,) = one.read()
    assert (seen.file, len(seen.came_s), seen.came_s[-1], seen.load_s) == (ETL, 64, 68.0, 0.5)
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


def stream(seed: int) -> Stream:
    return [(at, DagFile("b", None, f"dag{number}.py")) for at, number in short_pipelines(seed)]


READ_S = 0.5
PROCESSES = 4  # of the executor, each with at most one that stands ready


ORACLE_S = READ_S  # an oracle that knows when each task comes has its process begin so long before, and no sooner


class Played:
    """An executor's processes, to which tasks come. A process that stands ready does so for 30 s at most, then it is
    thought of again; one that is taken is replaced. A task is taken by who has had a process for its file longest, else
    by each in turn."""

    def __init__(self, is_learned: bool) -> None:
        self.is_learned = is_learned  # else each has one stand ready for the file of its own last task, for 300 s
        self.seen: dict[DagFile, Seen] = {}
        self.standing: list[tuple[float, DagFile] | None] = [None] * PROCESSES
        self.last: list[tuple[float, DagFile] | None] = [None] * PROCESSES
        self.cold: list[DagFile] = []
        self.tasks = 0
        self.held_s = 0.0

    @property
    def warm(self) -> int:
        return self.tasks - len(self.cold)

    def work_s(self) -> float:
        """How long tasks must take in the mean, that all memory, theirs too, is twice the oracle's."""
        return max(0.0, self.held_s / self.tasks - 2 * ORACLE_S)

    def look(self, now_s: float, step_s: float) -> None:
        for number, stands in enumerate(self.standing):
            is_young = stands is not None and stands[0] + WITHIN_S > now_s
            if stands is not None and is_young and (not self.is_learned or stays(self.seen[stands[1]], now_s)):
                continue
            self.standing[number] = None
            for one in self.seen.values():
                one.standing = sum(other is not None and other[1] == one.file for other in self.standing)
            if (file := self._wanted(number, now_s)) is not None:
                self.standing[number] = now_s, file
        self.held_s += step_s * sum(one is not None for one in self.standing)

    def _wanted(self, number: int, now_s: float) -> DagFile | None:
        if self.is_learned:
            found = best(list(self.seen.values()), now_s)
            return found.file if found is not None else None
        last = self.last[number]
        return last[1] if last is not None and now_s - last[0] <= 300.0 else None

    def come(self, at: float, file: DagFile) -> None:
        fitting = [(one[0], n) for n, one in enumerate(self.standing) if one is not None and one[1] == file]
        taker = min(fitting)[1] if fitting else self.tasks % PROCESSES
        stands = self.standing[taker]
        self.tasks += 1
        if not fitting or stands is None or stands[0] + READ_S > at:
            self.cold.append(file)
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


def nobody_knows(came: Stream) -> int:
    """Tasks that come to a file of which nothing is known, or with a burst that comes by chance (the files 4 and 5: its
    first task, or all where they come at once). Whatever has passed, such a burst is as far off as before: a process
    that stands ready for it does so for as long as its mean gap, or is not there."""
    last: dict[DagFile, float] = {}
    found = 0
    for at, file in came:
        is_chance = file.path in ("dag4.py", "dag5.py") and at - last.get(file, 0.0) > 4.5
        together = 6 if file.path == "dag5.py" else 1
        found += together if is_chance and file in last else file not in last
        last[file] = at
    return found


@pytest.mark.parametrize("seed", range(2))
def test_what_it_is_worth_in_streams_of_short_pipelines(seed: int) -> None:
    """More warm starts than where each process has one for the file of its last task, which stand for a fraction of its
    seconds; and of what can be known more than 95 of 100. Memory is twice that of an oracle where tasks work for
    a few seconds."""
    came = stream(seed)
    learned, plain = played(came, True), played(came, False)
    words = [
        f"{one.warm / one.tasks:.1%} of {one.tasks} warm, {one.held_s:,.0f} s (oracle {ORACLE_S * one.tasks:,.0f} s), "
        f"twice the oracle's with tasks of {one.work_s():.1f} s"
        for one in (learned, plain)
    ]
    unknown = nobody_knows(came)
    print(f"seed {seed}: by demand {words[0]}; by the last task {words[1]}; {unknown} tasks nobody can know")
    assert learned.warm > 1.75 * plain.warm
    assert learned.held_s < 0.2 * plain.held_s
    assert learned.warm > 0.95 * (learned.tasks - unknown)
    assert learned.work_s() < 7.0
