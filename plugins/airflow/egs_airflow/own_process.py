"""How Airflow starts the process of a task, and how that reads its DAG file: private API of its Task SDK, apart from
`compat` for its length. Probe: `can_stand_ready`. Fallback: Airflow starts each process when its task comes.

    with                    in place of Airflow's own
    wrap_start(around)      ActivitySubprocess.start
    forked(pid, pairs)      os.fork and socketpair, while it starts one
    run_child(ends, target) what it does in the fork; run_task() is its own target
    read_ahead(...)         what `task_runner.parse` makes of the file, which then finds it made

Importing this module imports no Airflow.
"""

from __future__ import annotations

import inspect
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PAIRS = ("stdout", "stderr", "requests", "logs")
"""The pairs of sockets between a task's process and the one that watches it, in the order in which they are made."""

stands_ready = False
"""Whether this process has read a DAG file ahead of its task."""


def can_stand_ready() -> bool:
    """Whether all of it is as it was in 3.2 and 3.3."""
    from airflow.sdk.execution_time import supervisor, task_runner

    source = inspect.getsource(supervisor.WatchedSubprocess.start)
    pairs = [f"child_{name}, read_{name} = socketpair()" for name in PAIRS]
    in_order = r".*".join(map(re.escape, [*pairs, "pid = os.fork()", "_fork_main(child_requests, child_stdout,"]))
    fork_main = list(inspect.signature(supervisor._fork_main).parameters)
    return (
        re.search(in_order, source, re.DOTALL) is not None
        and fork_main == ["requests", "child_stdout", "child_stderr", "log_fd", "target"]
        and {"what", "dag_rel_path", "bundle_info"}
        <= inspect.signature(supervisor.ActivitySubprocess.start).parameters.keys()
        and "bag = BundleDagBag(" in inspect.getsource(task_runner.parse)
        and callable(supervisor._subprocess_main)
    )


def wrap_start(around: Callable[[Callable[..., Any], Mapping[str, Any]], Any]) -> None:
    """Let `around(start, given)` start the tasks of this process, with `start(**given)` Airflow's own way."""
    from airflow.sdk.execution_time.supervisor import ActivitySubprocess

    original = ActivitySubprocess.start.__func__

    def start(cls: Any, /, **given: Any) -> Any:
        return around(lambda **named: original(cls, **named), given)

    ActivitySubprocess.start = classmethod(start)


@contextmanager
def forked(pid: int, pairs: list[tuple[socket.socket, socket.socket]]) -> Iterator[None]:
    """While it lasts, the process that Airflow forks is this one, with these pairs of sockets, the child's end first;
    they are Airflow's then. A process that it does not come to is ended."""
    from airflow.sdk.execution_time import supervisor

    own_os, own_pair, left = supervisor.os, supervisor.socketpair, [pid]

    def pair() -> tuple[socket.socket, socket.socket]:
        made: tuple[socket.socket, socket.socket] = pairs.pop(0) if pairs else own_pair()
        return made

    supervisor.socketpair = pair
    supervisor.os = SimpleNamespace(**{**vars(os), "fork": lambda: left.pop() if left else os.fork()})
    try:
        yield
    finally:
        supervisor.os, supervisor.socketpair = own_os, own_pair
        for unused in left:
            os.kill(unused, signal.SIGKILL)
            os.waitpid(unused, 0)


def run_child(ends: Sequence[socket.socket], target: Callable[[], None]) -> None:
    """In a fork: be a task's process with these ends of its pairs, as far as it is one before it runs its target."""
    from airflow.sdk.execution_time import supervisor

    stdout, stderr, requests, logs = ends
    supervisor._fork_main(requests, stdout, stderr, logs.fileno(), target)


def run_task() -> None:
    """What a task's process does: waits for what it is told to run."""
    from airflow.sdk.execution_time import supervisor

    supervisor._subprocess_main()


def set_title(text: str) -> None:
    """What `ps` calls this process until its task comes."""
    with suppress(ImportError):
        from setproctitle import setproctitle

        setproctitle(f"airflow worker -- LocalExecutor: <ready> {text}")


def read_ahead(name: str, version: str | None, path: str) -> tuple[str, Any]:
    """Read a DAG file as the process of a task does, which then finds it read; its place, and Airflow's bag of DAGs.
    An empty place where it is not in a folder on this machine."""
    global stands_ready
    from airflow.dag_processing import dagbag
    from airflow.dag_processing.bundles.local import LocalDagBundle
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    with suppress(ImportError):  # 3.2 has none: nothing of an earlier task is to be masked in this one's log
        from airflow.sdk._shared.secrets_masker import reset_secrets_masker

        reset_secrets_masker()
    stands_ready = True
    bundle: Any = DagBundlesManager().get_bundle(name=name, version=version)
    if not isinstance(bundle, LocalDagBundle):
        return "", None
    bundle.initialize()
    place, original = os.fspath(Path(bundle.path, path)), dagbag.BundleDagBag
    given = {"dag_folder": place, "safe_mode": False, "load_op_links": False}
    given |= {"bundle_path": bundle.path, "bundle_name": name}
    bag = original(**given)

    def find(*args: Any, **asked: Any) -> Any:
        dagbag.BundleDagBag = original  # once: whoever asks again wants it read again
        return bag if not args and asked == given else original(*args, **asked)

    dagbag.BundleDagBag = find
    return place, bag


@contextmanager
def asks_nobody(otherwise: Callable[[], Any]) -> Iterator[None]:
    """While it lasts, `otherwise` is called where this process asks its supervisor for something, which is not there
    yet, or Airflow for which task a DAG file is read."""
    import airflow.sdk
    from airflow.sdk.definitions import context
    from airflow.sdk.execution_time import task_runner

    class Nobody:
        def __getattr__(self, name: str) -> Any:
            return otherwise()

    original = context.get_parsing_context
    task_runner.SUPERVISOR_COMMS = Nobody()
    context.get_parsing_context = airflow.sdk.get_parsing_context = lambda: otherwise()
    try:
        yield
    finally:
        del task_runner.SUPERVISOR_COMMS
        context.get_parsing_context = airflow.sdk.get_parsing_context = original
