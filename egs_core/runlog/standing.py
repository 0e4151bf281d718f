"""Where each task of a run stands at the end of its log so far: what runs, what waits and why, what is loaded ahead."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from egs_core.runlog.records import (
    Ended,
    Granted,
    Held,
    PreloadEnded,
    PreloadStarted,
    Ready,
    Record,
    Started,
    TaskAdded,
    WorkloadEnded,
    in_order,
)

FOR = "; it waits for "
STATES = ("pending", "waiting", "running", "succeeded", "failed", "stopped")
"""pending: waits for other tasks; waiting: for resources, its turn or a rule; stopped: preempted, aborted, skipped."""


class Standing(msgspec.Struct):
    """A task. Times in seconds of the log's clock, None: not yet, or not known. parents: task ids, also such as the log
    does not have. waited_s, ran_s: of its phases and attempts that are over, together; since_s: when its state began;
    why: what it waits for, or, once started, what it waited for last, with the rule's words; decided: the term by which
    the engine let it start; expected_s: how long it takes, by whoever submitted it; when: the parents that need not
    succeed for it, and how they have to end instead, `any` or `failed`."""

    task: str
    name: str
    parents: tuple[str, ...] = ()
    state: str = "pending"
    since_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    waited_s: float = 0.0
    ran_s: float = 0.0
    node: str = ""
    devices: tuple[int, ...] = ()
    why: str = ""
    decided: str = ""
    phases: int = 1
    uses_gpu: bool = False
    is_warm: bool = False
    expected_s: float | None = None
    when: dict[str, str] = {}

    def duration_s(self, now_s: float) -> float:
        """How long it has run so far."""
        return self.ran_s + (now_s - self.since_s if self.state == "running" and self.since_s is not None else 0.0)


class Loaded(msgspec.Struct):
    """Something that is, or was, loaded ahead for a task. state: loading, warm; used, unused, failed when over; begun:
    its task has started before the log said that it was loaded."""

    workload: str
    task: str
    node: str
    since_s: float
    state: str = "loading"


class Stand(msgspec.Struct):
    """Of a whole run. now_s: the time of the last record; tasks: by workload and task; loaded: in order of time."""

    now_s: float = 0.0
    tasks: dict[str, dict[str, Standing]] = {}
    loaded: list[Loaded] = []


def standing(records: Iterable[Record]) -> Stand:
    """Read what is there of a run; records that contradict each other count in the order of their times."""
    stand = Stand(0.0, {}, [])
    open_loads: dict[tuple[str, str], Loaded] = {}
    for record in in_order(records):
        stand.now_s = max(stand.now_s, getattr(record, "t", 0.0), getattr(record, "end_t", 0.0))
        match record:
            case TaskAdded():
                _add(stand, record)
            case Ready() | Held() | Granted() | Started() | Ended():
                _take(_task(stand, record.workload, record.task), record)
                known = open_loads.get((record.workload, record.task))
                if known is not None and known.state == "loading" and isinstance(record, Started):
                    known.state = "begun"
            case PreloadStarted():
                loaded = Loaded(record.workload, record.task, record.node, record.t)
                open_loads[record.workload, record.task] = loaded
                stand.loaded.append(loaded)
            case PreloadEnded():
                if (known := open_loads.get((record.workload, record.task))) is not None:
                    if record.outcome == "used" and known.state == "warm":
                        _task(stand, record.workload, record.task).is_warm = True
                    known.state = record.outcome
            case WorkloadEnded():
                _end(stand.tasks.get(record.workload, {}), record)
    return stand


def _task(stand: Stand, workload: str, task: str) -> Standing:
    return stand.tasks.setdefault(workload, {}).setdefault(task, Standing(task, task))


def _add(stand: Stand, record: TaskAdded) -> None:
    known = _task(stand, record.workload, record.task)
    known.name, known.parents = record.name or record.task, record.parents
    known.phases = max(1, len(record.phases))
    known.uses_gpu = any(phase[2] > 0 for phase in record.phases)


def _take(task: Standing, record: Ready | Held | Granted | Started | Ended) -> None:
    match record:
        case Ready():
            if task.state != "running":
                task.state, task.since_s, task.why = "waiting", record.t, ""
        case Held():
            task.why = record.reason or f"held by the rule {record.kind}"
            if record.waiting_for:
                task.why += f"{FOR}{', '.join(record.waiting_for[:3])}"
        case Granted():
            task.decided = record.reason
        case Started():
            if task.state == "waiting" and task.since_s is not None:
                task.waited_s += record.t - task.since_s
            task.state, task.since_s = "running", record.t
            task.started_s = record.t if task.started_s is None else task.started_s
            task.node, task.devices = record.node, record.devices or task.devices
            task.uses_gpu = task.uses_gpu or record.gpus > 0
        case Ended():
            _end_phase(task, record)


def _end_phase(task: Standing, record: Ended) -> None:
    """A task has succeeded with its last phase; before that it waits for the next one."""
    if task.state == "running" and task.since_s is not None:
        task.ran_s += record.t - task.since_s
    if record.outcome == "succeeded" and record.phase + 1 < task.phases:
        task.state = "waiting"
    else:
        task.state = record.outcome if record.outcome in STATES else "stopped"
        task.ended_s = record.t
        task.why = record.reason or task.why
    task.since_s = record.t


def _end(tasks: dict[str, Standing], record: WorkloadEnded) -> None:
    """What of it had not ended, does not come any more."""
    for task in tasks.values():
        if task.ended_s is None:
            if task.state == "running" and task.since_s is not None:  # its end may be told later than its workload's
                task.ran_s += record.t - task.since_s
            task.state, task.since_s, task.ended_s = "stopped", record.t, record.t
