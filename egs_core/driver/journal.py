"""The journal: what went into an engine and what that changed, so that a dead driver's state can be had again.

    {"format":"egs-journal","version":1,"config":{"policy":"egs",…}}
    {"j":"snapshot","state":{…}}                                         only after a compaction, then once, here
    {"j":"entry","now":1.5,"event":{"e":"ended",…},"transitions":[["clock",[1.5]],["end",[7,5]],…]}

An entry is written before its decisions are carried out. Recovery folds transitions and never decides again. A last
line without its end was being written when the driver died: its decisions were never carried out, so it is dropped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from egs_core.engine import Engine, EngineConfig
from egs_core.engine.core import decode_state
from egs_core.engine.messages import AnyEvent, Event
from egs_core.engine.recording import Transition, fold
from egs_core.engine.state import State
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
        self, path: str | os.PathLike[str], engine: Engine, *, compact_every: int = COMPACT_EVERY, sync: bool = False
    ) -> None:
        self.path = Path(path)
        if self.path.exists() and (not self.path.is_file() or self.path.stat().st_size):
            raise InputError(str(path), "already exists", "recover from it, or choose another name")
        self._set_up(engine, compact_every, sync)
        self._rewrite(snapshot=bool(engine.state.nodes or engine.state.workloads))

    @classmethod
    def resume(cls, path: str | os.PathLike[str], *, compact_every: int = COMPACT_EVERY, sync: bool = False) -> Journal:
        """Recover the engine (`journal.engine`) and go on with the file; a torn last line is cut off first."""
        found = recover(path)
        journal = cls.__new__(cls)
        journal.path = Path(path)
        journal._set_up(found.engine(), compact_every, sync)
        journal._entries = found.entries
        journal._file = _open(journal.path, "r+b")
        journal._file.truncate(found.size_bytes)
        journal._file.seek(found.size_bytes)
        return journal

    def _set_up(self, engine: Engine, compact_every: int, sync: bool) -> None:
        if not engine.config.record:
            raise ValueError("a journal needs an engine that records: EngineConfig(record=True)")
        self.engine = engine
        self._compact_every = compact_every
        self._sync = sync
        self._entries = 0
        self._file: BinaryIO

    def append(self, event: Event, now: float, transitions: list[Transition]) -> None:
        """Write one entry, right after `Engine.handle`. Raises OSError when the disk does not take it; the file is
        then as it was before."""
        line = _encoder.encode({"j": "entry", "now": now, "event": event, "transitions": transitions}) + b"\n"
        before = self._file.tell()
        try:
            _write_all(self._file, line)
            if self._sync:
                os.fsync(self._file.fileno())
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

    def close(self) -> None:
        self._file.close()

    def _rewrite(self, *, snapshot: bool) -> None:
        beside = self.path.with_name(self.path.name + ".new")
        self._file = _open(beside, "wb")
        _write_all(self._file, _encoder.encode(Header(config=self.engine.config)) + b"\n")
        if snapshot:
            _write_all(self._file, _encoder.encode(Snapshot(msgspec.Raw(self.engine.snapshot()))) + b"\n")
        os.fsync(self._file.fileno())
        os.replace(beside, self.path)
        _sync_folder(self.path.parent)
        self._entries = 0


def recover(path: str | os.PathLike[str]) -> Recovered:
    """The state that a journal leads to. Raises InputError (`file:line`) for anything that is not a whole journal."""
    with _open(Path(path), "rb") as file:
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
    return Recovered(state, header.config, entries, size)


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    for line in file:
        if line.endswith(b"\n"):
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


def _open(path: Path, mode: str) -> BinaryIO:
    """Without a buffer for writing: a line is with the system once it is written."""
    try:
        file = path.open(mode, buffering=-1 if mode == "rb" else 0)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(str(path), f"cannot be opened: {reason}") from None
    return file  # type: ignore[return-value]  # the type of open() with a computed mode is too wide


def _write_all(file: BinaryIO, data: bytes) -> None:
    while data:
        data = data[file.write(data) :]


def _sync_folder(folder: Path) -> None:
    """Make a rename outlive the machine, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Snapshot | Entry] = msgspec.json.Decoder(Snapshot | Entry)
