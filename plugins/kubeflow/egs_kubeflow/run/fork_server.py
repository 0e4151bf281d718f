"""A process that has imported kfp's executor once, and forks itself for each task: run as `python -c THIS SOCKET`.

    runner ── request: command, environment, folder; the task's output and a pipe ──► here ── fork ──► kfp's executor
       ◄────────────────────────── its number, and in the end its exit code, through the pipe ──┘

A task's process is what `python -m kfp.dsl.executor_main` would be, less the time to start it: with a process group,
arguments, environment, folder and standard streams of its own, and nothing of other tasks. No thread runs here, and no
code of a task. When the runner is gone, so are its tasks; when the server is gone, they go on, and tell of their ends
themselves. Standard library, and what the executor imports.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
from typing import Any

EXECUTOR = "kfp.dsl.executor_main"
BEGIN, OWN_WORD, END = "begin", "own-word", "end"
"""What is told through a task's pipe: its number, the exit code that it has in mind, its exit code."""
HEAD = 8
"""Bytes of a request that say how long the rest of it is."""


def serve(runner: socket.socket) -> Any:
    """Fork for each request until the runner is gone; returns in a child only, with its request."""
    importlib.import_module(EXECUTOR)
    del sys.modules[EXECUTOR]  # only what it imports stays: in a child it is `__main__`
    gc.freeze()  # the collector of a child leaves these pages shared
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    children: dict[int, int] = {}  # by their numbers, the pipes on which their ends are told
    poll = select.poll()
    poll.register(runner, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while True:
        ready = dict(poll.poll())
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(children)
        if runner.fileno() not in ready:
            continue
        request, fds = _received(runner)
        if request is None:
            _end_all(children)
        output, pipe = fds
        child = os.fork()
        if child:
            with contextlib.suppress(OSError):
                os.setpgid(child, child)  # here too: the runner may signal the group as soon as it knows the number
            os.close(output)
            children[child] = pipe
            _tell(pipe, BEGIN, child)
            continue
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, before)
        for fd in (woken, wake, *children.values()):
            os.close(fd)
        runner.close()
        request["pipe"] = pipe
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        return request


def _received(runner: socket.socket) -> tuple[Any, list[int]]:
    """A request and the files that come with it; None where the runner is gone."""
    head, fds, _, _ = socket.recv_fds(runner, HEAD, 2)
    rest, text = int.from_bytes(head, "big"), b""
    while head and len(text) < rest and (part := runner.recv(rest - len(text))):
        text += part
    is_whole = len(head) == HEAD and len(text) == rest
    return (json.loads(text) if is_whole else None), list(fds)


def _tell_ends(children: dict[int, int]) -> None:
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        pipe = children.pop(child)
        _tell(pipe, END, os.waitstatus_to_exitcode(status))
        os.close(pipe)


def _tell(pipe: int, word: str, number: int) -> None:
    with contextlib.suppress(OSError):  # the runner is gone, or the task has closed its files
        os.write(pipe, f"{word} {number}\n".encode())


def _end_all(children: dict[int, int]) -> None:
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    os._exit(0)


def execute(
    source: str, arguments: list[str], environment: dict[str, str], folder: str, scratch: str, pipe: int
) -> None:
    """What kfp's command for a lightweight component does, in this process. scratch: for the component's module."""
    me, code = os.getpid(), 1

    def give_own_word() -> None:
        if os.getpid() == me:  # and not of a process that the task has forked
            _tell(pipe, OWN_WORD, code)

    atexit.register(give_own_word)  # the first to come, so the last to be called
    os.environ.clear()
    os.environ.update(environment, _KFP_RUNTIME="true")
    os.chdir(folder)
    if not sys.flags.safe_path:
        sys.path[0] = folder
    path = os.path.join(tempfile.mkdtemp(dir=scratch), "ephemeral_component.py")
    with open(path, "w") as file:
        file.write(source)
    sys.argv = [EXECUTOR, "--component_module_path", path, *arguments]
    try:
        runpy.run_module(EXECUTOR, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise


if __name__ == "__main__":
    execute(**serve(socket.socket(fileno=int(sys.argv[1]))))
