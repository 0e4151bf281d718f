"""What the suite's tasks do inside workers, and how they and the scenarios tell each other of it: files in one folder.

Standard library only. Marks are lines appended to one file; a signal is a file.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

MARKS = "marks.jsonl"
LIMIT_S = 180.0  # a task that waits for longer fails: its scenario has failed before


def mark(folder: str, task: str, what: str, phase: int = 0) -> None:
    """Append one mark. what: load, begin or end."""
    devices = [device for device in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device not in ("", "-1")]
    entry = {"at": time.time(), "task": task, "what": what, "phase": phase, "pid": os.getpid(), "devices": devices}
    file = os.open(os.path.join(folder, MARKS), os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
    try:
        os.write(file, json.dumps(entry).encode() + b"\n")  # one write: lines of several processes do not mix
    finally:
        os.close(file)


def signal(folder: str, name: str) -> None:
    """Let go whoever waits for this signal, now or later."""
    Path(folder, f"signal-{name}").touch()


def do_phase(folder: str, task: str, phase: int, seconds: float, until: tuple[str, ...]) -> None:
    """One phase: marks its begin, which is also the signal `TASK.PHASE`; waits; takes its time; marks its end."""
    mark(folder, task, "begin", phase)
    signal(folder, f"{task}.{phase}")
    for name in until:
        _wait_for(Path(folder, f"signal-{name}"))
    time.sleep(seconds)
    mark(folder, task, "end", phase)


def value(task: str, values: tuple[str, ...]) -> str:
    """The task's value, of its parents' values."""
    return f"{task}({','.join(values)})"


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path.name} did not come within {LIMIT_S:g} s")
        time.sleep(0.01)
