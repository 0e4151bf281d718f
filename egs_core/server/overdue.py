"""Hangs up on a database that takes what it is sent and never answers.

TCP notices a host that is gone (`database.CONNECTION`), and not a proxy or a pooler between that has lost the other
end: whoever waits for an answer would wait for ever. So transactions are timed, and where one is overdue all
connections are shut down. It fails then as by any end of a connection: nobody knows whether it was taken, so who began
it starts anew from what is durable.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import sqlalchemy as sa

LOG = logging.getLogger("uvicorn.error")
LOOKS = 8  # in the time after which one is overdue


class Overdue:
    """patience_s: longer than the database itself lets a statement take. Ends with `close`."""

    def __init__(self, engine: sa.Engine, patience_s: float) -> None:
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()
        self._begun: dict[object, float] = {}  # transactions under way
        self._closing = threading.Event()
        sa.event.listen(engine, "connect", self._connected)
        threading.Thread(target=self._watch, name="egs-overdue", daemon=True).start()

    def close(self) -> None:
        self._closing.set()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """A transaction, from before it has a connection."""
        own = object()
        self._begun[own] = time.monotonic()
        try:
            yield
        finally:
            del self._begun[own]

    def _connected(self, connection: Any, _record: Any) -> None:
        with self._lock:
            self._connections.add(connection)

    def _watch(self) -> None:
        while not self._closing.wait(self._patience_s / LOOKS):
            since = min(list(self._begun.values()), default=time.monotonic())
            if time.monotonic() - since > self._patience_s:
                LOG.warning("the database has not answered for %g s: its connections are given up", self._patience_s)
                self._hang_up()

    def _hang_up(self) -> None:
        with self._lock:
            connections = list(self._connections)
        for one in connections:
            # one may be closed, or is just being closed
            with suppress(Exception), socket.socket(fileno=os.dup(one.fileno())) as copy:
                copy.shutdown(socket.SHUT_RDWR)
