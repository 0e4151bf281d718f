"""Run logs wait to be learned from until somebody asks for the history, each is learned once, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from egs_core.history.opened import open_history
from egs_core.history.pending import learn_pending, leave, pending_folder
from egs_core.runlog import records as r
from egs_core.runlog.io import write_run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's data folder of its own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("EGS_HISTORY", raising=False)
    return tmp_path


def write_log(path: Path, seconds: float = 2.0) -> Path:
    """A run log with one task; the order of its lines is not that of time, as an observer leaves it."""
    records: list[r.Record] = [
        r.Ended(1.0 + seconds, "train", "fit"),
        r.Started(t=1.0, workload="train", task="fit", node="n", cpus=1.0, gpus=1.0),
        r.TaskAdded(t=0.0, workload="train", task="fit", name="fit", phases=(("gpu", 1.0, 1.0, 0),)),
        r.WorkloadSubmitted(t=0.0, workload="train", name="train"),
    ]
    write_run(path, r.Header(run_id="train", driver="ray", started_at=100.0, label="train", in_order=False), records)
    return path


def test_a_log_is_learned_when_somebody_asks(home: Path) -> None:
    """Not before; once; and the note is gone."""
    leave(write_log(home / "log.jsonl"))
    assert open_history().load("train") == []
    assert learn_pending() == 1
    assert [row.seconds for row in open_history().load("train")] == [2.0]
    assert learn_pending() == 0
    assert list(pending_folder().iterdir()) == []


def test_logs_of_another_history_wait_for_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script with a history of its own teaches that one, however its file is spelled."""
    other = f"sqlite:///{home}/other.sqlite"
    with monkeypatch.context() as patch:
        patch.setenv("EGS_HISTORY", other)
        leave(write_log(home / "log.jsonl"))
    assert learn_pending() == 0
    monkeypatch.chdir(home)
    assert learn_pending("sqlite:///other.sqlite") == 1
    assert [row.seconds for row in open_history(other).load("train")] == [2.0]


def test_what_is_gone_or_damaged_is_forgotten(home: Path) -> None:
    """A log that was removed or is none, and a note that is none: nothing is raised, and nothing is asked again."""
    leave(home / "gone.jsonl")
    (home / "text").write_text("no run log")
    leave(home / "text")
    (pending_folder() / "1-1.json").write_text("{")
    assert learn_pending() == 0
    assert list(pending_folder().iterdir()) == []


def test_a_learner_that_died_is_followed_by_another(home: Path) -> None:
    """Its note says who took it; while that process lives, nobody else learns the log."""
    leave(write_log(home / "log.jsonl"))
    (note,) = pending_folder().iterdir()
    taken = note.rename(note.with_name(f"{note.name}.taken-{os.getpid()}"))
    assert learn_pending() == 0
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    taken.rename(note.with_name(f"{note.name}.taken-{ended.pid}"))
    assert learn_pending() == 1
