"""What all processes of an executor know of when tasks of DAG files came: by that `egs_core.demand` says for which
files processes should stand ready, how many, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from egs_core.demand import MOST_TIMES

MOST_FILES = 12
"""That are remembered: those that had tasks last, of each its newest `MOST_TIMES`."""
FIRST_READ_S = 0.1
"""What reading a file is taken to need before one has."""
LOCK_S = 1.0
"""So long the shared memory's lock is waited for; without it nothing is learned, and what is there is not trusted."""
MOST_BYTES = 16384
"""For all of it, as JSON."""


class DagFile(NamedTuple):
    """A DAG file as Airflow names it to a task's process."""

    bundle: str
    version: str | None
    path: str


class Seen(msgspec.Struct):
    """What is known of a file. came_s: when its tasks came, the newest last; load_s: what reading it took last;
    standing: how many stand ready for it, which is not kept: whoever asks counts them."""

    file: DagFile
    came_s: list[float] = []
    load_s: float = FIRST_READ_S
    standing: int = 0

    @property
    def needs(self) -> Sequence[bool]:
        """All do: no task has time to read its file before it begins."""
        return ()


class Shared:
    """What all processes of an executor know. memory: an array of MOST_BYTES characters that they share, made before
    the forks, with a lock of its own."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def read(self) -> list[Seen]:
        with self._locked() as is_ours:
            return self._decoded() if is_ours else []

    def came(self, file: DagFile, now_s: float) -> None:
        """A task of it has come."""
        with self._changed(file) as one:
            one.came_s = [*one.came_s, now_s][-MOST_TIMES:]

    def took(self, file: DagFile, read_s: float) -> None:
        """So long reading it took."""
        with self._changed(file) as one:
            one.load_s = read_s

    @contextmanager
    def _changed(self, file: DagFile) -> Iterator[Seen]:
        with self._locked() as is_ours:
            seen = self._decoded()
            own = next((one for one in seen if one.file == file), None) or Seen(file)
            yield own
            if not is_ours:
                return
            kept = [one for one in seen if one.file != file]
            kept.sort(key=_last_s)
            found = [*kept[-(MOST_FILES - 1) :], own]
            while len(text := msgspec.json.encode(found)) >= MOST_BYTES:
                found = found[1:] if len(found) > 1 else []
            self._memory.get_obj().value = text

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Whether it is: one that was killed with the lock must not hold up all others' tasks."""
        lock = self._memory.get_lock()
        is_ours = lock.acquire(True, LOCK_S)
        try:
            yield is_ours
        finally:
            if is_ours:
                lock.release()

    def _decoded(self) -> list[Seen]:
        text = self._memory.get_obj().value  # without the lock, which may be nobody's any more
        try:
            return msgspec.json.decode(text, type=list[Seen]) if text else []
        except msgspec.MsgspecError:  # written in part
            return []


def _last_s(one: Seen) -> float:
    return one.came_s[-1] if one.came_s else 0.0
