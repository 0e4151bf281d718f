"""The journal: what went into an engine and what that changed, so that a dead driver's state can be had again.

    {"format":"egs-journal","version":1,"config":{"policy":"egs",…}}
    {"j":"snapshot","state":{…}}                                         only after a compaction, then once, here
    {"j":"entry","now":1.5,"event":{"e":"ended",…},"transitions":[["clock",[1.5]],["end",[7,5]],…]}

An entry is written before its decisions are carried out. Recovery folds transitions and never decides again. A last
line without its end was being written when the driver died: its decisions were never carried out, so it is dropped.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from egs_core.driver.storage import FILE_SYSTEM, File, Storage
from egs_core.engine import Engine, EngineConfig
from egs_core.engine.messages import AnyEvent, Event
from egs_core.engine.state.journal import Transition, fold
from egs_core.engine.state.snapshots import decode_state, with_slots_for_all
from egs_core.engine.state.state import State
from egs_core.errors import InputError

FORMAT = "egs-journal"
VERSION = 1
COMPACT_EVERY = 20_000  # entries: a recovery folds no more than these


class Header(msgspec.Struct, frozen=True):
    """The first line. config: of the engine that the entries come from."""

    format: str = FORMAT
    version: int = VERSION
    config: EngineConfig = EngineConfig()


class Snapshot(msgspec.Struct, frozen=True, tag_field="j", tag="snapshot"):
    """All that came before, as one state."""

    state: msgspec.Raw


class Entry(msgspec.Struct, frozen=True, tag_field="j", tag="entry"):
    """One event, and the transitions of the state that it caused, each (name, arguments)."""

    now: float
    event: AnyEvent
    transitions: list[tuple[str, tuple[Any, ...]]]


class Recovered(msgspec.Struct, frozen=True):
    """The state after the last whole entry. size_bytes: up to there; what follows in the file is a torn line."""

    state: State
    config: EngineConfig
    entries: int
    size_bytes: int

    def engine(self) -> Engine:
        """An engine that goes on from here, and records."""
        return Engine(msgspec.structs.replace(self.config, record=True), self.state)


class Journal:
    """Appends an engine's entries to a file. `Journal(path, engine)` starts a new one, `Journal.resume(path)` goes on.

    What `append` has written is with the system when it returns: it outlives the process, and with `sync` the machine.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        engine: Engine,
        *,
        compact_every: int = COMPACT_EVERY,
        sync: bool = False,
        storage: Storage = FILE_SYSTEM,
    ) -> None:
        if storage.is_taken(Path(path)):
            raise InputError(str(path), "already exists", "recover from it, or choose another name")
        self._set_up(path, engine, compact_every, sync, storage)
        self._rewrite(snapshot=bool(engine.state.nodes or engine.state.workloads))

    @classmethod
    def resume(
        cls,
        path: str | os.PathLike[str],
        *,
        compact_every: int = COMPACT_EVERY,
        sync: bool = False,
        storage: Storage = FILE_SYSTEM,
    ) -> Journal:
        """Recover the engine (`journal.engine`) and go on with the file; a torn last line is cut off first.

        What a process wrote or renamed but did not live to sync counts, so with `sync` it is made to last now.
        """
        found = recover(path, storage)
        journal = cls.__new__(cls)
        journal._set_up(path, found.engine(), compact_every, sync, storage)
        journal._entries = found.entries
        journal._file = storage.open(journal.path, "r+b")
        journal._file.seek(found.size_bytes)
        journal._file.truncate()
        if sync:
            storage.sync(journal._file)
            storage.sync_folder(journal.path.parent)
        return journal

    def _set_up(
        self, path: str | os.PathLike[str], engine: Engine, compact_every: int, sync: bool, storage: Storage
    ) -> None:
        if not engine.config.record:
            raise ValueError("a journal needs an engine that records: EngineConfig(record=True)")
        self.path = Path(path)
        self.engine = engine
        self._compact_every = compact_every
        self._sync = sync
        self._storage = storage
        self._entries = 0
        self._file: File

    def append(self, event: Event, now: float, transitions: list[Transition]) -> None:
        """Write one entry, right after `Engine.handle`. Raises OSError when the disk does not take it; the file is
        then as it was before."""
        line = encode_entry(event, now, transitions) + b"\n"
        before = self._file.tell()
        try:
            _write_all(self._file, line)
            if self._sync:
                self._storage.sync(self._file)
        except OSError:
            self._file.seek(before)
            self._file.truncate()
            raise
        self._entries += 1
        if self._entries >= self._compact_every:
            self.compact()

    def compact(self) -> None:
        """Replace the entries by a snapshot. At every moment either the old or the new file is there, whole."""
        self._file.close()
        self._rewrite(snapshot=True)

    def flush(self) -> None:
        """Make the entries so far outlive the machine: for a driver that does so less often than it appends."""
        self._storage.sync(self._file)

    def close(self) -> None:
        self._file.close()

    def _rewrite(self, *, snapshot: bool) -> None:
        beside = self.path.with_name(self.path.name + ".new")
        self._file = self._storage.open(beside, "wb")
        _write_all(self._file, _encoder.encode(Header(config=self.engine.config)) + b"\n")
        if snapshot:
            _write_all(self._file, _encoder.encode(Snapshot(msgspec.Raw(self.engine.snapshot()))) + b"\n")
        self._storage.sync(self._file)
        self._storage.replace(beside, self.path)
        self._storage.sync_folder(self.path.parent)
        self._entries = 0


def encode_entry(event: Event, now: float, transitions: list[Transition]) -> bytes:
    """One entry, as JSON without a line's end."""
    return _encoder.encode({"j": "entry", "now": now, "event": event, "transitions": transitions})


def folded(snapshot: bytes, entries: Iterable[bytes], place: str) -> State:
    """The state that a snapshot (b"": none) and the entries after it lead to, for those who keep them elsewhere than in
    a file. Raises InputError that names `place` and the entry."""
    state = _snapshot_state(Snapshot(msgspec.Raw(snapshot)), place) if snapshot else State()
    for number, line in enumerate(entries, start=1):
        found = _decode(line, f"{place} entry {number}")
        if not isinstance(found, Entry):
            raise InputError(f"{place} entry {number}", "is a snapshot", "the journal is damaged")
        _fold(state, found, f"{place} entry {number}")
    return with_slots_for_all(state)


def recover(path: str | os.PathLike[str], storage: Storage = FILE_SYSTEM) -> Recovered:
    """The state that a journal leads to. Raises InputError (`file:line`) for anything that is not a whole journal."""
    with closing(storage.open(Path(path), "rb")) as file:
        lines = _whole_lines(file)
        header, size = _read_header(lines, str(path))
        state, entries = State(), 0
        for number, line in enumerate(lines, start=2):
            place = f"{path}:{number}"
            found = _decode(line, place)
            if isinstance(found, Entry):
                _fold(state, found, place)
                entries += 1
            elif number == 2:
                state = _snapshot_state(found, place)
            else:
                raise InputError(place, "a snapshot among the entries", "it can only be the second line")
            size += len(line)
    return Recovered(with_slots_for_all(state), header.config, entries, size)


def _whole_lines(file: File) -> Iterator[bytes]:
    """The lines that were written to their end. A last one with zero bytes, which JSON never has, was not: after a
    power cut a file may have its length but not all of its content."""
    torn = b""
    for line in file:
        if torn:
            yield torn  # not the last: the reader says that it is damaged
            torn = b""
        if not line.endswith(b"\n"):
            return
        if b"\0" in line:
            torn = line
        else:
            yield line


class _Preamble(msgspec.Struct):
    """What a header of every version, also a future one, has."""

    format: str = ""
    version: int = 0


def _read_header(lines: Iterator[bytes], path: str) -> tuple[Header, int]:
    line = next(lines, b"")
    try:
        preamble = msgspec.json.decode(line or b"{}", type=_Preamble)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        preamble = _Preamble()
    if preamble.format != FORMAT:
        raise InputError(f"{path}:1", "is not a journal", f"the first line must be a header of format '{FORMAT}'")
    if preamble.version != VERSION:
        raise InputError(f"{path}:1", f"journal version {preamble.version} is unknown", f"readable: {VERSION}")
    try:
        return msgspec.json.decode(line, type=Header), len(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{path}:1", f"is not a journal header: {error}") from None


def _decode(line: bytes, place: str) -> Snapshot | Entry:
    try:
        return _decoder.decode(line)
    except RecursionError:
        raise InputError(place, "nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(place, f"is not a journal entry: {error}") from None


def _snapshot_state(snapshot: Snapshot, place: str) -> State:
    try:
        return decode_state(bytes(snapshot.state))
    except ValueError as error:
        raise InputError(place, str(error)) from None


def _fold(state: State, entry: Entry, place: str) -> None:
    try:
        fold(state, entry.event, entry.transitions)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        problem = f"does not follow from the entries before it: {type(error).__name__}: {error}"
        raise InputError(place, problem, "the journal is damaged") from None


def _write_all(file: File, data: bytes) -> None:
    while data:
        data = data[file.write(data) :]


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Snapshot | Entry] = msgspec.json.Decoder(Snapshot | Entry)
