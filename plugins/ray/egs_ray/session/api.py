"""`egs_ray.run(dag_node)`: run a static Ray graph with EGS deciding what starts when, where and how warm.

    data = load.bind("s3://…")
    run = egs_ray.run(report.bind(train.bind(data)))     # returns at once
    run.get()                                            # the value, or the error as Ray raises it

The first call makes the process's session; all runs share it, so that they are ordered against each other.
"""

from __future__ import annotations

import atexit
import threading
import time
from typing import Any

import msgspec
import ray

from egs_core.engine.messages import Reason
from egs_core.errors import InputError, counted
from egs_core.notices import warn
from egs_ray.payload import graph_input
from egs_ray.session.session import Options, Session
from egs_ray.session.tasks import RunBooks, finish_natively, references_in
from egs_ray.settings import chosen_retry

_lock = threading.Lock()
_current: tuple[str, Session] | None = None  # (Ray job it belongs to, session)


class Run:
    """A run under way. `get` waits for it; `why` explains a task; `abort` ends it."""

    def __init__(self, session: Session | None, books: RunBooks) -> None:
        self._session, self._books = session, books

    @property
    def id(self) -> str:
        return self._books.workload

    @property
    def runlog(self) -> str:
        """Path of the session's run log, for `egs report`; "" where EGS could not be started."""
        return str(self._session.learning.path) if self._session is not None else ""

    def done(self) -> bool:
        """Whether `get` would answer at once."""
        books = self._books
        if not books.over.is_set():
            return False
        if books.failure is not None or books.error is not None or not ray.is_initialized():
            return True
        try:
            refs = references_in(books.output())
        except KeyError:  # an aborted task has no result
            return True
        return len(ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)[1]) == 0 if refs else True

    def get(self, timeout_s: float | None = None) -> Any:
        """The value of the graph's last node (a list for MultiOutputNode).

        Raises what `ray.get` would raise of the task that failed, TimeoutError when it takes longer,
        ray.exceptions.TaskCancelledError after an abort, and RuntimeError when Ray was shut down.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if not self._books.over.wait(timeout_s):
            raise TimeoutError(f"{self.id} did not end within {timeout_s:g} s")
        if self._books.error is not None and self._books.failure is None:
            raise self._books.error
        if not ray.is_initialized():  # asking would start another one, in which there is no such value
            raise RuntimeError(f"Ray was shut down before the value of {self.id} was fetched")
        if self._books.failure is not None:
            ray.get(self._books.failure)
        if self._books.error is not None:
            raise self._books.error
        try:
            output = self._books.output()
        except KeyError:
            message = f"{self.id} was {self._books.aborted or 'aborted'}"
            raise ray.exceptions.TaskCancelledError(error_message=message) from None
        return ray.get(output, timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))

    def why(self, task_id: str) -> Reason:
        """Why a task, by its id in the graph (`train-0`), is where it is."""
        number = self._number(task_id)
        if self._session is None:
            raise InputError(self.id, "runs without EGS")
        found = self._session.site.why(number)
        lack = self._books.jobs[self._books.converted.graph.ids.index(task_id)].lack
        if lack and found.status == "running":  # to the site a task that is Ray's has begun
            return msgspec.structs.replace(found, status="pending", kind="unplaceable", text=f"waits in Ray: {lack}")
        stopped = self._books.jobs[self._books.converted.graph.ids.index(task_id)].stopped
        ended = found.status == "aborted" and not found.kind
        why = stopped or self._books.aborted
        return msgspec.structs.replace(found, kind="abort", text=f"{found.text}: {why}") if ended and why else found

    def abort(self, task_id: str = "", *, actor: str = "", reason: str = "") -> None:
        """End the run, or one task of it and what waits for that."""
        number = self._number(task_id) if task_id else 0
        if self._session is None:
            raise InputError(self.id, "runs without EGS", "cancel its tasks with Ray's own means")
        if task_id:
            self._session.abort("task", str(number), actor, reason)
        else:
            self._session.abort("workload", self.id, actor, reason)

    def _number(self, task_id: str) -> int:
        """The site's number of a task. Raises InputError for an unknown one."""
        graph = self._books.converted.graph
        if task_id not in graph.ids:
            raise InputError(self.id, f"unknown task {task_id!r}", f"one of: {', '.join(graph.ids[:8])}")
        index = graph.ids.index(task_id)
        if self._session is None:
            return index
        jobs = self._session.site.call(lambda: self._books.jobs)  # when what was asked before has been done
        if not jobs:
            raise InputError(self.id, "has not begun")
        return jobs[index].number


def run(
    dag_node: Any, *args: Any, name: str = "", queue: str = "", session: Session | None = None, **kwargs: Any
) -> Run:
    """Run a static graph (`f.bind(...)`) on the Ray this process is connected to; args and kwargs are its input.

    name: the pipeline's name, under which durations are learned (default: the last task's name). queue: one of the
    session's queues (`Options.queues`). Raises InputError
    for a graph that EGS cannot represent; once it has started, nothing that goes wrong in EGS stops it.
    """
    from egs_ray.convert import convert  # brings Ray's graphs, see egs_ray.payload

    if not ray.is_initialized():
        ray.init()
    called_s = time.monotonic()
    converted = convert(dag_node, name or "dag")
    if not name:
        converted.name = converted.graph.names[-1]
    given = graph_input(*args, **kwargs)
    try:
        chosen = session or default_session()
    except InputError:
        raise
    except Exception as error:  # no port, no actor, no thread: whatever it is, the pipeline runs
        warn(f"off, Ray runs alone: {type(error).__name__}: {error}")
        books = RunBooks(converted.name, converted, given)
        finish_natively(books)
        return Run(None, books)
    return Run(chosen, chosen.submit(converted, given, queue, called_s))


def default_session() -> Session:
    """The process's session, made at the first call; a new one after Ray was shut down and started again."""
    global _current
    job = str(ray.get_runtime_context().get_job_id()) + ray.get_runtime_context().gcs_address
    with _lock:
        if _current is not None and _current[0] == job and _current[1].is_open:
            return _current[1]
        if _current is not None:
            _current[1].close(finish=_current[0] == job)
        else:
            atexit.register(_close)
        _current = (job, Session(Options(retry_out_of_memory=chosen_retry()[0])))
        return _current[1]


def _close() -> None:
    if _current is not None:
        if _current[1].is_open and _current[1].learning.is_written:
            path = _current[1].learning.path
            warn(f"run log: {path} (see it: egs report {path} -o report.html)")
        try:
            for name, left in _current[1].unfinished().items():
                tasks = counted(left, "task")
                warn(f"{name} ends with the script, and {tasks} of it had not: egs_ray.run(…).get() waits")
            _current[1].close(finish=False)
        except Exception as error:
            warn(f"{type(error).__name__}: {error}")
