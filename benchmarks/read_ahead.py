"""What the first read of a file and the first import of a package cost, and what they cost where the container that the
Kubernetes controller makes to read ahead has run before: its command, as it is, on this machine.

    python -m benchmarks.read_ahead [--size 1GiB] [--rounds 5] [--folder DIR] [--json FILE]

Before each, the pages of the file and of the package (numpy, copied) are dropped from the machine's page cache by
posix_fadvise, and mincore(2) says how many are there. What is read is a file of this machine's disk: of a volume over a
network the first read costs more, and the second the same.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from egs_core.kubernetes.readers import COMMAND, MIB
from egs_core.units import parse_bytes

MODULE = "numpy"
IMPORTS = [sys.executable, "-c", f"import {MODULE}"]


class Turn(msgspec.Struct, frozen=True):
    """Seconds. reader_s: of the container's command; share: of the file's pages, how many it has left in memory."""

    cold_s: float
    warm_s: float
    import_cold_s: float
    import_warm_s: float
    reader_s: float
    share: float


def drop(path: Path) -> None:
    """The pages of a file, or of all files below a folder, out of the page cache."""
    for file in [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())  # a page that is still to be written is not dropped
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached_share(path: Path) -> float:
    """Of a file's pages, how many are in memory."""
    size = path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        pages = -(-size // mmap.PAGESIZE)
        found = (ctypes.c_ubyte * pages)()
        first = ctypes.c_char.from_buffer(mapped)
        failed = ctypes.CDLL(None, use_errno=True).mincore(
            ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), found
        )
        del first
        if failed:
            raise OSError(ctypes.get_errno(), "mincore")
        return sum(one & 1 for one in found) / pages


def read_through(path: Path) -> None:
    """As a task would, once."""
    buffer = bytearray(MIB)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def turn(file: Path, folder: Path, most_bytes: int) -> Turn:
    """Without, then with what reads ahead."""
    drop(file)
    cold_s = _timed(lambda: read_through(file))
    drop(folder)
    import_cold_s = _timed(lambda: _run(IMPORTS, folder))
    drop(file)
    drop(folder)
    reader_s = _timed(lambda: _run([*COMMAND, str(most_bytes // MIB), MODULE, str(file)], folder))
    share = cached_share(file)
    warm_s = _timed(lambda: read_through(file))
    return Turn(cold_s, warm_s, import_cold_s, _timed(lambda: _run(IMPORTS, folder)), reader_s, share)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, print medians and ranges."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.read_ahead")
    parser.add_argument("--size", default="1GiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--folder", type=Path, help="on the disk that is measured; default: the usual for temporary files"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    size = parse_bytes(options.size, "--size")
    with tempfile.TemporaryDirectory(prefix="egs-read-", dir=options.folder) as made:
        folder = Path(made)
        found_at = importlib.util.find_spec(MODULE)
        assert found_at is not None
        assert found_at.origin is not None
        package = Path(found_at.origin).parent
        for one in (package, package.with_name(f"{MODULE}.libs")):
            if one.exists():
                shutil.copytree(one, folder / one.name)
        file = folder / "model.bin"
        with file.open("wb") as opened:
            for _ in range(size // MIB):
                opened.write(os.urandom(MIB))
        turns = [turn(file, folder, 2 * size) for _ in range(options.rounds)]
    figures = {name: [getattr(one, name) for one in turns] for name in Turn.__struct_fields__}
    for name, values in figures.items():
        print(f"{name:14} {statistics.median(values):8.3f}   ({min(values):.3f} to {max(values):.3f})")
    if options.json is not None:
        options.json.write_text(json.dumps({"size_bytes": size, **figures}, indent=1))
    return 0


def _run(command: Sequence[str], folder: Path) -> None:
    there = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(command, cwd=folder, env=there | {"PYTHONDONTWRITEBYTECODE": "1"}, check=True)


def _timed(act: Callable[[], None]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
