"""What the process that watches a task does a little otherwise than Airflow's: private API of its Task SDK, apart from
`compat` for its length. Probe: `can_watch`. Fallback: Airflow's own way.

    slot ── says "runs" ── [heartbeat] ── rendered fields ── user's code ── "has ended" ── process ends ── [up to 5 s]
                               │                 │                               │                             │
                       after an interval    are sent while the              rings at once            heard of at once
                       first: "runs" was    code runs already
                       one

Each request on that line costs the api-server about 13 ms of a processor, and until the last one the process of the
executor can take no other task. Importing this module imports no Airflow.
"""

from __future__ import annotations

import functools
import inspect
import os
import selectors
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

ENDS = ("SucceedTask", "RetryTask", "DeferTask", "RescheduleTask", "AwaitInputTask")
"""What a task says when it gives its slot back; of another end Airflow hears when its process has ended."""
FIELDS = "SetRenderedFields"


def can_watch() -> bool:
    """Whether all of it is as it was in 3.2 and 3.3."""
    from airflow.sdk.execution_time.supervisor import ActivitySubprocess

    handle, watch = (inspect.getsource(one) for one in (ActivitySubprocess._handle_request, _service()))
    return (
        list(inspect.signature(ActivitySubprocess._handle_request).parameters) == ["self", "msg", "log", "req_id"]
        and list(inspect.signature(ActivitySubprocess.wait).parameters) == ["self"]
        and "self.client.task_instances.set_rtif(self.id, msg.rendered_fields)" in handle
        and "self.send_msg(resp, request_id=req_id, error=None" in handle
        and "socket_handler, on_close = key.data" in watch
        and "_last_heartbeat_attempt" in inspect.getsource(ActivitySubprocess._send_heartbeat_if_needed)
    )


def _service() -> Any:
    from airflow.sdk.execution_time.supervisor import WatchedSubprocess

    return WatchedSubprocess._service_subprocess


def watch(ring: Callable[[], object]) -> Callable[[], None]:
    """Watch tasks so in this process and its forks, `ring` when the end of one is known; returns the undo."""
    from airflow.sdk.execution_time.supervisor import ActivitySubprocess

    wait, handle = ActivitySubprocess.wait, ActivitySubprocess._handle_request

    @functools.wraps(wait)
    def prepared(self: Any) -> Any:
        with suppress(Exception):  # without it Airflow looks at its own times
            self._last_heartbeat_attempt = time.monotonic()
            hear_exit(self)
        return wait(self)

    @functools.wraps(handle)
    def handled(self: Any, msg: Any, log: Any, req_id: int) -> Any:
        kind = type(msg).__name__
        if kind == FIELDS:
            return _take_fields(self, msg, req_id)
        done = handle(self, msg, log, req_id)
        if kind in ENDS:
            ring()
        return done

    def undo() -> None:
        ActivitySubprocess.wait, ActivitySubprocess._handle_request = wait, handle

    ActivitySubprocess.wait, ActivitySubprocess._handle_request = prepared, handled
    return undo


def _take_fields(process: Any, msg: Any, req_id: int) -> None:
    """Answer, then send what the task has rendered, which is for the UI to show: no task waits or fails for that."""
    process.send_msg(None, request_id=req_id, error=None)
    try:
        process.client.task_instances.set_rtif(process.id, msg.rendered_fields)
    except Exception as error:
        process.process_log.warning("Rendered fields are not stored", error=f"{type(error).__name__}: {error}")


def hear_exit(process: Any) -> None:
    """Let the selector of a watched process end its wait when that has ended: else it does so where a pipe of it says
    something, and where all were closed a moment before the end, after an interval of heartbeats. OSError where this
    system cannot say."""
    exit_ = _Exit(os.pidfd_open(process.pid))
    process.selector.register(exit_, selectors.EVENT_READ, (lambda _: False, process.selector.unregister))


class _Exit:
    """A file that can be read once a process has ended."""

    def __init__(self, file: int) -> None:
        self._file = file

    def fileno(self) -> int:
        return self._file

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    __del__ = close
