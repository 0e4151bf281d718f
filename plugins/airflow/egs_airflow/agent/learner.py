"""Runs `airflow egs learn` from time to time, as a process: the agent stays small, and what fails there is a line.

Each host's agent keeps its history up to date; of agents that know of each other one tells all what it has learned, so
that durations do not go back and forth between histories.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time

from egs_airflow.agent.acts import say
from egs_core.places import data_folder

MOST_S = 1800.0


class Learner:
    """every_s: from one start to the next, the first at once; 0: never."""

    def __init__(self, url: str, user: str, every_s: float) -> None:
        self._command = [sys.executable, "-m", "airflow", "egs", "learn", "--url", url, "--user", user]
        self._every_s = every_s
        self._due_s = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._said = data_folder() / "airflow" / f"learn-{socket.gethostname()}.log"

    def tick(self, tells: bool = True) -> None:
        """Start it when it is due, and look how it has ended; never waits. A problem is one line on stderr. tells:
        whether it is this agent that tells all; the others keep what they learn in their history."""
        now_s = time.monotonic()
        if self._process is not None:
            if self._process.poll() is not None:
                self._ended(self._process.returncode)
            elif now_s > self._due_s - self._every_s + MOST_S:
                self.close()
                say("learning has taken too long and was ended")
        elif self._every_s > 0 and now_s >= self._due_s:
            self._due_s = now_s + self._every_s
            self._start([] if tells else ["--history-only"])

    def close(self) -> None:
        """End what runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self, options: list[str]) -> None:
        try:
            with self._said.open("wb") as file:
                self._process = subprocess.Popen(
                    [*self._command, *options], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
                )
        except OSError as error:
            say(f"learning cannot be started: {error}")

    def _ended(self, code: int) -> None:
        self._process = None
        lines = self._said.read_text(errors="replace").strip().splitlines() if self._said.exists() else []
        last = lines[-1] if lines else f"exit code {code}"
        say(f"learning has failed: {last}" if code else f"learned: {last}")
