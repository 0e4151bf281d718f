"""The standard library's store and SQLAlchemy's are one: the same file, either way, in any order."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from egs_core.graph.columns import Shape
from egs_core.history import HistoryRow
from egs_core.history.opened import open_history
from egs_core.history.sql import SqlHistory
from egs_core.history.sqlite import SqliteHistory, plain_path
from egs_core.history.stored import StoredHistory

ROW = HistoryRow("p", "t", 2, Shape(1, 2, 3, 4), 5.5, "a100", 7, 0.25, "succeeded", 1e9, "ray")


def schema(path: Path) -> tuple[list[object], ...]:
    """Columns with their types and constraints, and indices, of what is in a file."""
    with closing(sqlite3.connect(path)) as connection:
        queries = (
            "PRAGMA table_info(egs_history_phase)",
            "PRAGMA table_info(egs_history_schema)",
            "PRAGMA index_info(egs_history_phase_by_pipeline)",
            "PRAGMA journal_mode",
        )
        return tuple(connection.execute(query).fetchall() for query in queries)


def test_both_make_the_same_tables(tmp_path: Path) -> None:
    """A file of the one is a file of the other."""
    plain, other = tmp_path / "plain.sqlite", tmp_path / "other.sqlite"
    assert SqliteHistory(plain).record([ROW]) == SqlHistory(f"sqlite:///{other}").record([ROW]) == 1
    assert schema(plain) == schema(other)


@pytest.mark.parametrize("plain_first", [True, False])
def test_each_reads_what_the_other_wrote(plain_first: bool, tmp_path: Path) -> None:
    """Also into a folder that there was not."""
    path = tmp_path / "new" / "folder" / "h.sqlite"
    both: list[StoredHistory] = [SqliteHistory(path), SqlHistory(f"sqlite:///{path}")]
    first, second = both if plain_first else both[::-1]
    first.record([ROW])
    second.record([ROW])
    assert first.load("p") == second.load("p") == [ROW, ROW]
    assert first.pipelines() == second.pipelines() == ["p"]
    assert first.load("p", limit=1) == [ROW]


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:////tmp/h.sqlite", "/tmp/h.sqlite"),
        ("sqlite:///h.sqlite", "h.sqlite"),
        ("sqlite:///file:/tmp/h.sqlite?mode=ro&uri=true", None),
        ("sqlite:///:memory:", None),
        ("sqlite://", None),
        ("postgresql://user@host/egs", None),
    ],
)
def test_which_urls_are_plain(url: str, path: str | None) -> None:
    """All else is SQLAlchemy's to understand."""
    assert plain_path(url) == (None if path is None else Path(path))
    assert isinstance(open_history(url), SqliteHistory) is (path is not None)


def test_the_users_own_history_needs_no_sqlalchemy(tmp_path: Path) -> None:
    """Writing and reading it imports nothing of what takes a third of a second."""
    code = (
        "import sys; from egs_core.history.opened import open_history; from egs_core.history.rows import HistoryRow;"
        "from egs_core.graph.columns import Shape; history = open_history();"
        "history.record([HistoryRow('p', 't', 0, Shape(), 1.0)]);"
        "print(len(history.load('p')), 'sqlalchemy' in sys.modules, 'pydantic' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"XDG_DATA_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stdout == "1 False False\n", done.stderr


@pytest.mark.parametrize("plain_first", [True, False])
def test_profiles_are_kept_beside(plain_first: bool, tmp_path: Path) -> None:
    """By name, the newest first to be read and told oldest first; either reads what the other wrote, rows before and
    after stay, and a store without any, or none at all, has none."""
    path = tmp_path / "h.sqlite"
    both: list[StoredHistory] = [SqliteHistory(path), SqlHistory(f"sqlite:///{path}")]
    first, second = both if plain_first else both[::-1]
    assert first.load_profile("train") == second.load_profile("train") == []
    first.record([ROW])
    assert second.load_profile("train") == []
    assert first.profile_names() == second.profile_names() == []
    assert first.record_profile("train", [(2.0, "b"), (1.0, "a")]) == 2
    assert second.record_profile("train", [(3.0, "c")]) == 1
    second.record_profile("other", [(9.0, "x")])
    assert first.load_profile("train") == second.load_profile("train") == ["a", "b", "c"]
    assert first.load_profile("train", limit=2) == second.load_profile("train", limit=2) == ["b", "c"]
    assert first.profile_names() == second.profile_names() == ["other", "train"]
    assert SqliteHistory(path).load("p") == [ROW]
    assert first.problem is None
    assert second.problem is None
