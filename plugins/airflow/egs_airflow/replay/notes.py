"""The run log of DAG runs whose tasks noted themselves: Airflow says what held which slots, the notes what it was for.

    Airflow's REST API    submitted, ready, started, ended, slots held of which pool
    notes                 when a held GPU was in a GPU phase, and when something was loaded
    `reasons`             why it waited, and with EGS by what it then went first

Process start, imports and CPU phases in a task that holds a slot of the GPU pool so count as held and not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from egs_airflow.history.records import past_of
from egs_airflow.history.seen import Seen, workload_of
from egs_airflow.order.durations import Durations
from egs_airflow.replay.reasons import reasons_of
from egs_core.runlog.records import ColdStart, Header, Record, Used, in_order

LEAST_COLD_S = 0.05  # importing what is imported already takes microseconds; less than this is no cold start


class Note(msgspec.Struct, frozen=True):
    """One line: which try of which task, and its stretches: kind (cpu, gpu, cold), start and end (Unix time)."""

    dag_id: str
    run_id: str
    task_id: str
    number: str
    stretches: list[tuple[str, float, float]]


def read_notes(path: Path) -> list[Note]:
    """All notes of a run; none when no task noted anything."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Note) for line in lines]


def records_of(
    seen: Seen, gpu_pool: str, notes: Iterable[Note], known_s: Durations | None = None
) -> tuple[Header, list[Record]]:
    """The header and the records, by time, of all runs that were seen. known_s: see `reasons_of`."""
    history = past_of(seen, (gpu_pool,))
    header = history.header("")
    records = [*history.records(), *(record for note in notes for record in _inside(note, header.started_at))]
    return header, in_order([*records, *reasons_of(seen, header.started_at, known_s)])


def _inside(note: Note, begin_s: float) -> Iterator[Record]:
    place = workload_of(note.dag_id, note.run_id), note.task_id, 0, int(note.number or 1)
    for kind, start, end in note.stretches:
        if kind == "gpu":
            yield Used(start - begin_s, end - begin_s, *place)
        elif kind == "cold" and end - start >= LEAST_COLD_S:
            yield ColdStart(start - begin_s, end - begin_s, *place)
