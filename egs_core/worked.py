"""What a task tells of its work, in units of its own, by which `egs cost` divides what the task held.

    for batch in batches:
        fit(batch)
        egs.work(tokens=batch.tokens)       # adds up; images=…, samples=…: units have any name

The sums stay in the task's process until its adapter asks for them (`take`): a call costs about ten microseconds, and
without EGS it is of no use and does no harm. Where the adapter only starts a process, and has no code in it, the
variable names a folder in which each process of the task keeps a file of its sums (`told_in`).

This module runs inside workers: standard library only.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from egs_core.notices import warn_once

FOLDER = "EGS_WORK"
MOST_UNITS = 32
MOST_LETTERS = 100
MOST_BYTES = 64 * 1024  # of a process's file: so many units with names of so many letters, each escaped
MOST_AMOUNT = 1e30  # that a site server takes


class _Sums:
    """Of this process: amounts since they were last taken, total ever. file: where the total is kept, too; length: of
    what stands there."""

    def __init__(self) -> None:
        self.amounts: dict[str, float] = {}
        self.total: dict[str, float] = {}
        self.lock = threading.Lock()
        self.file: int | None = None
        self.length = 0

    def add(self, units: Mapping[str, float]) -> None:
        with self.lock:
            for unit, amount in units.items():
                if unit not in self.total:
                    _check(unit, len(self.total))
                self.amounts[unit] = self.amounts.get(unit, 0.0) + amount
                self.total[unit] = self.total.get(unit, 0.0) + amount
            if folder := os.environ.get(FOLDER):
                self._keep(folder)

    def _keep(self, folder: str) -> None:
        """One write in place, so that a process that is killed has told all."""
        if self.file is None:
            path = Path(folder) / f"{os.getpid()}-{time.monotonic_ns()}.json"
            self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        text = json.dumps(self.total).encode().ljust(self.length)  # it may be shorter than what stands there
        os.pwrite(self.file, text, 0)
        self.length = len(text)

    def take(self) -> dict[str, float]:
        with self.lock:
            amounts, self.amounts = self.amounts, {}
            return amounts


_sums = _Sums()
_on_work: Callable[[], object] | None = None


def _begin_anew() -> None:
    """In a child: what its parent has told is told, and another thread may have held the lock."""
    global _sums, _on_work
    _sums, _on_work = _Sums(), None


os.register_at_fork(after_in_child=_begin_anew)


def work(**units: float) -> None:
    """Tell that this task has done so much more: `egs.work(tokens=4096)`. Sums go into the run log when the task ends.
    Never raises: what is no amount (negative, not finite, no number) is one warning, and not counted."""
    try:
        _sums.add({unit: _amount(unit, value) for unit, value in units.items()})
        if _on_work is not None:
            _on_work()
    except OSError as error:  # a full disk is not the task's business
        warn_once(f"egs.work: what this process has told is not kept: {error.strerror}")
    except Exception as error:  # a value of any type may raise anything
        warn_once(f"egs.work: {error}")


def _amount(unit: str, value: float) -> float:
    try:
        amount = float(value)
    except (TypeError, ValueError, OverflowError):
        amount = math.nan
    if not (math.isfinite(amount) and amount >= 0):
        raise ValueError(f"{unit}={value!r} is no amount, and is not counted")
    return amount


def _check(unit: str, known: int) -> None:
    """Raises ValueError for a unit that would make logs grow without end. known: how many there are."""
    if known >= MOST_UNITS:
        raise ValueError(f"{unit[:20]!r} is not counted: there are {MOST_UNITS} units already")
    if len(unit) > MOST_LETTERS or not unit.isprintable():
        raise ValueError(f"{unit[:20]!r} is not counted: a unit's name has at most {MOST_LETTERS} letters")


def take() -> dict[str, float]:
    """What was told in this process since the last call, by unit. For adapters: around a task."""
    return _sums.take()


def on_work(callback: Callable[[], object]) -> None:
    """For adapters: call it each time after this process has told of work, on the thread that tells; it must not block.
    For a process that has no end at which somebody asks, as an actor's that is killed."""
    global _on_work
    _on_work = callback


def file_told(path: str | os.PathLike[str], most: int) -> tuple[Any, float]:
    """What stands in a file of a task's process, JSON, and when it was written (seconds since 1970). The task may have
    put anything there: what is no regular file, as a FIFO whose reader would wait, or has more than `most` bytes, is
    not read. Raises OSError or ValueError."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(file, "rb") as opened:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_size > most:
            raise ValueError(f"{path}: none of a process's files")
        try:
            return json.loads(opened.read(most)), found.st_mtime
        except RecursionError:
            raise ValueError(f"{path}: nested without end") from None


def told_in(folder: str | os.PathLike[str]) -> dict[str, float]:
    """What processes of a task have told by files in the folder that `FOLDER` named, together; what is no such file is
    left out."""
    total: dict[str, float] = {}
    with contextlib.suppress(OSError):
        for path in sorted(Path(folder).glob("*.json")):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                for unit, amount in file_told(path, MOST_BYTES)[0].items():
                    with contextlib.suppress(ValueError):
                        if unit not in total:
                            _check(unit, len(total))
                        total[unit] = min(total.get(unit, 0.0) + _amount(unit, amount), MOST_AMOUNT)
    return total
