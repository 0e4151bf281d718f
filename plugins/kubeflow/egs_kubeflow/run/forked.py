"""The processes of tasks, started by servers that make sure of their ends: see `fork_server`."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from egs_kubeflow import compat
from egs_kubeflow.run.fork_server import BEGIN, END, HEAD, LACKS, WARM
from egs_kubeflow.run.own_folder import own_folder
from egs_kubeflow.run.packages import own_command

ANSWERS_WITHIN_S = 20.0
GRACE_S = 1.0
_TEXT = (Path(__file__).parent / "fork_server.py").read_text()


class Forked:
    """A task's process, as `subprocess.Popen` shows one. for_shell: it stands for a shell that runs it."""

    def __init__(self, pid: int, stdout: TextIO, ends: BinaryIO, for_shell: bool) -> None:
        self.pid, self.stdout, self._ends, self._for_shell = pid, stdout, ends, for_shell

    def wait(self) -> int:
        """Its exit code; for a signal that of a shell, or negative, as it is where nobody can tell it."""
        code, timeout_s = -signal.SIGKILL, None
        with self._ends:
            while told := _told(self._ends, timeout_s):
                word, number = told
                code = 128 - number if number < 0 and self._for_shell else number
                if word == END:
                    break
                timeout_s = GRACE_S  # after its own word there is nothing left to do but to end
        return code


class Parked:
    """A process that loads what its task will need, and waits to be told what to run. lacks: the places of what could
    not be loaded, modules before files, once `wait` has returned."""

    def __init__(self, pid: int, stdout: TextIO, ends: BinaryIO, orders: BinaryIO) -> None:
        self._forked, self._ends, self._orders = Forked(pid, stdout, ends, True), ends, orders
        self.lacks: list[int] = []

    def wait(self, timeout_s: float) -> float | None:
        """Seconds that it took to load; None where it has ended, or has not loaded within the time."""
        deadline = time.monotonic() + timeout_s
        while told := _told(self._ends, max(0.0, deadline - time.monotonic())):
            word, number = told
            if word != LACKS:
                return number / 1000 if word == WARM else None
            self.lacks.append(number)
        return None

    def begin(self, request: Mapping[str, Any]) -> Forked | None:
        """Let it run this; None where it has ended."""
        try:
            with self._orders:
                self._orders.write(json.dumps(request).encode())
        except OSError:
            self.drop()
            return None
        return self._forked

    def kill(self) -> None:
        """End it while it loads: `wait` returns."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._forked.pid, signal.SIGKILL)

    def drop(self) -> None:
        """Let it end: whoever keeps it sees that nobody listens."""
        for file in (self._orders, self._ends, self._forked.stdout):
            with contextlib.suppress(OSError):
                file.close()


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
    """One server; from any thread. name: shown where processes are listed. imports: it has imported kfp's executor.
    folders: they go when the runner is gone."""

    def __init__(self, name: str, imports: bool, folders: Sequence[str] = ()) -> None:
        self._lock = threading.Lock()
        self._has_answered = False
        self._socket, theirs = socket.socketpair()
        alike = [] if imports else ["-IS"]  # the interpreter of a task is as the user has it
        told = [str(theirs.fileno()), name, "imports" if imports else "", *folders]
        with theirs:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                [sys.executable, *alike, "-c", _TEXT, *told],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def start(self, request: Mapping[str, Any], undo: Sequence[str] = ()) -> Forked | None:
        """A task's process; None where the server cannot start it. undo: a command that ends what the task has started
        elsewhere, for when the runner is gone."""
        begun = self._asked(request, undo)
        return None if begun is None else Forked(*begun, "source" in request)

    def park(self, request: Mapping[str, Any]) -> Parked | None:
        """A process that loads, see `Parked`; None where the server cannot start it."""
        theirs, orders = os.pipe()
        try:
            begun = self._asked(request, (), theirs)
        finally:
            os.close(theirs)
        told = os.fdopen(orders, "wb")
        if begun is None:
            told.close()
        return None if begun is None else Parked(*begun, told)

    def close(self) -> None:
        """End the server, and what it still runs."""
        with self._lock:
            self._end()

    def _asked(
        self, request: Mapping[str, Any], undo: Sequence[str], *files: int
    ) -> tuple[int, TextIO, BinaryIO] | None:
        text = json.dumps({**request, "folder": os.getcwd(), "undo": list(undo)}).encode()
        with self._lock:
            return self._ask(text, files) if self._process is not None else None

    def _ask(self, text: bytes, files: Sequence[int]) -> tuple[int, TextIO, BinaryIO] | None:
        """The number of a process, what it prints, and its pipe."""
        output, their_output = os.pipe()
        ends, their_ends = os.pipe()
        try:
            socket.send_fds(self._socket, [len(text).to_bytes(HEAD, "big")], [their_output, their_ends, *files])
            self._socket.sendall(text)
        except OSError:
            self._end()
        finally:
            os.close(their_output)
            os.close(their_ends)
        pipe = os.fdopen(ends, "rb", buffering=0)
        begun = _told(pipe, ANSWERS_WITHIN_S)
        if begun is not None and begun[0] == BEGIN:  # another number is no process's, and group 1 is all processes
            self._has_answered = True
            return begun[1], os.fdopen(output, errors="replace"), pipe
        os.close(output)
        pipe.close()
        self._end()  # the task will be started in another way: nothing may start it here any more
        return None

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            self._socket.sendall(bytes(HEAD))  # a request of no length: then it ends by itself, with what it still runs
        self._socket.close()
        try:
            process.wait(GRACE_S if self._has_answered else 0.0)
        except subprocess.TimeoutExpired:  # it still imports, or hangs there
            process.kill()
            process.wait()


class Starter:
    """Starts the tasks of one run, each in the quickest way that there is; from any thread. varying: the variables by
    which the environment of a forked task may differ from this process's, the first of which shows GPUs. folders: of
    the run, for a while. parks: processes will be parked.

    forked from the executor        what would differ from such a process in nothing but its GPUs
    started by a server             any other; it makes sure that nothing of a task is left, whatever happens here
    started by this process         where the servers have failed
    """

    def __init__(
        self,
        name: str,
        varying: Sequence[str],
        commands: Iterable[Sequence[str]],
        folders: Sequence[str],
        parks: bool = False,
    ) -> None:
        self._name, self._varying, self._environment = name, varying, dict(os.environ)
        self._lock = threading.Lock()
        self._scratch = own_folder("egs-components-")
        self._folders = [*folders, self._scratch.name]
        self._forks = ForkServer(name, True, self._folders) if parks or has_use(commands) else None
        self._starts: ForkServer | None = None

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        undo: Sequence[str] = (),
        parked: Parked | None = None,
    ) -> Forked | subprocess.Popen[str]:
        """The process of a task: the one that has loaded for it, where there is one. Raises OSError."""
        found = self.forked(command, environment, parked) or self._kept(command, environment, undo)
        return found or started(command, environment)

    def park(self, modules: Sequence[str], files: Sequence[str], recorder: str = "") -> Parked | None:
        """A process that loads these, and sees no GPU meanwhile; None where none can be forked. recorder: the program
        that its command is recorded by."""
        environment = {**self._environment, self._varying[0]: ""}
        request = {"modules": list(modules), "files": list(files), "environment": environment, "recorder": recorder}
        return None if self._forks is None else self._forks.park(request)

    def close(self) -> None:
        """End the servers, and what they still run."""
        for server in (self._forks, self._starts):
            if server is not None:
                server.close()
        self._scratch.cleanup()

    def forked(
        self, command: Sequence[str], environment: Mapping[str, str], parked: Parked | None = None
    ) -> Forked | None:
        """The process of a task that is forked from the executor; None for one that cannot be. parked: it is used, or
        dropped."""
        call = compat.executor_call(command if parked is None else split_recorder(command)[1], sys.executable)
        same = dict.fromkeys(self._varying, "")
        alike = {**environment, **same} == {**self._environment, **same}
        if call is None or not alike or self._forks is None:
            if parked is not None:
                parked.drop()
            return None
        made = {"source": call[0], "arguments": call[1], "scratch": self._scratch.name}
        request = {**made, "environment": dict(environment)}
        begun = parked.begin(request) if parked is not None else None
        if begun is None and parked is not None:  # its process is gone
            return self.forked(command, environment)
        return begun or self._forks.start(request)

    def _kept(self, command: Sequence[str], environment: Mapping[str, str], undo: Sequence[str]) -> Forked | None:
        with self._lock:
            if self._starts is None:
                self._starts = ForkServer(self._name, False, self._folders)
        return self._starts.start({"command": list(command), "environment": dict(environment)}, undo)


def started(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """A process that leads its own group. Raises OSError."""
    return subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def has_use(commands: Iterable[Sequence[str]]) -> bool:
    """Whether any of these commands of components, as they were compiled, is one that the server can run."""
    return any(compat.executor_call(own_command(command), "python3") for command in commands)


def split_recorder(command: Sequence[str]) -> tuple[str, list[str]]:
    """The program of the recorder, "" where there is none, and the command that it runs."""
    is_recorded = list(command[1:3]) == ["-IS", "-c"] and len(command) > 4
    return (command[3], list(command[4:])) if is_recorded else ("", list(command))
