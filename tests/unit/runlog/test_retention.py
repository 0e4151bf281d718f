"""EGS removes only run logs that it named itself, that are old or too many, and that nobody writes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from egs_core.runlog.retention import DAY_S, KEEP_DAYS, KEEP_MB, prune, runs_folder


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of run logs of its own, with the documented defaults."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for name in (KEEP_DAYS, KEEP_MB):
        monkeypatch.delenv(name, raising=False)
    runs_folder().mkdir(parents=True)
    return runs_folder()


@pytest.fixture
def dead() -> int:
    """The number of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def write(folder: Path, name: str, days: float, size: int = 10) -> Path:
    """A file that was last written so many days ago."""
    path = folder / name
    path.write_bytes(b"x" * size)
    at = time.time() - days * DAY_S
    os.utime(path, (at, at))
    return path


def own(pid: int, day: int = 1) -> str:
    return f"202601{day:02d}-120000-train-{pid}.jsonl"


def test_old_logs_go(folder: Path, dead: int) -> None:
    """After thirty days by default; younger ones stay."""
    old, young = write(folder, own(dead, 1), 31), write(folder, own(dead, 2), 29)
    assert prune() == [old]
    assert young.exists()


def test_the_oldest_go_where_all_are_too_many(folder: Path, dead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the rest is small enough."""
    logs = [write(folder, own(dead, day), 20 - day, 400_000) for day in range(1, 5)]
    monkeypatch.setenv(KEEP_MB, "1")
    assert prune() == logs[:2]
    assert all(log.exists() for log in logs[2:])


def test_what_is_not_ours_stays(folder: Path, dead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a user named, links, folders, logs of today, and that of a process that runs."""
    monkeypatch.setenv(KEEP_MB, "0.000001")
    target = write(folder, "thesis.jsonl", 100)
    kept = [
        target,
        write(folder, "train.jsonl", 100),
        write(folder, own(dead) + ".keep", 100),
        write(folder, own(os.getpid()), 100),
        write(folder, own(dead, 3), 0.5),
    ]
    (folder / own(dead, 4)).symlink_to(target)
    (folder / own(dead, 5)).mkdir()
    assert prune() == []
    assert all(path.exists() for path in kept)


def test_retention_can_be_switched_off(folder: Path, dead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero means for ever; nonsense is one warning and the default."""
    log = write(folder, own(dead), 1000)
    monkeypatch.setenv(KEEP_DAYS, "0")
    assert prune() == []
    monkeypatch.setenv(KEEP_DAYS, "soon")
    assert prune() == [log]


def test_a_folder_that_is_not_there(folder: Path) -> None:
    """Nothing was ever written."""
    folder.rmdir()
    assert prune() == []
