"""Reads what tasks say they read (`preload=[egs.files("/models/m.pt")]`) into this host's page cache, just before.

    a  ███████████████┐ expected to end …        the engine knows when: it decides what is to be loaded, and the agent
    stage        ░░░░ │ … so from here           that hosts it publishes that
    b                 └ ▓▓▓▓                     finds its file in memory

On a host on which the run has begun: where its next task goes nobody knows. Each agent reads in a process of its own:
lowest priority, no GPU, bounded bytes; each file once. What it took, and what nobody used, are lines of
`agent-HOST.jsonl`. Modules and calls are not staged: no other process can load them for a task. Paths that are not
absolute are left out: only the task knows what they are relative to.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import msgspec
import psutil

from egs_airflow import config
from egs_airflow.agent.acts import note_act
from egs_airflow.agent.declare import stated_files
from egs_airflow.agent.instances import Instance, instances_place, own_names, read_instances, run_place
from egs_airflow.agent.lease import record_of
from egs_airflow.agent.lease_store import ConnectionStore
from egs_airflow.options import NO
from egs_airflow.order.published import order_of
from egs_airflow.rest import Rest
from egs_core.units import parse_bytes

LOOK_S = 2.0
KEPT_S = 600.0
"""So long what was read is believed to be in memory still."""
UNDER_WAY = ("queued", "running")


class Report(msgspec.Struct, frozen=True):
    """A line of `preload.files`."""

    path: str
    bytes: int
    cold_bytes: int
    seconds: float
    problem: str = ""


class Staged(msgspec.Struct):
    """The process that reads, for whom, and where its lines go."""

    process: subprocess.Popen[bytes]
    one: Instance
    lines: IO[bytes]


class Stager:
    """See the module. It keeps nothing on disk: an agent that starts again may read a file a second time."""

    def __init__(self, rest: Rest) -> None:
        self._rest, self._store = rest, ConnectionStore(rest)
        self._most_bytes = most_bytes()
        self._runs: dict[tuple[str, str], dict[str, Instance]] = {}  # what was staged for tasks that have not begun
        self._read: dict[tuple[str, int, int], float] = {}
        self._now: Staged | None = None
        self._due_s = 0.0

    def look(self, is_busy: bool, now_s: float) -> None:
        """Start what is due, and report what is over. is_busy: whether a task runs on this host. Raises InputError."""
        self._reap()
        if not self._most_bytes or now_s < self._due_s or not (is_busy or self._runs):
            return
        self._due_s = now_s + LOOK_S
        _, text, published = self._store.published()
        order = order_of(published) if record_of(text).holder else None
        wanted: dict[tuple[str, str], list[str]] = {run: [] for run in self._runs}
        for dag_id, run_id, task in order.loads if order is not None else ():
            wanted.setdefault((dag_id, run_id), []).append(task)
        for run, tasks in wanted.items():
            self._stage(run, tasks)

    def pause(self, until_s: float) -> None:
        """Ask nothing before then: Airflow refuses to answer."""
        self._due_s = until_s

    def close(self) -> None:
        """End what reads."""
        if self._now is not None:
            self._now.process.kill()
            self._now.process.wait()
            self._now.lines.close()
            self._now = None

    def _stage(self, run: tuple[str, str], tasks: Collection[str]) -> None:
        """Begin to read for one of these; forget those that have begun here: it was of use; say what was in vain."""
        here, state = own_names(), (self._rest.get(run_place(*run)) or {}).get("state")
        rows = read_instances(self._rest, instances_place(*run)) if state is not None else ()
        found = {one.task_id: one for one in rows}
        staged = self._runs.pop(run, {})
        left = {task: one for task, one in staged.items() if not _has_begun(found.get(task, one), here)}
        if state not in UNDER_WAY:
            for one in left.values():
                note_act("staged in vain for", one, "it has not run on this host")
            return
        if any(one.host in here for one in found.values()):
            due = [found[task] for task in tasks if task in found and task not in staged]
            for one in [one for one in due if one.is_open and not one.started_s]:
                if self._now is None:
                    left[one.task_id] = one
                    self._start(one)
        if left:
            self._runs[run] = left

    def _start(self, one: Instance) -> None:
        """Start reading, unless all of it was read a moment ago."""
        now_s = time.monotonic()
        stamps = {path: _stamp(path) for path in stated_files(one.config)}
        paths = [path for path, s in stamps.items() if s is None or now_s - self._read.get(s, -KEPT_S) >= KEPT_S]
        if not paths:
            return
        self._read |= {stamp: now_s for path in paths if (stamp := stamps[path])}
        lines = TemporaryFile()  # noqa: SIM115 - it is open as long as the process runs
        most = min(self._most_bytes, psutil.virtual_memory().available // 2)  # what is used already stays in memory
        command = [sys.executable, "-m", "egs_airflow.preload.files", str(most), *paths]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=lines, env=environment)
        self._now = Staged(process, one, lines)

    def _reap(self) -> None:
        """Report what has been read."""
        if self._now is None or self._now.process.poll() is None:
            return
        staged, self._now = self._now, None
        staged.lines.seek(0)
        with staged.lines as lines:
            read = [msgspec.json.decode(line, type=Report) for line in lines.read().splitlines()]
        cold, seconds = sum(one.cold_bytes for one in read), sum(one.seconds for one in read)
        problems = [f"{one.path} {one.problem}" for one in read if one.problem]
        size = sum(one.bytes for one in read)
        text = f"{len(read)} files, {size / 1e6:,.0f} MB, {cold / 1e6:,.0f} of it from disk, in {seconds:.1f} s"
        figures = {"bytes": size, "cold_bytes": cold, "seconds": round(seconds, 3)}
        note_act("staged for", staged.one, "; ".join([text, *problems]), figures)


def most_bytes() -> int:
    """`[egs] stage_bytes`; 0 for nothing. Raises InputError."""
    stated = config.option("stage_bytes")
    return 0 if stated.strip().lower() in NO else parse_bytes(stated, "[egs] stage_bytes")


def _has_begun(one: Instance, hosts: Collection[str]) -> bool:
    return bool(one.started_s) and one.host in hosts


def _stamp(path: str) -> tuple[str, int, int] | None:
    """The file as it is now: its size is the second."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return path, found.st_size, found.st_mtime_ns
