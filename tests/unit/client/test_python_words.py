"""Which words of a command are Python's own, and what Python puts in front of `sys.path`: as Python itself has it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from egs_core.client.python_words import python_words
from egs_core.errors import InputError

SHOWS = "import sys; print(repr(sys.path[0]))"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, in which there is something to run."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "train.py").write_text(SHOWS)
    (tmp_path / "jobs" / "__main__.py").write_text(SHOWS)
    (tmp_path / "link.py").symlink_to("jobs/train.py")
    (tmp_path / "module.py").write_text(SHOWS)
    with zipfile.ZipFile(tmp_path / "whole.zip", "w") as whole:
        whole.writestr("__main__.py", SHOWS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (["jobs/train.py", "-E", "--x"], []),
        (["-OBW", "error", "link.py"], ["-OBW", "error"]),
        (["-X", "dev", "-Werror", "jobs"], ["-X", "dev", "-Werror"]),
        (["--check-hash-based-pycs", "never", "whole.zip"], ["--check-hash-based-pycs", "never"]),
        (["-Bm", "module"], ["-B"]),
        (["-u", "-c", SHOWS, "-I"], ["-u"]),
    ],
)
def test_it_is_as_python_has_it(folder: Path, words: list[str], own: list[str]) -> None:
    """The interpreter's options end where its program begins, whatever follows."""
    found = python_words([sys.executable, *words])
    assert found.interpreter == [sys.executable, *own]
    shown = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True).stdout.strip()
    assert repr(str(folder) if found.first == "." else found.first) == shown


@pytest.mark.parametrize(
    "command",
    [
        "bash job.sh",
        "pythonic train.py",
        "python",
        "python -u",
        "python -I train.py",
        "python -BE train.py",
        "python3.12 -S -m trainer",
        "python -V",
        "python --version",
        "python train.py --device {gpus}",
    ],
)
def test_where_nothing_can_be_loaded_ahead_that_is_said(command: str) -> None:
    with pytest.raises(InputError) as told:
        python_words(command.split())
    assert told.value.place == "--preload"
    assert "leave --preload out" in str(told.value)
