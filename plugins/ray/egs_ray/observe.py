"""Mode `observe`: see every submission and what became of it, change nothing, leave a run log.

The submitting thread only notes names and ids. A daemon thread writes them to the run log and asks Ray now and then
how the tasks fare, so that a crash loses seconds; the end of each Ray session asks a last time. No reference to an
object, function or argument is kept: an object that the script drops is freed as it would be.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

from egs_core.history.pending import leave
from egs_core.notices import warn
from egs_core.runlog.records import Header
from egs_core.runlog.retention import prune, runs_folder
from egs_ray import compat, submitting, waiting
from egs_ray.events import actor_deaths, task_events
from egs_ray.gate.ticketing import note_of
from egs_ray.sessionlog import SessionLog
from egs_ray.submission import Submission

RUNLOG_OWNER = "EGS_RUNLOG_OWNER"
WRITE_EVERY_S = 1.0
AT_ONCE, REST_S = 20, 0.002  # submissions; so that a thread that submits waits for this one half a millisecond at most
POLL_EVERY_S = 10.0
POLL_SHARE = 0.02  # of the time, at most, goes into asking Ray: its answer grows with the number of tasks
FLUSH_S = 1.5  # Ray's processes report once a second


def make_interceptor() -> Observer:
    """The observer of this process: run log at EGS_RUNLOG, else in the user's data folder."""
    return Observer(runlog_path())


def runlog_path() -> Path:
    """Where this process's run log goes. EGS_RUNLOG is for one driver: one that it starts in turn adds its number."""
    if given := os.environ.get("EGS_RUNLOG"):
        own, path = str(os.getpid()), Path(given)
        owner, _, owned = os.environ.get(RUNLOG_OWNER, "").partition(" ")
        if owned == given and owner != own:
            return path.with_name(f"{path.stem}-{own}{path.suffix}")
        os.environ[RUNLOG_OWNER] = f"{own} {given}"
        return path
    return runs_folder() / f"{time.strftime('%Y%m%d-%H%M%S')}-{script_name()}-{os.getpid()}.jsonl"


def script_name() -> str:
    """What to call the workload: the script's name without its ending."""
    return Path(sys.argv[0] if sys.argv else "").stem or "python"


class Observer:
    """The `Interceptor` of mode observe. Safe to submit to from any thread; never raises of its own."""

    def __init__(self, path: Path, policy: str = "native", mode: str = "observe") -> None:
        header = Header(
            run_id=path.stem,
            driver="ray",
            policy=policy,
            mode=mode,
            started_at=time.time(),
            label=script_name(),
        )
        self.log = SessionLog(path, header)
        self._noted: deque[Submission] = deque()
        self._lock = threading.Lock()  # held by whoever writes the log or asks Ray
        self._connected = False
        self._sessions = 0
        self._process = os.getpid()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._broken = ""

    def submit(
        self,
        original: Callable[..., Any],
        remote_function: Any,
        args: Any,
        kwargs: Any,
        options: dict[str, Any],
    ) -> Any:
        """Ray's own submission, noted."""
        at_s = time.time()
        result = original(remote_function, args, kwargs, **options)
        if self._broken:
            return result
        try:
            self._noted.append(self._note(note_of(at_s, remote_function, args, kwargs, options, result)))
        except Exception as error:
            self._give_up(error)
        return result

    def _note(self, seen: Submission) -> Submission:
        """What was seen of a submission, as it is to be written."""
        return seen

    def session_starts(self) -> None:
        """Begin a workload in the run log, and the thread that writes it."""
        with self._lock:
            if self._connected:  # the last ray.init failed after its hook
                self._guarded(lambda: self.log.end_workload(time.time()))
            self._sessions += 1
            self._connected = True
            self.log.start_workload(f"{script_name()}-{self._sessions}", time.time())
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="egs-observe", daemon=True)
            self._thread.start()

    def session_ends(self) -> None:
        """Ask Ray a last time and end the workload."""
        if os.getpid() != self._process:  # a fork has the parent's observer and no thread
            return
        if not self._lock.acquire(timeout=FLUSH_S):  # the writing thread asks a Ray that does not answer any more
            return
        try:
            if self._connected:
                self._connected = False
                self._guarded(self._ask_until_settled)
                self._guarded(lambda: self.log.end_workload(time.time()))
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the session and the log, and tell the user in one line."""
        self.session_ends()
        if os.getpid() != self._process:
            return
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=FLUSH_S)
        if not self._lock.acquire(timeout=FLUSH_S):
            return
        try:
            self._guarded(self.log.finish)
            self._guarded(lambda: leave(self.log.path, self.log.header))
            if not self._broken:
                log = self.log
                seen = f"{log.tasks_seen} tasks seen, {log.gpu_held_s:.1f} s of GPU time held"
                what = self._what_was_done()
                warn(f"{what}: {seen}; run log: {log.path} (see it: egs report {log.path} -o report.html)")
        finally:
            self._lock.release()

    def _what_was_done(self) -> str:
        return "observed only"

    # --- the writing thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        submitting.never_start_ray()
        self._guarded(prune)
        next_poll_s = time.monotonic()
        while not self._stop.wait(WRITE_EVERY_S):
            while len(self._noted) > AT_ONCE and not self._broken:
                with self._lock:
                    self._guarded(lambda: self._write_noted(AT_ONCE))
                time.sleep(REST_S)
            with self._lock:
                self._guarded(self._write_noted)
                if self._connected and ray.is_initialized() and time.monotonic() >= next_poll_s:
                    began_s = time.monotonic()
                    self._guarded(self._ask)
                    took_s = time.monotonic() - began_s
                    next_poll_s = time.monotonic() + max(POLL_EVERY_S, took_s / POLL_SHARE)

    def _write_noted(self, most: int = sys.maxsize) -> None:
        for _ in range(min(most, len(self._noted))):
            self.log.submitted(self._noted.popleft())

    def _ask(self) -> None:
        self.log.nodes(ray.nodes(), time.time())
        # In the order of their ends: an actor's creation comes before its methods.
        events = sorted(task_events(self.log.ended), key=lambda event: event.ended_s or math.inf)
        self._write_noted()  # what has started by now was noted before
        for event in events:
            self.log.seen(event)
        self.log.actors_died(actor_deaths())

    def _ask_until_settled(self) -> None:
        if not waiting.has_time_to_ask():
            self._write_noted()
            return
        began_s = time.monotonic()
        self._ask()
        while time.monotonic() - began_s < self._patience_s():
            time.sleep(0.05)
            self._ask()

    def _patience_s(self) -> float:
        """How long to wait, at the end of a session, for what Ray has not told yet."""
        blind = not compat.available("submit")  # then what is unsettled is not known either
        return FLUSH_S if blind or self.log.unsettled else 0.0

    def _guarded(self, action: Callable[[], object]) -> None:
        if self._broken:
            return
        try:
            action()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Stop recording, once and for all; the script goes on natively."""
        if not self._broken:
            self._noted.clear()
            self._broken = f"{type(error).__name__}: {error}".splitlines()[0]
            warn(f"no longer observing, the script is not affected: {self._broken}")
