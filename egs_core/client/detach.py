"""`egs run --detach`: the supervisor as a process of its own, whose log is a file of its user (mode 600).

egs run ── fork ─► a session of its own ── submit ─► run 7 ─► log renamed to SITE-7.log ─► supervise …
   ▲                                                   │
   └──────── a pipe: what to tell, then the run ───────┘
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from egs_core.client import messages as c
from egs_core.errors import EgsError
from egs_core.places import data_folder

Say = Callable[[str], None]
Supervise = Callable[[Say, Callable[[c.RunView], None]], int]
"""Runs a command to its exit code. Gets how to tell a line, and what to call once the run is known."""


def log_file(view: c.RunView) -> Path:
    """Where the output of a detached run is."""
    return data_folder() / "logs" / f"{view.site}-{view.id}.log"


def detach(supervise: Supervise, say: Say) -> str:
    """Start it, and return its run's number once the server knows it. Raises EgsError for what the server refuses.

    Only where this process has one thread: the other one is a fork of it.
    """
    log = data_folder() / "logs" / f"{secrets.token_hex(8)}.part"
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    except OSError as error:
        raise EgsError(f"{log}: {error.strerror}") from None
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(reading)
        _be_detached(supervise, log, output, writing)
    os.close(writing)
    os.close(output)
    return _heard(reading, say)


def _heard(reading: int, say: Say) -> str:
    with os.fdopen(reading) as lines:
        for line in lines:
            kind, _, text = line.rstrip("\n").partition(" ")
            if kind == "run":
                return text
            if kind == "error":
                raise EgsError(text)
            say(text)
    raise EgsError("the detached process has ended before its run was known")


def _be_detached(supervise: Supervise, log: Path, output: int, writing: int) -> None:
    """In the new process: never returns."""
    code, is_known = 1, False

    def tell(kind: str, text: str) -> None:
        os.write(writing, f"{kind} {' '.join(text.split())}\n".encode())

    def say(line: str) -> None:
        if is_known:
            os.write(output, f"egs: {line}\n".encode())
        else:
            tell("say", line)

    def known(view: c.RunView) -> None:
        nonlocal is_known
        log.rename(log_file(view))
        tell("run", view.id)
        os.close(writing)
        is_known = True

    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        code = supervise(say, known)
    except EgsError as error:
        if is_known:
            say(str(error))
        else:
            tell("error", str(error))
            log.unlink(missing_ok=True)
    finally:
        os._exit(code)  # what the first process has at its exit is that one's
