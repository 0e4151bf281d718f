"""Keeps pushed events on disk, job by job, and turns a job that is over into a run log and rows of the history.

    FOLDER/SESSION/01000000.events.jsonl     the job's own events, as they came
    FOLDER/SESSION/cluster.events.jsonl      nodes and workers
    FOLDER/SESSION/train-01000000.jsonl      its run log, written when the job is over
    FOLDER/SESSION/kept.json                 up to which end (Unix time) each job is in the history

Memory holds counters only: of one job's events, and only while its run log is written, there is more.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from egs_core.history import history_from_runlog
from egs_core.history.rows import History
from egs_core.runlog.io import write_run
from egs_ray.audit.exported import job_of, take_event
from egs_ray.audit.read import events_in
from egs_ray.audit.records import past_of
from egs_ray.audit.seen import Seen

CLUSTER = "cluster"
SETTLE_S = 5.0  # workers report what a job's last tasks did after its driver has gone
IDLE_S = 600.0  # nothing of a job for so long: its cluster was ended without a word
MOST_JOB_BYTES = 2 * 1024**3
Key = tuple[str, str]  # session, job


class Spooled(msgspec.Struct):
    """A job under way. is_over: its driver has ended."""

    heard_s: float
    is_over: bool = False
    unwritten: bool = True


class Spool:
    """One folder. Not for several threads at once. OSError where the disk refuses: nothing of that batch counts."""

    def __init__(self, folder: Path, history: History) -> None:
        self.folder, self._history = folder, history
        self.events, self.left_out, self.rows = 0, 0, 0
        self._jobs: dict[Key, Spooled] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.glob("*/*.events.jsonl"):  # of an earlier collector
            job = file.name.removesuffix(".events.jsonl")
            if job != CLUSTER and file.stat().st_mtime > self._written_s(file.parent, job):
                self._jobs[file.parent.name, job] = Spooled(file.stat().st_mtime)

    def take(self, events: Iterable[Any], now_s: float) -> None:
        """Keep those events that are understood; what is broken or of no use is counted and left out."""
        lines: dict[Key, list[bytes]] = defaultdict(list)
        over = set[Key]()
        for event in events:
            key = self._key(event)
            if key is None:
                self.left_out += 1
                continue
            lines[key].append(json.dumps(event, separators=(",", ":")).encode() + b"\n")
            if key[1] != CLUSTER and _ends_job(event):
                over.add(key)
        for key, found in lines.items():
            self._append(key, found)
            if key[1] != CLUSTER:
                known = self._jobs.get(key)
                self._jobs[key] = Spooled(now_s, key in over or (known is not None and known.is_over))

    def write_settled(self, now_s: float) -> list[Path]:
        """Run logs of the jobs that are over and settled, or silent for long."""
        due = [
            key
            for key, job in self._jobs.items()
            if job.unwritten and now_s - job.heard_s >= (SETTLE_S if job.is_over else IDLE_S)
        ]
        return self._write(due)

    def write_all(self) -> list[Path]:
        """Run logs of every job that has not been written since it was last heard of."""
        return self._write([key for key, job in self._jobs.items() if job.unwritten])

    def _key(self, event: Any) -> Key | None:
        """Where an event belongs, by trying it: what cannot be folded now could not be read later either."""
        try:
            if not take_event(Seen(), event):
                return None
            session = str(event.get("sessionName") or event.get("session_name") or "")
            return _file_name(session) or "session", job_of(event) or CLUSTER
        except ValueError:
            return None

    def _append(self, key: Key, lines: list[bytes]) -> None:
        file = self._events_file(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and file.stat().st_size > MOST_JOB_BYTES:
            self.left_out += len(lines)
            return
        with file.open("ab") as stream:
            stream.write(b"".join(lines))
        self.events += len(lines)

    def _events_file(self, key: Key) -> Path:
        return self.folder / key[0] / f"{key[1]}.events.jsonl"

    # --- a job that is over -------------------------------------------------------------------------------------------

    def _write(self, keys: list[Key]) -> list[Path]:
        written = []
        for key in keys:
            self._jobs[key].unwritten = False
            if (path := self._write_job(key)) is not None:
                written.append(path)
            if self._jobs[key].is_over:
                del self._jobs[key]
        return written

    def _write_job(self, key: Key) -> Path | None:
        session, job = key
        seen = Seen()
        for file in (self._events_file((session, CLUSTER)), self._events_file(key)):
            if file.exists():
                for _, event in events_in(file):
                    take_event(seen, event)
        history = past_of(seen, [job])
        records = history.records()
        name = seen.jobs[job].name if job in seen.jobs else "job"
        path = self.folder / session / f"{_file_name(name)}-{job}.jsonl"
        if not any(hasattr(record, "workload") for record in records):
            return None
        header = history.header(path.stem, name)
        write_run(path, header, records)
        self._keep(session, job, [header, *records])
        return path

    def _keep(self, session: str, job: str, records: list[Any]) -> None:
        """Put what ended since the last time into the history: a job may be written several times."""
        file = self.folder / session / "kept.json"
        kept = _kept(file)
        rows = [row for row in history_from_runlog(records) if row.ended_at > kept.get(job, 0.0)]
        if rows:
            self.rows += self._history.record(rows)
            kept[job] = max(row.ended_at for row in rows)
            beside = file.with_suffix(".new")
            beside.write_text(json.dumps(kept))
            os.replace(beside, file)

    def _written_s(self, session: Path, job: str) -> float:
        """When the job's run log was written; 0 before."""
        return max((log.stat().st_mtime for log in session.glob(f"*-{job}.jsonl")), default=0.0)


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]", "_", text).lstrip(".")[:120]


def _kept(file: Path) -> dict[str, float]:
    try:
        found: dict[str, float] = msgspec.json.decode(file.read_bytes(), type=dict[str, float])
    except (OSError, msgspec.MsgspecError):
        return {}
    return found


def _ends_job(event: dict[str, Any]) -> bool:
    """Whether it says that the job's driver has ended."""
    seen = Seen()
    take_event(seen, event)
    drivers = [task for task in seen.tasks.values() if task.task_id.startswith("f" * 40)]
    return any(job.ended_s for job in seen.jobs.values()) or any(driver.ended_s for driver in drivers)
