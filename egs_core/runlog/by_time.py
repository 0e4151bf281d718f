"""Records in the order of time, however many there are: sorted in pieces, which lie in temporary files meanwhile."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from tempfile import TemporaryFile
from typing import BinaryIO

import msgspec

from egs_core.runlog.records import AnyRecord, Record, time_of

MOST_HELD = 200_000  # records

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AnyRecord).decode


def by_time(records: Iterable[Record], most_held: int = MOST_HELD) -> Iterator[Record]:
    """The same records, those of one moment as they stand. At most so many are held; the others are written."""
    files: list[BinaryIO] = []
    try:
        held: list[Record] = []
        for record in records:
            held.append(record)
            if len(held) >= most_held:
                files.append(_kept(sorted(held, key=time_of)))
                held = []
        held.sort(key=time_of)
        yield from heapq.merge(
            *[_read(one) for one in files], held, key=time_of
        )  # of equal ones the first file's first
    finally:
        for one in files:
            one.close()


def _kept(records: Iterable[Record]) -> BinaryIO:
    found: BinaryIO = TemporaryFile()  # noqa: SIM115  # closed by the caller
    found.writelines(_encode(record) + b"\n" for record in records)
    found.seek(0)
    return found


def _read(lines: Iterable[bytes]) -> Iterator[Record]:
    for line in lines:
        yield _decode(line)
