"""One submission: as it was seen, without holding on to anything of it, and as the gate needs it."""

from __future__ import annotations

import msgspec

from egs_core.runlog.records import Granted, PhaseNeeds, phase_needs
from egs_ray.events import TaskEvent


class Submission(msgspec.Struct):
    """What was seen of one `.remote()`. producers: ids of the tasks whose results it takes, as references name them."""

    at_s: float
    task_id: str
    name: str
    kind: str  # task, actor (its creation) or method
    actor_id: str = ""
    producers: tuple[str, ...] = ()
    cpus: float = 0.0
    gpus: float = 0.0
    memory_bytes: int = 0
    phases: tuple[tuple[str, float, float, int], ...] = ()  # of a task that runs phase by phase
    label: str = ""  # the name of this one task, where its script gave it one: options(name=…)


class Needs(msgspec.Struct, frozen=True):
    """What a task is called and asks Ray for."""

    name: str
    cpus: float
    gpus: float
    memory_bytes: int


class Arrival(msgspec.Struct):
    """One submission as a gate needs it: names and numbers only.

    key: of its ticket; "" for one that passed ungated. direct: references that Ray waits for, each (its own id, that of
    the task behind it); nested: ids of the tasks behind all others, for which the task may wait or not. seconds: that
    it is believed to take. parent: the task with a turn, or the creation of the actor, for which the code works
    that has submitted it on a worker. is_nested: on a worker, and not in the driver. streams: its values are there one
    by one before its end, so who takes one does not wait for that.
    """

    key: str
    task_id: str
    needs: Needs
    direct: list[tuple[str, str]]
    nested: list[str]
    seconds: float | None = None
    parent: str = ""
    is_nested: bool = False
    streams: bool = False


class Ordered(msgspec.Struct):
    """The gate let a task go: when its arguments were there, when it went, and why then. Times are Unix seconds."""

    task_id: str
    ready_s: float
    granted_s: float
    decision: int
    reason: str
    p50_s: float
    p95_s: float


def submission_of(event: TaskEvent) -> Submission:
    """A task that the driver did not submit, or not visibly: what Ray knows of it."""
    at_s = event.submitted_s or event.ready_s or event.started_s or event.ended_s or 0.0
    return Submission(
        at_s=at_s,
        task_id=event.task_id,
        name=event.name,
        kind=event.kind,
        actor_id=event.actor_id,
        cpus=event.cpus,
        gpus=event.gpus,
        memory_bytes=event.memory_bytes,
    )


def phase_of(task: Submission) -> PhaseNeeds:
    """Its one phase as a run log has it."""
    return phase_needs(task.cpus, task.gpus, task.memory_bytes)


def granted_of(told: Ordered, workload: str, granted_t: float) -> Granted:
    """The gate's decision as a run log has it; the time is on the log's clock."""
    return Granted(
        t=granted_t,
        workload=workload,
        task=told.task_id,
        phase=0,
        decision=told.decision,
        reason=told.reason,
        estimate_p50_s=told.p50_s,
        estimate_p95_s=told.p95_s,
    )


def is_driver(task_id: str) -> bool:
    """`ray.put` gives its objects the putting task's id with the first byte zeroed; the driver's id is all ones."""
    return task_id[2:40] == "f" * 38
