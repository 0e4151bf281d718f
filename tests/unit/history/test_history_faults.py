"""A store that cannot be used costs one warning and nothing else: the history fails open."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from egs_core.graph.columns import Shape
from egs_core.history import HistoryRow, stored
from egs_core.history.opened import open_history
from egs_core.history.sql import SqlHistory
from egs_core.history.stored import StoredHistory

ROW = HistoryRow("p", "t", 0, Shape(), 1.0)


def garbage(folder: Path) -> str:
    (folder / "history.sqlite").write_bytes(b"this is no database" * 1000)
    return f"sqlite:///{folder}/history.sqlite"


def truncated(folder: Path) -> str:
    SqlHistory.in_folder(folder).record([ROW] * 2000)
    file = folder / "history.sqlite"
    file.write_bytes(file.read_bytes()[:6000])
    return f"sqlite:///{file}"


def later_version(folder: Path) -> str:
    SqlHistory.in_folder(folder).record([ROW])
    with closing(sqlite3.connect(folder / "history.sqlite")) as connection:
        connection.execute("UPDATE egs_history_schema SET version = 2")
        connection.commit()
    return f"sqlite:///{folder}/history.sqlite"


def folder_is_a_file(folder: Path) -> str:
    (folder / "file").write_text("")
    return f"sqlite:///{folder}/file/history.sqlite"


def file_is_a_folder(folder: Path) -> str:
    (folder / "history.sqlite").mkdir()
    return f"sqlite:///{folder}/history.sqlite"


def read_only_folder(_: Path) -> str:
    return "sqlite:////proc/history.sqlite"  # refuses new files even from root, whom mode bits do not stop


def read_only_file(folder: Path) -> str:
    SqlHistory.in_folder(folder).record([ROW])
    return f"sqlite:///file:{folder}/history.sqlite?mode=ro&uri=true"


def no_driver(_: Path) -> str:
    return "postgresql+nosuchdriver://user:secret@127.0.0.1:1/egs"


def no_url(_: Path) -> str:
    return "::: not a url"


FAULTS = [
    garbage,
    truncated,
    later_version,
    folder_is_a_file,
    file_is_a_folder,
    read_only_folder,
    read_only_file,
    no_driver,
    no_url,
]


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not warned of any store."""
    monkeypatch.setattr(stored, "_warned", set())


@pytest.mark.parametrize("make", [SqlHistory, open_history], ids=["sqlalchemy", "chosen"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.__name__))
def test_an_unusable_store_is_one_warning(
    fault: Callable[[Path], str],
    make: Callable[..., StoredHistory],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every method returns, none raises, and there is one warning in all, also of two that use it, and without the
    password."""
    url = fault(tmp_path)
    with caplog.at_level(logging.DEBUG, logger="egs.history"):
        for history in (make(url, busy_timeout_s=0.1), make(url, busy_timeout_s=0.1)):
            assert [history.record([ROW]) for _ in range(3)] == [0, 0, 0]
            assert (history.load("p"), history.signatures("p"), history.pipelines()) == ([], [], [])
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("egs: history ")
    assert "going on without it" in caplog.text
    assert "secret" not in caplog.text


def test_a_later_version_is_not_touched(tmp_path: Path) -> None:
    """A store of a later EGS keeps its rows and its version."""
    history = SqlHistory(later_version(tmp_path))
    assert history.load("p") == []
    history.record([ROW])
    with closing(sqlite3.connect(tmp_path / "history.sqlite")) as connection:
        assert connection.execute("SELECT version FROM egs_history_schema").fetchall() == [(2,)]
        assert connection.execute("SELECT count(*) FROM egs_history_phase").fetchone() == (1,)


def test_a_locked_store_gives_up_after_the_busy_timeout(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While another process holds the write lock, recording returns after the timeout with one warning."""
    SqlHistory.in_folder(tmp_path).record([ROW])
    with closing(sqlite3.connect(tmp_path / "history.sqlite", isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        history = SqlHistory.in_folder(tmp_path, busy_timeout_s=0.05)
        assert [history.record([ROW]), history.record([ROW])] == [0, 0]
        holder.execute("ROLLBACK")
    assert len(caplog.records) == 1
    assert "locked" in caplog.text
    assert SqlHistory.in_folder(tmp_path).record([ROW]) == 1
