"""What tasks have noted of themselves, as records beside those of the run log that the runner wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from egs_core.runlog.marks import MARKS_FILE
from egs_core.runlog.records import ColdStart, Record, Started, Used


class Note(msgspec.Struct, frozen=True):
    """One line: which task, when its process was made and when it was done with this (Unix time), and the stretches of
    it: kind (cpu, gpu, cold), start and end."""

    task: str
    start: float
    end: float
    stretches: list[tuple[str, float, float]]


def read_notes(root: Path) -> list[Note]:
    """All notes of the tasks that have written under this folder."""
    path = root / MARKS_FILE
    return [msgspec.json.decode(line, type=Note) for line in path.read_bytes().splitlines()] if path.exists() else []


def inside(notes: Iterable[Note], starts: Mapping[str, Started], begin_s: float) -> Iterator[Record]:
    """When a task that had a GPU was in its GPU phases, and when it loaded. starts: by the name that tasks note
    themselves under; begin_s: Unix time of the run log's zero."""
    for note in notes:
        started = starts[note.task]
        place = started.workload, started.task, started.phase, started.attempt
        for kind, start, end in note.stretches:
            if kind == "gpu":
                yield Used(start - begin_s, end - begin_s, *place)
            elif kind == "cold":
                yield ColdStart(start - begin_s, end - begin_s, *place)


def zero_of(notes: Iterable[Note], starts: Mapping[str, Started]) -> float:
    """Unix time of the run log's zero, by the task whose process was there soonest after its start."""
    return min((note.start - starts[note.task].t for note in notes), default=0.0)
