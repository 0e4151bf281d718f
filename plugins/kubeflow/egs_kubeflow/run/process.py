"""One running task: its process, what it prints, how it is ended.

Each task has a process group of its own, which ends with it, as a container's processes do; `fork_server` sees to what
has left that group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from egs_kubeflow.run.forked import Forked

GRACE_S = 5.0
LAST_WORDS_S = 2.0
"""How long what a task has printed is waited for after its end: a process that it has left may keep its output open."""
LOG = "log.txt"


class Process:
    """A process under way; `wait` and `stop` may be called from different threads."""

    def __init__(self, started: subprocess.Popen[str] | Forked, folder: Path, say: Callable[[str], None]):
        self._popen = started
        self._is_over = False  # from then on its number may be another's
        self._log = folder / LOG
        self._say = say
        self._reader = threading.Thread(target=self._read, name="egs-output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def wait(self) -> int:
        """Its exit code (negative: the signal that ended it), when nothing of it is left."""
        code = self._popen.wait()
        self._signal(signal.SIGKILL)  # what it has left in the background
        self._is_over = True
        self._reader.join(LAST_WORDS_S)
        return code

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Ask it to end, and end it when it does not; returns at once."""
        self._signal(signal.SIGTERM)
        timer = threading.Timer(grace_s, self._signal, [signal.SIGKILL])
        timer.daemon = True
        timer.start()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left, or only what may not be asked
            if not self._is_over:
                os.killpg(self._popen.pid, number)

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as output, self._log.open("w") as log:
            for line in output:
                log.write(line)
                log.flush()
                self._say(line)
