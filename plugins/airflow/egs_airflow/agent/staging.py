"""Reads what tasks say they read (`preload=[egs.files("/models/m.pt")]`) into this host's page cache, just before.

    a  ███████████████┐ expected to end …        the run's tasks and edges over REST, learned durations from the file
    stage        ░░░░ │ … so from here           a process of its own: lowest priority, no GPU, bounded bytes
    b                 └ ▓▓▓▓                     finds its file in memory

In mode on for the DAG, and on a host on which the run has begun: where its next task goes nobody knows. A task behind
one without a learned duration is staged once all that it still waits for runs. Each file once; what it took,
and what nobody used, are lines of `agent-HOST.jsonl`. Modules and calls are not staged: no other process can load them
for a task. Paths that are not absolute are left out: only the task knows what they are relative to.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import msgspec
import psutil

from egs_airflow import config
from egs_airflow.agent.acts import note_act
from egs_airflow.agent.declare import FILES, KEY
from egs_airflow.agent.foresee import expected_starts, is_next
from egs_airflow.agent.instances import Instance, instances_place, own_names, read_instances
from egs_airflow.agent.tags import Modes
from egs_airflow.options import NO
from egs_airflow.order.durations import durations_path, load_durations
from egs_airflow.rest import Rest, quoted
from egs_core.units import parse_bytes

LOOK_S = 2.0
LEAD_FACTOR, LEAD_S = 1.2, 1.0  # reading takes a little longer than believed, and the next look comes a little later
FIRST_RATE = 100e6  # bytes a second, until this host has shown its own
KEPT_S = 600.0
"""So long what was read is believed to be in memory still."""


class Report(msgspec.Struct, frozen=True):
    """A line of `preload.files`."""

    path: str
    bytes: int
    cold_bytes: int
    seconds: float
    problem: str = ""


class Wanted(msgspec.Struct):
    """What one task of a run reads. staged: that a process has begun to read it."""

    one: Instance
    paths: tuple[str, ...]
    staged: bool = False


class Staged(msgspec.Struct):
    """The process that reads, for whom, and where its lines go."""

    process: subprocess.Popen[bytes]
    wanted: Wanted
    lines: IO[bytes]


class Stager:
    """See the module. It keeps nothing on disk: an agent that starts again may read a file a second time."""

    def __init__(self, rest: Rest, modes: Modes) -> None:
        self._rest, self._modes = rest, modes
        self._most_bytes = most_bytes()
        self._runs: dict[tuple[str, str], list[Wanted]] = {}
        self._parents: dict[tuple[str, str], dict[str, list[str]]] = {}
        self._plain: set[tuple[str, int]] = set()  # versions of DAGs without files: their runs are not read
        self._read: dict[tuple[str, int, int], float] = {}
        self._now: Staged | None = None
        self._rate = FIRST_RATE
        self._due_s = 0.0

    def look(self, is_busy: bool, now_s: float) -> None:
        """Start what is due, and report what is over. is_busy: whether a task runs on this host. Raises InputError."""
        self._reap()
        if not self._most_bytes or now_s < self._due_s or not (is_busy or any(self._runs.values())):
            return
        self._due_s = now_s + LOOK_S
        running = self._rest.rows("dags/~/dagRuns", "dag_runs", order_by="id", state="running")
        open_runs = {(row["dag_id"], row["dag_run_id"]): _version(row) for row in running}
        for run in sorted(open_runs.keys() - self._runs.keys()):
            dag = run[0], open_runs[run]
            self._runs[run] = [] if dag in self._plain else self._wanted(*run)
            if dag[1] and not self._runs[run]:
                self._plain.add(dag)
        for run in list(self._runs):
            if self._runs[run]:
                self._stage(run)
            if run not in open_runs:
                self._close(run)

    def close(self) -> None:
        """End what reads."""
        if self._now is not None:
            self._now.process.kill()
            self._now.process.wait()
            self._now.lines.close()
            self._now = None

    def _wanted(self, dag_id: str, run_id: str) -> list[Wanted]:
        """The tasks of a run that state files."""
        if self._modes.of(dag_id) != "on":
            return []
        found = read_instances(self._rest, instances_place(dag_id, run_id))
        wanted = [Wanted(one, paths) for one in found if one.map_index < 0 and (paths := stated_files(one.config))]
        if wanted:
            rows = (self._rest.get(f"dags/{quoted(dag_id)}/tasks") or {}).get("tasks", ())
            parents: dict[str, list[str]] = {row["task_id"]: [] for row in rows}
            self._parents[dag_id, run_id] = parents
            for row in rows:
                for child in row["downstream_task_ids"] or ():
                    parents.setdefault(child, []).append(row["task_id"])
        return wanted

    def _stage(self, run: tuple[str, str]) -> None:
        """Begin to read for the first task of a run that is due; drop those that have begun here: it was of use."""
        found = read_instances(self._rest, instances_place(*run))
        by_task = {one.task_id: one for one in found}
        here = own_names()
        self._runs[run] = [
            wanted
            for wanted in self._runs[run]
            if not (by_task[wanted.one.task_id].started_s and by_task[wanted.one.task_id].host in here)
        ]
        if self._now is not None or not any(one.host in here for one in found):
            return
        now_s, parents = time.time(), self._parents[run]
        starts = expected_starts(parents, found, load_durations(durations_path()).get(run[0], {}), now_s)
        for wanted in self._runs[run]:
            task = wanted.one.task_id
            if wanted.staged or task not in starts or not by_task[task].is_open:
                continue
            start = starts[task]
            is_due = is_next(task, parents, found) if start is None else start[0] - start[1] <= self._lead_s(wanted)
            if is_due and self._start(wanted):
                return

    def _lead_s(self, wanted: Wanted) -> float:
        sizes = (_stamp(path) for path in wanted.paths)
        return LEAD_S + LOOK_S + LEAD_FACTOR * sum(stamp[1] for stamp in sizes if stamp) / self._rate

    def _start(self, wanted: Wanted) -> bool:
        """Start reading, unless all of it was read a moment ago."""
        wanted.staged = True
        now_s = time.monotonic()
        stamps = {path: _stamp(path) for path in wanted.paths}
        paths = [path for path, s in stamps.items() if s is None or now_s - self._read.get(s, -KEPT_S) >= KEPT_S]
        if not paths:
            return False
        self._read |= {stamp: now_s for path in paths if (stamp := stamps[path])}
        lines = TemporaryFile()  # noqa: SIM115 - it is open as long as the process runs
        most = min(self._most_bytes, psutil.virtual_memory().available // 2)  # what is used already stays in memory
        command = [sys.executable, "-m", "egs_airflow.preload.files", str(most), *paths]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=lines, env=environment)
        self._now = Staged(process, wanted, lines)
        return True

    def _reap(self) -> None:
        """Report what has been read."""
        if self._now is None or self._now.process.poll() is None:
            return
        staged, self._now = self._now, None
        staged.lines.seek(0)
        with staged.lines as lines:
            read = [msgspec.json.decode(line, type=Report) for line in lines.read().splitlines()]
        cold, seconds = sum(one.cold_bytes for one in read), sum(one.seconds for one in read)
        if cold and seconds:
            self._rate = cold / seconds
        problems = [f"{one.path} {one.problem}" for one in read if one.problem]
        size = sum(one.bytes for one in read)
        text = f"{len(read)} files, {size / 1e6:,.0f} MB, {cold / 1e6:,.0f} of it from disk, in {seconds:.1f} s"
        figures = {"bytes": size, "cold_bytes": cold, "seconds": round(seconds, 3)}
        note_act("staged for", staged.wanted.one, "; ".join([text, *problems]), figures)

    def _close(self, run: tuple[str, str]) -> None:
        """A run is over: what was staged and not used here is said."""
        for wanted in self._runs.pop(run):
            if wanted.staged:
                note_act("staged in vain for", wanted.one, "it has not run on this host")
        self._parents.pop(run, None)


def stated_files(executor_config: str) -> tuple[str, ...]:
    """The absolute paths that `declare` has put into an `executor_config`, as REST shows it."""
    if f"'{FILES}'" not in executor_config:
        return ()
    try:
        paths = ast.literal_eval(executor_config)[KEY][FILES]
        return tuple(path for path in paths if isinstance(path, str) and os.path.isabs(path))
    except (ValueError, SyntaxError, LookupError, TypeError):
        return ()


def most_bytes() -> int:
    """`[egs] stage_bytes`; 0 for nothing. Raises InputError."""
    stated = config.option("stage_bytes")
    return 0 if stated.strip().lower() in NO else parse_bytes(stated, "[egs] stage_bytes")


def _version(run: Mapping[str, Any]) -> int:
    """Which version of its DAG a run is of; 0 where Airflow does not say."""
    return max((int(one["version_number"]) for one in run.get("dag_versions") or ()), default=0)


def _stamp(path: str) -> tuple[str, int, int] | None:
    """The file as it is now: its size is the second."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return path, found.st_size, found.st_mtime_ns
