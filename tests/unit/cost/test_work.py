"""From a log that tells of work to what was held for it, whatever order its records stand in."""

from __future__ import annotations

import random

from egs_core.client.messages import RunView
from egs_core.cost.work import Held, Told, Worked, worked_of_runs
from egs_core.runlog.records import Ended, Header, Record, Started, TaskAdded, Work, WorkloadSubmitted

LOG: list[Record] = [
    WorkloadSubmitted(0.0, "w", "train"),
    TaskAdded(0.0, "w", "1", "fit", phases=(("cpu", 2.0, 0.0, 0), ("gpu", 1.0, 4.0, 0))),
    TaskAdded(0.0, "w", "2", "load"),
    Started(1.0, "w", "1", 0, node="n"),
    Ended(2.0, "w", "1", 0),
    Started(2.0, "w", "1", 1, node="n", gpus=2.0),
    Started(2.0, "w", "2", node="n", gpus=9.0),
    Work(5.0, "w", "1", 1, {"tokens": 10.0}),
    Ended(5.0, "w", "1", 1, outcome="failed"),
    Started(6.0, "w", "1", 1, attempt=2, node="m"),
    Work(9.0, "w", "1", 2, {"tokens": 30.0, "steps": 1.0}),
    Ended(9.0, "w", "2"),
]


def found(records: list[Record], header: Header) -> list[Worked]:
    told = Told()
    assert list(told.noting(records)) == records
    return list(told.worked(header, records))


def test_a_tasks_work_is_that_of_all_its_attempts() -> None:
    """What it held as well: a start without amounts took what was declared, what has no end is held until the log's;
    a task that tells nothing is not there. In any order of the records."""
    (one,) = found(LOG, Header(started_at=100.0))
    assert one[:3] == ("train", "fit", {"tokens": 40.0, "steps": 1.0})
    assert one.held == [
        Held("n", 0.0, 2.0, (101.0, 102.0)),
        Held("n", 2.0, 0.0, (102.0, 105.0)),
        Held("m", 4.0, 1.0, (106.0, 109.0)),
    ]
    assert (one.at_s, one.is_dated) == (109.0, True)
    shuffled = LOG.copy()
    random.Random(3).shuffle(shuffled)
    (other,) = found(shuffled, Header(started_at=100.0))
    assert (sorted(other.held), other.amounts, other.at_s) == (sorted(one.held), one.amounts, one.at_s)


def test_where_nobody_tells_nothing_is_kept() -> None:
    told = Told()
    list(told.noting([record for record in LOG if not isinstance(record, Work)]))
    assert told.amounts == {}


def view(number: str, **more: object) -> RunView:
    fields: dict[str, object] = {"name": "job", "user": "ann", "state": "ended", "version": 1, "gpus": 2.0, "cpus": 1.0}
    fields |= {"id": number, "memory_bytes": 0, "queue": "", "priority": 0, "submitted_at": 0.0, "host": "h"}
    return RunView.model_validate(fields | {"started_at": 10.0, "ended_at": 70.0, "work": {"images": 4}} | more)


def test_of_a_servers_runs() -> None:
    """From start to end; one in a request has that one's GPUs; what was evicted, tells nothing or never started, is not
    rated."""
    runs = [
        view("1"),
        view("2", evictions=1),
        view("3", work={}),
        view("4", started_at=None),
        view("5", is_request=True, gpus=8.0, work={}),
        view("6", inside="5", gpus=0.0, ended_at=None, state="running"),
    ]
    assert [one.held for one in worked_of_runs(runs, 100.0)] == [
        [Held("h", 2.0, 1.0, (10.0, 70.0))],
        [Held("h", 8.0, 1.0, (10.0, 100.0))],
    ]
