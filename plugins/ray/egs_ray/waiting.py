"""When objects exist, and when a session ends. Part of `compat` (features ready, disconnect): private Ray API."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import ray

from egs_ray.compat import available
from egs_ray.submitting import never_start_ray

STOP_S = 5.0
ANSWER_S = 1.0


def is_plain_driver() -> bool:
    """Whether this process is a driver with a core of its own: no worker, no Ray Client, no local mode."""
    return bool(ray._private.worker.global_worker.mode == ray.SCRIPT_MODE)


def unfinished(values: list[Any]) -> set[str]:
    """Of these, the ids of tasks whose references have no value yet; what is no reference counts as none."""
    refs = [value for value in values if isinstance(value, ray.ObjectRef)]
    if not refs:
        return set()
    _, without = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
    return {ref.task_id().hex() for ref in without}


def has_started_ray() -> bool:
    """Whether this process has started the Ray that it is connected to, and that ends with it."""
    node = getattr(ray._private.worker, "_global_node", None)
    return node is not None and bool(node.is_head())


# --- ready: a public wait costs a thread, polls, and keeps every reference alive --------------------------------------


def on_ready(ref: ray.ObjectRef, callback: Callable[[], None]) -> None:
    """Call `callback` once from some thread when the object exists (value or error), without fetching it."""
    if available("ready"):
        cast(Any, ref)._on_ready(lambda _error: callback())
    else:
        _WAITER.add(ref, callback)


class _Waiter:
    """The fallback of `on_ready`: a daemon thread that waits for all references, and ends when none is left.

    Ray ends a process, with exit code 1, in which a thread waits for a reference while it disconnects.
    """

    def __init__(self) -> None:
        self._is_guarded = False
        self._lock = threading.Lock()
        self._waiting: dict[ray.ObjectRef, list[Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None

    def add(self, ref: ray.ObjectRef, callback: Callable[[], None]) -> None:
        with self._lock:
            self._waiting.setdefault(ref, []).append(callback)
            if not self._is_guarded:
                self._is_guarded = True
                before_disconnect(self.stop)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="egs-ready", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        never_start_ray()
        while refs := self._references():
            self._wait(refs)

    def _wait(self, refs: list[ray.ObjectRef]) -> None:
        """For a moment; a function of its own, so that nothing of this round keeps a value in the next ones."""
        try:
            # The time-out lets references that came meanwhile join the wait.
            ready, _ = ray.wait(refs, num_returns=1, timeout=0.05, fetch_local=False)
        except Exception:  # Ray disconnected during the wait
            time.sleep(0.05)
            return
        for ref in ready:
            with self._lock:
                callbacks = self._waiting.pop(ref, [])
            for callback in callbacks:
                callback()

    def stop(self) -> None:
        """Forget all references; the thread is not inside of Ray any more when this returns."""
        with self._lock:
            self._waiting.clear()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=STOP_S)

    def _references(self) -> list[ray.ObjectRef]:
        with self._lock:
            if not ray.is_initialized():  # ray.wait would start a Ray
                self._waiting.clear()
            if not self._waiting:
                self._thread = None
            return list(self._waiting)


_WAITER = _Waiter()


# --- disconnect: the last moment at which this session's events can be read -------------------------------------------


def before_disconnect(callback: Callable[[], object]) -> Callable[[], None]:
    """Call `callback` before Ray disconnects, as often as that happens. Returns the function that undoes it."""
    owner, name = (ray._private.worker, "disconnect") if available("disconnect") else (ray, "shutdown")
    original = getattr(owner, name)

    def replacement(*args: Any, **kwargs: Any) -> Any:
        if ray.is_initialized():
            callback()
        _WAITER.stop()  # again: of several callbacks, each its own replacement, a later one may have asked for more
        return original(*args, **kwargs)

    setattr(owner, name, replacement)
    return lambda: setattr(owner, name, original)


RAYS_ALARM_S = 3.0


def has_time_to_ask() -> bool:
    """Whether there is a Ray to ask at the end of this process, and time for it.

    At a SIGTERM Ray sets an alarm of three seconds, after which it aborts the process with another exit code than its
    own. The time is needed for Ray's own end; what EGS would still have been told is given up.
    """
    left_s = signal.getitimer(signal.ITIMER_REAL)[0]  # a longer one is the user's own
    if 0 < left_s <= RAYS_ALARM_S or not ray.is_initialized():
        return False
    host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
    except (OSError, ValueError):  # its Ray has ended before it: a question would wait for long
        return False
    return True
