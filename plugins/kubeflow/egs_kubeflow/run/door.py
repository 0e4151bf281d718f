"""The door of a run: a socket by which other processes of the same user see and steer it (`egs ps`, `abort`, `pause`).

    DATA FOLDER/running/NAME/door     mode 0600, in a folder of mode 0700; whoever connects is this user, or root

One request a connection, a line of JSON, and one line back. The kernel tells whether a run is still there: nobody
listens at a socket whose process is gone. What such a run has left goes when the next one looks, at the latest. A run
whose door cannot be made goes on without, with one warning; EGS_CONTROL=off: none is made.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from egs_core.adapter import ControlOutcome, ControlRequest, RunningWorkload
from egs_core.errors import InputError
from egs_core.notices import warn
from egs_core.places import data_folder

DOOR, MAKING = "door", "making"
CONTROL = "EGS_CONTROL"
PATIENCE_S = 5.0
"""How long a connection may take to say what it wants."""
CLOSE_S = 1.0
MOST_BYTES = 1 << 16
LONGEST = 100
"""Characters of a path that a socket's address takes everywhere."""


class Answer(msgspec.Struct, omit_defaults=True):
    """What a run answers: how far it is, what it did, or the problem with what was asked."""

    running: RunningWorkload | None = None
    outcome: ControlOutcome | None = None
    place: str = ""
    problem: str = ""
    hint: str = ""


class Asked(msgspec.Struct, omit_defaults=True):
    """What a run is asked: to do this, or how far it is."""

    request: ControlRequest | None = None


class Operated(Protocol):
    """What stands behind a door; called on its thread."""

    def running(self) -> RunningWorkload: ...

    def carry_out(self, request: ControlRequest) -> ControlOutcome: ...


def folder_of_doors() -> Path:
    """Where the doors of this user's runs are; not made here."""
    return data_folder() / "running"


class Door:
    """See the module. Made before the run, so that its folder can go with the run whatever happens; then opened."""

    def __init__(self) -> None:
        self.folder = folder_of_doors() / f"{os.getpid()}-{secrets.token_hex(4)}"
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._is_closing = False

    def open(self, behind: Operated) -> None:
        """From now on others may knock. Never raises."""
        if os.environ.get(CONTROL, "").strip().lower() == "off":
            return
        try:
            self._socket = self._listening()
        except OSError as error:
            warn(f"no control of this run from other processes: {error}")
            return
        self._thread = threading.Thread(target=self._serve, args=(self._socket, behind), name="egs-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Nobody can knock any more, and nothing is left of it."""
        self._is_closing = True
        if self._socket is not None and self._thread is not None:
            with contextlib.suppress(OSError), knocked(self.folder, CLOSE_S):  # it wakes the thread
                pass
            self._thread.join(CLOSE_S)
            self._socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _listening(self) -> socket.socket:
        parent = self.folder.parent
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_stale(parent)
        self.folder.mkdir(mode=0o700)
        made = socket.socket(socket.AF_UNIX)
        try:
            with _address(self.folder / MAKING) as address:
                made.bind(address)
            os.chmod(self.folder / MAKING, 0o600)
            made.listen()
            os.rename(self.folder / MAKING, self.folder / DOOR)  # nobody takes it for one that nobody is behind
        except OSError:
            made.close()
            raise
        return made

    def _serve(self, listening: socket.socket, behind: Operated) -> None:
        while not self._is_closing:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):  # who asked has gone, or says nothing
                connection.settimeout(PATIENCE_S)
                if line := read_line(connection):
                    connection.sendall(msgspec.json.encode(_answer(line, behind)) + b"\n")


def _answer(line: bytes, behind: Operated) -> Answer:
    try:
        request = msgspec.json.decode(line, type=Asked).request
        return Answer(behind.running()) if request is None else Answer(outcome=behind.carry_out(request))
    except InputError as error:
        return Answer(place=error.place, problem=error.problem, hint=error.hint)
    except Exception as error:  # the run goes on, whatever it was asked
        return Answer(problem=f"could not be asked: {type(error).__name__}: {error}")


def read_line(connection: socket.socket) -> bytes:
    """A line without its end; b"" where there is none. Raises OSError."""
    found = b""
    while not found.endswith(b"\n"):
        part = connection.recv(MOST_BYTES)
        if not part:
            return b""
        found += part
    return found[:-1]


@contextlib.contextmanager
def knocked(folder: Path, patience_s: float) -> Iterator[socket.socket]:
    """A connection to the door in a folder. Raises OSError: ConnectionRefusedError, FileNotFoundError where nobody is
    behind it."""
    with socket.socket(socket.AF_UNIX) as found, _address(folder / DOOR) as address:
        found.settimeout(patience_s)
        found.connect(address)
        yield found


def remove_stale(parent: Path) -> None:
    """Remove what runs have left whose processes are gone."""
    for folder in parent.glob("*-*"):
        try:
            with knocked(folder, CLOSE_S):
                pass
        except ConnectionRefusedError:
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # one that is being made has no door yet


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """The address of a socket: its path, or a shorter one where that is too long for an address."""
    if len(os.fsencode(path)) <= LONGEST:
        yield str(path)
        return
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)
