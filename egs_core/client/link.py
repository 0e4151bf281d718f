"""What `egs run` hears of its run while its command waits and runs: heartbeats, in a thread beside. The server holds
each back until there is news, or for some seconds."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable

from egs_core.client import messages as c
from egs_core.client.http import SiteClient, Unreachable
from egs_core.errors import EgsError

Say = Callable[[str], None]
WAKE = signal.SIGURG  # to the main thread: there is news
CLOSE_S = 0.5
WAIT_S, AGAIN_S = 20.0, 0.5  # that a heartbeat may be held back; until what failed is tried again


class Ended(Exception):
    """The run is over before its command was started. code: of this process."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text)
        self.code = code


class Link:
    """The thread that speaks to the server: heartbeats, and news for the main thread, which `WAKE` tells of."""

    def __init__(self, client: SiteClient, view: c.RunView, say: Say) -> None:
        self.news: queue.SimpleQueue[c.RunView | Ended] = queue.SimpleQueue()
        self.processes: tuple[c.Process, ...] = ()
        self.token = 0
        self.told_s: Callable[[float], float | None] = lambda _now: None
        self.progress: Callable[[float], c.Progress | None] = lambda _now: None
        self._wants_told = self._wants_progress = False
        self._client, self._say = client, say
        self._run, self._seen = view.id, view.version
        self._is_over = threading.Event()
        self._has_told = False
        self._thread = threading.Thread(target=self._beat, name="egs-beat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No more heartbeats; does not wait for one that is under way."""
        self._is_over.set()

    def close(self) -> None:
        """The same; waits a moment for the one that is under way, which the end of the run answers: Python may not end
        while a thread makes a connection (its finalizers change then)."""
        self.stop()
        self._thread.join(CLOSE_S)

    def _beat(self) -> None:
        while not self._is_over.is_set():
            told = self.processes
            now, wait_s = time.time(), WAIT_S if not told else 2.0
            beat = c.Beat(
                seen=self._seen,
                wait_s=wait_s,
                token=self.token,
                processes=told,
                told_s=self.told_s(now) if self._wants_told else None,
                progress=self.progress(now) if self._wants_progress else None,
            )
            try:
                view = self._client.beat(self._run, beat)
            except Unreachable as error:
                self._unreachable(error)
                self._is_over.wait(AGAIN_S)
                continue
            except EgsError as error:
                self._put(Ended(1, str(error)))
                return
            self._has_told = False
            self._wants_told, self._wants_progress = view.wants_told, view.wants_progress
            if view.version != self._seen:
                self._seen = view.version
                self._put(view)
            if view.state == "ended":
                return

    def _unreachable(self, error: Unreachable) -> None:
        if not self._has_told and not self._is_over.is_set():
            what = "the command goes on" if self.processes else "waiting for it"
            self._say(f"the server does not answer; {what} ({error})")
            self._has_told = True

    def _put(self, news: c.RunView | Ended) -> None:
        self.news.put(news)
        os.kill(os.getpid(), WAKE)
