"""The part of an agent that may host the engine: it holds the lease or watches it, and decides while it holds it.

each 10 s   renew the lease; each 5 s, where another has it, look whether it is free
each 2 s    where it is held: tell its site what Airflow looks like, publish what has changed of the order

With `[egs] url` the site is at that server, and no agent has an engine: who holds the lease speaks for this Airflow.
While the server does not answer nothing is published, so weights from creation stand; it is asked again each AGAIN_S.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

from egs_airflow import config
from egs_airflow.agent.acts import say
from egs_airflow.agent.control import abort
from egs_airflow.agent.lease import TTL_S, Lease
from egs_airflow.agent.lease_store import ConnectionStore
from egs_airflow.agent.picture import Camera, Picture
from egs_airflow.agent.session import Session
from egs_airflow.agent.tags import Modes
from egs_airflow.order.published import Order
from egs_airflow.rest import Rest, Unreachable
from egs_core.adapter import ControlRequest
from egs_core.errors import EgsError, InputError
from egs_core.site import Asked, Joining

RENEWALS = 3
"""In a time to live."""
WATCH_S = 5.0
DECIDE_S = 2.0
MOST_SHARE = 0.2
"""Of the time: a look that takes long is taken more rarely."""
REFUSED_S = 300.0
"""So long nothing is tried after Airflow has refused it."""

AGAIN_S = 30.0
"""Until a server that did not answer is joined again: longer than it takes one that is silent for still there."""
NAMED = 200


class Host:
    """See the module. It keeps nothing: whoever holds the lease next tells a site of its own what it sees."""

    def __init__(self, rest: Rest, modes: Modes, ttl_s: float = TTL_S) -> None:
        self._rest = rest
        self._store = ConnectionStore(rest)
        holder = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self.lease = Lease(self._store, holder, ttl_s)
        self._url = config.option("url").strip()
        self._joining: Joining | None = None
        if self._url:
            name = rest.url.partition("://")[2]
            self._joining = Joining("airflow", f"{name} {holder}"[:NAMED], name[:NAMED], config.option("queue").strip())
        self._problem = ""  # why the server's order is not followed
        self._camera = Camera(rest, modes)
        self._session: Session | None = None
        self._tick_s = self._decide_s = 0.0
        self._again_s = 0.0
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
                self._decide_s = now_s + max(DECIDE_S, (time.monotonic() - began_s) / MOST_SHARE, self._again_s)
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
        text = self._ordered(picture, unix_s()).text()
        if text != self._published and self.lease.is_held and self._store.publish(self.lease.epoch, text):
            self._published = text

    def _ordered(self, picture: Picture, now_s: float) -> Order:
        """The site's order; an empty one while the server does not answer, which is one line an outage."""
        try:
            if self._session is not None and self._session.is_full:
                self._leave_site()
            if self._session is None:
                self._session = Session(self._url, self._joining)
            order = self._session.order(picture, now_s)
        except Exception as error:
            if self._joining is None:
                raise
            self._without_server(error)
            return Order(site=self._url)
        if self._problem:
            say(f"the site server {self._url} orders this Airflow again")
        self._problem, self._again_s = "", 0.0
        for request in self._session.take_asks():
            self._carry_out(request, picture)
        return replace(order, site=self._url)

    def _without_server(self, error: Exception) -> None:
        told = str(error) if isinstance(error, (EgsError, ConnectionError)) else f"{type(error).__name__}: {error}"
        if not self._problem:
            say(f"without the site server {self._url}, weights from creation stand until it answers: {told}")
        self._problem, self._again_s = told, AGAIN_S
        self._leave_site()

    def _carry_out(self, request: Asked, picture: Picture) -> None:
        """What an operator asks at the server. Only aborting, of all DAG runs that are ordered: Airflow pauses DAGs."""
        if request.verb != "abort":
            say(f"{request.actor} asked at the site server to {request.verb}: not done; Airflow pauses DAGs by itself")
            return
        for run in (one for one in picture.runs if one.is_ordered):
            reason = " ".join([f"at the site server by {request.actor}", request.reason]).strip()
            try:
                done = abort(self._rest, ControlRequest("abort", run.workload, reason=reason, grace_s=request.grace_s))
                say(f"{run.workload}: aborted {reason}: {len(done.tasks)} tasks")
            except InputError as error:
                say(f"{run.workload}: not aborted: {error}")

    def _leave_site(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _say_changes(self) -> None:
        is_held = self.lease.is_held
        if is_held != self._was_held:
            self._was_held, self._published = is_held, ""
            epoch = self.lease.epoch
            what = f"speaks for this Airflow at the site server {self._url}" if self._url else "hosts the engine"
            say(f"{what}, epoch {epoch}" if is_held else f"{what} no more, epoch {epoch} is over")
        elif not is_held and self.lease.holder_seen != self._told:
            what = f"is asked at {self._url}" if self._url else "is hosted"
            say(f"the engine {what} by {self.lease.holder_seen or 'no agent'}")
        self._told = self.lease.holder_seen

    def _give_up(self, error: Exception) -> None:
        told = error if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        say(f"does not host the engine, and tries again in {REFUSED_S:.0f} s: {told}")
        self._was_held = False
        self.close()
