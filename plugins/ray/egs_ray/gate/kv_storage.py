"""A journal in Ray's GCS: it outlives the process that writes it, and the node of that process.

    egs-gate/<name>             ─► number of the file's content
    egs-gate/<number>/000001 …  ─► its pieces, each written at once or not at all

What is written stays in this process until `sync`: one call of the GCS for many entries.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from egs_core.driver.storage import File, FileSystem
from egs_core.errors import InputError
from egs_ray import compat, gcs

PREFIX = "egs-gate"


def make_storage() -> KvStorage | TemporaryFiles:
    """The GCS where this build of Ray lets one write there, else files of this machine."""
    return KvStorage() if compat.available("kv") else TemporaryFiles()


class KvStorage:
    """See the module; a `Storage`. Nothing is ever taken: a new journal replaces the one before it at once."""

    def open(self, path: Path, mode: str) -> KvFile:
        """mode: rb, r+b or wb. Raises InputError."""
        if mode == "wb":
            file = KvFile(uuid.uuid4().hex)
            gcs.put(_pointer(path), file.content.encode())
            return file
        content = gcs.get(_pointer(path))
        if content is None:
            raise InputError(str(path), "cannot be opened: no such key in the GCS")
        return KvFile(content.decode())

    def is_taken(self, path: Path) -> bool:  # noqa: ARG002  # a Storage
        return False

    def sync(self, file: File) -> None:
        """Send what was written to the GCS."""
        assert isinstance(file, KvFile)
        file.flush()

    def replace(self, source: Path, target: Path) -> None:
        """One write makes the source's content the target's."""
        before, content = gcs.get(_pointer(target)), gcs.get(_pointer(source))
        if content is None:
            raise InputError(str(source), "cannot be renamed: no such key in the GCS")
        gcs.put(_pointer(target), content)
        gcs.delete(_pointer(source))
        if before is not None and before != content:
            gcs.delete(_pieces(before.decode()), is_prefix=True)

    def sync_folder(self, folder: Path) -> None:
        """The GCS has no folders."""

    def remove(self, path: Path) -> None:
        """Forget a file, if it is there."""
        content = gcs.get(_pointer(path))
        if content is not None:
            gcs.delete(_pointer(path))
            gcs.delete(_pieces(content.decode()), is_prefix=True)


class KvFile:
    """An open one; a `File`. It is only ever appended to, or cut off where it was read up to."""

    def __init__(self, content: str) -> None:
        self.content = content
        self._keys = sorted(gcs.keys(_pieces(content)))
        self._written = bytearray()
        self._size = sum(len(gcs.get(key) or b"") for key in self._keys)
        self._at = self._size

    def write(self, data: bytes, /) -> int:
        self._written += data
        self._at += len(data)
        self._size = self._at
        return len(data)

    def flush(self) -> None:
        """One piece more."""
        if self._written:
            number = int(self._keys[-1].rpartition(b"/")[2]) + 1 if self._keys else 1
            key = _pieces(self.content) + b"%09d" % number
            gcs.put(key, bytes(self._written))
            self._keys.append(key)
            self._written.clear()

    def seek(self, offset: int, /) -> int:
        self._at = offset
        return offset

    def tell(self) -> int:
        return self._at

    def truncate(self) -> int:
        """Forget what is behind the place that was sought."""
        if self._at < self._size:
            kept = (b"".join(self) + bytes(self._written))[: self._at]
            gcs.delete(_pieces(self.content), is_prefix=True)
            self._keys, self._written, self._size = [], bytearray(kept), self._at
            self.flush()
        return self._size

    def close(self) -> None:
        self.flush()

    def __iter__(self) -> Iterator[bytes]:
        """The lines that are in the GCS."""
        yield from b"".join(gcs.get(key) or b"" for key in self._keys).splitlines(keepends=True)


class TemporaryFiles(FileSystem):
    """The fallback: it outlives the process, not the node. A new journal replaces what is left of an old cluster's."""

    def is_taken(self, path: Path) -> bool:  # noqa: ARG002  # a Storage
        return False

    def remove(self, path: Path) -> None:
        """Forget a file, if it is there."""
        path.unlink(missing_ok=True)


def journal_path(storage: KvStorage | TemporaryFiles, cluster: str) -> Path:
    """Where the gate of this cluster keeps its journal."""
    folder = Path() if isinstance(storage, KvStorage) else Path(tempfile.gettempdir())
    return folder / f"egs-gate-{cluster}.journal"


def _pointer(path: Path) -> bytes:
    return f"{PREFIX}/{path.name}".encode()


def _pieces(content: str) -> bytes:
    return f"{PREFIX}/{content}/".encode()
