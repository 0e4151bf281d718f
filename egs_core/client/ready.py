"""`egs run --keep-ready`: what a run and the keeper of what stands ready between runs say to each other, and a run's
part in it.

    egs run ── Ask: its turn has come, one is wanted ──► keeper
            ◄── Answer, with two sockets ─────────────── one to what holds the process, one to the hook in it
            ── taken ─► holder      ── arguments, variables, streams ─► hook     the keeper has no part in it any more
            ◄── ended CODE, over ── holder

One keeper a user and surroundings (`surroundings`): its socket's name is made of them, and what stands ready is
compared once more when it is taken. A line is what its runs have in common; of another one nothing is taken.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from egs_core.client.absent_modules import absent_words
from egs_core.client.hooked import END_LOOK_S, END_S, HOOK, Hook
from egs_core.client.messages import Process
from egs_core.client.places import TOKEN, TOKEN_FILE
from egs_core.client.processes import LEASE_VARIABLE, descendants, is_alive, process
from egs_core.client.python_words import python_words
from egs_core.client.surroundings import (
    FOLDER,
    fixed,
    handed_down,
    has_kept_streams,
    ignored,
    is_executed,
    is_in_foreground,
    streams,
    surroundings,
)
from egs_core.described import describe
from egs_core.errors import InputError, listed

BOOT = "/proc/sys/kernel/random/boot_id"
PREFIX, SOCKET = "ready-", ".sock"
MOST_READY = 16
ANSWER_S = 1.0
"""So long the keeper may take to answer; then it starts as without."""
MOST_BYTES = 160_000
"""Of a message: Linux takes no longer ones on such a socket by default."""
CODE = ("keeper.py", "holder.py", "ready.py", "hooked.py", "stock.py")
MORE_BYTES = 100
"""By so much a later question may be longer than the first."""
MOST_PATH = 107
"""Bytes of a socket's path: Linux's own bound."""
MOST_HOME = 50
"""Letters of the folder in which that of sockets is, so that the path of one is short enough."""
PEER = struct.Struct("3i")
"""What the kernel tells of the other end of a socket: process, user, group."""
TAKEN = b"taken"
MOST_NAMED = 4


class Line(msgspec.Struct, frozen=True):
    """What runs have in common that are served by the same processes. command: without what its program finds as
    arguments; first: see `PythonWords`, without symbolic links, which may lead elsewhere later; environment: without
    what differs from run to run; streams: their kinds."""

    command: list[str]
    first: str
    folder: str
    modules: list[str]
    environment: dict[str, str]
    mask: list[int]
    streams: list[str]


class Ask(msgspec.Struct, frozen=True):
    """line: None to be shown all. most: so many may stand ready for it. comes: the run does, now. wants: one, now.
    waited_s: the run has its turn, and has waited so long for it since it could begin to load; None: it has not. Then
    came_ago_s: it has come so long ago; pid: of the process that it took before, 0 for none."""

    line: Line | None = None
    most: int = 0
    comes: bool = False
    wants: bool = False
    waited_s: float | None = None
    came_ago_s: float = 0.0
    pid: int = 0


class Shown(msgspec.Struct, frozen=True):
    """One process that stands ready. loaded_s: what loading took; None: it loads."""

    pid: int
    command: str
    modules: str
    loaded_s: float | None
    size_bytes: int


class Answer(msgspec.Struct, frozen=True):
    """keeper: its number; pid, holder: of the process that comes with it, 0 for none; why: none stands ready for the
    line; is_short: its runs are too soon over for the next ones to load in one round."""

    keeper: int
    pid: int = 0
    holder: int = 0
    why: str = ""
    is_short: bool = False
    standing: list[Shown] = []


describe(Ask, Answer)


class Ready:
    """One run's. environment, mask: of its command; most: that may stand ready; say: tells the user one line."""

    def __init__(
        self,
        command: Sequence[str],
        modules: Sequence[str],
        environment: Mapping[str, str],
        mask: Iterable[int],
        most: int,
        say: Callable[[str], None],
    ) -> None:
        self._say, self._most, self._command, self._modules = say, most, command, modules
        self._own = surroundings()
        self._is_first = self._is_over = False
        self.is_short = False  # see Answer
        self._came_s = time.monotonic()
        self._path = Path()
        self._line: Line | None = None
        why = _why_not(environment)
        found = streams()
        if why or found is None:
            self._give_up(why or "its standard streams are a terminal, a socket or a device")
            return
        try:
            found_words = python_words(command)
        except InputError as error:  # of `egs redo`, for a job of another version
            self._give_up(error.problem)
            return
        self._arguments = found_words.arguments
        same = dict(sorted(fixed(environment).items()))
        words = list(command[: len(command) - len(self._arguments)])
        mask = sorted(map(int, mask))
        self._line = Line(words, found_words.first, os.getcwd(), list(modules), same, mask, found)

    def start(self) -> None:
        """Have a keeper. Where there is none, one is begun, and is told of this run. Only where this process has one
        thread, and before it takes care of orphans: the keeper is to be none of its own."""
        self._have_keeper()
        is_told = not self._is_first and not self._is_over  # by the keeper
        if not is_told and (line := absent_words(self._command, self._modules)):
            self._say(line)

    def _have_keeper(self) -> None:
        if self._line is None:
            return
        try:
            first = msgspec.json.encode(Ask(self._line, self._most, waited_s=0.0))
            if len(first) > MOST_BYTES - MORE_BYTES:
                self._give_up("its environment is too large")
                return
            self._path = folder() / (PREFIX + _name(self._own) + SOCKET)
            if len(os.fsencode(self._path)) > MOST_PATH:
                self._give_up(f"the path of a socket has {MOST_PATH} bytes at most: {self._path}")
                return
            with contextlib.suppress(OSError):
                connected(self._path).close()
                self.is_short = self._asked(comes=True)[0].is_short
                return
            tempfile.TemporaryFile(dir=self._path.parent).close()  # else nobody hears that the keeper has no room there
            _start_keeper(self._path, first)
            self._is_first = True
        except (OSError, UnicodeError) as error:
            self._give_up(f"nothing can stand ready: {error}")

    def take(self, waited_s: float | None) -> Standing | None:
        """One that stands ready, if any. waited_s: of a run that has its turn; None of one that waits."""
        answer, handles = self._asked(wants=True, waited_s=waited_s)
        if answer.why:
            self._give_up(answer.why)
        one = process(answer.pid) if answer.pid else None
        if self._line is None or one is None or len(handles) != 2:
            for handle in handles:
                os.close(handle)
            return None
        standing = Standing(one, answer.holder, handles, self._line, self._arguments)
        if why := self._differs(standing):
            standing.end()
            self._give_up(why)
            return None
        return standing

    def _differs(self, standing: Standing) -> str:
        """Why its process is not as without; "" where it is."""
        assert self._line is not None
        pid, holder = standing.pid, standing.holder
        differs = [name for name, value in surroundings(pid).items() if value != self._own[name]]
        if ignored(holder) != ignored():
            differs.append("ignored signals")
        if differs:
            return f"{', '.join(differs)} of what stands ready is another"
        program = self._line.command[0]
        if not is_executed(pid, program, self._line.environment.get("PATH", os.defpath)):
            return f"{program} is another program than what stands ready, or has executed that"
        if has_kept_streams(pid, [below.pid for below in descendants(holder) if below.pid != pid]):
            return "what is imported has kept standard streams, or has started what has them"
        return ""

    def came(self, waited_s: float, pid: int) -> None:
        """The run has its turn, and takes none. pid: of the process that it has."""
        self._asked(waited_s=waited_s, pid=pid)

    def _asked(
        self, *, comes: bool = False, wants: bool = False, waited_s: float | None = None, pid: int = 0
    ) -> tuple[Answer, list[int]]:
        if self._line is None or self._is_over or (self._is_first and not wants):
            return Answer(0), []
        try:
            with connected(self._path) as to:
                told_s, ago_s = None if self._is_first else waited_s, time.monotonic() - self._came_s
                to.send(msgspec.json.encode(Ask(self._line, self._most, comes, wants, told_s, ago_s, pid)))
                message, handles, _, _ = socket.recv_fds(to, MOST_BYTES, 2)
            for handle in handles:
                os.set_inheritable(handle, False)
            return msgspec.json.decode(message, type=Answer), handles
        except (OSError, UnicodeError, msgspec.MsgspecError):  # no keeper, or a busy one
            return Answer(0), []

    def _give_up(self, why: str) -> None:
        self._is_over = True
        self._say(f"nothing stands ready for it: {why}; its command starts as without --keep-ready")


class Standing:
    """A process that stood ready and is this run's now. It is not a child of ours: `holder` tells of its end."""

    def __init__(self, one: Process, holder: int, handles: Sequence[int], line: Line, arguments: Sequence[str]) -> None:
        self.pid, self.holder, self.one = one.pid, holder, one
        self._shown, self._arguments = line.environment, list(arguments)
        self.control = socket.socket(fileno=handles[0])
        self.hook = Hook(socket.socket(fileno=handles[1]))

    def begin(self, environment: Mapping[str, str], own_group: int | None) -> None:
        """Its turn, with this process's streams. Raises OSError."""
        assert own_group is None, "it is of another session"
        changed = [f"{name}={value}" for name, value in environment.items() if self._shown.get(name) != value]
        words = ["", environment[LEASE_VARIABLE], str(len(self._arguments)), *self._arguments, *changed]
        self.control.send(TAKEN)
        self.hook.send(words, (0, 1, 2))

    def has_ended(self) -> bool:
        return not is_alive(self.one)

    def end(self) -> None:
        """With all that it has started: its holder sees to that."""
        self.control.close()
        self.hook.close()
        until = time.monotonic() + END_S
        while not self.has_ended() and time.monotonic() < until:
            time.sleep(END_LOOK_S)


def folder(*, is_made: bool = True) -> Path:
    """Where keepers' sockets are: this user's alone. Raises OSError."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    is_fit = given and len(given) <= MOST_HOME and Path(given).is_dir()
    home = Path(given if is_fit else tempfile.gettempdir())
    found = home / f"egs-ready-{os.getuid()}"
    if is_made:
        with contextlib.suppress(FileExistsError):
            found.mkdir(mode=0o700)
    told = found.lstat()
    if not stat.S_ISDIR(told.st_mode) or told.st_uid != os.getuid() or told.st_mode & 0o077:
        raise PermissionError(f"{found} is not this user's alone")
    return found


def connected(path: Path) -> socket.socket:
    """To the keeper there. Raises OSError."""
    to = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        to.settimeout(ANSWER_S)
        to.connect(str(path))
        check_peer(to)
    except OSError:
        to.close()
        raise
    return to


def check_peer(to: socket.socket) -> None:
    """Whether it is of this user. Raises PermissionError."""
    user = PEER.unpack(to.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))[1]
    if user != os.geteuid():
        raise PermissionError("the other end of a socket is another user's")


def shown() -> list[Answer]:
    """Of each keeper of this user, for whatever surroundings, what stands ready."""
    found: list[Answer] = []
    with contextlib.suppress(OSError):
        for path in sorted(folder(is_made=False).glob(f"{PREFIX}*{SOCKET}")):
            with contextlib.suppress(OSError, msgspec.MsgspecError), connected(path) as to:
                to.send(msgspec.json.encode(Ask()))
                found.append(msgspec.json.decode(to.recv(MOST_BYTES), type=Answer))
    return found


def _why_not(environment: Mapping[str, str]) -> str:
    if os.getpid() == 1:
        return "this is the first process of its container, and would wait for what stands ready"
    if LEASE_VARIABLE in environment:
        return "this runs under another run's lease"
    if is_in_foreground():
        return "this is in the foreground of a terminal"
    if found := handed_down():
        return _close_words(found)
    return ""


def _close_words(files: Mapping[int, str]) -> str:
    """That these are open, and how to have them closed.

    >>> _close_words({9: "the file /run/lock/train.lock"})
    'its command would inherit file descriptor 9 (the file /run/lock/train.lock): close it (egs run … 9>&-)'
    """
    named = listed([f"{number} ({what})" for number, what in files.items()], MOST_NAMED)
    closed = " ".join([f"{number}>&-" for number in [*files][:MOST_NAMED]])
    noun, them = ("descriptor", "it") if len(files) == 1 else ("descriptors", "them")
    return f"its command would inherit file {noun} {named}: close {them} (egs run … {closed})"


def _name(own: Mapping[str, str]) -> str:
    here = Path(__file__).parent
    code: list[Any] = [sys.executable, str(here), *[(here / one).stat().st_mtime_ns for one in CODE]]
    code += [(HOOK / "sitecustomize.py").stat().st_mtime_ns, Path(BOOT).read_text()]
    same = sorted((name, value) for name, value in own.items() if name != FOLDER)
    return hashlib.sha256(repr([code, same, ignored()]).encode(errors="replace")).hexdigest()[:16]


def _start_keeper(path: Path, first: bytes) -> None:
    """In a session of its own, as nobody's child; it reads its first question from a file. Raises OSError."""
    environment = {name: value for name, value in os.environ.items() if name not in (TOKEN, TOKEN_FILE)}
    asked = os.memfd_create("egs-ready")
    try:
        os.write(asked, first)
        os.lseek(asked, 0, os.SEEK_SET)
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                nothing = os.open(os.devnull, os.O_RDWR)
                moved = [(os.POSIX_SPAWN_DUP2, one, number) for number, one in enumerate((asked, nothing, nothing))]
                words = [sys.executable, "-P", "-m", "egs_core.client.keeper", str(path)]
                os.posix_spawn(sys.executable, words, environment, file_actions=moved, setsigmask=[])
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    finally:
        os.close(asked)
