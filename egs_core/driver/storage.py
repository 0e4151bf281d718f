"""Where a journal is kept: the file system, or in the fault simulation a disk that forgets what was not synced."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from egs_core.errors import InputError


class File(Protocol):
    """What a journal needs of an open file."""

    def write(self, data: bytes, /) -> int: ...
    def seek(self, offset: int, /) -> int: ...
    def tell(self) -> int: ...
    def truncate(self) -> int: ...
    def close(self) -> None: ...
    def __iter__(self) -> Iterator[bytes]: ...


class Storage(Protocol):
    """What a journal needs of a disk. What `write` took outlives the process; what was synced, the machine."""

    def open(self, path: Path, mode: str) -> File:
        """mode: rb, r+b or wb. Raises InputError."""

    def is_taken(self, path: Path) -> bool:
        """Whether something is there that a new journal must not replace."""

    def sync(self, file: File) -> None:
        """Make the file's content outlive the machine. Raises OSError."""

    def replace(self, source: Path, target: Path) -> None:
        """Rename, at once or not at all."""

    def sync_folder(self, folder: Path) -> None:
        """Make renames in the folder outlive the machine, where the system can."""


class FileSystem:
    """The real one."""

    def open(self, path: Path, mode: str) -> File:
        """Without a buffer for writing: a line is with the system once it is written."""
        try:
            file = path.open(mode, buffering=-1 if mode == "rb" else 0)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(str(path), f"cannot be opened: {reason}") from None
        return file

    def is_taken(self, path: Path) -> bool:
        return path.exists() and (not path.is_file() or path.stat().st_size > 0)

    def sync(self, file: File) -> None:
        os.fsync(file.fileno())  # type: ignore[attr-defined]  # `open` made it

    def replace(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def sync_folder(self, folder: Path) -> None:
        try:
            handle = os.open(folder, os.O_RDONLY)
        except OSError:
            return
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


FILE_SYSTEM = FileSystem()
