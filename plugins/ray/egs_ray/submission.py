"""One submission as it was seen, without holding on to anything of it."""

from __future__ import annotations

import msgspec

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


def phase_of(task: Submission) -> tuple[str, float, float, int]:
    """Its one phase as a run log has it: kind, cpus, gpus, memory."""
    return ("gpu" if task.gpus else "cpu", task.cpus, task.gpus, task.memory_bytes)


def is_driver(task_id: str) -> bool:
    """`ray.put` gives its objects the putting task's id with the first byte zeroed; the driver's id is all ones."""
    return task_id[2:40] == "f" * 38
