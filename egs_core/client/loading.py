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

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from egs_core.client import messages as c
from egs_core.client.groups import LeaseGroup
from egs_core.client.hooked import Hooked, config_of
from egs_core.client.processes import descendants
from egs_core.client.python_words import PLACE, python_words
from egs_core.client.ready import Ready, Standing
from egs_core.errors import EgsError, InputError

SOON_S = 30.0
"""Nothing is loaded for a run that is known to start later than in so long."""
SLOWEST_LOOK_S, UNORDERED_LOOK_S, NEVER_S = 30.0, 5.0, 60.0


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
    that nothing is loaded, and why. ready: where one may stand that has loaded already."""

    def __init__(
        self,
        command: Sequence[str],
        modules: Sequence[str],
        environment: Mapping[str, str],
        mask: Iterable[int],
        ask: Callable[[str], c.RunView],
        say: Callable[[str], None],
        ready: Ready | None = None,
    ) -> None:
        self._command, self._modules = list(command), modules
        self._environment, self._mask = environment, mask
        self._ask, self._say = ask, say
        self._ready = ready  # until its first turn
        self._next_s: float | None = None  # since when it is among the next
        self._trial: Hooked | None = None
        self._process: Hooked | Standing | None = None  # that loads, or has, and waits
        self._begun: Hooked | Standing | None = None  # the command's, from its turn on
        self._is_over, self._look_at, self._run = not modules, 0.0, ""

    def step(self, run: str, state: str) -> float:
        """What there is to do while it waits. In how many seconds to call it again, or when a child has ended."""
        self._run = run
        if self._is_over or state != "waiting":
            return NEVER_S
        if self._process is not None:
            if self._process.has_ended():
                self._give_up(self._process.hook.why_not() or "its process has ended")
            return NEVER_S
        if self._trial is not None:
            return self._try()
        now = time.monotonic()
        if now >= self._look_at:
            patience_s = self._patience_s()
            if patience_s is None:
                self._next_s = now
                self._process = self._ready.take(None) if self._ready is not None else None
                return self._try() if self._process is None else NEVER_S
            self._look_at = now + patience_s
        return self._look_at - now

    def begin(self, environment: Mapping[str, str], own_group: int | None, group: LeaseGroup | None) -> int | None:
        """It has its turn. The number of the process that is the command's from now on, once it has loaded; None where
        there is none. own_group: of processes, which it is to be in instead of one of its own; group: of its lease."""
        process, self._process = self._process, None
        self.close()
        if self._begun is not None:  # of an earlier turn
            self._begun.hook.close()
            self._begun = None
        if self._ready is not None and own_group is None:
            process = self._taken(self._ready, process)
        self._ready = None
        if process is None:
            return None
        if process.has_ended():
            self._tell(process.hook.why_not() or "its process has ended")
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

    def _taken(self, ready: Ready, process: Hooked | Standing | None) -> Hooked | Standing | None:
        """What stands ready counts runs that had no time to load by themselves."""
        waited_s = 0.0 if self._next_s is None else time.monotonic() - self._next_s
        if process is None:
            return ready.take(waited_s)
        ready.came(waited_s, process.pid)
        return process

    @property
    def standing(self) -> Standing | None:
        """The command's process where it stood ready: then it is no child of this one."""
        return self._begun if isinstance(self._begun, Standing) else None

    def was_in_vain(self, pid: int) -> bool:
        """Whether this process, which has ended, was to be the command's and nothing of the command has run in it."""
        process, self._begun = self._begun, None
        if process is None or process.pid != pid:
            return False
        has_begun = "begun" in process.hook.said()
        if not has_begun:
            self._tell(process.hook.why_not() or "its process has ended")
        process.hook.close()
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
        """After how long to look again; None where it is among the next, or, of short runs, those after them."""
        try:
            view = self._ask(self._run)
        except EgsError:
            return UNORDERED_LOOK_S
        if view.rounds is None or view.state != "waiting":
            return UNORDERED_LOOK_S
        later = view.rounds - (self._ready is not None and self._ready.is_short)
        if later > 0:
            return min(SLOWEST_LOOK_S, 2.0 * later)
        early_s = 0.0 if view.starts_in_s is None else view.starts_in_s - SOON_S
        return min(SLOWEST_LOOK_S, early_s) if early_s > 0 else None

    def _try(self) -> float:
        """Whether this Python runs the hook; then the command's own process."""
        try:
            words = python_words(self._command)
            if self._trial is None:
                self._trial = Hooked.trial(
                    words.interpreter, self._config((), words.first), self._environment, self._mask
                )
            if not self._trial.has_ended():
                return NEVER_S
            if "here" not in self._trial.hook.said():
                self._give_up(f"{self._command[0]} does not run what it finds by PYTHONPATH as sitecustomize")
                return NEVER_S
            self._trial.hook.close()
            config = self._config(self._modules, words.first)
            self._trial, self._process = None, Hooked(self._command, config, self._environment, self._mask)
        except OSError as error:
            self._give_up(f"{self._command[0]}: {error.strerror}")
        except InputError as error:  # of `egs redo`, for a job of another version
            self._give_up(error.problem)
        return NEVER_S

    def _config(self, modules: Iterable[str], first: str) -> list[str]:
        return config_of(modules, first, os.getcwd(), self._environment)

    def _give_up(self, why: str) -> None:
        self.close()
        self._tell(why)

    def _tell(self, why: str) -> None:
        self._say(f"run {self._run}: nothing is loaded ahead: {why}; its command starts as without {PLACE}")
