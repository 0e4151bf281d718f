"""The history in SQLite: what goes in comes out, from several processes, and from a file of version 1."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from egs_core.graph.columns import Shape
from egs_core.history import HistoryRow
from egs_core.history.sql import SqlHistory
from egs_core.predict import Predictor, signature_of

HERE = Path(__file__).parent
GIB = 1024**3


def make_row(
    seconds: float = 1.0, task: str = "train", ended_at: float = 100.0, pipeline: str = "digits"
) -> HistoryRow:
    return HistoryRow(pipeline, task, 1, Shape(4000, 1000, GIB, 20 * GIB), seconds, "h100", 5, 0.5, ended_at=ended_at)


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    """Every field survives the way into a new folder's file and out through another object."""
    row = HistoryRow("p", "t", 2, Shape(1, 2, 3, 4), 5.5, "a100", 7, 0.25, "succeeded", 1e9, "ray")
    assert SqlHistory.in_folder(tmp_path / "new" / "folder").record([row]) == 1
    assert SqlHistory.in_folder(tmp_path / "new" / "folder").load("p") == [row]


def test_load_gives_the_newest_rows_oldest_first(tmp_path: Path) -> None:
    """A limit drops the oldest rows, whatever the order in which they were recorded; pipelines are kept apart."""
    history = SqlHistory.in_folder(tmp_path)
    history.record([make_row(float(t), ended_at=float(t)) for t in (3, 1, 4, 2)])
    history.record([make_row(pipeline="other")])
    assert [row.seconds for row in history.load("digits", limit=3)] == [2.0, 3.0, 4.0]
    assert history.pipelines() == ["digits", "other"]


def test_signatures_are_listed_once(tmp_path: Path) -> None:
    """Two rows of one signature count once; reserved memory is not part of it."""
    history = SqlHistory.in_folder(tmp_path)
    history.record([make_row(), make_row(), make_row(task="load")])
    expected = [signature_of("digits", task, 1, Shape(4000, 1000), "h100", 5) for task in ("train", "load")]
    assert history.signatures("digits") == expected


def test_impossible_rows_are_left_out(tmp_path: Path) -> None:
    """NaN, infinite and negative durations do not get in, and do not keep the others out."""
    history = SqlHistory.in_folder(tmp_path)
    bad = [make_row(seconds) for seconds in (float("nan"), float("inf"), -1.0)]
    assert history.record([*bad, make_row(2.0)]) == 1
    assert [row.seconds for row in history.load("digits")] == [2.0]


def test_reading_an_absent_store_creates_nothing(tmp_path: Path) -> None:
    """Looking into a history that was never written leaves no file and no warning; it can be written afterwards."""
    history = SqlHistory.in_folder(tmp_path / "none")
    assert (history.load("digits"), history.pipelines(), history.record([])) == ([], [], 0)
    assert not (tmp_path / "none").exists()
    assert history.record([make_row()]) == 1
    assert history.problem is None


def test_a_users_history_is_where_it_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A given URL before EGS_HISTORY before the data folder; what is kept in one is not in the others."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert SqlHistory.of_user().record([make_row(1.0)]) == 1
    monkeypatch.setenv("EGS_HISTORY", f"sqlite:///{tmp_path / 'stated.sqlite'}")
    assert SqlHistory.of_user().record([make_row(2.0)]) == 1
    given = f"sqlite:///{tmp_path / 'given.sqlite'}"
    assert SqlHistory.of_user(given).record([make_row(3.0)]) == 1
    found = [SqlHistory.in_folder(tmp_path / "data" / "egs"), SqlHistory.of_user(), SqlHistory(given)]
    assert [[row.seconds for row in history.load("digits")] for history in found] == [[1.0], [2.0], [3.0]]


def test_the_file_is_in_wal_mode(tmp_path: Path) -> None:
    """Readers do not block the writer: the file itself says so."""
    history = SqlHistory.in_folder(tmp_path)
    history.record([make_row()])
    with closing(sqlite3.connect(tmp_path / "history.sqlite")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_version_1_stays_readable(tmp_path: Path) -> None:
    """A store as version 1 wrote it (committed as SQL) is read and extended, and teaches a predictor."""
    with closing(sqlite3.connect(tmp_path / "history.sqlite")) as connection:
        connection.executescript((HERE / "history-v1.sql").read_text())
    history = SqlHistory.in_folder(tmp_path)
    rows = history.load("digits")
    assert [(row.task, row.seconds, row.warmup_s, row.framework) for row in rows] == [
        ("train", 1.5, 2.25, "ray"),
        ("train", 1.75, 0.0, "ray"),
        ("report", 0.3125, 0.0, "sim"),
    ]
    assert rows[0].shape == Shape(4000, 1000, GIB, 20 * GIB)
    assert history.record([make_row()]) == 1
    predictor = Predictor.from_history(history, ["digits"])
    assert predictor.estimate(rows[0].signature).p50_s == pytest.approx(1.5, rel=0.1)
    warmup = predictor.warmup("digits", "train")
    assert warmup is not None
    assert warmup.n == 2


WRITER = """
import sys
from egs_core.graph.columns import Shape
from egs_core.history import HistoryRow
from egs_core.history.sql import SqlHistory
history = SqlHistory.in_folder(sys.argv[1], busy_timeout_s=30)
for batch in range(int(sys.argv[2])):
    row = HistoryRow("p", sys.argv[3], 0, Shape(), float(batch), ended_at=1.0)
    assert history.record([row] * 5) == 5, history.problem
    print(batch, flush=True)
"""


def start_writer(folder: Path, batches: int, name: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WRITER, str(folder), str(batches), name]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_several_processes_write_at_once(tmp_path: Path) -> None:
    """Three processes that start together on an absent store make it once, and lose no row."""
    writers = [start_writer(tmp_path, 20, name) for name in "abc"]
    for writer in writers:
        _, _ = writer.communicate(timeout=240)
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    rows = SqlHistory.in_folder(tmp_path).load("p")
    assert {name: sum(row.task == name for row in rows) for name in "abc"} == {"a": 100, "b": 100, "c": 100}


def test_a_writer_killed_mid_write_leaves_whole_batches(tmp_path: Path) -> None:
    """SIGKILL while writing: what was acknowledged is there, no half batch is, and the next process writes on."""
    with start_writer(tmp_path, 1_000_000, "a") as writer:
        assert writer.stdout is not None
        acknowledged = 1 + max(int(writer.stdout.readline()) for _ in range(10))
        writer.kill()
    history = SqlHistory.in_folder(tmp_path)
    found = len(history.load("p"))
    assert found >= 5 * acknowledged
    assert found % 5 == 0
    assert history.record([make_row()]) == 1


@pytest.mark.parametrize("column", ["seconds", "phase", "cpu_milli"])
def test_a_damaged_row_is_skipped(tmp_path: Path, column: str) -> None:
    """SQLite lets any type into any column: such a row is skipped and the others are read."""
    history = SqlHistory.in_folder(tmp_path)
    history.record([make_row(1.0), make_row(2.0)])
    with closing(sqlite3.connect(tmp_path / "history.sqlite")) as connection:
        connection.execute(f"UPDATE egs_history_phase SET {column} = 'soon' WHERE id = 1")
        connection.commit()
    assert [row.seconds for row in history.load("digits")] == [2.0]
    assert history.problem is None
