"""Reading a file that a user named, and saying where in it something is wrong.

What can be wrong with a file as such (missing, a folder, empty, binary, truncated or oversized gzip, broken or deeply
nested JSON) is found here, so that the formats only see decoded JSON.
"""

from __future__ import annotations

import gzip
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from egs_core.errors import InputError
from egs_core.graph.places import join

MAX_FILE_BYTES = 4 * 1024**3
# A gzip file may not grow by more than this once it is past RATIO_FREE_BYTES: workload files compress 10 to 60 times,
# a bomb about 1000 times.
MAX_GZIP_RATIO = 250
RATIO_FREE_BYTES = 64 * 1024**2
_CHUNK_BYTES = 4 * 1024**2
_GZIP_MAGIC = b"\x1f\x8b"


def read_bytes(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The file's content, unpacked when it is gzip by content. Raises InputError naming the file."""
    place = str(path)
    try:
        _check_kind(path, place)
        with path.open("rb") as file:
            data = _read_limited(file, place, max_bytes)
    except OSError as error:
        raise InputError(place, f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a path with a NUL character
        raise InputError(place, f"is not a usable path: {error}") from None
    if data.startswith(_GZIP_MAGIC):
        data = _gunzip(data, place, max_bytes)
    if not data.strip():
        raise InputError(place, "the file is empty", "expected one JSON object")
    return data


def _check_kind(path: Path, place: str) -> None:
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise InputError(place, "is a folder, not a file", "name one workload file in it")
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise InputError(place, "is not a regular file")


def _read_limited(file: BinaryIO, place: str, max_bytes: int) -> bytes:
    data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise InputError(place, f"is larger than {max_bytes} bytes")
    return data


def _gunzip(packed: bytes, place: str, max_bytes: int) -> bytes:
    """Unpack step by step: the limits hold before memory is spent, not after."""
    parts: list[bytes] = []
    size, limit = 0, min(max_bytes, max(RATIO_FREE_BYTES, len(packed) * MAX_GZIP_RATIO))
    try:
        for part in _members(packed):
            size += len(part)
            if size > limit:
                raise InputError(place, f"gzip content grows beyond {limit} bytes", "this looks like a gzip bomb")
            parts.append(part)
    except EOFError:
        raise InputError(place, f"gzip content is truncated after {size} bytes") from None
    except (zlib.error, gzip.BadGzipFile) as error:
        raise InputError(place, f"gzip content is damaged after {size} bytes: {error}") from None
    return b"".join(parts)


def _members(packed: bytes) -> Iterator[bytes]:
    """Unpacked pieces of all members of a gzip file; EOFError when it ends early."""
    rest = packed
    while rest.startswith(_GZIP_MAGIC):
        unpacker = zlib.decompressobj(wbits=31)
        while not unpacker.eof:
            part = unpacker.decompress(rest, _CHUNK_BYTES)
            rest = unpacker.unconsumed_tail
            if part:
                yield part
            elif not rest and not unpacker.eof:
                raise EOFError
        rest = unpacker.unused_data


@contextmanager
def json_errors(place: str, inside: str = "", data: bytes | None = None) -> Iterator[None]:
    """Turn what msgspec raises into an InputError at `place`, at the JSON path below `inside`."""
    try:
        yield
    except RecursionError:
        raise InputError(join(place, inside), "JSON is nested too deeply") from None
    except UnicodeDecodeError:
        raise InputError(join(place, inside), "is not UTF-8 text") from None
    except msgspec.ValidationError as error:
        path, problem = _split(str(error))
        raise InputError(join(place, inside + path if inside else path.lstrip(".")), problem) from None
    except msgspec.DecodeError as error:
        raise InputError(join(place, inside), _malformed(str(error), data)) from None


def _split(message: str) -> tuple[str, str]:
    problem, _, path = message.partition(" - at `$")
    problem = problem.replace("`", "").replace("Object ", "object ").replace("Expected ", "expected ")
    return path.rstrip("`"), problem.replace("array", "list")


def _malformed(message: str, data: bytes | None) -> str:
    """msgspec's words for broken JSON, with line and column, and what is really there where that is clear."""
    if data is not None and b"\0" in data[:4096]:
        return "is a binary file, not JSON"
    if "truncated" in message and (data is None or data.rstrip().endswith(b"}")):
        return "is not JSON: a string has a broken escape, or something in it is not closed"
    if "truncated" in message:
        return "JSON is truncated: the file ends too early"
    found = re.search(r"\(byte (\d+)\)", message)
    text = message.replace("JSON is malformed: ", "")
    if data is None or found is None:
        return f"is not JSON: {text}"
    at = int(found[1])
    line, column = data.count(b"\n", 0, at) + 1, at - data.rfind(b"\n", 0, at)
    if re.match(rb"-?(NaN|Infinity)", data[max(0, at - 1) : at + 9].lstrip(b"- :,[")):
        text = "NaN and Infinity are not numbers"
    return f"is not JSON at line {line}, column {column}: {re.sub(r' ?[(]byte [0-9]+[)]', '', text)}"
