"""What a task on Ray notes about itself (see `egs_core.runlog.marks`); `marked` makes a run log of all notes.

Runs inside Ray's workers, in the same way natively and with EGS, so it uses the standard library and Ray only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray

from egs_core.runlog.marks import MARKS_FILE, Marking, append, process_start


@contextmanager
def marking(folder: str, workload: str, task: str, part: int = 0) -> Iterator[Marking]:
    """Note one task (or, where a task is split by hand, one part of it) in `folder` when it ends, however it ends."""
    marking, start, outcome = Marking(), time.time(), "failed"
    try:
        yield marking
        outcome = "succeeded"
    finally:
        context = ray.get_runtime_context()
        note = {
            "workload": workload,
            "task": task,
            "part": part,
            "process_start": process_start(),
            "start": start,
            "end": time.time(),
            "stretches": marking.stretches,
            "devices": marking.devices,
            "resources": context.get_assigned_resources(),
            "framework_id": context.get_task_id(),
            "pid": os.getpid(),
            "outcome": outcome,
        }
        append(Path(folder) / MARKS_FILE, note)
