"""`egs_ray.run(dag_node)`: run a static Ray graph with EGS deciding what starts when, where and how warm.

    data = load.bind("s3://…")
    run = egs_ray.run(report.bind(train.bind(data)))     # returns at once
    run.get()                                            # the value, or the error as Ray raises it

The first call makes the process's session; all runs share it, so that they are ordered against each other.
"""

from __future__ import annotations

import atexit
import threading
from typing import Any

import ray

from egs_core.engine.messages import Reason
from egs_core.errors import InputError
from egs_ray.convert import convert
from egs_ray.install import warn
from egs_ray.payload import graph_input
from egs_ray.session import Options, Session
from egs_ray.tasks import RunBooks

_lock = threading.Lock()
_current: tuple[str, Session] | None = None  # (Ray job it belongs to, session)


class Run:
    """A run under way. `get` waits for it; `why` explains a task; `abort` ends it."""

    def __init__(self, session: Session, books: RunBooks) -> None:
        self._session, self._books = session, books

    @property
    def id(self) -> str:
        return self._books.workload

    @property
    def runlog(self) -> str:
        """Path of the session's run log, for `egs report`."""
        return str(self._session.learning.path)

    def done(self) -> bool:
        return self._books.over.is_set() and not self._books.native

    def get(self, timeout_s: float | None = None) -> Any:
        """The value of the graph's last node (a list for MultiOutputNode).

        Raises what `ray.get` would raise of the task that failed, TimeoutError when it takes longer, and
        ray.exceptions.TaskCancelledError after an abort.
        """
        if not self._books.over.wait(timeout_s):
            raise TimeoutError(f"{self.id} did not end within {timeout_s:g} s")
        if self._books.failure is not None:
            ray.get(self._books.failure)
        if self._books.error is not None:
            raise self._books.error
        try:
            return ray.get(self._books.output(), timeout=timeout_s)
        except KeyError:
            raise ray.exceptions.TaskCancelledError from None

    def why(self, task_id: str) -> Reason:
        """Why a task, by its id in the graph (`train-0`), is where it is."""
        graph = self._books.converted.graph
        if task_id not in graph.ids:
            raise InputError(self.id, f"unknown task {task_id!r}", f"one of: {', '.join(graph.ids[:8])}")
        index = graph.ids.index(task_id)
        return self._session.driver.ask(lambda engine: engine.explain(engine.task_number(self.id, index)))

    def abort(self, task_id: str = "", *, actor: str = "", reason: str = "") -> None:
        """End the run, or one task of it and what waits for that."""
        if task_id:
            index = self._books.converted.graph.ids.index(task_id)
            number = self._session.driver.ask(lambda engine: engine.task_number(self.id, index))
            self._session.abort("task", str(number), actor, reason)
        else:
            self._session.abort("workload", self.id, actor, reason)


def run(dag_node: Any, *args: Any, name: str = "", session: Session | None = None, **kwargs: Any) -> Run:
    """Run a static graph (`f.bind(...)`) on the Ray this process is connected to; args and kwargs are its input.

    name: the pipeline's name, under which durations are learned (default: the last task's name). Raises InputError
    for a graph that EGS cannot represent; once it has started, nothing that goes wrong in EGS stops it.
    """
    if not ray.is_initialized():
        ray.init()
    converted = convert(dag_node, name or "dag")
    if not name:
        converted.name = converted.graph.names[-1]
    chosen = session or default_session()
    return Run(chosen, chosen.submit(converted, graph_input(*args, **kwargs)))


def default_session(options: Options | None = None) -> Session:
    """The process's session, made at the first call; a new one after Ray was shut down and started again."""
    global _current
    job = str(ray.get_runtime_context().get_job_id()) + ray.get_runtime_context().gcs_address
    with _lock:
        if _current is not None and _current[0] == job:
            return _current[1]
        if _current is not None:
            _current[1].close()
        else:
            atexit.register(_close)
        _current = (job, Session(options))
        return _current[1]


def _close() -> None:
    if _current is not None:
        try:
            _current[1].close()
        except Exception as error:
            warn(f"{type(error).__name__}: {error}")
