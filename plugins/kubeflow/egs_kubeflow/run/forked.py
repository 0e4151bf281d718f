"""Tasks forked from a process that has imported kfp's executor: see `fork_server`.

A task is started so where its process would differ from the server's in nothing but its GPUs; any other, and every
task once the server has failed, has an interpreter of its own from the start.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, TextIO

from egs_kubeflow import compat
from egs_kubeflow.run.fork_server import END, HEAD
from egs_kubeflow.run.packages import own_command

ANSWERS_WITHIN_S = 20.0
GRACE_S = 1.0
_TEXT = (Path(__file__).parent / "fork_server.py").read_text()


class Forked:
    """A task's process, as `subprocess.Popen` shows one."""

    def __init__(self, pid: int, stdout: TextIO, ends: BinaryIO) -> None:
        self.pid, self.stdout, self._ends = pid, stdout, ends

    def wait(self) -> int:
        """Its exit code, for a signal that of the shell in kfp's command; negative where nobody can tell it."""
        code, timeout_s = -signal.SIGKILL, None
        with self._ends:
            while told := _told(self._ends, timeout_s):
                word, number = told
                code = number if number >= 0 else 128 - number
                if word == END:
                    break
                timeout_s = GRACE_S  # after its own word there is nothing left to do but to end
        return code


def _told(pipe: BinaryIO, timeout_s: float | None) -> tuple[str, int] | None:
    """The next word from a task's pipe; None where there is none within the time. The pipe
    has no buffer, so what `poll` sees is all there is."""
    poll = select.poll()  # `select.select` takes no number of a file above 1023
    poll.register(pipe, select.POLLIN)
    if not poll.poll(None if timeout_s is None else timeout_s * 1000):
        return None
    word, _, number = pipe.readline().decode().partition(" ")
    return (word, int(number)) if number else None


class ForkServer:
    """The server of one run; from any thread. name: shown where processes are listed. varying: the variable by which
    the environment of a task may differ from the server's."""

    def __init__(self, name: str, varying: str) -> None:
        self._lock = threading.Lock()
        self._varying, self._environment = varying, dict(os.environ)
        self._has_answered = False
        self._scratch = TemporaryDirectory(prefix="egs-components-")
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                [sys.executable, "-c", _TEXT, str(theirs.fileno()), name],
                env={**self._environment, "_KFP_RUNTIME": "true"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> Forked | None:
        """The process of a task; None where it needs an interpreter of its own."""
        call = compat.executor_call(command, sys.executable)
        alike = {**environment, self._varying: ""} == {**self._environment, self._varying: ""}
        if call is None or not alike:
            return None
        places = {"folder": os.getcwd(), "scratch": self._scratch.name}
        request = {"source": call[0], "arguments": call[1], "environment": dict(environment), **places}
        with self._lock:
            return self._ask(json.dumps(request).encode()) if self._process is not None else None

    def close(self) -> None:
        """End the server, and what it still runs."""
        with self._lock:
            self._end()
        self._scratch.cleanup()

    def _ask(self, text: bytes) -> Forked | None:
        output, their_output = os.pipe()
        ends, their_ends = os.pipe()
        try:
            socket.send_fds(self._socket, [len(text).to_bytes(HEAD, "big")], [their_output, their_ends])
            self._socket.sendall(text)
        except OSError:
            self._end()
        finally:
            os.close(their_output)
            os.close(their_ends)
        pipe = os.fdopen(ends, "rb", buffering=0)
        if (begun := _told(pipe, ANSWERS_WITHIN_S)) is not None:
            self._has_answered = True
            return Forked(begun[1], os.fdopen(output, errors="replace"), pipe)
        os.close(output)
        pipe.close()
        self._end()  # the task will be started in another way: nothing may start it here any more
        return None

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        self._socket.close()  # then it ends by itself, with what it still runs
        try:
            process.wait(GRACE_S if self._has_answered else 0.0)
        except subprocess.TimeoutExpired:  # it still imports, or hangs there
            process.kill()
            process.wait()


def has_use(commands: Iterable[Sequence[str]]) -> bool:
    """Whether any of these commands of components, as they were compiled, is one that the server can run."""
    return any(compat.executor_call(own_command(command), "python3") for command in commands)
