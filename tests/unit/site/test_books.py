"""What a holder has open, as it follows from what the holder says and is told."""

from __future__ import annotations

from egs_core.engine import messages as m
from egs_core.graph.columns import CPU, GPU, Graph, Shape, TaskOptions
from egs_core.site import Dropped, Grant, Settled, Stop
from egs_core.site.books import Books

TWO = ((CPU, Shape(), 1.0), (GPU, Shape(0, 1000), 2.0))


def books_of(*options: TaskOptions, parents: tuple[tuple[int, ...], ...] = ()) -> Books:
    """A workload of tasks with a CPU and a GPU phase each."""
    books, graph = Books(), Graph()
    books.hear(m.WorkloadSubmitted("w"), 0.0)
    for number, one in enumerate(options):
        before = parents[number] if parents else ()
        graph.add_task(f"t{number}", before, TWO, options=one)
    books.grown("w", graph)
    return books


def grant(books: Books, task: int, index: int = 0, attempt: int = 1, number: int = 1) -> None:
    books.told(Grant(number, 2 * task + index, task, attempt, "n", index=index), 1.0)
    books.hear(m.PhaseStarted(2 * task + index, attempt), 2.0)


def end(books: Books, task: int, index: int = 0, attempt: int = 1, outcome: str = "succeeded") -> None:
    books.hear(m.PhaseEnded(2 * task + index, attempt, outcome), 3.0)


def begun(books: Books, now: float = 5.0) -> tuple[m.Begun, ...]:
    return books.block("w", now)[2]


PLAIN = TaskOptions()


def test_how_far_a_task_is() -> None:
    """Waiting, under way since its grant or its start, between two phases on its node, and over; a late or repeated
    event changes nothing."""
    books = books_of(PLAIN)
    assert begun(books) == ()
    books.told(Grant(1, 0, 0, 1, "n"), 1.0)
    assert begun(books) == (m.Begun(0, node="n", since_s=4.0),)
    books.hear(m.PhaseStarted(0, 1), 2.0)
    books.hear(m.PhaseStarted(0, 1), 4.0)
    assert begun(books) == (m.Begun(0, node="n", since_s=3.0),)
    end(books, 0, attempt=7)
    end(books, 0)
    end(books, 0)
    assert begun(books) == (m.Begun(0, node="n", index=1),)
    grant(books, 0, 1)
    assert begun(books) == (m.Begun(0, node="n", index=1, since_s=3.0),)
    end(books, 0, 1)
    assert (books.tasks, books.works["w"].failed) == ({}, False)


def test_what_starts_again_has_a_new_attempt() -> None:
    """A failure with a retry left, a stop to start again, a lost grant and a lost node, also between two phases; a
    rejected grant is the same attempt."""
    books = books_of(*[TaskOptions(retries=1)] * 5)
    for task in range(5):
        grant(books, task, number=task + 1)
    end(books, 0, outcome="failed")
    books.told(Stop(9, 2, 1, 1, requeue=True), 3.0)
    end(books, 1, outcome="aborted")
    books.told(Grant(10, 4, 2, 1, "n"), 3.0)
    books.hear(m.DecisionLost(10), 3.0)
    books.told(Grant(11, 6, 3, 1, "n"), 3.0)
    books.hear(m.DecisionRejected(11), 3.0)
    end(books, 4)
    books.hear(m.NodeLost("n"), 4.0)
    assert begun(books) == (m.Begun(0, 2, 1), m.Begun(1, 2), m.Begun(2, 2), m.Begun(4, 2))


def test_what_waits_for_a_failure_is_to_be_ended() -> None:
    """Tasks after one that has failed for good, also those that come later; what counts as done at its limit has not
    failed."""
    ends = TaskOptions(on_limit="end", max_runtime_s=1.0)
    books = books_of(PLAIN, PLAIN, ends, PLAIN, parents=((), (0,), (), (2,)))
    grant(books, 0)
    end(books, 0, outcome="failed")
    grant(books, 2, number=2)
    books.told(Stop(3, 4, 2, 1, at_limit=True), 3.0)
    end(books, 2, outcome="aborted")
    late = Graph()
    late.add_task("late", (0,), TWO)
    books.grown("w", late)
    assert [task.number for task in books.dropped()] == [1, 4]
    assert books.works["w"].failed
    books.told(Dropped((1, 4)), 4.0)
    assert list(books.tasks) == [3]


def test_an_abort_is_remembered_until_it_is_done() -> None:
    """By task, stage and workload."""
    for target, expected in (("task:1", [1]), ("stage:w/s", [0]), ("workload:w", [0, 1])):
        books = books_of(TaskOptions(stage="s"), PLAIN)
        scope, _, name = target.partition(":")
        books.hear(m.AbortRequested(scope, name), 1.0)
        assert [task.number for task in books.dropped()] == expected


def test_a_block_has_what_is_open_and_nothing_else() -> None:
    """Its tasks keep names, options and phases, with the flavors that they may still have, and wait for those that are
    open only; a workload that has settled says so until it grows."""
    books = books_of(PLAIN, TaskOptions(priority=3), parents=((), (0,)))
    grant(books, 0)
    end(books, 0)
    grant(books, 0, 1)
    end(books, 0, 1)
    tasks, graph, _ = books.block("w", 5.0)
    assert [task.number for task in tasks] == [1]
    assert (graph.ids, graph.parents, graph.options[0].priority, graph.phase_duration_s) == (
        ["t1"],
        [()],
        3,
        [1.0, 2.0],
    )
    books.hear(m.FlavorsAllowed(1, ("l4",)), 5.0)
    assert books.block("w", 5.0)[1].options[0] == TaskOptions(priority=3, flavors=("l4",))
    books.told(Settled("w"), 6.0)
    assert books.works["w"].settled
    books.grown("w", graph)
    assert not books.works["w"].settled
    assert books.works["w"].numbers == [0, 1, 2]
