"""Writing and reading run logs: nothing is lost but a half line, and whatever is wrong is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from egs_core.errors import InputError
from egs_core.runlog.io import READERS, FailOpenWriter, RunLogWriter, read_run, write_run
from egs_core.runlog.records import (
    VERSION,
    AnyRecord,
    Capacity,
    ColdStart,
    Ended,
    Header,
    Held,
    Record,
    Started,
    TaskAdded,
    Used,
    WorkloadSubmitted,
)

FIXTURES = Path(__file__).parents[2] / "fixtures" / "runlog"
HEADER = b'{"r":"header","format":"egs-runlog","version":1}\n'
SUBMITTED = b'{"r":"workload","t":0.0,"workload":"w"}\n'


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """Every field of header and records survives the file."""
    header = Header(run_id="r1", driver="sim", policy="egs", mode="on", emulated_gpus=True, started_at=5.0, label="x")
    records: list[Record] = [
        Capacity(0.0, "n1", cpus=4, gpus=2),
        WorkloadSubmitted(0.0, "w", name="é \u2028 <b>", tenant="t"),
        TaskAdded(0.0, "w", "a", parents=("b",), phases=(("gpu", 1.0, 0.5, 10),)),
        Started(1.0, "w", "a", devices=(0, 1), gpus=2.0, warm=False),
        Used(1.5, 2.0, "w", "a"),
        Ended(2.0, "w", "a", outcome="failed"),
    ]
    write_run(tmp_path / "log.jsonl", header, records)
    run = read_run(tmp_path / "log.jsonl")
    assert (run.header, run.records, run.truncated) == (header, records, False)


@pytest.mark.parametrize("version", [v for v in (VERSION - 1, VERSION) if v >= 1])
def test_this_and_the_previous_version_stay_readable(version: int) -> None:
    """A committed file of each promised version is read."""
    run = read_run(FIXTURES / f"v{version}.jsonl")
    assert version in READERS
    assert run.header.run_id.startswith("fixture-")
    assert len(run.records) > 10


def test_version_1_fixture_means_what_it_meant() -> None:
    """The committed file has every kind of record, and its values and defaults come out as they went in."""
    run = read_run(FIXTURES / "v1.jsonl")
    kinds = {type(record) for record in run.records} | {type(run.header)}
    assert kinds == set(get_args(AnyRecord))
    started = [r for r in run.records if isinstance(r, Started)]
    assert started[0] == Started(1.0, "w1", "train", 0, 1, "n1", (), 1.0, 0.0, 0, False, "0123abcd", 4242)
    assert started[1] == Started(2.75, "w1", "train", 1, 1, "n1", (1,), 1.0, 1.0, 1073741824, True)
    assert run.records[3:5] == [
        msgspec.json.decode(b'{"r":"ready","t":0.5,"workload":"w1","task":"train"}', type=AnyRecord),
        Held(0.5, "w1", "train", 0, "capacity", "no CPU is free"),
    ]
    assert run.header == Header(
        run_id="fixture-1",
        driver="ray",
        policy="egs",
        mode="on",
        emulated_gpus=True,
        started_at=1700000000.5,
        label="first format",
    )


def test_header_names_format_and_version_in_the_file(tmp_path: Path) -> None:
    """A later reader can tell the version even when every header field has its default."""
    write_run(tmp_path / "log.jsonl", Header(), [])
    first = msgspec.json.decode((tmp_path / "log.jsonl").read_bytes())
    assert (first["format"], first["version"]) == ("egs-runlog", 1)


@pytest.mark.parametrize("cut", [1, 5, 20, len(SUBMITTED) - 2])
def test_half_last_line_is_dropped(tmp_path: Path, cut: int) -> None:
    """A writer that died mid-line costs that line and no other."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(HEADER + SUBMITTED + SUBMITTED[:cut])
    run = read_run(path)
    assert run.truncated
    assert run.records == [WorkloadSubmitted(0.0, "w")]


def test_whole_last_line_without_newline_counts(tmp_path: Path) -> None:
    """A last line that is complete but for its newline is a record."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(HEADER + SUBMITTED.rstrip())
    run = read_run(path)
    assert (len(run.records), run.truncated) == (1, False)


def bad(line: bytes) -> bytes:
    return HEADER + SUBMITTED + line + b"\n"


@pytest.mark.parametrize(
    ("content", "place", "problem"),
    [
        (b"", ":1", "is empty"),
        (b"\n\n", ":1", "blank"),
        (b"\x00\xff\xfe\x80" * 100, ":1", "is not a run log"),
        (b'{"a": 1}\n', ":1", "is not a run log"),
        (b"[1, 2]\n", ":1", "is not a run log"),
        (b"[" * 100_000, ":1", "is not a run log"),
        (b'{"r":"header","format":"egs-runlog","version":2}\n', ":1", "version 2 is unknown"),
        (b'{"r":"header","format":"egs-runlog","version":1,"emulated_gpus":3}\n', ":1", "emulated_gpus"),
        (bad(b'{"r":"ended"'), ":3", "not a run log record"),
        (bad(b'{"r":"nonsense","t":1}'), ":3", "nonsense"),
        (bad(b'{"r":"ended","t":null,"workload":"w","task":"a"}'), ":3", "t"),
        (bad(b'{"r":"ended","t":1e999,"workload":"w","task":"a"}'), ":3", "out of range"),
        (bad(b'{"r":"ended","t":1e300,"workload":"w","task":"a"}'), ":3", "out of range"),
        (bad(b'{"r":"used","t":2,"end_t":1,"workload":"w","task":"a"}'), ":3", "before"),
        (bad(b'{"r":"started","t":2,"workload":"w","task":"a","gpus":-1}'), ":3", "gpus is -1"),
        (bad(b'{"r":"started","t":2,"workload":"w","task":"a","devices":[-1]}'), ":3", "negative"),
        (bad(b'{"r":"capacity","t":2,"node":"n","gpus":99999999999}'), ":3", "gpus is 1e+11"),
        (bad(b'{"r":"task","t":2,"workload":"w","task":"a","phases":[["gpu",1,-2,0]]}'), ":3", "phases[0].gpus"),
        (bad(b'{"r":"preload","t":2,"workload":"w","task":"a","memory_bytes":-5}'), ":3", "memory_bytes"),
        (bad(b'{"r":"ended","t":1,"workload":"\xff\xfe","task":"a"}'), ":3", "not a run log record"),
        (bad(HEADER.strip()), ":3", "second header"),
        (bad(b'{"r":"ended","t":1,"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}"), ":3", "nested too deeply"),
    ],
)
def test_bad_files_name_line_and_problem(tmp_path: Path, content: bytes, place: str, problem: str) -> None:
    """Whatever a file holds, reading it ends in one InputError that names file, line and problem."""
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_run(path)
    assert caught.value.place == f"{path}{place}"
    assert problem in str(caught.value)


def test_folder_missing_and_impossible_paths(tmp_path: Path) -> None:
    """A path that is no readable file is an InputError too."""
    with pytest.raises(InputError, match="is a folder"):
        read_run(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        read_run(tmp_path / "missing.jsonl")
    with pytest.raises(InputError, match="cannot be read"):
        read_run(tmp_path / ("x" * 300))


def test_writer_refuses_what_it_would_destroy(tmp_path: Path) -> None:
    """A file with content is not written to unless asked, and a folder never."""
    path = tmp_path / "log.jsonl"
    path.write_text("precious")
    with pytest.raises(InputError, match="already exists"):
        RunLogWriter(path, Header())
    assert path.read_text() == "precious"
    with pytest.raises(InputError, match="is a folder"):
        RunLogWriter(tmp_path, Header())
    with pytest.raises(InputError, match="cannot be written"):
        RunLogWriter(tmp_path / "no" / "such" / "folder.jsonl", Header())
    RunLogWriter(path, Header(), overwrite=True).close()
    assert read_run(path).records == []


@pytest.mark.parametrize("tail", [b"", SUBMITTED[:10], SUBMITTED.rstrip()])
def test_resume_goes_on_where_a_crash_left_off(tmp_path: Path, tail: bytes) -> None:
    """After resume the log has every whole record from before and those from after."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(HEADER + SUBMITTED + tail)
    whole = 2 if tail == SUBMITTED.rstrip() else 1
    with RunLogWriter.resume(path) as log:
        log.write(Ended(3.0, "w", "a"))
    run = read_run(path)
    assert run.records == [WorkloadSubmitted(0.0, "w")] * whole + [Ended(3.0, "w", "a")]
    assert not run.truncated


KILLED = """
import os, signal, sys
from egs_core.runlog.io import RunLogWriter
from egs_core.runlog.records import Header, Ended
log = RunLogWriter(sys.argv[1], Header())
for number in range(1000):
    log.write(Ended(float(number), "w", str(number)))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_writer_loses_nothing_it_wrote(tmp_path: Path) -> None:
    """kill -9 right after write: every record is in the file, without flush or close."""
    path = tmp_path / "log.jsonl"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=env, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL
    assert read_run(path).records == [Ended(float(n), "w", str(n)) for n in range(1000)]


FULL = """
import resource, sys
from pathlib import Path
from egs_core.runlog.io import FailOpenWriter
from egs_core.runlog.records import Header, WorkloadSubmitted
log = FailOpenWriter(Path(sys.argv[1]), Header(), print)
log.write(WorkloadSubmitted(0.0, "w"))
size = Path(sys.argv[1]).stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, size + 10))
for _ in range(3):
    log.write(WorkloadSubmitted(0.0, "w"))
log.close()
log.close()
"""


def test_a_log_that_can_no_longer_be_written_costs_one_warning(tmp_path: Path) -> None:
    """At a limit of the system the process goes on, is told once, and what was whole before can be read."""
    path = tmp_path / "new" / "log.jsonl"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", FULL, str(path)]
    done = subprocess.run(command, env=env, timeout=240, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["the run log ends here: [Errno 27] File too large"]
    run = read_run(path)
    assert (run.records, run.truncated) == ([WorkloadSubmitted(0.0, "w")], True)


def test_a_log_that_cannot_be_made_costs_one_warning(tmp_path: Path) -> None:
    """A file where its folder should be: one warning, and every record after it is dropped in silence."""
    (tmp_path / "file").touch()
    warnings: list[str] = []
    log = FailOpenWriter(tmp_path / "file" / "log.jsonl", Header(), warnings.append)
    log.write(WorkloadSubmitted(0.0, "w"))
    log.close()
    assert len(warnings) == 1
    assert warnings[0].startswith("no run log: ")


def test_cold_start_and_used_may_be_empty(tmp_path: Path) -> None:
    """A stretch of no length is allowed: a clock may not resolve it."""
    write_run(tmp_path / "log.jsonl", Header(), [ColdStart(1.0, 1.0, "w", "a"), Used(1.0, 1.0, "w", "a")])
    assert len(read_run(tmp_path / "log.jsonl").records) == 2


@pytest.mark.parametrize(("in_order", "times"), [(True, [3.0, 1.0, 2.0]), (False, [1.0, 2.0, 3.0])])
def test_a_log_that_is_not_in_order_is_sorted_by_its_reader(tmp_path: Path, in_order: bool, times: list[float]) -> None:
    """A writer that hears late of what happened says so; what others wrote is read as it stands."""
    path = tmp_path / "run.jsonl"
    write_run(path, Header(in_order=in_order), [Ended(t, "w", "t") for t in (3.0, 1.0, 2.0)])
    assert [record.t for record in read_run(path).records if isinstance(record, Ended)] == times
