"""One agent a host and Airflow: a lock that the system takes back when its holder dies, however that happens."""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
from pathlib import Path

from egs_core.errors import InputError
from egs_core.places import data_folder


def lock_path(url: str) -> Path:
    """The file; with the host in its name, for homes may be shared."""
    name = hashlib.sha256(url.encode()).hexdigest()[:8]
    return data_folder() / "airflow" / f"agent-{socket.gethostname()}-{name}.lock"


def take_lock(url: str) -> int:
    """Hold the lock as long as the returned file is open. Raises InputError where another agent does."""
    path = lock_path(url)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InputError(str(path), f"cannot be written: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(file, 20).decode(errors="replace") or "?"
        os.close(file)
        raise InputError(url, f"has an agent on this host already: process {holder}", "one is enough") from None
    os.truncate(file, 0)
    os.write(file, str(os.getpid()).encode())
    return file
