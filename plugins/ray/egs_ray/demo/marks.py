"""The notes of the demo's tasks, named as its run log names them; see `egs_ray.replay.marks`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from egs_core.runlog.marks import Marking
from egs_ray.replay.marks import marking as marking_of

__all__ = ["Marking", "marking", "task_id", "workload_id"]


def workload_id(pipeline: int) -> str:
    return f"pipeline-{pipeline}"


def task_id(name: str, number: int = 0) -> str:
    """The task's id within its pipeline: only the trainings are numbered."""
    return f"{name}-{number}" if name == "train" else name


def marking(folder: str, task: str, pipeline: int, number: int = 0, part: int = 0) -> AbstractContextManager[Marking]:
    """Note one task of a pipeline, or one part of it where it is split by hand."""
    return marking_of(folder, workload_id(pipeline), task_id(task, number), part)
