"""What the process that watches a task does a little otherwise than Airflow's: private API of its Task SDK, apart from
`compat` for its length. Probe: `can_watch`. Fallback: Airflow's own way.

    slot ── says "runs" ── [heartbeat] ── rendered fields ── user's code ── "has ended" ── process ends ── [up to 5 s]
                               │                 │                               │                             │
                       after an interval    are answered, and           rings at once                heard of at once
                       first: "runs" was    sent FIELDS_S later
                       one                  or at the end

Each request on that line costs the api-server about 13 ms of a processor, for which the starts of other tasks wait, and
until the last one the process of the executor can take no other task. Importing this module imports no Airflow.
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
FIELDS, SUCCESS = "SetRenderedFields", "SucceedTask"
FIELDS_S = 1.0
"""So long after a task's start what it has rendered is sent, or when it ends: where it starts, others often do."""


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
        and list(inspect.signature(_service()).parameters)[:2] == ["self", "max_wait_time"]
        and list(inspect.signature(ActivitySubprocess._monitor_subprocess).parameters) == ["self"]
        and "self._monitor_subprocess()" in inspect.getsource(ActivitySubprocess.wait)
        and "_last_heartbeat_attempt" in inspect.getsource(ActivitySubprocess._send_heartbeat_if_needed)
    )


def _service() -> Any:
    from airflow.sdk.execution_time.supervisor import WatchedSubprocess

    return WatchedSubprocess._service_subprocess


def watch(ring: Callable[[], object]) -> Callable[[], None]:
    """Watch tasks so in this process and its forks, `ring` when the end of one is known; returns the undo."""
    from airflow.sdk.execution_time.supervisor import ActivitySubprocess

    wait, handle, service = ActivitySubprocess.wait, ActivitySubprocess._handle_request, _service()
    monitor = ActivitySubprocess._monitor_subprocess
    later: dict[Any, tuple[float, Any]] = {}  # by task: what it has rendered, and when that is sent

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
            self.send_msg(None, request_id=req_id, error=None)  # for the UI to show: no task waits or fails for that
            later[self.id] = time.monotonic() + FIELDS_S, msg.rendered_fields
            return None
        if kind in ENDS and kind != SUCCESS:
            send(self)  # before the api-server gives the try another id
        done = handle(self, msg, log, req_id)
        if kind in ENDS:
            ring()
        return done

    @functools.wraps(service)
    def serviced(self: Any, max_wait_time: float, *args: Any, **more: Any) -> Any:
        if self.id in later:
            max_wait_time = min(max_wait_time, max(0.0, later[self.id][0] - time.monotonic()))
        done = service(self, max_wait_time, *args, **more)
        if self.id in later and time.monotonic() >= later[self.id][0]:
            send(self)
        return done

    @functools.wraps(monitor)
    def monitored(self: Any) -> Any:
        try:
            return monitor(self)
        finally:
            send(self)

    def send(process: Any) -> None:
        if process.id in later:
            _send_fields(process, later.pop(process.id)[1])

    def undo() -> None:
        ActivitySubprocess.wait, ActivitySubprocess._handle_request = wait, handle
        ActivitySubprocess._monitor_subprocess = monitor
        with suppress(AttributeError):  # another one's undo was here: of two executors in one scheduler
            del ActivitySubprocess._service_subprocess  # it is its base's

    ActivitySubprocess.wait, ActivitySubprocess._handle_request = prepared, handled
    ActivitySubprocess._monitor_subprocess, ActivitySubprocess._service_subprocess = monitored, serviced
    return undo


def _send_fields(process: Any, fields: Any) -> None:
    try:
        process.client.task_instances.set_rtif(process.id, fields)
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
