"""`egs run --preload torch`: while the run waits for its turn, its command's own Python starts and imports, so that it
begins with all of that done when its GPUs come. Such a process holds memory: at most as many of a host do as it has
devices, those of the runs that are next.

    run       waits ············ is among the next ········ has its turn
    process                      Python ─► imports, waits ─► the command     one process, a child of `egs run`

Python runs `site_hook/sitecustomize.py` first, and nothing of the command before its turn: another process of the same
interpreter shows beforehand that it does. It sees no GPU until then. It is this run's alone, of its user, and ends with
it. What goes wrong is said in one line, and the command is started as without.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from egs_core.client import messages as c
from egs_core.client.groups import LeaseGroup
from egs_core.client.phases import CUDA_VISIBLE
from egs_core.client.processes import LEASE_VARIABLE, UNGIVEN, descendants
from egs_core.client.python_words import PLACE, python_words
from egs_core.errors import EgsError, InputError

HOOK = Path(__file__).parent / "site_hook"
PRELOAD, PYTHONPATH = "EGS_PRELOAD", "PYTHONPATH"
SOON_S = 30.0
"""Nothing is loaded for a run that is known to start later than in so long."""
SLOWEST_LOOK_S, UNORDERED_LOOK_S, NEVER_S = 30.0, 5.0, 60.0
MARK_ROOM = 200  # bytes, for the lease's mark in the process's first environment
CHUNK = 1 << 16
END_S, END_LOOK_S = 5.0, 0.005
"""For so long the end of a killed process is waited for: one that reads from a disk that does not answer has none."""
DEFAULTS = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores, and a command would inherit that."""


def modules_of(options: Iterable[str]) -> list[str]:
    """Of `--preload torch,numpy`, repeated or not. Raises InputError.

    >>> modules_of(["torch,numpy", "torch.nn"])
    ['torch', 'numpy', 'torch.nn']
    """
    found = [name.strip() for option in options for name in option.split(",")]
    for name in found:
        if not all(part.isidentifier() for part in name.split(".")):
            raise InputError(PLACE, f"{name!r} is not the name of a module", "as --preload torch,numpy")
    return found


class Loading:
    """Of one run; modules: none for a run that wants none. environment: what its command will have, but for what its
    turn brings; mask: signals that are blocked in it; ask: the run as it is now, raises EgsError; say: tells the user
    that nothing is loaded, and why."""

    def __init__(
        self,
        command: Sequence[str],
        modules: Sequence[str],
        environment: Mapping[str, str],
        mask: Iterable[int],
        ask: Callable[[str], c.RunView],
        say: Callable[[str], None],
    ) -> None:
        self._command, self._modules = list(command), modules
        self._environment, self._mask = environment, mask
        self._ask, self._say = ask, say
        self._trial: _Hooked | None = None
        self._process: _Hooked | None = None  # that loads, or has, and waits
        self._begun: _Hooked | None = None  # the command's, from its turn on
        self._is_over, self._look_at, self._run = not modules, 0.0, ""

    def step(self, run: str, state: str) -> float:
        """What there is to do while it waits. In how many seconds to call it again, or when a child has ended."""
        self._run = run
        if self._is_over or state != "waiting":
            return NEVER_S
        if self._process is not None:
            if self._process.has_ended():
                self._give_up(self._process.why_not() or "its process has ended")
            return NEVER_S
        if self._trial is not None:
            return self._try()
        now = time.monotonic()
        if now >= self._look_at:
            patience_s = self._patience_s()
            if patience_s is None:
                return self._try()
            self._look_at = now + patience_s
        return self._look_at - now

    def begin(self, environment: Mapping[str, str], own_group: int | None, group: LeaseGroup | None) -> int | None:
        """It has its turn. The number of the process that is the command's from now on, once it has loaded; None where
        there is none. own_group: of processes, which it is to be in instead of one of its own; group: of its lease."""
        process, self._process = self._process, None
        self.close()
        if process is None:
            return None
        if process.has_ended():
            self._tell(process.why_not() or "its process has ended")
            process.end()
            return None
        if group is not None:
            for pid in (process.pid, *[one.pid for one in descendants(process.pid)]):
                group.take(pid)
        try:
            process.begin(environment, own_group)
        except OSError:
            process.end()
            return None
        self._begun = process
        return process.pid

    def was_in_vain(self, pid: int) -> bool:
        """Whether this process, which has ended, was to be the command's and nothing of the command has run in it."""
        process, self._begun = self._begun, None
        if process is None or process.pid != pid:
            return False
        has_begun = "begun" in process.said()
        if not has_begun:
            self._tell(process.why_not() or "its process has ended")
        process.close()
        return not has_begun

    def again(self) -> None:
        """It waits once more, for another turn."""
        self._is_over, self._look_at = not self._modules, 0.0

    def close(self) -> None:
        """End what loads. Nothing is loaded any more."""
        self._is_over = True
        for one in (self._trial, self._process):
            if one is not None:
                one.end()
        self._trial = self._process = None

    def _patience_s(self) -> float | None:
        """After how long to look again; None where it is among the next."""
        try:
            view = self._ask(self._run)
        except EgsError:
            return UNORDERED_LOOK_S
        if view.rounds is None or view.state != "waiting":
            return UNORDERED_LOOK_S
        if view.rounds > 0:
            return min(SLOWEST_LOOK_S, 2.0 * view.rounds)
        early_s = 0.0 if view.starts_in_s is None else view.starts_in_s - SOON_S
        return min(SLOWEST_LOOK_S, early_s) if early_s > 0 else None

    def _try(self) -> float:
        """Whether this Python runs the hook; then the command's own process."""
        try:
            if self._trial is None:
                interpreter = python_words(self._command).interpreter
                self._trial = self._hooked([*interpreter, "-c", ""], is_trial=True)
            if not self._trial.has_ended():
                return NEVER_S
            if "here" not in self._trial.said():
                self._give_up(f"{self._command[0]} does not run what it finds by PYTHONPATH as sitecustomize")
                return NEVER_S
            self._trial.close()
            self._trial, self._process = None, self._hooked(self._command, is_trial=False)
        except OSError as error:
            self._give_up(f"{self._command[0]}: {error.strerror}")
        except InputError as error:  # of `egs redo`, for a job of another version
            self._give_up(error.problem)
        return NEVER_S

    def _hooked(self, words: list[str], *, is_trial: bool) -> _Hooked:
        first = python_words(self._command).first
        own_path = self._environment.get(PYTHONPATH, "")
        modules = () if is_trial else self._modules
        config = [
            ",".join(modules),
            os.getcwd() if first == "." else first,
            f"={own_path}" if PYTHONPATH in self._environment else "",
        ]
        return _Hooked(words, config, self._environment, self._mask, is_trial)

    def _give_up(self, why: str) -> None:
        self.close()
        self._tell(why)

    def _tell(self, why: str) -> None:
        self._say(f"run {self._run}: nothing is loaded ahead: {why}; its command starts as without {PLACE}")


class _Hooked:
    """A process of Python that runs the hook before all else. config: see the hook. Raises OSError."""

    def __init__(
        self, words: list[str], config: list[str], environment: Mapping[str, str], mask: Iterable[int], is_trial: bool
    ) -> None:
        path = os.pathsep.join([str(HOOK), *([own] if (own := environment.get(PYTHONPATH)) else [])])
        self._shown = {**environment, CUDA_VISIBLE: ""}
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._heard, self._has_ended = b"", False
        nothing = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
        more = {
            LEASE_VARIABLE: UNGIVEN.ljust(MARK_ROOM, "-"),
            PRELOAD: f"{os.getpid()}:{theirs.fileno()}",
            PYTHONPATH: path,
        }
        try:
            self._send(config)
            theirs.set_inheritable(True)
            self.pid = os.posix_spawnp(
                words[0],
                words,
                self._shown | more,
                file_actions=nothing if is_trial else [],
                setsigdef=DEFAULTS,
                setsigmask=mask,
                setpgroup=0,
            )
        except OSError:
            self._ours.close()
            raise
        finally:
            theirs.close()

    def begin(self, environment: Mapping[str, str], own_group: int | None) -> None:
        """Its turn. Raises OSError, also where that cannot be told at once."""
        changed = [f"{name}={value}" for name, value in environment.items() if self._shown.get(name) != value]
        self._send(["" if own_group is None else str(own_group), environment[LEASE_VARIABLE], *changed])

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
                break
            self._heard += piece
        return self._heard.decode(errors="replace").splitlines()

    def why_not(self) -> str:
        """Why it is not to be the command's process; "" where it has not said."""
        return next((line.removeprefix("not ") for line in self.said() if line.startswith("not ")), "")

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
        _kill_all(self.pid)
        until = time.monotonic() + END_S
        while not self.has_ended() and time.monotonic() < until:
            time.sleep(END_LOOK_S)
        self.close()

    def close(self) -> None:
        """No more is heard of it."""
        self._ours.close()

    def _send(self, parts: list[str]) -> None:
        self._ours.send(b"\0".join(os.fsencode(part) for part in parts))


def _kill_all(pid: int) -> None:
    """This child of ours, what is below it, and what is of its group. They are stopped first, so that none starts
    another meanwhile, or leaves its children to us, where nothing tells them from others."""
    stopped: list[int] = []
    while found := [one for one in _all_of(pid) if one not in stopped]:
        _send_to(found, signal.SIGSTOP)
        stopped += found
    _send_to(stopped, signal.SIGKILL)


def _all_of(pid: int) -> list[int]:
    """Of our descendants alone: where this one has ended, its number may be a stranger's."""
    below = {pid, *(one.pid for one in descendants(pid))}
    found = []
    for one in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            if one.pid in below or os.getpgid(one.pid) == pid:
                found.append(one.pid)
    return found


def _send_to(pids: Iterable[int], wanted: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, wanted)
