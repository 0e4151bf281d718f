"""`egs.work`: what it adds up, for an adapter in the same process and for one that only started it, and that nothing
which is told can hurt a task."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import egs_core as egs
from egs_core import worked
from egs_core.worked import FOLDER, take, told_in


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has been told in this process."""
    monkeypatch.delenv(FOLDER, raising=False)
    monkeypatch.setattr(worked, "_sums", worked._Sums())


def test_amounts_add_up_until_they_are_taken() -> None:
    """By unit, from any call; once taken they are the adapter's."""
    egs.work(tokens=3)
    egs.work(tokens=4, images=0.5)
    assert take() == {"tokens": 7.0, "images": 0.5}
    assert take() == {}
    egs.work(tokens=1)
    assert take() == {"tokens": 1.0}


class Scalar:
    """As of numpy or torch."""

    def __float__(self) -> float:
        return 5.0


class Broken:
    def __float__(self) -> float:
        raise RuntimeError("a device is gone")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, "many", None, Broken()])
def test_what_is_no_amount_is_not_counted_and_said_once(
    value: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A training that has run for hours does not end for a NaN; the whole call is left out, later ones count."""
    monkeypatch.setattr("egs_core.notices._said", set())
    for _ in range(2):
        egs.work(images=2, tokens=value)
    egs.work(tokens=Scalar())  # type: ignore[arg-type]  # what can be a float is one
    assert take() == {"tokens": 5.0}
    said = capsys.readouterr().err
    assert said.startswith("egs: egs.work: ")
    assert said.count("\n") == 1


def test_units_are_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    """A name made of a step's number would fill a log."""
    for number in range(worked.MOST_UNITS + 5):
        egs.work(**{f"unit{number}": 1})
    egs.work(**{"x" * 200: 1})
    egs.work(**{"line\n": 1})
    assert len(take()) == worked.MOST_UNITS
    assert "is not counted" in capsys.readouterr().err


TELLS = """
import os, sys, egs_core as egs
egs.work(tokens=1000000)
if os.fork() == 0:
    egs.work(tokens=2)
    os._exit(0)
os.wait()
egs.work(tokens=0.1); egs.work(tokens=0.2); egs.work(tokens=0.7)
print("told", flush=True)
sys.stdin.read()
"""


def test_processes_of_a_task_tell_by_files(tmp_path: Path) -> None:
    """A parent that is killed and a child that ends at once have told all, and nothing twice; other files are none."""
    (tmp_path / "half.json").write_text('{"tokens": ')
    (tmp_path / "odd.json").write_text('{"tokens": -1}')
    (tmp_path / "list.json").write_text("[1]")
    environment = os.environ | {FOLDER: str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", TELLS], env=environment, **pipes, text=True) as process:  # type: ignore[call-overload]  # of the same pipes each
        assert process.stdout.readline() == "told\n"
        process.send_signal(signal.SIGKILL)
    assert told_in(tmp_path) == {"tokens": pytest.approx(1_000_003.0)}


def in_time(read: Callable[[], Any]) -> list[Any]:
    """What it finds; nothing where it waits for ever."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(read()), daemon=True)
    thread.start()
    thread.join(30)
    return found


def test_files_that_tasks_should_not_write_keep_nobody(tmp_path: Path) -> None:
    """A FIFO would keep its reader for ever, a link may lead to anything, a file may be of any length and have any
    names: the end of a run with amounts that the server refuses is never told."""
    folder = tmp_path / "told"
    folder.mkdir()
    os.mkfifo(folder / "fifo.json")
    (tmp_path / "elsewhere").write_text('{"linked": 1}')
    (folder / "link.json").symlink_to(tmp_path / "elsewhere")
    (folder / "long.json").write_text('{"long": 1' + worked.MOST_BYTES * " " + "}")
    (folder / "nested.json").write_text(20_000 * "[" + 20_000 * "]")
    (folder / "huge.json").write_text('{"huge": 1' + 4000 * "0" + "}")
    (folder / "named.json").write_text(json.dumps({"x" * 200: 1, "line\n": 1, "tokens": 1}))
    for number in range(2):
        (folder / f"{number}.json").write_text('{"much": 1.7e308, "tokens": 1}')
    assert in_time(lambda: told_in(folder)) == [{"much": worked.MOST_AMOUNT, "tokens": 3.0}]


def test_a_file_of_as_many_units_as_there_may_be_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the longest names, in letters that take the most bytes."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    units = {f"{number:02}" + 98 * "\U00020000": 1.0000000000000002e29 for number in range(worked.MOST_UNITS)}
    egs.work(**units)
    take()
    assert told_in(tmp_path) == units


def test_what_an_adapter_takes_stays_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ray driver inside of `egs run`: both hear all of it."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    egs.work(tokens=2)
    take()
    egs.work(tokens=3)
    assert (take(), told_in(tmp_path)) == ({"tokens": 3.0}, {"tokens": 5.0})
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_bytes()) == {"tokens": 5.0}


def test_a_folder_that_is_gone_costs_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("egs_core.notices._said", set())
    monkeypatch.setenv(FOLDER, str(tmp_path / "gone"))
    egs.work(tokens=2)
    egs.work(tokens=2)
    assert capsys.readouterr().err.count("\n") == 1
    assert told_in(tmp_path / "gone") == {}
