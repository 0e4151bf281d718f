"""What the tasks of a replay do, and what they note of it. Runs in Airflow's workers: standard library only.

A phase waits for its seconds; on a GPU that is an emulated GPU phase. Where the file says that a task has to load
something, it loads in each process: Airflow starts one for each task.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from egs_core.runlog.marks import Marking, append

NOTES = "EGS_REPLAY_NOTES"
"""The environment variable with the file of the notes; without it nothing is noted."""

CONTEXT = {"dag_id": "DAG_ID", "run_id": "DAG_RUN_ID", "task_id": "TASK_ID", "number": "TRY_NUMBER"}
"""What a note says -> the end of the variable in which Airflow says it to a task."""


@contextmanager
def marking() -> Iterator[Marking]:
    """Note what the running task did when."""
    marking = Marking()
    try:
        yield marking
    finally:
        if path := os.environ.get(NOTES):
            place = {name: os.environ.get(f"AIRFLOW_CTX_{end}", "") for name, end in CONTEXT.items()}
            append(Path(path), {**place, "stretches": marking.stretches})


def play(phases: Sequence[tuple[str, float]], load_s: float = 0.0) -> None:
    """A whole task: its load, then its phases, each with its kind (cpu, gpu) and seconds."""
    with marking() as mark:
        if load_s:
            with mark.cold():
                time.sleep(load_s)
        for kind, seconds in phases:
            with mark.gpu(seconds) if kind == "gpu" else mark.cpu(seconds):
                pass


def phase(kind: str, number: int, load_s: float = 0.0) -> Callable[[list[float]], list[float]]:
    """The function of one phase of a task that is split: plays the first of its seconds and returns the others."""

    def play_phase(seconds: list[float]) -> list[float]:
        play([(kind, seconds[0])], load_s)
        return seconds[1:]

    play_phase.__name__ = play_phase.__qualname__ = phase_name(kind, number)
    return play_phase


def phase_name(kind: str, number: int) -> str:
    """What the task of a phase is called within its task's group."""
    return f"{kind}_{number}"
