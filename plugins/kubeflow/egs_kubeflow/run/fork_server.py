"""A process that starts the tasks of one run, so that all of a task ends with it and all tasks end with the runner:
run as `python -c THIS SOCKET NAME IMPORTS FOLDER…`.

    runner ── request ──► server ── fork ──► keeper ── fork ──► task: kfp's executor, or any command
       ◄───────────── a pipe: the task's number, its exit code ──┘

A *parked* task imports modules and reads files first, says so, and waits on one more pipe for what it is to do; when
nobody holds the other end it ends.

A forked task is what `python -m kfp.dsl.executor_main` would be, less the time to start it: with IMPORTS this process
has imported the executor. A task has a process group, arguments, environment, folder and standard streams of its own.

A *keeper* is the parent of one task, and of whatever that leaves behind in sessions of its own (Linux: a subreaper; as
in a container, nothing of a task outlives it). It ends them all when the task has ended, when the server says so, or
when nobody reads its pipe any more: then the runner is gone. So do the server, and the FOLDERs, which it removes. When
the server is gone the keepers go on; when a keeper is gone a forked task tells of its end itself. No thread runs here,
and no code of a task. Standard library, and what the executor imports.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

EXECUTOR = "kfp.dsl.executor_main"
BEGIN, OWN_WORD, END = "begin", "own-word", "end"
"""What is told through a task's pipe: its number, the exit code that it has in mind, its exit code."""
LACKS, WARM = "lacks", "warm"
"""What a parked task tells besides: the place in its list of what it could not load; then how many ms the rest took."""
HEAD = 8
"""Bytes of a request that say how long the rest of it is."""
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
UNDO_S = 20.0
LOOK_AGAIN_S = 0.005
CANNOT_START = 127
GIVEN_BACK = ("SIGPIPE", "SIGXFSZ")
"""What Python ignores, and a command that it starts does not."""


def serve(runner: socket.socket, imports: bool, folders: list[str]) -> Any:
    """Fork for each request until the runner is gone; returns in a child only, with its request."""
    runner.set_inheritable(False)
    if imports:
        importlib.import_module(EXECUTOR)
        del sys.modules[EXECUTOR]  # only what it imports stays: in a child it is `__main__`
    gc.freeze()  # the collector of a child leaves these pages shared
    before, wakes = _woken_by_signals()
    keepers: set[int] = set()
    poll = select.poll()
    poll.register(runner, select.POLLIN)
    poll.register(wakes[0], select.POLLIN)
    while True:
        ready = dict(poll.poll())
        if wakes[0] in ready:
            os.read(wakes[0], 4096)
            keepers -= dict(_ended(block=False)).keys()
        if runner.fileno() not in ready:
            continue
        request, fds = _received(runner)
        if not request:
            _leave(keepers, folders if request is None else [])
        keeper = os.fork()
        if keeper:
            keepers.add(keeper)
            for fd in fds:
                os.close(fd)
            continue
        runner.close()
        _forget_signals(before, wakes)
        request["output"], request["pipe"], *more = fds
        if more:
            request["orders"] = more[0]
        return request


def _received(runner: socket.socket) -> tuple[Any, list[int]]:
    """A request and the files that come with it; {} where the runner wants no more, None where it is gone."""
    head, fds, _, _ = socket.recv_fds(runner, HEAD, 3)
    for fd in fds:
        os.set_inheritable(fd, False)
    rest, text = int.from_bytes(head, "big"), b""
    while head and len(text) < rest and (part := runner.recv(rest - len(text))):
        text += part
    if len(head) < HEAD or len(text) < rest:
        return None, fds
    return json.loads(text) if text else {}, fds


def _leave(keepers: set[int], folders: list[str]) -> None:
    """All that runs ends, and folders that nobody else removes now go."""
    for keeper in keepers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(keeper, signal.SIGTERM)
    for _ in _ended(block=True):
        pass
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


# --- signals: a wait that they end, whatever moment they come at ------------------------------------------------------


def _woken_by_signals() -> tuple[dict[signal.Signals, Any], tuple[int, int]]:
    """What was done before with a child's end and SIGTERM, and a pipe in which they are to be read from now on."""
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    before: dict[signal.Signals, Any] = {
        number: signal.signal(number, lambda *_: None) for number in (signal.SIGCHLD, signal.SIGTERM)
    }
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return before, (woken, wake)


def _forget_signals(before: dict[signal.Signals, Any], wakes: tuple[int, int]) -> None:
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)
    for fd in wakes:
        os.close(fd)


def _ended(block: bool) -> Iterator[tuple[int, int]]:
    """Numbers and exit codes of children that have ended: those that have already, or all there are."""
    while True:
        try:
            child, status = os.waitpid(-1, 0 if block else os.WNOHANG)
        except ChildProcessError:
            return
        if not child:
            return
        yield child, os.waitstatus_to_exitcode(status)


# --- a keeper ---------------------------------------------------------------------------------------------------------


def keep(request: dict[str, Any]) -> dict[str, Any]:
    """Start a task, and end when nothing of it is left; returns in the task only, with the request."""
    output, pipe = request["output"], request["pipe"]
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    before, wakes = _woken_by_signals()
    task = os.fork()
    if not task:
        os.setpgid(0, 0)
        _forget_signals(before, wakes)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        _tell(pipe, BEGIN, os.getpid())  # by itself: nothing of a task is told before its number, however short it is
        return request
    os.close(output)
    if "orders" in request:
        os.close(request["orders"])
    code = _code_of(task, wakes[0], pipe)
    with contextlib.suppress(OSError):
        os.killpg(task, signal.SIGKILL)  # what it has left in the background
    ends = _end_descendants()
    if code is None:
        code = ends.get(task, -signal.SIGKILL)
        _undo(request["undo"])
    _tell(pipe, END, code)
    os._exit(0)


def _code_of(task: int, woken: int, pipe: int) -> int | None:
    """The task's exit code when it has ended; None where it is to be ended."""
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    poll.register(pipe, 0)  # an error there: nobody reads it any more
    while True:
        ready = dict(poll.poll())
        told = os.read(woken, 4096) if woken in ready else b""
        for child, code in _ended(block=False):
            if child == task:
                return code
        if pipe in ready or signal.SIGTERM in told:
            return None


def _end_descendants() -> dict[int, int]:
    """End all children, and theirs, which become this process's when they lose their parents. Their exit codes."""
    ends: dict[int, int] = {}
    while True:
        for child in _children():
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ends
        if child:
            ends[child] = os.waitstatus_to_exitcode(status)
        else:
            time.sleep(LOOK_AGAIN_S)


def _children() -> list[int]:
    """Numbers of this process's children that have not ended, as far as /proc shows them."""
    found, parent = [], str(os.getpid())
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        with contextlib.suppress(OSError, IndexError):
            if entry.isdigit():
                with open(f"/proc/{entry}/stat") as file:
                    state, ppid = file.read().rpartition(")")[2].split()[:2]
                if ppid == parent and state != "Z":
                    found.append(int(entry))
    return found


def _undo(command: list[str]) -> None:
    """What ends a task beside its processes here: a container has its own."""
    if command:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=UNDO_S, check=False)


def _tell(pipe: int, word: str, number: int) -> None:
    with contextlib.suppress(OSError):  # the runner is gone, or the task has closed its files
        os.write(pipe, f"{word} {number}\n".encode())


# --- a parked task ----------------------------------------------------------------------------------------------------


def loaded(orders: int, modules: list[str], files: list[str], recorder: str, pipe: int, **told: Any) -> dict[str, Any]:
    """Load, then wait for what to do. It prints nothing: nobody reads that yet. recorder: the program that notes what
    the task takes, as its parent."""
    begin = time.monotonic()
    begins = _recorded(recorder) if recorder else -1
    os.environ.clear()
    os.environ.update(told["environment"])
    os.chdir(told["folder"])
    if not sys.flags.safe_path:
        sys.path[0] = told["folder"]
    streams, nothing = [os.dup(number) for number in (1, 2)], os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nothing, number)
    for place, subject in enumerate((*modules, *files)):
        try:
            if place < len(modules):
                importlib.import_module(subject)
            else:
                _read_through(subject)
        except (Exception, SystemExit):  # others are loaded all the same, and the task will say what it lacks
            _tell(pipe, LACKS, place)
    for number, stream in enumerate(streams, start=1):
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(stream, number)
        os.close(stream)
    os.close(nothing)
    _tell(pipe, WARM, round(1000 * (time.monotonic() - begin)))
    with os.fdopen(orders) as read:
        text = read.read()
    if not text:
        os._exit(0)
    if begins >= 0:
        os.write(begins, b"!")
        os.close(begins)
    return {**json.loads(text), "folder": told["folder"], "pipe": -1 if recorder else pipe}


def _recorded(recorder: str) -> int:
    """Fork, and return in the child: what is written there lets the parent note what the child takes from then on."""
    wait, begins = os.pipe()
    child = os.fork()
    if not child:
        os.close(wait)
        return begins
    os.close(begins)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # the whole group hears of it
    if not os.read(wait, 1):
        os._exit(0)
    program: dict[str, Any] = {"__name__": "egs_recorder"}
    exec(recorder, program)
    os._exit(program["finish"](time.time(), child))


def _read_through(path: str) -> None:
    """So that its pages are in memory."""
    buffer = bytearray(1 << 20)
    with open(os.path.expanduser(path), "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


# --- a task -----------------------------------------------------------------------------------------------------------


def become(command: list[str], environment: dict[str, str], folder: str) -> None:
    """Any command, in this process."""
    for name in GIVEN_BACK:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.chdir(folder)
        os.execvpe(command[0], command, environment)
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error}\n".encode())
        os._exit(CANNOT_START)


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
    made = keep(serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[3] == "imports", sys.argv[4:]))
    del made["output"], made["undo"]
    if "orders" in made:
        made = loaded(**made)
    if "command" in made:
        del made["pipe"]
        become(**made)
    execute(**made)
