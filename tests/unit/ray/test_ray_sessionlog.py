"""From submissions and task events, in the orders in which Ray tells of them, to a run log."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from egs_core.history.opened import open_history
from egs_core.history.pending import learn_pending, leave
from egs_core.runlog.io import read_run
from egs_core.runlog.records import (
    Capacity,
    ColdStart,
    Ended,
    Granted,
    Header,
    Held,
    Ready,
    Record,
    Started,
    TaskAdded,
    Used,
    WorkloadEnded,
    WorkloadSubmitted,
)
from egs_core.runlog.timeline import build_timeline
from egs_ray.events import TaskEvent
from egs_ray.sessionlog import SessionLog
from egs_ray.submission import Ordered, Submission

JOB = "01000000"
NO_ACTOR = "f" * 24 + JOB
ACTOR = "ab" * 12 + JOB
CREATION = "f" * 16 + ACTOR


def task_id(letter: str) -> str:
    return letter * 16 + NO_ACTOR


def put_by(producer: str) -> str:
    """The id that an object shows which the producer made with ray.put."""
    return "00" + producer[2:]


def submission(letter: str, at_s: float = 1.0, producers: tuple[str, ...] = (), gpus: float = 0.0) -> Submission:
    return Submission(at_s, task_id(letter), letter, "task", producers=producers, cpus=1.0, gpus=gpus)


def event(key: str, started_s: float | None, ended_s: float | None, outcome: str = "succeeded") -> TaskEvent:
    return TaskEvent(key, name=key[0], started_s=started_s, ended_s=ended_s, outcome=outcome if ended_s else "", pid=7)


@pytest.fixture
def log(tmp_path: Path) -> SessionLog:
    log = SessionLog(tmp_path / "new" / "log.jsonl", Header(driver="ray"))
    log.start_workload("w", 0.5)
    return log


def written(log: SessionLog) -> list[Record]:
    log.end_workload(100.0)
    log.finish()
    return read_run(log.path).records


def parents(records: list[Record]) -> dict[str, tuple[str, ...]]:
    return {record.task: record.parents for record in records if isinstance(record, TaskAdded)}


def test_edges_of_put_objects(log: SessionLog) -> None:
    """What the driver put is data; what a task put makes that task a producer; one edge however often it is used."""
    log.submitted(submission("a"))
    driver = "f" * 16 + NO_ACTOR
    log.submitted(submission("b", producers=(put_by(driver), put_by(task_id("a")), task_id("a"))))
    assert parents(written(log)) == {task_id("a"): (), task_id("b"): (task_id("a"),)}


def test_producer_known_later(log: SessionLog) -> None:
    """A nested task's result is used before Ray told of the task: the edge waits for it."""
    log.submitted(submission("b", producers=(task_id("n"), task_id("m"))))
    log.seen(event(task_id("m"), 1.0, 2.0))
    log.seen(event(task_id("n"), 1.0, 2.0))
    assert parents(written(log))[task_id("b")] == (task_id("n"), task_id("m"))


def test_producer_never_known(log: SessionLog) -> None:
    """An edge whose producer Ray never told of is kept, to a task that says so."""
    log.submitted(submission("b", producers=(task_id("x"), put_by(task_id("y")))))
    records = written(log)
    assert len(parents(records)[task_id("b")]) == 2
    assert [record.name for record in records if isinstance(record, TaskAdded)].count("unseen") == 2


def test_end_reported_before_start(log: SessionLog) -> None:
    """The submitter's report of the end may come first: nothing is settled until the start is there."""
    log.submitted(submission("a", gpus=1.0))
    log.seen(event(task_id("a"), None, 5.0))
    assert log.unsettled
    log.seen(event(task_id("a"), 2.0, 5.0))
    assert not log.unsettled
    log.seen(event(task_id("a"), 2.0, 5.0))
    records = written(log)
    assert [(r.t, r.gpus) for r in records if isinstance(r, Started)] == [(2.0, 1.0)]
    assert [(r.t, r.outcome) for r in records if isinstance(r, Ended)] == [(5.0, "succeeded")]
    assert log.gpu_held_s == 3.0


def test_start_never_reported(log: SessionLog) -> None:
    """A killed process did not report: the moment of handing over counts; a failure without one never started."""
    log.submitted(submission("a"))
    log.submitted(submission("b"))
    pushed = event(task_id("a"), None, 5.0)
    pushed.pushed_s = 3.0
    log.seen(pushed)
    log.seen(event(task_id("b"), None, 4.0, "failed"))
    records = written(log)
    assert [(r.task, r.t) for r in records if isinstance(r, Started)] == [(task_id("a"), 3.0)]
    assert {r.task: r.outcome for r in records if isinstance(r, Ended)} == {
        task_id("a"): "succeeded",
        task_id("b"): "skipped",
    }


def test_retry(log: SessionLog) -> None:
    """Each attempt has its own start, end and outcome."""
    log.submitted(submission("a"))
    log.seen(event(task_id("a"), 1.0, 2.0, "failed"))
    second = event(task_id("a"), 3.0, 4.0)
    second.attempt = 2
    log.seen(second)
    ended = [record for record in written(log) if isinstance(record, Ended)]
    assert [(record.attempt, record.outcome) for record in ended] == [(1, "failed"), (2, "succeeded")]


def test_cold_and_warm(log: SessionLog) -> None:
    """Loading before the user's first line is a cold start; the same function again in that process is warm."""
    for letter, start_s in (("a", 1.0), ("a", 3.0)):
        told = event(task_id(letter), start_s, start_s + 1)
        told.task_id, told.loaded_s = task_id(str(int(start_s))), start_s + 0.25
        log.seen(told)
    records = written(log)
    assert [(r.t, r.end_t) for r in records if isinstance(r, ColdStart)] == [(1.0, 1.25), (3.0, 3.25)]
    assert [r.warm for r in records if isinstance(r, Started)] == [False, True]


def test_ready_without_rays_word(log: SessionLog) -> None:
    """Where Ray does not tell, a task is ready when it was submitted and its producers had ended."""
    log.submitted(submission("a"))
    log.submitted(submission("b", producers=(task_id("a"),)))
    log.seen(event(task_id("a"), 1.5, 4.0))
    log.seen(event(task_id("b"), 5.0, 6.0))
    assert [record.t for record in written(log) if isinstance(record, Ready)] == [1.0, 4.0]


@pytest.mark.parametrize("told_late", [False, True])
def test_gates_word_before_and_after_rays(log: SessionLog, told_late: bool) -> None:
    """Whether the gate tells of a task before or after Ray told of its start: ready, granted, started, in order."""
    log.submitted(submission("a", gpus=1.0))
    told = Ordered(task_id("a"), ready_s=1.0, granted_s=2.0, decision=1, reason="capacity", p50_s=1.0, p95_s=2.0)
    start = msgspec.structs.replace(event(task_id("a"), 2.5, 3.0), ready_s=2.25)
    if not told_late:
        log.ordered(told)
    log.seen(start)
    if told_late:
        log.ordered(told)
    times = [record.t for record in written(log) if isinstance(record, Ready | Granted | Started)]
    assert times == ([2.25, 2.25, 2.5] if told_late else [1.0, 2.0, 2.5])


def test_what_a_task_waits_for_at_the_gate(log: SessionLog) -> None:
    """Ready when it was so at the gate, and held by what the site says, as it says it: a wait for quota is no waste."""
    for letter in "ab":
        log.submitted(submission(letter, gpus=1.0))
        log.phased(Ready(1.0, "w", task_id(letter)))
        log.phased(Held(1.0, "w", task_id(letter), 0, "quota", "queue 'team' has no quota for that"))
    log.ordered(Ordered(task_id("a"), 1.0, 4.0, decision=1, reason="ready_order", p50_s=1.0, p95_s=2.0))
    log.seen(msgspec.structs.replace(event(task_id("a"), 5.0, 6.0), ready_s=4.5))
    records = written(log)
    told = TaskAdded | Ready | Held | Granted | Started | Ended
    times = [(type(record), record.t) for record in records if isinstance(record, told) and record.task == task_id("a")]
    assert times == [(TaskAdded, 1.0), (Ready, 1.0), (Held, 1.0), (Granted, 4.0), (Started, 5.0), (Ended, 6.0)]
    waits = {wait.task: wait for wait in build_timeline(records).waits}
    assert [(kind, start, end) for start, end, kind in waits[task_id("a")].pieces] == [("quota", 1.0, 5.0)]
    assert waits[task_id("b")].pieces[0][2] == "quota", "it never had a turn, and its wait is there"


def test_the_gates_word_of_a_task_that_ray_saw_start(log: SessionLog) -> None:
    """What went at once is ready by Ray's word; what was held took as long as it took, from when it may have begun by
    the site's clock; and what the site tells of a task that has begun comes too late to say more."""
    for letter in "abc":
        log.submitted(submission(letter, gpus=1.0))
    for letter in "bc":
        log.phased(Ready(3.0, "w", task_id(letter)))
    log.phased(Held(3.0, "w", task_id("c"), 0, "capacity"))
    for letter in "abc":
        log.seen(event(task_id(letter), 2.0, 2.5))
    log.phased(Ready(1.5, "w", task_id("a")))
    log.phased(Held(1.5, "w", task_id("a"), 0, "capacity"))
    for letter in "abc":
        log.ordered(Ordered(task_id(letter), 3.0, 4.0, decision=1, reason="", p50_s=1.0, p95_s=2.0))
    records = written(log)
    granted = {record.task[0]: record.t for record in records if isinstance(record, Granted)}
    assert granted == {"a": 1.0, "b": 1.0, "c": 3.0}, "a grant is told late, and is no later than the start"
    told = Ready | Held | Started | Ended
    found = [(record.t, type(record), record.task[0]) for record in records if isinstance(record, told)]
    assert sorted(found, key=lambda one: one[2]) == [
        *[(1.0, Ready, "a"), (2.0, Started, "a"), (2.5, Ended, "a")],
        *[(1.0, Ready, "b"), (2.0, Started, "b"), (2.5, Ended, "b")],
        *[(3.0, Ready, "c"), (3.0, Held, "c"), (3.0, Started, "c"), (3.5, Ended, "c")],
    ]
    assert log.gpu_held_s == 1.5


@pytest.mark.parametrize("death_told_first", [False, True])
def test_actor_holds_its_gpu_for_life(log: SessionLog, death_told_first: bool) -> None:
    """An actor's GPU is held from its creation to its death and used during its methods, overlaps counted once."""
    log.submitted(Submission(1.0, CREATION, "A.__init__", "actor", gpus=1.0))
    created = TaskEvent(CREATION, name="A.__init__", kind="actor", actor_id=ACTOR, started_s=1.0, ended_s=2.0)
    created.outcome = "succeeded"
    if death_told_first:
        log.actors_died({ACTOR: 10.0})
    log.seen(created)
    for number, (start_s, end_s) in enumerate([(3.0, 5.0), (4.0, 6.0), (8.0, 9.0)]):
        call = TaskEvent(f"{number}" * 16 + ACTOR, name="A.m", kind="method", actor_id=ACTOR, outcome="succeeded")
        call.started_s, call.ended_s = start_s, end_s
        log.seen(call)
    if not death_told_first:
        log.actors_died({ACTOR: 10.0})
    records = written(log)
    assert [(r.t, r.end_t) for r in records if isinstance(r, Used)] == [(3.0, 6.0), (8.0, 9.0)]
    assert next(r.t for r in records if isinstance(r, Ended) and r.task == ACTOR) == 10.0
    assert log.gpu_held_s == 9.0
    assert {parents(records)[str(n) * 16 + ACTOR] for n in range(3)} == {(CREATION,)}


def test_idle_actor_used_nothing(log: SessionLog) -> None:
    """An actor without a call held its GPU and did not use it."""
    log.submitted(Submission(1.0, CREATION, "A.__init__", "actor", gpus=1.0))
    log.seen(TaskEvent(CREATION, kind="actor", actor_id=ACTOR, started_s=1.0, ended_s=2.0, outcome="succeeded"))
    assert [(r.t, r.end_t) for r in written(log) if isinstance(r, Used)] == [(2.0, 2.0)]


def test_capacity_changes_only(log: SessionLog) -> None:
    """Nodes are written when they come, change or go; the first from the session's start."""
    row = {"NodeID": "n", "Alive": True, "Resources": {"CPU": 4.0, "GPU": 2.0, "memory": 10.0}}
    log.nodes([row], 3.0)
    log.nodes([row], 4.0)
    log.nodes([{**row, "Alive": False}], 5.0)
    capacity = [record for record in written(log) if isinstance(record, Capacity)]
    assert [(r.t, r.cpus, r.gpus) for r in capacity][:2] == [(0.5, 4.0, 2), (5.0, 0.0, 0)]


def test_a_workload_lasts_from_its_first_submission_to_its_last_end(log: SessionLog) -> None:
    """What the script did before (it started Ray) and after (it plotted) is no part of the makespan."""
    log.submitted(submission("a", at_s=3.0))
    log.submitted(submission("b", at_s=4.0))
    log.seen(event(task_id("b"), 5.0, 9.0))
    log.seen(event(task_id("a"), 5.0, 7.0))
    records = written(log)
    assert [
        (type(record), record.t) for record in records if isinstance(record, WorkloadSubmitted | WorkloadEnded)
    ] == [
        (WorkloadSubmitted, 3.0),
        (WorkloadEnded, 9.0),
    ]
    assert (times := [getattr(record, "t", 0.0) for record in records]) == sorted(times), "the reader sorts"


def test_a_session_without_tasks_is_a_workload_of_no_length(log: SessionLog) -> None:
    """It is in the log, with the moment at which it ended."""
    found = [record.t for record in written(log) if isinstance(record, WorkloadSubmitted | WorkloadEnded)]
    assert found == [100.0, 100.0]


def test_runs_with_one_file_each_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EGS_RUNLOG names one file for all runs of a script: the next one's log does not cost the history the last one."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("EGS_HISTORY", url := f"sqlite:///{tmp_path}/history.sqlite")
    for run in (1, 2):
        log = SessionLog(tmp_path / "log.jsonl", Header(driver="ray", label="script", started_at=1000.0 * run))
        log.start_workload("w", 1000.0 * run)
        log.submitted(submission("a", 1000.0 * run))
        log.seen(event(task_id("a"), 1000.0 * run + 1.0, 1000.0 * run + 1.0 + run))
        written(log)
        leave(log.path, log.header)
    assert learn_pending() == 2
    assert [row.seconds for row in open_history(url).load("script")] == [1.0, 2.0]
