"""The part of an agent that may host the engine: it holds the lease or watches it, and decides while it holds it.

each 10 s   renew the lease; each 5 s, where another has it, look whether it is free
each 2 s    where it is held: tell its site what Airflow looks like, publish what has changed of the order
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from uuid import uuid4

from egs_airflow.agent.acts import say
from egs_airflow.agent.lease import TTL_S, Lease
from egs_airflow.agent.lease_store import ConnectionStore
from egs_airflow.agent.picture import Camera
from egs_airflow.agent.session import Session
from egs_airflow.agent.tags import Modes
from egs_airflow.rest import Rest, Unreachable
from egs_core.errors import InputError

RENEWALS = 3
"""In a time to live."""
WATCH_S = 5.0
DECIDE_S = 2.0
MOST_SHARE = 0.2
"""Of the time: a look that takes long is taken more rarely."""
REFUSED_S = 300.0
"""So long nothing is tried after Airflow has refused it."""


class Host:
    """See the module. It keeps nothing: whoever holds the lease next tells a site of its own what it sees."""

    def __init__(self, rest: Rest, modes: Modes, ttl_s: float = TTL_S) -> None:
        self._store = ConnectionStore(rest)
        holder = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self.lease = Lease(self._store, holder, ttl_s)
        self._camera = Camera(rest, modes)
        self._session: Session | None = None
        self._tick_s = self._decide_s = 0.0
        self._published = ""
        self._was_held = False
        self._told = ""

    def look(self, now_s: float, unix_s: Callable[[], float] = time.time) -> None:
        """Do what is due. Raises Unreachable where Airflow does not answer. Whatever else fails is one line: another
        agent may host the engine, and Airflow goes on with the weights from creation."""
        try:
            if now_s >= self._tick_s:
                is_held = self.lease.tick()
                self._tick_s = now_s + (self.lease.ttl_s / RENEWALS if is_held else WATCH_S)
            self._say_changes()
            if not self.lease.is_held:
                self._leave_site()
            if self.lease.is_held and now_s >= self._decide_s:
                began_s = time.monotonic()
                self._decide(unix_s)
                self._decide_s = now_s + max(DECIDE_S, (time.monotonic() - began_s) / MOST_SHARE)
        except Unreachable:
            raise
        except Exception as error:
            self._tick_s = self._decide_s = now_s + REFUSED_S
            self._give_up(error)

    def close(self) -> None:
        """Let the lease go, so that another agent takes it at once."""
        self._leave_site()
        try:
            self.lease.release()
        except InputError:
            return  # its time to live ends it

    def _decide(self, unix_s: Callable[[], float]) -> None:
        picture = self._camera.look()
        if self._session is not None and self._session.is_full:
            self._leave_site()
        if self._session is None:
            self._session = Session()
        text = self._session.order(picture, unix_s()).text()
        if text != self._published and self.lease.is_held and self._store.publish(self.lease.epoch, text):
            self._published = text

    def _leave_site(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _say_changes(self) -> None:
        is_held = self.lease.is_held
        if is_held != self._was_held:
            self._was_held, self._published = is_held, ""
            epoch = self.lease.epoch
            say(f"hosts the engine, epoch {epoch}" if is_held else f"hosts the engine no more, epoch {epoch} is over")
        elif not is_held and self.lease.holder_seen != self._told:
            say(f"the engine is hosted by {self.lease.holder_seen or 'no agent'}")
        self._told = self.lease.holder_seen

    def _give_up(self, error: Exception) -> None:
        told = error if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        say(f"does not host the engine, and tries again in {REFUSED_S:.0f} s: {told}")
        self._was_held = False
        self.close()
