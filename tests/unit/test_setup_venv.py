"""`make setup` says what it does: minutes without a word look like a hang."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts import setup_venv


def test_it_says_that_it_takes_minutes_and_where_its_log_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before pip begins, which here is a program that fails; what it has written is in the log that was named."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n[ $1 = -c ] && exit 0\necho ERROR: no network\nexit 1\n")
    python.chmod(0o755)
    (tmp_path / "egs-stamp").write_text("place old\n")
    for name, path in (("VENV", tmp_path), ("PYTHON", python), ("STAMP", tmp_path / "egs-stamp")):
        monkeypatch.setattr(setup_venv, name, path)
    monkeypatch.setattr(setup_venv, "LOG", tmp_path / "setup.log")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        setup_venv._build("place", "new")
    told = capsys.readouterr().err
    assert told.startswith("setting up .venv with Python 3.")
    assert told.endswith(f" … this takes some minutes; what it does: {tmp_path / 'setup.log'}\n")
    assert (tmp_path / "setup.log").read_text() == "ERROR: no network\n"
    assert setup_venv._explain(failed.value) == 1
    assert "ERROR: no network\nerror: .venv could not be set up" in capsys.readouterr().err
