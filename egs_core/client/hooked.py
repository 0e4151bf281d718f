"""A process of Python that runs `site_hook/sitecustomize.py` before all else: it imports, waits for its turn, and then
is what it was called as. What it says comes by a socket, whose other end is whoever may give it its turn: it ends when
nobody has that any more."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from egs_core.client.phases import CUDA_VISIBLE
from egs_core.client.processes import LEASE_VARIABLE, UNGIVEN, descendants

HOOK = Path(__file__).parent / "site_hook"
PRELOAD, PYTHONPATH = "EGS_PRELOAD", "PYTHONPATH"
MARK_ROOM = 200  # bytes, for the lease's mark in the process's first environment
CHUNK = 1 << 16
END_S, END_LOOK_S = 5.0, 0.005
"""For so long the end of a killed process is waited for: one that reads from a disk that does not answer has none."""
DEFAULTS = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores, and a command would inherit that."""


class Hook:
    """One's end of the socket. Sends raise OSError, also where it would have to be waited for. is_gone: its process, or
    the program that has spoken there."""

    def __init__(self, ours: socket.socket) -> None:
        self._ours, self._heard, self.is_gone = ours, b"", False
        ours.setblocking(False)

    def fileno(self) -> int:
        return self._ours.fileno()

    def send(self, parts: Sequence[str], handles: Sequence[int] = ()) -> None:
        message = b"\0".join(os.fsencode(part) for part in parts)
        if handles:
            socket.send_fds(self._ours, [message], handles)
        else:
            self._ours.send(message)

    def said(self) -> list[str]:
        """All lines so far."""
        while True:
            try:
                piece = self._ours.recv(CHUNK)
            except ConnectionResetError:  # it has ended with something unread: what it has said comes after that
                continue
            except OSError:
                break
            if not piece:
                self.is_gone = True
                break
            self._heard += piece
        return self._heard.decode(errors="replace").splitlines()

    def why_not(self) -> str:
        """Why it is not to be the command's process; "" where it has not said."""
        return next((line.removeprefix("not ") for line in self.said() if line.startswith("not ")), "")

    def close(self) -> None:
        """No more is heard of it."""
        self._ours.close()


class Hooked:
    """Such a process, a child of this one. config: see the hook; streams: instead of this process's own. Raises
    OSError."""

    def __init__(
        self,
        words: Sequence[str],
        config: Sequence[str],
        environment: Mapping[str, str],
        mask: Iterable[int],
        streams: Sequence[int] = (),
    ) -> None:
        path = os.pathsep.join([str(HOOK), *([own] if (own := environment.get(PYTHONPATH)) else [])])
        self._shown = {**environment, CUDA_VISIBLE: ""}
        self._has_ended = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.hook = Hook(ours)
        more = {
            LEASE_VARIABLE: UNGIVEN.ljust(MARK_ROOM, "-"),
            PRELOAD: f"{os.getpid()}:{theirs.fileno()}",
            PYTHONPATH: path,
        }
        try:
            self.hook.send(config)
            theirs.set_inheritable(True)
            self.pid = os.posix_spawnp(
                words[0],
                list(words),
                self._shown | more,
                file_actions=[(os.POSIX_SPAWN_DUP2, handle, number) for number, handle in enumerate(streams)],
                setsigdef=DEFAULTS,
                setsigmask=mask,
                setpgroup=0,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()

    @classmethod
    def trial(
        cls, interpreter: Sequence[str], config: Sequence[str], environment: Mapping[str, str], mask: Iterable[int]
    ) -> Hooked:
        """One that ends when it has said that it is here: whether this Python runs the hook. Raises OSError."""
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls([*interpreter, "-c", ""], config, environment, mask, [nothing] * 3)
        finally:
            os.close(nothing)

    def begin(self, environment: Mapping[str, str], own_group: int | None) -> None:
        """Its turn. Raises OSError, also where that cannot be told at once."""
        changed = [f"{name}={value}" for name, value in environment.items() if self._shown.get(name) != value]
        self.hook.send(["" if own_group is None else str(own_group), environment[LEASE_VARIABLE], *changed])

    def has_ended(self) -> bool:
        """Then its number may be another's."""
        if not self._has_ended:
            try:
                self._has_ended = os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
            except ChildProcessError:
                self._has_ended = True
        return self._has_ended

    def end(self) -> None:
        """With all that it has started; also of one that has ended by itself and has left something."""
        kill_all(self.pid)
        until = time.monotonic() + END_S
        while not self.has_ended() and time.monotonic() < until:
            time.sleep(END_LOOK_S)
        self.hook.close()


def config_of(
    modules: Iterable[str], first: str, folder: str, environment: Mapping[str, str], more: Sequence[str] = ()
) -> list[str]:
    """What the hook is told first: see there. first: of `PythonWords`; folder: of the process."""
    own = f"={environment[PYTHONPATH]}" if PYTHONPATH in environment else ""
    return [",".join(modules), folder if first == "." else first, own, *more]


def kill_all(pid: int) -> None:
    """This child of ours, what is below it, and what is of its group. They are stopped first, so that none starts
    another meanwhile, or leaves its children to us, where nothing tells them from others."""
    stopped: list[int] = []
    while found := [one for one in _all_of(pid) if one not in stopped]:
        send_to(found, signal.SIGSTOP)
        stopped += found
    send_to(stopped, signal.SIGKILL)


def _all_of(pid: int) -> list[int]:
    """Of our descendants alone: where this one has ended, its number may be a stranger's."""
    below = {pid, *(one.pid for one in descendants(pid))}
    found = []
    for one in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            if one.pid in below or os.getpgid(one.pid) == pid:
                found.append(one.pid)
    return found


def send_to(pids: Iterable[int], wanted: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, wanted)
