"""How far a command or task has come, and how well it does: told by its code, looked at by a site server's rules.

    for step, batch in enumerate(batches):
        loss = fit(batch)
        egs.progress(step=step, loss=loss)

Unlike `egs.work` nothing adds up to be paid: only the latest counts. Each process of a command keeps a file of it in
the folder that the variable of `worked` names, by one write in place. Where an adapter has code of its own in a task's
process, that sends it on instead (`progress_told`), once a second at most. Where there is neither a call does nothing.
Besides the latest loss what is told has the number, sum and sum of squares of all finite ones, so that whoever reads
it now and then knows the mean and the spread between two looks, whatever was told meanwhile.

This module runs inside workers: standard library only.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from egs_core.notices import warn_once
from egs_core.worked import FOLDER, file_told

SUFFIX = ".progress"
MOST_FILES = 1000  # that are read: a command may start processes without end
MOST_BYTES = 4096  # of one: six numbers
MOST_LOSSES = 2**53  # that can be counted by numbers of JSON
EVERY_S = 1.0  # at most so often a task's progress is sent on


class Progressed(NamedTuple):
    """The latest step and loss; None: none was told. is_nan: the latest loss is not finite. losses, total, squares:
    of all finite losses: how many, their sum, that of their squares. at: when, in seconds since 1970."""

    step: float | None = None
    loss: float | None = None
    is_nan: bool = False
    losses: int = 0
    total: float = 0.0
    squares: float = 0.0
    at: float = 0.0


class Latest:
    """What one process has told last. file: where it is kept; length: of what stands there."""

    def __init__(self) -> None:
        self.told = Progressed()
        self.lock = threading.Lock()
        self.folder = ""
        self.file: int | None = None
        self.length = 0

    def tell(self, folder: str, step: float | None, loss: float | None) -> None:
        """Keep it in that folder; in another one than before it is another task's. Raises OSError."""
        with self.lock:
            if self.folder != folder:
                if self.file is not None:
                    os.close(self.file)
                self.told, self.folder, self.file, self.length = Progressed(), folder, None, 0
            self.told = _next(self.told, step, loss)
            if self.file is None:
                path = Path(folder) / f"{os.getpid()}-{time.monotonic_ns()}{SUFFIX}"
                self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            text = json.dumps(self.told[:-1]).encode().ljust(self.length)  # it may be shorter than what stands there
            os.pwrite(self.file, text, 0)
            self.length = len(text)


def _next(told: Progressed, step: float | None, loss: float | None) -> Progressed:
    step = told.step if step is None else step
    if loss is None:
        return told._replace(step=step)
    if not math.isfinite(loss) or not math.isfinite(squares := told.squares + loss * loss):
        return told._replace(step=step, is_nan=True)  # of a finite one whose square is none: it has diverged as well
    return Progressed(step, loss, False, told.losses + 1, told.total + loss, squares)


class Later:
    """Calls the action once, on a thread of its own, EVERY_S after the first of several `call`s; then anew. What is
    called meanwhile is found by that one. From any thread."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._is_over = False

    def call(self) -> None:
        """Raises RuntimeError where no thread can be started."""
        with self._lock:
            if self._timer is None and not self._is_over:
                timer = threading.Timer(EVERY_S, self._run)
                timer.daemon = True
                timer.start()
                self._timer = timer

    def close(self) -> None:
        """It is not called any more, but for a call that is under way."""
        with self._lock:
            self._is_over = True
            if self._timer is not None:
                self._timer.cancel()

    def _run(self) -> None:
        with self._lock:
            self._timer = None
            if self._is_over:
                return
        self._action()


class Telling:
    """What one task tells since its code began, sent on by `send`: the latest, when it has told something."""

    def __init__(self, send: Callable[[Progressed], None]) -> None:
        self._told = Progressed()
        self._lock = threading.Lock()
        self._later = Later(lambda: send(self._told))
        self.close = self._later.close

    def tell(self, step: float | None, loss: float | None) -> None:
        """Raises RuntimeError where no thread can be started, which may be once there are fewer."""
        with self._lock:
            self._told = _next(self._told, step, loss)
        self._later.call()


_latest = Latest()
_telling: Telling | None = None


def _begin_anew() -> None:
    """In a child: what its parent has told is the parent's, and another thread may have held the lock."""
    global _latest, _telling
    _latest, _telling = Latest(), None


@contextmanager
def progress_told(send: Callable[[Progressed], None]) -> Iterator[None]:
    """For adapters: the code of a task runs inside, and what it tells is sent on, from a thread of its own, EVERY_S
    after it was told; what it tells until then is in that. Its last words before its end may not be."""
    global _telling
    before, _telling = _telling, (telling := Telling(send))
    try:
        yield
    finally:
        _telling = before
        telling.close()


os.register_at_fork(after_in_child=_begin_anew)


def progress(*, step: float | None = None, loss: float | None = None) -> None:
    """Tell how far this has come: `egs.progress(step=1200, loss=0.31)`. step: any number that only grows;
    loss: what is to become less; NaN and infinite are told as well. Heard are commands of `egs run`, and tasks whose
    driver is at a site server; elsewhere it does nothing. Never raises: what is no number is one warning, and not
    counted. A loss on a GPU is waited for, as by `float`: tell it as often as you print it."""
    try:
        folder, telling = os.environ.get(FOLDER), _telling
        if not folder and telling is None:
            return
        step, loss = _step(step), None if loss is None else _loss(loss)
        if telling is not None:
            telling.tell(step, loss)
        if folder:
            _latest.tell(folder, step, loss)
    except OSError as error:  # a full disk is not the command's business
        warn_once(f"egs.progress: what this process has told is not kept: {error.strerror}")
    except Exception as error:  # a value of any type may raise anything
        warn_once(f"egs.progress: is not counted: {error}")


def _loss(value: float) -> float:
    """Of a tensor of PyTorch without its gradient: it warns of a tensor that has one."""
    detach = getattr(value, "detach", None)
    return float(detach() if callable(detach) else value)


def _step(value: float | None) -> float | None:
    if value is None:
        return None
    step = float(value)
    if not math.isfinite(step) or step < 0:
        raise ValueError(f"step={value!r} is none")
    return step


def progress_words(step: float | None, loss: float | None, is_nan: bool) -> str:
    """For people; "" for none of both.

    >>> progress_words(1200.0, 0.31, False), progress_words(None, 0.31, True)
    ('step 1200, loss 0.31', 'loss is NaN')
    """
    shown = "loss is NaN" if is_nan else "" if loss is None else f"loss {loss:.4g}"
    return ", ".join(filter(None, ("" if step is None else f"step {step:.15g}", shown)))


def progress_in(folder: str | os.PathLike[str], since: float = 0.0) -> Progressed | None:
    """What the processes of a command have told, as one; None: nothing. since: what was told before is of an earlier
    start of the command, and left out; seconds since 1970.

    The step is the furthest, the loss the latest; it is NaN when that of any process is. What a site server would not
    take is left out: a task may write any files."""
    found = []
    with contextlib.suppress(OSError):
        for path in list(Path(folder).glob(f"*{SUFFIX}"))[:MOST_FILES]:
            with contextlib.suppress(OSError, ValueError, TypeError, OverflowError):
                fields, at = file_told(path, MOST_BYTES)
                if at >= since:
                    found.append(_checked(fields, at))
    if not found:
        return None
    found.sort(key=lambda one: one.at)
    together = Progressed(
        max((one.step for one in found if one.step is not None), default=None),
        next((one.loss for one in reversed(found) if one.loss is not None), None),
        any(one.is_nan for one in found),
        sum(one.losses for one in found),
        sum(one.total for one in found),
        sum(one.squares for one in found),
        found[-1].at,
    )
    return together if _is_countable(together) else None


def _is_countable(told: Progressed) -> bool:
    finite = all(map(math.isfinite, (told.loss or 0.0, told.total, told.squares)))
    return finite and 0 <= told.losses <= MOST_LOSSES and told.squares >= 0


def _checked(fields: list[float | None], at: float) -> Progressed:
    """Raises ValueError, TypeError or OverflowError for what is no such file, as one that is half written."""
    step, loss, is_nan, losses, total, squares = fields
    told = Progressed(
        _step(step),
        None if loss is None else float(loss),
        bool(is_nan),
        int(losses or 0),
        float(total or 0),
        float(squares or 0),
        at,
    )
    if not _is_countable(told):
        raise ValueError(fields)
    return told
