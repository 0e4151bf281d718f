"""What a task of a replay or of the demo does and notes of itself: the standard library only, besides the core's marks.

A task knows itself by the folder that kfp has it write in, which has its name, whoever runs it:

    ROOT/marks.jsonl        all notes
    ROOT/RUN/TASK/…         what the task writes: the only thing that kfp's executor is told of where it is
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from egs_core.runlog.marks import MARKS_FILE, Marking, append, process_start


@contextmanager
def marking() -> Iterator[Marking]:
    """Note what the running task did when."""
    began, mark = time.time(), Marking()
    try:
        yield mark
    finally:
        folder, start = own_folder(sys.argv), process_start() or began
        note = {"task": unquote(folder.name), "start": start, "end": time.time(), "stretches": mark.stretches}
        append(folder.parents[1] / MARKS_FILE, note)


def own_folder(words: Sequence[str]) -> Path:
    """The folder of the task whose executor was started with these words."""
    told = json.loads(words[words.index("--executor_input") + 1])
    return Path(told["outputs"]["outputFile"]).parent


def play(phases: Sequence[Sequence[str | float]], load_s: float = 0.0) -> None:
    """A task of a workload file: its load, then its phases, each with its kind (cpu, gpu) and seconds."""
    with marking() as mark:
        if load_s:
            with mark.cold():
                time.sleep(load_s)
        for kind, seconds in phases:
            with mark.gpu(float(seconds)) if kind == "gpu" else mark.cpu(float(seconds)):
                pass


def wait_until(at: float) -> None:
    """Wait for a moment, in Unix time."""
    time.sleep(max(0.0, at - time.time()))
