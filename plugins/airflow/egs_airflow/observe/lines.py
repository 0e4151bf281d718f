"""Reads the lines that the listener left: what each try of a task did, by its own account."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from egs_airflow.history.seen import TryKey
from egs_core.errors import InputError

VERSION = 1
PATTERN = "tasks-*.jsonl"
KEPT_DAYS = 30.0
BEGIN = b'{"v":'
"""With this begins what the listener writes; inside a line it cannot stand, for quotes are escaped there."""


class Line(msgspec.Struct, rename={"version": "v", "map_index": "map", "number": "try"}):
    """One try. start, code, end: Unix times at which its process (REST has the start of what starts that), and then the
    user's code, began, and when it was over. work: what it has told by `egs.work`, by unit."""

    version: int
    dag: str
    run: str
    task: str
    map_index: int
    number: int
    state: str
    pool: str
    slots: int
    start: float
    code: float
    end: float
    pid: int = 0
    work: dict[str, float] = {}

    @property
    def key(self) -> TryKey:
        """Which try it was."""
        return self.dag, self.run, self.task, self.map_index, self.number


class Read(NamedTuple):
    """Lines, and how many others were skipped: half lines of a full disk, and what another version of EGS wrote.
    first: place and problem of the first of these."""

    lines: list[Line]
    skipped: int = 0
    first: str = ""


def read_lines(place: Path) -> list[Line]:
    """See `read_all`."""
    return read_all(place).lines


def read_all(place: Path) -> Read:
    """The lines of a folder, or of one file; what is none is skipped and counted, for the others are worth reading.
    Raises InputError where there is nothing to read, naming file and line where there is nothing else than such."""
    if not place.exists():
        raise InputError(str(place), "no such file or folder")
    files = sorted(place.glob(PATTERN)) if place.is_dir() else [place]
    if not files:
        raise InputError(str(place), f"has no lines of EGS's listener ({PATTERN})")
    lines: list[Line] = []
    problems: list[InputError] = []
    for found in (one for file in files for one in _lines_of(file)):
        if isinstance(found, Line):
            lines.append(found)
        else:
            problems.append(found)
    if problems and not lines:
        raise problems[0]
    return Read(lines, len(problems), str(problems[0]) if problems else "")


def _lines_of(file: Path) -> Iterator[Line | InputError]:
    """Each line, or why it is none."""
    try:
        content = file.read_bytes()
    except OSError as error:
        yield InputError(str(file), f"cannot be read: {error.strerror}")
        return
    for number, encoded in enumerate(content.splitlines(keepends=True), start=1):
        place = f"{file}:{number}"
        try:
            line = _decode(encoded)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            if encoded.endswith(b"\n"):
                yield InputError(place, f"is no line of EGS's listener: {error}")
            continue  # the end of a file is being written, or was when its host died
        if line.version != VERSION:
            yield InputError(place, f"version {line.version} is unknown", f"readable: {VERSION}")
            continue
        begin = encoded.rfind(BEGIN)
        if begin > 0:
            yield InputError(place, "begins with half a line")
        yield line


def _decode(encoded: bytes) -> Line:
    """A line; of one that was appended to half a line, the one that is whole."""
    try:
        return msgspec.json.decode(encoded, type=Line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        begin = encoded.rfind(BEGIN)
        if begin <= 0:
            raise
        return msgspec.json.decode(encoded[begin:], type=Line)


def drop_old(folder: Path) -> int:
    """Remove files that nothing was added to for so long; how many."""
    before_s = time.time() - KEPT_DAYS * 86_400.0
    old = [file for file in folder.glob(PATTERN) if file.stat().st_mtime < before_s]
    for file in old:
        file.unlink(missing_ok=True)
    return len(old)
