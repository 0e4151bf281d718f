"""A driver's way to the site in the actor: its seat there, and the calls of a `RemoteSite`."""

from __future__ import annotations

import getpass
import os
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import ray

from egs_core.errors import EgsError
from egs_core.notices import warn
from egs_core.site import Holder, Joining, wire
from egs_core.site.pooled import About
from egs_core.site.remote import RemoteSite
from egs_ray import submitting, waiting
from egs_ray.demand import cluster_grows
from egs_ray.settings import QUEUES
from egs_ray.site import actor

JOIN_S = 30.0  # for the actor to be there, and to answer: the first GPU task of a driver waits for it
ANSWER_S = 5.0
TRIES = 3
NO_QUEUES = b"[]"


def join(joining: Joining, holder: Holder) -> RemoteSite:
    """Join the site of this Ray, which is made where there is none. Raises what keeps the driver from it."""
    if not waiting.is_plain_driver():
        raise RuntimeError("this kind of connection to Ray (client, local mode) has no tickets")
    if cluster_grows():
        raise RuntimeError("no order across drivers under an autoscaler, which only one of them can tell what waits")
    queues = _queues()
    about = About(uuid.uuid4().hex, joining.framework, joining.pool, joining.name, joining.queue, _user())
    with submitting.directly():
        for number in range(TRIES):
            site = actor.get_or_make(queues)
            life = site.live.remote(about.key)
            asked = site.join.remote(actor.VERSION, msgspec.json.encode(about), [life])
            try:
                problem, body = ray.get(asked, timeout=JOIN_S)
                break
            except ray.exceptions.RayActorError:  # it has just ended itself
                if number + 1 == TRIES:
                    raise
        if problem:
            raise EgsError(problem)
        if queues != NO_QUEUES and queues != ray.get(site.queues.remote(), timeout=JOIN_S):
            warn(f"{QUEUES}: the site of this Ray has other queues, of the driver that started it; those count")
    driver = msgspec.json.decode(body, type=wire.Joined)
    return RemoteSite(ActorLine(site, driver, life), driver, holder)


def _user() -> str:
    """Whose work it is, for shares; a container's user may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _queues() -> bytes:
    """What the actor gets, where it is made here. Raises InputError for a file with a mistake."""
    path = os.environ.get(QUEUES, "").strip()
    if not path:
        return NO_QUEUES
    from egs_core.queues import load_queues  # brings pydantic, which takes its time to import

    return msgspec.json.encode(load_queues(Path(path), has_prices=False))


class ActorLine:
    """A `Line`. No thread waits inside of Ray: it would end the process when the script disconnects.

    life: kept for as long as the driver is there.
    """

    silences: tuple[type[Exception], ...] = (TimeoutError,)

    def __init__(self, site: Any, driver: wire.Joined, life: Any) -> None:
        self._site, self._driver, self._life = site, driver, life
        self._has_left = False
        self._polled = threading.Event()

    def batch(self, body: bytes) -> bytes:
        return self._value_of(lambda: self._site.batch.remote(self._driver.id, body), threading.Event(), ANSWER_S)

    def poll(self, ack: int, wait_s: float) -> bytes:
        self._polled, driver = threading.Event(), self._driver
        return self._value_of(
            lambda: self._site.poll.remote(driver.id, driver.epoch, ack, wait_s), self._polled, wait_s + ANSWER_S
        )

    def leave(self) -> None:
        submitting.submit_directly()
        self._has_left = True
        self._polled.set()
        if waiting.has_time_to_ask():
            self._site.leave.remote(self._driver.id)

    def close_poll(self) -> None:
        """Nothing is held for it."""

    def _value_of(self, ask: Callable[[], Any], is_there: threading.Event, patience_s: float) -> bytes:
        """What the actor answers. Raises TimeoutError, ConnectionError when it has ended, EgsError with its refusal."""
        submitting.submit_directly()  # the threads of a `RemoteSite` are EGS's own
        ref = ask()
        waiting.on_ready(ref, is_there.set)
        if self._has_left:
            raise RuntimeError("the driver has left")
        if not is_there.wait(patience_s):
            raise TimeoutError("the actor that orders the tasks of all drivers does not answer")
        if self._has_left:
            raise RuntimeError("the driver has left")
        try:
            problem, body = ray.get(ref, timeout=ANSWER_S)
        except ray.exceptions.RayActorError:
            raise ConnectionError("the actor that orders the tasks of all drivers has ended") from None
        if problem:
            raise EgsError(problem)
        return bytes(body)
