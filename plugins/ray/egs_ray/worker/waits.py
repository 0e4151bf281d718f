"""A task lends its CPUs while its code waits in Ray, as natively: a worker that waits in `ray.get` or `ray.wait` gives
its CPUs back until that call ends. In EGS's shape another process holds them, so the driver is told.

    main thread   ray.get ─┬─────────────────────────────────┬─► goes on      (Ray's own span around each wait)
    egs-waits              └─ LEAST_S later ─► "waits" ──────┴─► "goes"

A wait that is over before that costs no message. Only the main thread's counts, as in Ray: what other threads and
`await` wait for keeps the CPUs there, too. Part of `compat` (feature waits): private Ray API.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from egs_ray.compat import available
from egs_ray.link import Message

LEAST_S = 0.01
SPANS = ("ray.get", "ray.wait")


class Waits:
    """The waits of one task. tell: sends a word to the driver; used by both threads, one at a time."""

    def __init__(self, tell: Callable[[Message], None]) -> None:
        self._tell = tell
        self._main = threading.get_ident()
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._watcher: threading.Thread | None = None
        self._since = 0.0  # of the wait that is under way; 0: none
        self._is_told = self._is_over = False

    def begin(self) -> None:
        """A wait begins. The thread is started by the first: most tasks have none."""
        if threading.get_ident() != self._main:
            return
        self._since = time.monotonic()
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="egs-waits", daemon=True)
            self._watcher.start()
        self._woken.set()

    def end(self) -> None:
        """It is over, if there was one."""
        if not self._since or threading.get_ident() != self._main:
            return
        with self._lock:
            self._since, was_told, self._is_told = 0.0, self._is_told, False
            if was_told:
                self._tell({"m": "goes"})

    def close(self) -> None:
        """The task is over."""
        self.end()
        self._is_over = True
        self._woken.set()

    def _watch(self) -> None:
        while not self._is_over:
            self._woken.wait()
            self._woken.clear()
            since = self._since
            time.sleep(LEAST_S)
            with self._lock:
                if since and self._since == since and not self._is_told:
                    self._is_told = True
                    self._tell({"m": "waits"})


_current: Waits | None = None  # of the task that this process runs
_is_in_place = False


@contextmanager
def waits_told(tell: Callable[[Message], None]) -> Iterator[None]:
    """Tell of the waits of the task that runs inside."""
    global _current
    if not available("waits"):
        yield
        return
    _put_in_place()
    _current = waits = Waits(tell)
    try:
        yield
    finally:
        _current = None
        waits.close()


@contextmanager
def untold() -> Iterator[None]:
    """What EGS itself waits for inside is no wait of the task: its code goes on elsewhere."""
    global _current
    kept, _current = _current, None
    try:
        yield
    finally:
        _current = kept


class _Wait:
    """Stands around Ray's own span."""

    def __init__(self, span: Any) -> None:
        self._span = span

    def __enter__(self) -> Any:
        if _current is not None:
            _current.begin()
        return self._span.__enter__()

    def __exit__(self, *error: object) -> Any:
        if _current is not None:
            _current.end()
        return self._span.__exit__(*error)


def _put_in_place() -> None:
    """Once a process: calls that the user's code has imported by name (`from ray import get`) are seen, too."""
    global _is_in_place
    if _is_in_place:
        return
    _is_in_place = True
    from ray._private import profiling, worker

    span_of, deserialize = profiling.profile, worker.Worker.deserialize_objects

    def profile(event_type: str, *more: Any, **named: Any) -> Any:
        span = span_of(event_type, *more, **named)
        return span if _current is None or event_type not in SPANS else _Wait(span)

    def deserialize_objects(self: Any, *args: Any, **named: Any) -> Any:
        if _current is not None:  # the values are there: from here on it is work
            _current.end()
        return deserialize(self, *args, **named)

    profiling.profile, worker.Worker.deserialize_objects = profile, deserialize_objects
