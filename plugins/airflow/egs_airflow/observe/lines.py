"""Reads the lines that the listener left: what each try of a task did, by its own account."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from egs_airflow.history.seen import TryKey
from egs_core.errors import InputError

VERSION = 1
PATTERN = "tasks-*.jsonl"
KEPT_DAYS = 30.0


class Line(msgspec.Struct, rename={"version": "v", "map_index": "map", "number": "try"}):
    """One try. start, code, end: Unix times at which its process (REST has the start of what starts that), and then the
    user's code, began, and when it was over."""

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

    @property
    def key(self) -> TryKey:
        """Which try it was."""
        return self.dag, self.run, self.task, self.map_index, self.number


def read_lines(place: Path) -> list[Line]:
    """All lines of a folder, or of one file. Raises InputError naming file and line for one that is none."""
    if not place.exists():
        raise InputError(str(place), "no such file or folder")
    files = sorted(place.glob(PATTERN)) if place.is_dir() else [place]
    if not files:
        raise InputError(str(place), f"has no lines of EGS's listener ({PATTERN})")
    return [line for file in files for line in _lines_of(file)]


def _lines_of(file: Path) -> Iterator[Line]:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InputError(str(file), f"cannot be read: {error.strerror}") from None
    for number, encoded in enumerate(content.splitlines(keepends=True), start=1):
        try:
            line = msgspec.json.decode(encoded, type=Line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            if encoded.endswith(b"\n"):
                raise InputError(f"{file}:{number}", f"is no line of EGS's listener: {error}") from None
            continue  # half a line: its disk was full, or its host died
        if line.version != VERSION:
            raise InputError(f"{file}:{number}", f"version {line.version} is unknown", f"readable: {VERSION}")
        yield line


def drop_old(folder: Path, days: float = KEPT_DAYS) -> int:
    """Remove files that nothing was added to for so long; how many."""
    before_s = time.time() - days * 86_400.0
    old = [file for file in folder.glob(PATTERN) if file.stat().st_mtime < before_s]
    for file in old:
        file.unlink(missing_ok=True)
    return len(old)
