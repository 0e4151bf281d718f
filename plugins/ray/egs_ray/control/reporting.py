"""The driver's side of the controller: one thread that tells it what runs here, and does what it asks.

Nothing is told at a submission: ten times a second the thread asks its source what runs now, and tells what is new
since the last time. Whatever fails on the way to the controller is tried again later; the pipeline does not notice.
EGS_CONTROL=off, or `Options.control` for a session: nothing is told, and no controller is made.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol

import ray

from egs_core.errors import InputError
from egs_core.notices import warn
from egs_ray import submitting, waiting
from egs_ray.control import controller

CONTROL = "EGS_CONTROL"
EVERY_S = 0.1
AGAIN_S = 1.0
ANSWER_S = 20.0
CLOSE_S = 1.0
ALONE_S = 60.0  # from its first work on a driver needs no controller for so long
LOOK_S = 0.5

Row = dict[str, Any]
Told = dict[str, dict[str, Any]]


class Source(Protocol):
    """What a driver can say and do. Called on the reporter's thread."""

    def snapshot(self) -> Told | None:
        """`workloads`: name -> row; `tasks`: key -> (row, references), of those that run. None: nothing to say yet."""
        ...

    def carry_out(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what an operator asks; the answer has what was done, or `problem` and `known`."""
        ...


class Reporter:
    """Reports a source until it is closed; not at all where that is not wanted."""

    def __init__(self, source: Source, is_wanted: bool = True) -> None:
        self._source = source
        self._key = uuid.uuid4().hex[:8]
        self._about = {"pid": os.getpid(), "host": socket.gethostname()}
        self._closing = threading.Event()
        self._control: Any = None
        self._seen = 0
        self._since = self._look_at = 0.0
        self._last: Told = {"workloads": {}, "tasks": {}}
        self._thread = threading.Thread(target=self._run, name="egs-report", daemon=True)
        if is_wanted and may_report() and waiting.is_plain_driver():
            self._thread.start()

    def close(self) -> None:
        """Say good-bye, if that is possible; from any thread. The reporter uses Ray no more when this returns."""
        self._closing.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)
        control, self._control = self._control, None
        self._last = {"workloads": {}, "tasks": {}}
        if control is not None and waiting.has_time_to_ask():
            control.leave.remote(self._key)

    def _run(self) -> None:
        submitting.submit_directly()
        warned = False
        while not self._closing.is_set():
            try:
                self._report_until_lost()
            except (ray.exceptions.RayError, TimeoutError):
                pass  # the controller, or its node: it comes back, or another one is made
            except Exception as error:
                if not warned and not self._closing.is_set():
                    warned = True
                    warn(f"no control from other processes for now: {type(error).__name__}: {error}".splitlines()[0])
            self._closing.wait(AGAIN_S)

    def _report_until_lost(self) -> None:
        """Returns when the controller does not know this driver (any more); raises when it is gone."""
        control, is_known = self._join()
        pending: Any = None
        while is_known and not self._closing.is_set():
            pending = pending if pending is not None else control.next.remote(self._key, self._seen)
            if ray.wait([pending], timeout=EVERY_S)[0]:
                requests, pending = ray.get(pending), None
                is_known = requests is not None
                for request in requests or ():
                    self._seen = request["number"]
                    control.answer.remote(request["number"], self._source.carry_out(request))
            is_known = is_known and self._tell(control)

    def _join(self) -> tuple[Any, bool]:
        """Tell a controller of this driver as soon as that is worth it: the controller, and whether it knows the driver
        now. A function of its own: what was told has references, which would keep values of tasks for the whole run."""
        told: Told | None = None
        while told is None and not self._closing.is_set():
            if not self._since and self._source.snapshot() is not None:
                self._since = time.monotonic()
            told = self._source.snapshot() if self._since and self._is_worth_it() else None
            if told is None:
                self._closing.wait(EVERY_S)
        if told is None or self._closing.is_set():
            return None, False
        control = controller.get_or_make()
        life = control.live.remote(self._key)
        is_known = self._get(control.report.remote(self._key, told, {"about": self._about, "life": [life]}))
        self._control, self._last = control, told
        return control, bool(is_known)

    def _is_worth_it(self) -> bool:
        """Whether there is a controller, or should be one: its process takes a second of a core. Short programs end
        without; an operator who asks for something makes one, and then every driver reports to it."""
        now = time.monotonic()
        if now - self._since >= ALONE_S:
            return True
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_S
        return controller.find() is not None

    def _tell(self, control: Any) -> bool:
        """Tell what is new."""
        now = self._source.snapshot()
        if now is None:
            return True
        changes = {kind: _changed(self._last[kind], now[kind]) for kind in ("workloads", "tasks")}
        self._last = now
        if not (changes["workloads"] or changes["tasks"]):
            return True
        return bool(self._get(control.report.remote(self._key, changes, None)))

    def _get(self, ref: Any) -> Any:
        """What the controller answers; None when the reporter is closed meanwhile. Raises TimeoutError."""
        until = time.monotonic() + ANSWER_S
        while not ray.wait([ref], timeout=EVERY_S)[0]:
            if self._closing.is_set():
                return None
            if time.monotonic() > until:
                raise TimeoutError("the controller does not answer")
        return ray.get(ref)


def may_report() -> bool:
    """Whether the user lets other processes reach this one."""
    said = os.environ.get(CONTROL, "").strip().lower()
    if said not in ("", "on", "off"):
        warn(f"{CONTROL}={said!r} is none of on, off: on")
    return said != "off"


class Turns(Protocol):
    """What has a thread that runs actions in turn."""

    def do(self, action: Callable[[], None]) -> None: ...


def answer_of(driver: Turns, carry_out: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The answer of an action on the driver's thread. An InputError is an answer; any other error is the engine's."""
    answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def act() -> None:
        try:
            answers.put(carry_out())
        except InputError as error:
            answers.put({"problem": error.problem, "known": error.hint})

    driver.do(act)
    try:
        return answers.get(timeout=ANSWER_S)
    except queue.Empty:
        return {"problem": "its driver has lost EGS: only Ray's own means are left"}


def _changed(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What is different now; None for what is gone."""
    gone = dict.fromkeys(before.keys() - now.keys())
    return {key: value for key, value in now.items() if before.get(key) != value} | gone
