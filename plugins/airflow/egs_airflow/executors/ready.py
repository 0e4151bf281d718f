"""Processes that have read their DAG file before their task comes, and wait for it.

    without   a task is taken ─ fork ─ (running, holds its slot) ─ read DAG file ─ user's code
    with      fork ─ read DAG file ─ ... ─ a task is taken ─ (running, holds its slot) ─ user's code

A process of LocalExecutor that waits for work forks the process of its next task, and that reads the DAG file of which
`egs_core.demand` says that one more is worth it, by when tasks came. It is Airflow's own process of a task in all:
with its own pipes, from which its output goes to the task's log, and used for one task only. It is not taken where
anything could be otherwise than in a process that begins with the task: another file, version or coordinator; a file,
or a module that it imported, has changed; it was read more than MOST_AGE_S ago. A DAG file has no such process at all
that does not lie in a folder on this machine, has an error, asks for a Variable, a Connection or which task it is read
for, or initialises CUDA.

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
from typing import Any, NoReturn

from egs_airflow import config, own_process
from egs_airflow.executors.demand import MOST_BYTES, DagFile, Seen, Shared
from egs_airflow.executors.room import Room
from egs_airflow.preload.modules import has_cuda
from egs_core.demand import best, next_s, stays

MOST_AGE_S = 30.0
"""As old as Airflow's own reading of a DAG file may be (`[dag_processor] min_file_process_interval`)."""
UNFIT_S = 600.0
"""So long a DAG file that had no such process is not tried again."""
PATIENCE_S = 60.0
"""The longest that a task waits for a process that still reads, which began to before it."""
DELAY_S = 0.2
"""So long a process of the executor is without work before it has one stand ready: where a task ends, others begin."""
CLOCK_NS = 20_000_000
"""By so much a file's time of change may be earlier than the change."""
LEAST_LOOK_S = 1.0
"""No sooner a process of the executor looks again; one that has a process ready looks so often."""
YIELD_S = 0.01
"""So long those that have no process ready leave a task to those that have."""

Stamps = dict[str, tuple[int, int]]
"""Files that were read, each with its time of change and its size."""


@dataclass
class Process:
    """One that stands ready, or is about to. pairs: of sockets, as Airflow makes them, the child's end first; told:
    where it says which files it has read, and how long that took; began_s: when it was forked; read, read_s: which and
    how long, once it has said it; has_ended: before it could."""

    pid: int
    file: DagFile
    pairs: list[tuple[socket.socket, socket.socket]]
    told: Any
    began_s: float
    read_s: float = 0.0
    read: Stamps | None = None
    has_ended: bool = False

    def stamps(self, patience_s: float = PATIENCE_S) -> Stamps | None:
        """What it has read, once it has; None where it has ended or does not end reading in time."""
        try:
            if self.read is None and not self.has_ended and self.told.poll(patience_s):
                self.read, self.read_s = self.told.recv()
        except (EOFError, OSError):
            self.has_ended = True
        return self.read

    def is_current(self) -> bool:
        """Whether its DAG file is still there, as it was read."""
        own = {name: stamp for name, stamp in (self.read or {}).items() if name.endswith(self.file.path)}
        return own == stamps_of(own)

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
    """What a process of the executor knows of the one that stands ready. room: for those of all its processes; demand:
    when tasks came, of all. place: of the one here; is_tried: the one before was in vain; unfit: until when."""

    room: Room
    demand: Shared
    clock: Callable[[], float] = time.monotonic
    process: Process | None = None
    place: int | None = None
    is_tried: bool = False
    unfit: dict[DagFile, float] = field(default_factory=dict)

    def stand(self) -> None:
        """Have one stand ready for the file that is worth it most, if any. Never raises."""
        now_s = self.clock()
        if self.process is not None or self.is_tried:
            return
        unfit = [file for file, until_s in self.unfit.items() if now_s < until_s]
        chosen = best([one for one in self._seen() if one.file not in unfit], now_s)
        if chosen is None:
            return
        try:
            self.place = self.room.take(_use(chosen.file))
            if self.place is not None:
                self.process = fork_ready(chosen.file, now_s)
        except Exception as error:
            self._leave()
            self.unfit[chosen.file] = now_s + UNFIT_S
            config.warn(f"no process stands ready for {chosen.file.path}: {type(error).__name__}: {error}")

    def _seen(self) -> list[Seen]:
        uses, seen = self.room.uses(), self.demand.read()
        for one in seen:
            one.standing = uses.count(_use(one.file))
        return seen

    def look_in_s(self) -> float:
        """In how many seconds to see again whether one should stand ready, or that which does should go."""
        now_s = self.clock()
        if self.process is not None:
            return max(0.0, min(LEAST_LOOK_S, self.process.began_s + MOST_AGE_S - now_s))
        return max(LEAST_LOOK_S, next_s(self.demand.read(), now_s, MOST_AGE_S) - now_s)

    def renew(self) -> None:
        """Give up the one that stands ready, where it is too old, has ended, has read what is no more, or nothing is
        likely to come for it any more."""
        process, now_s = self.process, self.clock()
        if process is None:
            return
        is_unread, is_young = process.stamps(0.0) is None, self._is_young(process)
        if is_unread and (process.has_ended or not is_young):
            self.unfit[process.file] = now_s + UNFIT_S
        elif is_young and process.is_current() and self._is_wanted(process.file, now_s):
            return
        self.drop()

    def _is_wanted(self, file: DagFile, now_s: float) -> bool:
        return any(one.file == file and stays(one, now_s) for one in self.demand.read())

    def awaited(self) -> list[Any]:
        """Where that which stands ready will say that it has read its file, or ends."""
        return [self.process.told] if self.process is not None and self.process.read is None else []

    def take(self, file: DagFile) -> Process | None:
        """The process that has read this file, which nobody else gets then; None where a task is to have its own."""
        self.is_tried = False
        self.demand.came(file, self.clock())
        process, self.process = self.process, None
        if process is None:
            return None
        self._leave()
        may_fit = process.file == file and self._is_young(process)
        stamps = process.stamps() if may_fit else None
        if stamps is not None:
            self.demand.took(file, process.read_s)
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

    def _leave(self) -> None:
        place, self.place = self.place, None
        if place is not None:
            self.room.give_back(place)


@dataclass
class ReadyQueue:
    """The queue from which a process of LocalExecutor takes its workloads, with `get` as that has it. Made before the
    fork, for all processes; turn: of whom takes one."""

    queue: Any
    room: Room
    memory: Any = field(default_factory=lambda: multiprocessing.Array("c", MOST_BYTES))
    turn: Any = field(default_factory=multiprocessing.Lock)
    _ready: Ready | None = None

    def _begin(self) -> Ready:
        """In each process once."""
        ready = Ready(self.room, Shared(self.memory))
        try:
            own_process.wrap_start(partial(_start, ready))
        except Exception as error:
            ready.room = Room(0)
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
            awaited, in_s = (ready.awaited(), ready.look_in_s()) if is_idle else ([], DELAY_S)
            if self.queue._reader not in connection.wait([self.queue._reader, *awaited], in_s):
                is_idle = True
                continue
            if ready.process is None and self.room.uses():
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


def _use(file: DagFile) -> bytes:
    return json.dumps(file).encode()


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
    began_s = time.monotonic()
    told.send((_read(file), time.monotonic() - began_s))
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
    if path not in stamps or any(changed_ns >= since_ns for changed_ns, _ in stamps.values()):
        _end()  # it has gone or changed while it was read, or after
    return stamps


def _end() -> NoReturn:
    os._exit(0)
