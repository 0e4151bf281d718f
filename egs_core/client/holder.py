"""What holds one process that stands ready: its parent, and that of what it leaves (a subreaper), until nothing of it
is left. Forked by the keeper, with which it ends unless an `egs run` has taken the process; then it tells that one how
the process ends, and ends with it, while the command goes on as that of any `egs run` that was killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from typing import NoReturn

from egs_core.client.hooked import Hooked, config_of, kill_all
from egs_core.client.processes import adopt_orphans
from egs_core.client.python_words import python_words
from egs_core.client.ready import TAKEN, Line
from egs_core.client.signals import SignalQueue
from egs_core.errors import EgsError

ROOM = 1024
"""Bytes that the last argument of a process leaves for those of its turn, as `ps` shows them."""
SAYS = "(stands ready, of egs run --keep-ready)"
TRIAL_S = 60.0
MOST_BYTES = 1 << 12


def hold(line: Line, control: socket.socket) -> NoReturn:
    """In a fork of the keeper."""
    try:
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) != control.fileno():
                with contextlib.suppress(OSError):  # that of the folder
                    os.close(int(name))
        control.setblocking(True)
        signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGCHLD])  # not the keeper's, which takes what ends it
        adopt_orphans()
        _hold(line, control, SignalQueue([signal.SIGCHLD]))
    except EgsError as error:
        _tell(control, f"not {error}")
    except OSError as error:
        _tell(control, f"not {line.command[0]}: {error.strerror}")
    finally:
        os._exit(0)


def _hold(line: Line, control: socket.socket, ends: SignalQueue) -> None:
    os.chdir(line.folder)
    os.environ["PATH"] = line.environment.get("PATH", os.defpath)  # where its program is looked for
    words = python_words(line.command)
    trial = Hooked.trial(
        words.interpreter, config_of((), line.first, line.folder, line.environment), line.environment, line.mask
    )
    until = time.monotonic() + TRIAL_S
    while not trial.has_ended() and time.monotonic() < until and not _hears(control, 0.0):
        ends.next(0.1)
    if "here" not in trial.hook.said():
        trial.end()
        _tell(control, f"not {line.command[0]} does not run what it finds by PYTHONPATH as sitecustomize")
        return
    trial.hook.close()
    config = config_of(line.modules, line.first, line.folder, line.environment, [str(ROOM)])
    theirs, ours = _stand_ins(line.streams)
    process = Hooked([*line.command, SAYS.ljust(ROOM)], config, line.environment, line.mask, theirs)
    for handle in theirs:
        os.close(handle)
    try:
        socket.send_fds(control, [f"pid {process.pid}".encode()], [process.hook.fileno()])
    except OSError:
        process.end()
        raise
    process.hook.close()
    _watch(process.pid, control, ends)
    for handle in ours:
        os.close(handle)


def _watch(pid: int, control: socket.socket, ends: SignalQueue) -> None:
    """Until nothing is left below this process, or nobody wants to hear of it."""
    is_taken = False
    try:
        while True:
            while True:
                try:
                    ended, status = os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    _tell(control, "over")
                    return
                if not ended:
                    break
                if ended == pid:
                    code = os.waitstatus_to_exitcode(status)
                    _tell(control, f"ended {code if code >= 0 else 128 - code}")
            ready = select.select([control.fileno(), ends.fileno()], [], [])[0]
            ends.next(0.0)
            if control.fileno() in ready:
                try:
                    heard = control.recv(MOST_BYTES)
                except OSError:
                    heard = b""
                is_taken = is_taken or heard == TAKEN
                if not heard:
                    return
    finally:
        if not is_taken:
            kill_all(pid)


def _stand_ins(kinds: list[str]) -> tuple[list[int], list[int]]:
    """Of the standard streams, until its turn: for the process, and what is to stay open here meanwhile."""
    theirs, ours = list[int](), list[int]()
    for number, kind in enumerate(kinds):
        if kind.startswith("pipe"):
            reading, writing = os.pipe()
            theirs.append(writing if number else reading)
            if number:
                ours.append(reading)
            else:
                os.close(writing)
        elif kind.startswith("file"):
            theirs.append(os.memfd_create("egs-stream"))
        else:
            theirs.append(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
    for handle, kind in zip(theirs, kinds, strict=True):
        if kind.split()[1] != str(os.fstat(handle).st_blksize):
            raise EgsError(f"its streams have blocks of {kind.split()[1]} bytes")
    return theirs, ours


def _hears(control: socket.socket, patience_s: float) -> bool:
    return bool(select.select([control], [], [], patience_s)[0])


def _tell(control: socket.socket, text: str) -> None:
    with contextlib.suppress(OSError):
        control.send(text.encode(errors="replace")[:MOST_BYTES])
