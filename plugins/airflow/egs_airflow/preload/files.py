"""Reads files into the page cache of this host, at the lowest priority: what the agent starts to stage them.

    python -m egs_airflow.preload.files MOST_BYTES FILE …        one line of JSON for each file, as it is read

What is in the page cache already is not read again from its disk: it is counted apart. Standard library only but for
psutil, which sets the priority of reading.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

CHUNK_BYTES = 1 << 20
NICE = 19


class FileRead(NamedTuple):
    """One file: how much of it was read, and how much of that came from its disk; problem: why not all of it."""

    path: str
    bytes: int
    cold_bytes: int
    seconds: float
    problem: str = ""


def read_files(paths: Iterable[str], most_bytes: int) -> Iterator[FileRead]:
    """Read files to their end, all together at most so many bytes. Never raises for a file."""
    for path in paths:
        found = _read(path, most_bytes)
        most_bytes -= found.bytes
        yield found


def _read(path: str, most_bytes: int) -> FileRead:
    began, size, cold, problem = time.monotonic(), 0, 0, ""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for whoever writes into it
            return FileRead(path, 0, 0, 0.0, "is no file")
        with open(path, "rb", buffering=0) as file:
            there = os.fstat(file.fileno()).st_size
            cold = max(0, there - resident_bytes(file.fileno(), there))
            buffer = memoryview(bytearray(CHUNK_BYTES))
            while count := file.readinto(buffer[: max(0, most_bytes - size)]):
                size += count
        problem = "is larger than what may be read" if size < there else ""
    except OSError as error:
        problem = error.strerror or str(error)
    return FileRead(path, size, min(cold, size), time.monotonic() - began, problem)


def resident_bytes(file: int, size: int) -> int:
    """How much of a file is in the page cache. All of it where the system does not tell: of a file of another user."""
    if not size:
        return 0
    try:
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        mapped = mmap.mmap(file, size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        start = ctypes.c_char.from_buffer(mapped)
        failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), pages)
        del start  # else it cannot be unmapped
        mapped.close()
    except (OSError, AttributeError, ValueError):  # not on this system, or a file that cannot be mapped
        return size
    return size if failed else min(size, bytes(pages).count(1) * mmap.PAGESIZE)


def lower_priority() -> None:
    """Whatever else this host does goes first: processor, and the disk where its scheduler knows idle."""
    os.nice(NICE)
    try:
        import psutil

        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    except (ImportError, AttributeError, OSError):
        return  # not on this system


if __name__ == "__main__":
    lower_priority()
    for one in read_files(sys.argv[2:], int(sys.argv[1])):
        print(json.dumps(one._asdict()), flush=True)
