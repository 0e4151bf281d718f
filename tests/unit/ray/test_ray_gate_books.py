"""A gate's books without Ray: what is admitted, in which order it goes, and that neither a restart nor a renewal
decides anything again."""

from __future__ import annotations

from pathlib import Path

import pytest

from egs_core.driver.journal import Journal
from egs_core.engine import Engine, EngineConfig
from egs_core.engine.messages import PauseRequested, ResumeRequested
from egs_ray.gate.books import Books, Job
from egs_ray.gate.kv_storage import TemporaryFiles
from egs_ray.gate.room import Room
from egs_ray.submission import Arrival, Needs, Ordered

JOB = "0a" * 4


def task(number: int) -> str:
    """A task id as Ray writes it."""
    return f"{number:040x}{JOB}"


def arrival(number: int, *direct: int, nested: tuple[int, ...] = (), gpus: float = 1.0, parent: int = 0) -> Arrival:
    """A task with a ticket when it needs a GPU."""
    needs = Needs(f"task{number}", 1.0, gpus, 0)
    named = [(f"{task(one)}01", task(one)) for one in direct]
    key = f"key-{number}" if gpus else ""
    waiting = [task(one) for one in nested]
    return Arrival(key, task(number), needs, named, waiting, 1.0, task(parent) if parent else "")


class Gate:
    """Books whose driver runs where the test does."""

    def __init__(self, gpus: int, journal: Journal | None = None) -> None:
        self.opened: list[int] = []
        self.now_s = 0.0
        self.resources = {"CPU": 8.0, "GPU": float(gpus), "memory": 1 << 30}
        self.rows = [{"NodeID": "n1", "Alive": True, "Resources": self.resources}]
        engine = journal.engine if journal else Engine(EngineConfig(preload=False, record=True))
        offered = {node.name: node.gpus for node in engine.state.nodes}
        self.books = Books(
            engine,
            Room(self.rows, offered),
            self._open,
            self._die,
            ended=self._end,
            journal=journal,
            clock=lambda: self.now_s,
        )
        self.books.take_over()
        self.books.offer_room()

    def _open(self, job: Job, told: Ordered) -> None:
        assert told.task_id == job.task_id
        self.opened.append(int(job.task_id[:40], 16))

    def _end(self, job: Job) -> None:
        assert job.number not in self.books.jobs

    def _die(self, error: BaseException) -> None:
        raise error

    def add(self, *arrivals: Arrival, workload: str = "A", client: str = "one") -> list[Job]:
        """Admit, and check the engine."""
        jobs = self.books.admit(workload, arrivals, client)
        self.books.driver.engine.validate_state()
        return jobs

    def end(self, *numbers: int, workload: str = "A") -> None:
        """These tasks have ended."""
        for number in numbers:
            self.now_s += 1.0
            self.books.end(workload, task(number))
        self.books.driver.engine.validate_state()


def test_a_chain_goes_before_leaves_of_another_workload() -> None:
    """One GPU: leaves of one driver wait for another driver's chain, which is longer, and nobody is let go twice."""
    gate = Gate(1)
    gate.add(arrival(1), arrival(2), arrival(3), workload="A")
    gate.add(arrival(11), arrival(12, 11), arrival(13, 12), arrival(14, 13, gpus=0), workload="B", client="two")
    assert gate.opened == [1]
    gate.end(1)
    for number in (11, 12, 13):
        assert gate.opened[-1] == number
        gate.end(number, workload="B")
    gate.end(2, 3)
    assert gate.opened == [1, 11, 12, 13, 2, 3]
    gate.end(14, workload="B")
    assert not gate.books.jobs


def test_the_same_submission_told_twice_counts_once() -> None:
    """A client repeats itself after a restart of the gate: nothing is admitted twice, an unknown end is nothing."""
    gate = Gate(2)
    assert len(gate.add(arrival(1), arrival(2, 1))) == 2
    assert gate.add(arrival(1), arrival(2, 1)) == []
    gate.end(7, 1, 1, 2, 2)
    assert gate.opened == [1, 2]
    assert not gate.books.jobs


def test_a_value_from_outside_is_waited_for() -> None:
    """What passed ungated, or comes from another driver, is an edge until its reference has a value; of two workloads
    each has its own."""
    gate = Gate(4)
    jobs = gate.add(arrival(2, 1))
    assert [job.task_id for job in jobs] == [f"{task(1)}01", task(2)]
    gate.add(arrival(5), workload="B")
    gate.add(arrival(6, 2), workload="B")
    assert gate.opened == [5]
    gate.books.end("A", f"{task(1)}01")
    assert gate.opened == [5, 2]
    gate.end(2)
    gate.books.end("B", f"{task(2)}01")
    assert gate.opened == [5, 2, 6]


def test_what_follows_without_a_ticket_lengthens_the_path() -> None:
    """A CPU task that takes a result at the gate makes its producer go first; one that takes none is nobody's."""
    gate = Gate(1)
    gate.add(arrival(1), arrival(2), arrival(3))
    gate.add(arrival(4, 3, gpus=0), arrival(5, gpus=0), arrival(6, 99, gpus=0))
    assert task(5) not in {job.task_id for job in gate.books.jobs.values()}
    gate.end(1)
    assert gate.opened == [1, 3]


def test_a_nested_task_goes_before_equal_ones() -> None:
    """Whoever has submitted it may wait for it and holds a GPU meanwhile, so it is let go before equal leaves."""
    gate = Gate(2)
    gate.add(arrival(1), arrival(2), arrival(3), arrival(4))
    gate.add(arrival(9, parent=1), client="worker")
    assert gate.opened == [1, 2]
    gate.end(2)
    assert gate.opened == [1, 2, 9]
    gate.end(9, 1)
    assert gate.opened == [1, 2, 9, 3, 4]
    gate.end(3, 4)
    assert not gate.books.jobs


def test_a_nested_chain_lets_no_leaf_in_between() -> None:
    """When a nested task ends the next one is ready at that moment, although the rest of their parent follows both."""
    gate = Gate(1)
    gate.add(arrival(1), arrival(2), arrival(3))
    gate.add(arrival(11, parent=99), arrival(12, 11, parent=99), arrival(13, 12, parent=99), client="worker")
    gate.add(arrival(14, 13, nested=(12,), gpus=0), client="worker")
    for number in (1, 11, 12, 13):
        assert gate.opened[-1] == number
        gate.end(number)
    assert gate.opened == [1, 11, 12, 13, 2]


def test_what_waits_inside_of_arguments_is_no_edge() -> None:
    """Ray starts such a task at once, so the gate must be able to, too."""
    gate = Gate(2)
    gate.add(arrival(1), arrival(2, nested=(1,)))
    assert gate.opened == [1, 2]


def test_the_dead_are_given_up() -> None:
    """A client is gone with all of its tasks: their turns are free for others."""
    gate = Gate(1)
    gate.add(arrival(1), arrival(2), client="dead")
    gate.add(arrival(3), client="living")
    gate.books.give_up([job for job in gate.books.jobs.values() if job.client == "dead"])
    assert gate.opened == [1, 3]


def test_believed_times_move_the_order() -> None:
    """Longer paths first, by what is believed when the turn comes."""
    gate = Gate(1)
    gate.add(arrival(1), arrival(2), arrival(3))
    gate.books.estimate("A", {task(3): 5.0, task(77): 1.0})
    gate.end(1)
    assert gate.opened == [1, 3]


def test_what_was_let_go_a_moment_ago_is_starting() -> None:
    """Ray's books show a GPU idle while a process starts: no reason to let another go; if it lasts, it is one."""
    gate = Gate(1)
    gate.add(arrival(1), arrival(2))
    for _ in range(4):
        gate.books.review(gate.rows, 1.0)
    assert gate.opened == [1]
    gate.now_s += 5.0
    for _ in range(2):
        gate.books.review(gate.rows, 1.0)
    assert gate.opened == [1, 2]


def test_who_goes_with_another_is_let_go_once() -> None:
    """A task that goes before its turn is told of once, is no more waiting, and its turn passes to the next when it
    ends, in whichever order they end."""
    gate = Gate(1)
    jobs = gate.add(arrival(1), arrival(2), arrival(3), arrival(4))
    gate.books.let_go(jobs[1], gate.now_s, 0, "together")
    gate.books.let_go(jobs[1], gate.now_s, 0, "together")
    gate.books.let_go(jobs[0], gate.now_s, 0, "together")
    assert gate.opened == [1, 2]
    assert [job.line_gpus for job in jobs] == [1.0, 2.0, 0.0, 0.0]
    gate.books.review(gate.rows, 1.0)
    gate.end(2)
    assert gate.opened == [1, 2]
    gate.end(1)
    assert gate.opened == [1, 2, 3]
    gate.end(3, 4)
    gate.books.let_go(jobs[3], gate.now_s, 0, "too late")
    assert gate.opened == [1, 2, 3, 4]
    assert gate.books.line_gpus == 0.0


def journal_of(path: Path) -> Journal:
    """A new one, as a cluster's gate has it."""
    engine = Engine(EngineConfig(preload=False, record=True))
    return Journal(path, engine, compact_every=1 << 62, storage=TemporaryFiles())


@pytest.mark.parametrize("is_renewed", [False, True])
def test_a_restart_decides_nothing_again(tmp_path: Path, is_renewed: bool) -> None:
    """From the journal: what was let go stays so and counts, the rest goes in the order it would have gone in, also
    when the engine was renewed in between and a GPU that is held has been withdrawn."""
    path = tmp_path / "journal"
    before = Gate(3, journal_of(path))
    before.add(arrival(1), arrival(2, gpus=0.5), arrival(3, gpus=0.5), arrival(4), *(arrival(n) for n in range(20, 30)))
    before.add(arrival(5), arrival(6, 5), arrival(7, parent=1), workload="B", client="two")
    before.end(4)
    assert before.opened == [1, 2, 3, 4, 5]
    before.resources["GPU"] = 2.0
    before.books.review(before.rows, 0.0)
    if is_renewed:
        before.books.renew(lambda engine: Journal(path, engine, storage=TemporaryFiles()))
        before.books.driver.engine.validate_state()
        assert before.books.tasks_ever == 17  # one less: what has ended
    before.books.driver.close()

    after = Gate(2, Journal.resume(path, storage=TemporaryFiles()))
    after.books.driver.engine.validate_state()
    left = {(job.workload, job.task_id, job.key, job.client, job.is_open) for job in before.books.jobs.values()}
    assert {(job.workload, job.task_id, job.key, job.client, job.is_open) for job in after.books.jobs.values()} == left
    assert after.opened == []
    after.end(1)
    assert after.opened == [7]
    after.end(5, workload="B")
    assert after.opened == [7]  # that was the GPU that has been withdrawn
    for _ in range(20):
        for job in [job for job in after.books.jobs.values() if job.is_open]:
            after.now_s += 1.0
            after.books.end(job.workload, job.task_id)
    after.books.driver.engine.validate_state()
    after.books.driver.close()
    assert sorted(after.opened) == [6, 7, *range(20, 30)]
    assert not after.books.jobs


def test_renewal_keeps_a_gate_small() -> None:
    """After a thousand tasks the engine is renewed, and knows those that have not ended."""
    gate = Gate(2)
    for number in range(1, 1001):
        gate.add(arrival(number))
        gate.end(number)
    gate.add(arrival(2001), arrival(2002, 2001), arrival(2003))
    gate.books.renew(lambda _: None)
    assert gate.books.tasks_ever == 3
    gate.end(2001)
    gate.end(2002, 2003)
    assert gate.opened[-3:] == [2001, 2003, 2002]
    assert gate.add(arrival(3001))
    gate.end(3001)
    assert not gate.books.jobs


def test_renewal_keeps_pauses() -> None:
    """What an operator has paused stays so in the new engine, a task under its new number, and is resumed there."""
    gate = Gate(1)
    for number in range(1, 11):
        gate.add(arrival(number))
        gate.end(number)
    gate.add(arrival(11), arrival(12), arrival(13))
    gate.add(arrival(14), workload="B")
    driver = gate.books.driver
    paused = next(job for job in gate.books.jobs.values() if job.task_id == task(12))
    driver.handle(PauseRequested("task", str(paused.number), "ann"))
    driver.handle(PauseRequested("workload", "B"))
    gate.books.renew(lambda _: None)
    driver.engine.validate_state()
    gate.end(11)
    assert gate.opened[-2:] == [11, 13]
    gate.end(13)
    driver.handle(ResumeRequested("workload", "B"))
    assert gate.opened[-1] == 14
    gate.end(14, workload="B")
    assert driver.engine.state.pauses[f"task:{paused.number}"].actor == "ann"
    driver.handle(ResumeRequested("task", str(paused.number)))
    assert gate.opened[-1] == 12
