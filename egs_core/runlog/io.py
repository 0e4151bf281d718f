"""Writing and reading run logs: a header line, then one JSON record a line.

The writer hands every record to the system as one whole line, so a process that dies loses at most the line it was
writing. The reader drops such a half line at the end of the file, and only there; anything else that is wrong is an
`InputError` naming file and line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import msgspec

from egs_core.described import describe
from egs_core.errors import InputError
from egs_core.runlog.records import (
    FORMAT,
    VERSION,
    AnyRecord,
    Capacity,
    ColdStart,
    Ended,
    Header,
    PreloadStarted,
    Ready,
    Record,
    Started,
    TaskAdded,
    Used,
    Work,
    time_of,
)

MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_TIME_S = 1e12
MAX_AMOUNT = 1e9  # CPUs or GPUs: more is a mistake, and would overflow exact sums
MAX_MEMORY_BYTES = 2**60
MAX_WORK = 1e30

_encoder = msgspec.json.Encoder()


class Run(msgspec.Struct):
    """One run log as read. truncated: its last line was cut off (the writer died) and has been dropped."""

    header: Header
    records: list[Record]
    path: str = ""
    truncated: bool = False


# --- reading ----------------------------------------------------------------------------------------------------------

# One entry per readable version: bytes of a line -> record of the current version. A new version adds its own decoder
# here and turns the previous one into a function that decodes the old shape and converts it.
READERS: dict[int, Callable[[bytes], Record]] = {
    1: msgspec.json.Decoder(AnyRecord).decode,
}


class _Preamble(msgspec.Struct):
    """The part of a header that every version, also a future one, has."""

    r: str = ""
    format: str = ""
    version: int = 0


describe(_Preamble)


def read_run(path: str | os.PathLike[str]) -> Run:
    """Read a whole run log; records of one that is not in order are sorted. Raises InputError (`file:line`) for
    anything that is not one."""
    with RunReader(path) as reader:
        records = list(reader)
    if not reader.header.in_order:
        records.sort(key=time_of)  # stable: of one moment, what was written first was first
    return Run(header=reader.header, records=records, path=str(path), truncated=reader.truncated)


class RunReader:
    """A run log record by record, as they stand there, for logs that are too long to be held. truncated: as of `Run`,
    once all are read. Raises InputError as `read_run` does."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = str(path)
        self.truncated = False
        self._stream = _open_for_reading(Path(path))
        try:
            self.header, self._reader = _read_header(self._stream, self.path)
        except BaseException:
            self._stream.close()
            raise

    def __iter__(self) -> Iterator[Record]:
        for number, line in enumerate(_lines(self._stream), start=2):
            place = f"{self.path}:{number}"
            if len(line) >= MAX_LINE_BYTES:
                raise InputError(place, f"line longer than {MAX_LINE_BYTES} bytes")
            if not line.strip():
                continue
            try:
                record = _decode(line, place, self._reader)
            except InputError:
                self.truncated = not line.endswith(b"\n")
                if self.truncated:
                    return
                raise
            _check(record, place)
            yield record

    def __enter__(self) -> RunReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()


def _open_for_reading(path: Path) -> BinaryIO:
    if os.path.isdir(path):
        raise InputError(str(path), "is a folder, not a run log", "name the run log file inside it")
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise InputError(str(path), "no such file") from None
    except (OSError, ValueError) as error:
        raise InputError(str(path), f"cannot be read: {_reason(error)}") from None


def _reason(error: OSError | ValueError) -> str:
    return str(getattr(error, "strerror", None) or error)


def _read_header(stream: BinaryIO, path: str) -> tuple[Header, Callable[[bytes], Record]]:
    line = stream.readline(MAX_LINE_BYTES)
    if not line.strip():
        problem = "is empty" if not line else "the first line is blank"
        raise InputError(f"{path}:1", problem, "a run log starts with a header line")
    try:
        preamble = msgspec.json.decode(line, type=_Preamble)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        preamble = _Preamble()
    if preamble.r != "header" or preamble.format != FORMAT:
        raise InputError(f"{path}:1", "is not a run log", f"the first line must be a header of format '{FORMAT}'")
    reader = READERS.get(preamble.version)
    if reader is None:
        known = ", ".join(map(str, sorted(READERS)))
        raise InputError(f"{path}:1", f"run log version {preamble.version} is unknown", f"readable: {known}")
    header = _decode(line, f"{path}:1", reader)
    assert isinstance(header, Header)
    return header, reader


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    while line := stream.readline(MAX_LINE_BYTES):
        yield line


def _decode(line: bytes, place: str, reader: Callable[[bytes], Record]) -> Record:
    try:
        return reader(line)
    except RecursionError:
        raise InputError(place, "nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(place, f"not a run log record: {error}") from None


TIMES_ALONE = (Ready, Ended)


def _check(record: Record, place: str) -> None:
    """What the types do not say: one header, finite times of sane size, amounts that are amounts."""
    if isinstance(record, Header):
        raise InputError(place, "a second header", "one run log is one run")
    t = time_of(record)
    if abs(t) > MAX_TIME_S:
        raise InputError(place, f"t is {t:g}, out of range")
    if type(record) in TIMES_ALONE:  # most of a log
        return
    if isinstance(record, (Used, ColdStart)) and not t <= record.end_t <= MAX_TIME_S:
        raise InputError(place, f"end_t {record.end_t:g} is before t {t:g} or out of range")
    for name, amount, most in _amounts(record):
        if not 0 <= amount <= most:
            raise InputError(place, f"{name} is {amount:g}, expected 0 to {most:g}")
    if isinstance(record, Started) and any(device < 0 for device in record.devices):
        raise InputError(place, f"devices {list(record.devices)} has a negative index")


def _amounts(record: Record) -> Iterator[tuple[str, float, float]]:
    if isinstance(record, (Capacity, Started)):
        yield "cpus", record.cpus, MAX_AMOUNT
        yield "gpus", record.gpus, MAX_AMOUNT
        yield "memory_bytes", record.memory_bytes, MAX_MEMORY_BYTES
    elif isinstance(record, PreloadStarted):
        yield "cpus", record.cpus, MAX_AMOUNT
        yield "memory_bytes", record.memory_bytes, MAX_MEMORY_BYTES
    elif isinstance(record, Work):
        for unit, amount in record.amounts.items():
            yield f"amounts[{unit!r}]", amount, MAX_WORK
    elif isinstance(record, TaskAdded):
        for number, (_, cpus, gpus, memory_bytes) in enumerate(record.phases):
            yield f"phases[{number}].cpus", cpus, MAX_AMOUNT
            yield f"phases[{number}].gpus", gpus, MAX_AMOUNT
            yield f"phases[{number}].memory_bytes", memory_bytes, MAX_MEMORY_BYTES


# --- writing ----------------------------------------------------------------------------------------------------------


class FailOpenWriter:
    """A run log that no run fails for: what goes wrong is one warning, and nothing more is written."""

    def __init__(self, path: Path, header: Header, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._writer: RunLogWriter | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = RunLogWriter(path, header, overwrite=True)
        except Exception as error:
            warn(f"no run log: {error}")

    def write(self, record: Record) -> None:
        """Append one record, if all others could be."""
        if self._writer is not None:
            try:
                self._writer.write(record)
            except OSError as error:
                self._warn(f"the run log ends here: {error}")
                self.close()

    def close(self) -> None:
        """End it; may be called again."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class RunLogWriter:
    """Appends records to a run log, each as one whole line that is with the system when `write` returns.

    A new file gets the header; one with content is refused, unless `overwrite`. `RunLogWriter.resume(path)` goes on
    with an existing log after a crash. Not for use from several threads at once.

    >>> with RunLogWriter(path, Header(policy="fifo")) as log:       # doctest: +SKIP
    ...     log.write(WorkloadSubmitted(t=0.0, workload="w1"))
    """

    def __init__(self, path: str | os.PathLike[str], header: Header, *, overwrite: bool = False) -> None:
        self.path = Path(path)
        if not overwrite and os.path.isfile(self.path) and self.path.stat().st_size > 0:
            raise InputError(str(path), "already exists", "choose another name, or remove it first")
        self._file = self._open("wb" if overwrite else "ab")
        try:
            self.write(header)
        except OSError:
            self.close()
            raise

    @classmethod
    def resume(cls, path: str | os.PathLike[str]) -> RunLogWriter:
        """Go on with an existing log of the current version; a half line at its end is cut off first."""
        run = read_run(path)
        if run.header.version != VERSION:
            raise InputError(f"{path}:1", f"version {run.header.version} can be read, not continued")
        writer = cls.__new__(cls)
        writer.path = Path(path)
        writer._file = writer._open("ab")
        writer._mend_end(cut=run.truncated)
        return writer

    def write(self, record: Record) -> None:
        """Append one record. A full disk raises OSError: whether the run may go on without its log is the caller's
        decision."""
        self._write_all(_encoder.encode(record) + b"\n")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> RunLogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, mode: str) -> BinaryIO:
        try:
            return open(self.path, mode, buffering=0)  # type: ignore[return-value]  # unbuffered binary is a FileIO
        except IsADirectoryError:
            raise InputError(str(self.path), "is a folder", "name a file to write to") from None
        except (OSError, ValueError) as error:
            raise InputError(str(self.path), f"cannot be written: {_reason(error)}") from None

    def _write_all(self, data: bytes) -> None:
        while data:
            data = data[self._file.write(data) :]

    def _mend_end(self, cut: bool) -> None:
        content = self.path.read_bytes()
        if cut:
            self._file.truncate(content.rfind(b"\n") + 1)
        elif not content.endswith(b"\n"):
            self._write_all(b"\n")


def write_run(path: str | os.PathLike[str], header: Header, records: Iterable[Record]) -> None:
    """Write a whole run log at once, replacing what was there."""
    with RunLogWriter(path, header, overwrite=True) as log:
        for record in records:
            log.write(record)
