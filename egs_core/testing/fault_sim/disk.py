"""A disk that behaves as badly as a disk may: short writes, errors, crashes within a write, and power cuts.

What was written is in the *cache*: it outlives the driver's process. What was synced is *durable*: it outlives the
machine too. After a power cut a file has what was durable and any part of what was written later, with holes of zeros
where a sector did not make it; of the renames since the last sync of the folder only the first few have happened.
"""

from __future__ import annotations

import errno
import io
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from egs_core.driver.storage import File
from egs_core.errors import InputError

SECTOR_BYTES = 64  # small, so that ordinary entries cross sectors
SHORT_WRITE, HOLE = 0.02, 0.3


class Crash(BaseException):
    """The driver's process is gone in the middle of what it did. No handler of the shipped code may catch this."""


class Content:
    """One file's bytes: `cache` as the system sees them, `durable` as they are on the platter."""

    def __init__(self, data: bytes = b"") -> None:
        self.cache = bytearray(data)
        self.durable = data


class SimulatedFile:
    """An open file of a `SimulatedDisk`."""

    def __init__(self, disk: SimulatedDisk, content: Content) -> None:
        self.content = content
        self._disk = disk
        self._at = 0

    def write(self, data: bytes, /) -> int:
        taken = self._disk.take(data)
        self.content.cache[self._at : self._at + taken] = data[:taken]
        self._at += taken
        self._disk.fail_late()
        return taken

    def seek(self, offset: int, /) -> int:
        self._at = offset
        return offset

    def tell(self) -> int:
        return self._at

    def truncate(self) -> int:
        self._disk.step("truncate")
        del self.content.cache[self._at :]
        return self._at

    def close(self) -> None:
        pass

    def __iter__(self) -> Iterator[bytes]:
        return iter(io.BytesIO(bytes(self.content.cache[self._at :])))


class SimulatedDisk:
    """See the module. fuse: number of writing steps until the driver crashes; error: until one fails with OSError.

    counts: what has happened, by name.
    """

    def __init__(self, rng: random.Random, counts: Counter[str]) -> None:
        self.fuse: int | None = None
        self.error: int | None = None
        self._rng = rng
        self._counts = counts
        self._names: dict[Path, Content] = {}
        self._durable_names: dict[Path, Content] = {}
        self._history: list[dict[Path, Content]] = []  # names after each change since the folder's last sync
        self._late: BaseException | None = None

    # --- the shipped journal's side: `Storage` ---

    def open(self, path: Path, mode: str) -> File:
        if mode == "wb":
            self.step("create")
            self._names = {**self._names, path: Content()}
            self._history.append(self._names)
        if path not in self._names:
            raise InputError(str(path), "cannot be opened: No such file")
        return SimulatedFile(self, self._names[path])

    def is_taken(self, path: Path) -> bool:
        return path in self._names and bool(self._names[path].cache)

    def sync(self, file: File) -> None:
        content = cast(SimulatedFile, file).content
        self._around("sync", lambda: setattr(content, "durable", bytes(content.cache)))

    def replace(self, source: Path, target: Path) -> None:
        self._around("replace", lambda: self._rename(source, target))

    def sync_folder(self, _folder: Path) -> None:
        self._around("sync_folder", self._settle_names)

    # --- the world's side ---

    def put(self, path: Path, data: bytes) -> None:
        """A file that is there from the start."""
        self._names = {**self._names, path: Content(data)}
        self._settle_names()

    def power_cut(self) -> None:
        """What is left when the machine starts again."""
        self._counts["power cut"] += 1
        kept = self._rng.randrange(len(self._history) + 1)
        self._names = ([self._durable_names, *self._history])[kept]
        self._settle_names()
        for content in self._names.values():
            left = self._left_of(content)
            content.cache, content.durable = bytearray(left), left

    # --- within ---

    def step(self, name: str) -> None:
        """One writing step: it may be the one in which the driver dies, or the disk fails."""
        failure = self._failure(name)
        if failure is not None:
            raise failure

    def take(self, data: bytes) -> int:
        """How many bytes a write takes; a failure comes after them, from `fail_late`."""
        self._late = self._failure("write")
        if self._late is not None or self._rng.random() < SHORT_WRITE:
            return self._rng.randrange(0 if self._late else 1, len(data) + 1)
        return len(data)

    def fail_late(self) -> None:
        late, self._late = self._late, None
        if late is not None:
            raise late

    def _around(self, name: str, act: Callable[[], None]) -> None:
        """A step that has either happened or not when it fails."""
        failure = self._failure(name)
        if failure is None or (isinstance(failure, Crash) and self._rng.random() < 0.5):
            act()
        if failure is not None:
            raise failure

    def _failure(self, name: str) -> BaseException | None:
        self.fuse = _burn(self.fuse)
        self.error = _burn(self.error)
        if self.fuse == 0:
            self.fuse = None
            self._counts[f"crash in {name}"] += 1
            return Crash(name)
        if self.error == 0:
            self.error = None
            self._counts["disk error"] += 1
            return OSError(errno.ENOSPC, "No space left on device")
        return None

    def _rename(self, source: Path, target: Path) -> None:
        names = dict(self._names)
        names[target] = names.pop(source)
        self._names = names
        self._history.append(names)

    def _settle_names(self) -> None:
        self._durable_names, self._history = self._names, []

    def _left_of(self, content: Content) -> bytes:
        cache, durable = bytes(content.cache), content.durable
        if not cache.startswith(durable):  # cut shorter, perhaps written on: the cut has happened or not
            return durable if self._rng.random() < 0.5 else cache
        written = bytearray(cache[len(durable) :])
        if self._rng.random() < 0.7:
            del written[self._rng.randrange(len(written) + 1) :]
        if written and self._rng.random() < HOLE:
            first = self._rng.randrange(len(written)) // SECTOR_BYTES * SECTOR_BYTES
            last = min(len(written), first + SECTOR_BYTES)
            written[first:last] = bytes(last - first)
        return durable + bytes(written)


def _burn(fuse: int | None) -> int | None:
    return None if fuse is None else fuse - 1
