"""Processes that have read their DAG file before their task comes, and wait for it.

    without   a task is taken ─ fork ─ (running, holds its slot) ─ read DAG file ─ user's code
    with      fork ─ read DAG file ─ ... ─ a task is taken ─ (running, holds its slot) ─ user's code

A process of LocalExecutor that waits for work forks the process of its next task, and that reads the DAG file of the
last one, of its own or of all. It is Airflow's own process of a task in all: with its own pipes, from which its output
goes to the task's log, and used for one task only. It is not taken where anything could be otherwise than in a process
that begins with the task: another file, version or coordinator; a file, or a module that it imported, has changed; it
was read more than MOST_AGE_S ago. A DAG file has no such process at all that does not lie in a folder on this machine,
has an error, asks for a Variable, a Connection or which task it is read for, or initialises CUDA.

Whatever goes wrong here, the task has a process as ever.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection
from multiprocessing.sharedctypes import Synchronized
from typing import Any, NamedTuple, NoReturn

from egs_airflow import config, own_process
from egs_airflow.preload.modules import has_cuda

MOST_AGE_S = 30.0
"""As old as Airflow's own reading of a DAG file may be (`[dag_processor] min_file_process_interval`)."""
IDLE_S = 300.0
"""So long after its last task a process of the executor has one stand ready."""
UNFIT_S = 600.0
"""So long a DAG file that had no such process is not tried again."""
PATIENCE_S = 60.0
"""The longest that a task waits for a process that still reads, which began to before it."""
DELAY_S = 0.2
"""So long a process of the executor is without work before it has one stand ready: where a task ends, others begin."""
CLOCK_NS = 20_000_000
"""By so much a file's time of change may be earlier than the change."""
YIELD_S = 0.01
"""So long those that have no process ready leave a task to those that have."""

MOST_BYTES = 4096
"""The longest name of a DAG file that all processes are told of."""

Stamps = dict[str, tuple[int, int]]
"""Files that were read, each with its time of change and its size."""


class DagFile(NamedTuple):
    """A DAG file as Airflow names it to a task's process."""

    bundle: str
    version: str | None
    path: str


@dataclass
class Process:
    """One that stands ready, or is about to. pairs: of sockets, as Airflow makes them, the child's end first; told:
    where it says which files it has read; began_s: when it was forked."""

    pid: int
    file: DagFile
    pairs: list[tuple[socket.socket, socket.socket]]
    told: Any
    began_s: float

    def stamps(self, patience_s: float = PATIENCE_S) -> Stamps | None:
        """What it has read, once it has; None where it has ended or does not end reading in time."""
        with suppress(EOFError, OSError):
            if self.told.poll(patience_s):
                found: Stamps = self.told.recv()
                return found
        return None

    def close(self) -> None:
        """End it."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self.told.close()
        for pair in self.pairs:
            for end in pair:
                end.close()


@dataclass
class Ready:
    """What a process of the executor knows of the one that stands ready. standing: how many there are in all its
    processes, at most `most`; latest: when the last task of all came, and its file, as JSON. file: that of the last
    task here; is_tried: the one before was in vain; unfit: until when."""

    standing: Synchronized[int]
    most: int
    latest: Any
    clock: Callable[[], float] = time.monotonic
    process: Process | None = None
    file: DagFile | None = None
    is_tried: bool = False
    unfit: dict[DagFile, float] = field(default_factory=dict)
    last_s: float = 0.0

    def stand(self) -> None:
        """Have one stand ready for the file of the last task. Never raises."""
        now_s = self.clock()
        file = self._wanted(now_s)
        if self.process is not None or file is None or self.is_tried or now_s < self.unfit.get(file, 0.0):
            return
        if not self._has_room():
            return
        try:
            self.process = fork_ready(file, now_s)
        except Exception as error:
            self._leave()
            self.unfit[file] = now_s + UNFIT_S
            config.warn(f"no process stands ready for {file.path}: {type(error).__name__}: {error}")

    def _wanted(self, now_s: float) -> DagFile | None:
        """The file of the last task here, or where none was for long, of the last one anywhere."""
        if self.file is not None and now_s - self.last_s <= IDLE_S:
            return self.file
        came_s, *file = json.loads(self.latest.value or b"[0]")
        return DagFile(*file) if file and now_s - came_s <= IDLE_S else None

    def _note(self, file: DagFile) -> None:
        """A task of it came here."""
        self.is_tried, self.file, self.last_s = False, file, self.clock()
        text = json.dumps([self.last_s, *file]).encode()
        if len(text) < MOST_BYTES:
            self.latest.value = text

    def renew_in_s(self) -> float | None:
        """In how many seconds the one that stands ready is too old; None where there is none."""
        return None if self.process is None else max(0.0, self.process.began_s + MOST_AGE_S - self.clock())

    def renew(self) -> None:
        """Another one, where that which stands ready is too old."""
        process = self.process
        if process is not None and not self._is_young(process):
            if process.stamps(0.0) is None:
                self.unfit[process.file] = self.clock() + UNFIT_S
            self.drop()

    def take(self, file: DagFile) -> Process | None:
        """The process that has read this file, which nobody else gets then; None where a task is to have its own."""
        self._note(file)
        process, self.process = self.process, None
        if process is None:
            return None
        self._leave()
        may_fit = process.file == file and self._is_young(process)
        stamps = process.stamps() if may_fit else None
        if stamps is not None and stamps == stamps_of(stamps):
            process.told.close()
            return process
        if process.file != file:
            self.is_tried = True  # this executor's tasks are of several files: the next one may be of any
        elif may_fit and stamps is None:
            self.unfit[file] = self.clock() + UNFIT_S
        process.close()
        return None

    def drop(self) -> None:
        """End the one that stands ready."""
        process, self.process = self.process, None
        if process is not None:
            self._leave()
            process.close()

    def _is_young(self, process: Process) -> bool:
        return self.clock() - process.began_s < MOST_AGE_S

    def _has_room(self) -> bool:
        with self.standing.get_lock():
            if self.standing.value >= self.most:
                return False
            self.standing.value += 1
        return True

    def _leave(self) -> None:
        with self.standing.get_lock():
            self.standing.value -= 1


@dataclass
class ReadyQueue:
    """The queue from which a process of LocalExecutor takes its workloads, with `get` as that has it. Made before the
    fork, for all processes; turn: of whom takes one."""

    queue: Any
    standing: Synchronized[int]
    most: int
    latest: Any = field(default_factory=lambda: multiprocessing.Array("c", MOST_BYTES))
    turn: Any = field(default_factory=multiprocessing.Lock)
    _ready: Ready | None = None

    def _begin(self) -> Ready:
        """In each process once."""
        ready = Ready(self.standing, self.most, self.latest)
        try:
            own_process.wrap_start(partial(_start, ready))
        except Exception as error:
            ready.most = 0
            config.warn(f"no process stands ready: {type(error).__name__}: {error}")
        return ready

    def get(self) -> Any:
        """The next workload, None for the end. Meanwhile a process stands ready."""
        ready = self._ready = self._ready or self._begin()
        is_idle = False
        while True:
            if is_idle:
                ready.renew()
                ready.stand()
            if not connection.wait([self.queue._reader], ready.renew_in_s() if is_idle else DELAY_S):
                is_idle = True
                continue
            if ready.process is None and self.standing.value > 0:
                time.sleep(YIELD_S)
            with self.turn:
                found = () if self.queue.empty() else (self.queue.get(),)
            if found:
                if found[0] is None:
                    ready.drop()
                return found[0]
            is_idle = False


def _start(ready: Ready, start: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Start a task's process as Airflow does, or have it take the one that stands ready."""
    process = None
    try:
        bundle = given["bundle_info"]
        process = (
            None
            if "target" in given
            else ready.take(DagFile(bundle.name, bundle.version, os.fspath(given["dag_rel_path"])))
        )
    except Exception as error:
        config.warn(f"no process stands ready: {type(error).__name__}: {error}")
    if process is None:
        return start(**given)
    with own_process.forked(process.pid, process.pairs):
        return start(**given)


def stamps_of(files: Mapping[str, Any] | set[str]) -> Stamps:
    """How these files are now; what is gone is left out."""
    stamps = {}
    for name in files:
        with suppress(OSError):
            found = os.stat(name)
            stamps[name] = (found.st_mtime_ns, found.st_size)
    return stamps


def fork_ready(file: DagFile, now_s: float) -> Process:
    """A process that reads a DAG file, then waits to be told which task it is for."""
    pairs = [socket.socketpair() for _ in own_process.PAIRS]
    receiver, sender = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if pid:
        sender.close()
        return Process(pid, file, pairs, receiver, now_s)
    try:
        receiver.close()
        for _, end in pairs:
            end.close()
        own_process.run_child([own for own, _ in pairs], partial(_read_and_wait, file, sender))
    finally:
        os._exit(1)


def _read_and_wait(file: DagFile, told: Any) -> None:
    """In the process that stands ready: read the file, say so, and wait; then be a task's process."""
    own_process.set_title(file.path)
    told.send(_read(file))
    told.close()
    select.select([0], [], [])
    with socket.socket(fileno=os.dup(0)) as own:
        if not own.recv(1, socket.MSG_PEEK):
            os._exit(0)  # the process of the executor is gone
    own_process.run_task()


def _read(file: DagFile) -> Stamps:
    """Read the DAG file for Airflow to find when it wants it; ends the process where it must be read with its task."""
    known, since_ns = set(sys.modules), time.time_ns() - CLOCK_NS
    try:
        with own_process.asks_nobody(_end):
            path, bag = own_process.read_ahead(*file)
        is_chosen = path and any(config.mode_of(dag.dag_id, dag.tags) == "on" for dag in bag.dags.values())
        if not is_chosen or bag.import_errors or has_cuda():
            _end()
    except Exception:  # that is for the task to say
        _end()
    loaded = [getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if name not in known]
    stamps = stamps_of({path, *(one for one in loaded if one)})
    if any(changed_ns >= since_ns for changed_ns, _ in stamps.values()):
        _end()  # while it was read, or after
    return stamps


def _end() -> NoReturn:
    os._exit(0)
