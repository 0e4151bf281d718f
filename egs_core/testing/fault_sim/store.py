"""The driver's store: it promises what the site server's database does, an entry taken whole or not at all and durable
when `commit` returns, and fails wherever that promise allows. What is in it are the entries that the server keeps.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from egs_core.driver.journal import folded
from egs_core.engine.state.state import State


class Crash(BaseException):
    """The driver's process is gone in the middle of what it did. No handler of the shipped code may catch this."""


class _Line(msgspec.Struct):
    j: str
    state: msgspec.Raw = msgspec.Raw(b"")


def snapshot_and_entries(journal: bytes) -> tuple[bytes, list[bytes]]:
    """Of a journal that an earlier version kept in a file: a header, perhaps a snapshot, entries, each a line."""
    _, *entries = journal.splitlines()
    first = msgspec.json.decode(entries[0], type=_Line)
    return (bytes(first.state), entries[1:]) if first.j == "snapshot" else (b"", entries)


class SimulatedStore:
    """See the module. boots: of each node, the start of it that the driver has heard of last. fuse: number of writes
    until the driver crashes in one; error: until one fails with OSError. counts: what has happened, by name."""

    def __init__(self, rng: random.Random, counts: Counter[str], compact_every: int) -> None:
        self.fuse: int | None = None
        self.error: int | None = None
        self.boots: dict[str, int] = {}
        self._snapshot = b""
        self._entries: list[bytes] = []
        self._rng = rng
        self._counts = counts
        self._compact_every = compact_every

    def put(self, journal: bytes) -> None:
        """What a file has that an earlier version wrote."""
        self._snapshot, self._entries = snapshot_and_entries(journal)

    def state(self) -> State:
        """Where it leads to. Raises InputError for what is damaged."""
        return folded(self._snapshot, self._entries, "the store")

    def commit(self, entry: bytes, boots: Mapping[str, int]) -> None:
        """Take both or neither. Raises OSError; nothing is taken then."""

        def take() -> None:
            self._entries.append(entry)
            self.boots = dict(boots)

        self._write("commit", take)

    @property
    def wants_snapshot(self) -> bool:
        return len(self._entries) >= self._compact_every

    def compact(self, snapshot: bytes) -> None:
        """Replace the entries by the state that they lead to. Raises OSError; they stay then."""

        def replace() -> None:
            self._snapshot, self._entries = snapshot, []

        self._write("compaction", replace)

    def _write(self, name: str, act: Callable[[], None]) -> None:
        """All of it happens or nothing; a driver that crashes in it does not learn which."""
        self.fuse, self.error = _burn(self.fuse), _burn(self.error)
        if self.fuse == 0:
            self.fuse = None
            self._counts[f"crash in a {name}"] += 1
            if self._rng.random() < 0.5:
                act()
            raise Crash(name)
        if self.error == 0:
            self.error = None
            self._counts["disk error"] += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        act()


def _burn(fuse: int | None) -> int | None:
    return None if fuse is None else fuse - 1
