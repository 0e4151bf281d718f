"""Real processes of `egs` that need not import it: each is forked from one of this test process that has.

    test ── words, environment, folder, streams ──► server (EGS imported once) ── fork ──► `egs WORDS`
         ◄── its number; later, how it ended ─────

A process of `egs run` spends half a second of a processor on imports, one of `egs serve` more than a second, and the
tests start hundreds. What differs from one that a shell starts: its parent, and what /proc says of its words and its
environment. So what a start is like is tested where `RealSite` starts programs (`as_programs`).
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import inspect
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any, cast

ROOMS = ("egs_core.client", "egs_core.server")
MODULES = ("egs_core.cli.serve", "egs_core.cli.run", "egs_core.cli.request", "uvicorn.protocols.http.h11_impl")
"""What is imported, with all modules of the rooms. What else a command needs, it imports itself."""
MOST = 1 << 18
"""Bytes of a message: a command's words and its environment."""
NUMBER = struct.Struct("i")
FIRST = "FORKED_FIRST"
"""A variable: what a process does first, in Python, as its caller would have set it: limits, signals. It has it not."""


class Forked(subprocess.Popen[str]):
    """`egs WORDS`, as a `Popen`. Only how it begins, and how its end is known, differs: it is nobody's child here."""

    def _execute_child(self, *given: Any) -> None:
        inner: Any = self
        said = inspect.signature(vars(subprocess.Popen)["_execute_child"]).bind(self, *given).arguments
        pipes = [said[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        streams = [own if theirs == -1 else theirs for own, theirs in enumerate((pipes[0], pipes[3], pipes[5]))]
        told, theirs = socket.socketpair()
        try:
            message = json.dumps([said["args"], dict(said["env"]), os.fspath(said["cwd"] or os.getcwd())]).encode()
            socket.send_fds(_server(), [message], [theirs.fileno(), *streams])
            self.pid = NUMBER.unpack(told.recv(NUMBER.size))[0]
        finally:
            theirs.close()
            inner._close_pipe_fds(*pipes)
        inner._child_created, self._told = True, told

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        try:
            ended = self._told.recv(NUMBER.size, socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0)
        except BlockingIOError:
            return 0, 0
        self._told.close()
        assert ended, "the process that forks has ended"
        return self.pid, NUMBER.unpack(ended)[0]

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        inner: Any = self
        if self.returncode is None and inner._waitpid_lock.acquire(blocking=False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        inner._handle_exitstatus(status)
            finally:
                inner._waitpid_lock.release()
        return cast("int | None", self.returncode)


@cache
def python_words() -> dict[str, str]:
    """What Python reads when it starts, of the environment of the process that forks."""
    return {name: value for name, value in os.environ.items() if name.startswith("PYTHON")} | {
        "PYTHONWARNINGS": "ignore"
    }


@cache
def _server() -> socket.socket:
    """The way to this process's server, which ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST)
    command = [sys.executable, str(Path(__file__)), str(theirs.fileno())]
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("EGS_", "PYTHON"))}
    begun = subprocess.Popen(command, env=outside | python_words(), pass_fds=[theirs.fileno()])
    theirs.close()

    def end() -> None:
        ours.close()
        begun.wait()

    atexit.register(end)
    return ours


def _fork_on_demand(asks: socket.socket) -> list[str]:
    """Does not end in the server. In each process that it forks: the words of its command."""
    hears, wakes = os.pipe()
    os.set_blocking(hears, False)
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    told: dict[int, socket.socket] = {}
    while True:
        ready = select.select([asks.fileno(), hears], [], [])[0]
        if hears in ready:
            os.read(hears, 1024)
            _tell_ends(told)
        if asks.fileno() not in ready:
            continue
        message, handles, _, _ = socket.recv_fds(asks, MOST, 4)
        if not message:
            os._exit(0)
        one, streams = socket.socket(fileno=handles[0]), handles[1:]
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for gone in (asks, one, *told.values()):
                gone.close()
            os.close(hears)
            os.close(wakes)
            return _become(message, streams)
        for handle in streams:
            os.close(handle)
        told[child] = one
        one.send(NUMBER.pack(child))


def _tell_ends(told: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with told.pop(ended[0]) as one, contextlib.suppress(BrokenPipeError):
                one.send(NUMBER.pack(ended[1]))


def _become(message: bytes, streams: list[int]) -> list[str]:
    """All that a new process has of its own."""
    words, environment, folder = json.loads(message)
    for number, handle in enumerate(streams):
        os.dup2(handle, number)  # which `sys.stdin` and the others read and write: nothing is in them yet
    for handle in streams:
        os.close(handle)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path[0] = folder
    exec(os.environ.pop(FIRST, ""), {"os": os, "signal": signal})
    return cast("list[str]", words)


def main() -> None:
    import egs_core.cli.app

    for room in ROOMS:
        for found in pkgutil.iter_modules(importlib.import_module(room).__path__, f"{room}."):
            with contextlib.suppress(ImportError):  # an extra that is not installed
                importlib.import_module(found.name)
    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    words = _fork_on_demand(socket.socket(fileno=int(sys.argv[1])))
    sys.argv = [egs_core.cli.app.__file__, *words]
    egs_core.cli.app.main()


if __name__ == "__main__":
    main()
