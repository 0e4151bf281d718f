"""Temporary folders that go with their process, however that ends: by the process itself, by `fork_server` when the
process is gone, and at the latest when the next run begins."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path
from types import TracebackType

LOCK = ".egs-lock"
"""Locked as long as its process lives: the kernel takes the lock away when that ends."""
OLD_S = 24 * 3600.0
"""A folder without a lock was left by an earlier version, unless it is so new that its lock may still come."""


class OwnFolder:
    """A folder of this process; `own_folder` makes it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = os.open(os.path.join(name, LOCK), os.O_CREAT | os.O_RDWR, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks: then nobody removes it while it is new
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def __enter__(self) -> str:
        return self.name

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """Remove it; what cannot be removed stays."""
        shutil.rmtree(self.name, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self._lock)


def own_folder(prefix: str) -> OwnFolder:
    """A new one, after what others of that prefix have left. Raises OSError."""
    remove_stale(prefix)
    return OwnFolder(tempfile.mkdtemp(prefix=prefix))


def remove_stale(prefix: str) -> None:
    """Remove this user's folders whose processes are gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and _is_stale(folder, found.st_mtime):
                shutil.rmtree(folder, ignore_errors=True)


def _is_stale(folder: Path, changed_at: float) -> bool:
    """Whether nobody has its lock. Raises OSError where somebody does."""
    if not (folder / LOCK).exists():
        return time.time() - changed_at > OLD_S
    lock = os.open(folder / LOCK, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(lock)
    return True
