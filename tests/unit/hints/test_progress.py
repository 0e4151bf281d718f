"""`egs.progress`: what the processes of a command say of where they are, as one; and that nothing which is told can
hurt the command."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import egs_core as egs
from egs_core import progressed
from egs_core.progressed import Progressed, progress_in, progress_told
from egs_core.worked import FOLDER
from tests.unit.hints.test_work import Broken, Scalar, in_time


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing has been told in this process, which is a command's."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr(progressed, "_latest", progressed.Latest())
    monkeypatch.setattr("egs_core.notices._said", set())


def told(folder: Path) -> Progressed:
    found = progress_in(folder)
    assert found is not None
    return found


def test_the_latest_counts_and_all_losses_are_summed(tmp_path: Path) -> None:
    """What was told between two looks is in the sums; a loss that is none is said, and in no sum."""
    egs.progress(step=1, loss=3)
    egs.progress(step=2, loss=1.0)
    egs.progress(step=3)
    found = told(tmp_path)
    assert found[:-1] == (3.0, 1.0, False, 2, 4.0, 10.0)
    egs.progress(step=4, loss=math.nan)
    assert told(tmp_path)[:-1] == (4.0, 1.0, True, 2, 4.0, 10.0)
    egs.progress(loss=-math.inf)
    egs.progress(loss=1e300)  # its square is none
    assert told(tmp_path).is_nan
    egs.progress(loss=Scalar())  # type: ignore[arg-type]  # what can be a float is one
    assert told(tmp_path)[:-1] == (4.0, 5.0, False, 3, 9.0, 35.0)


@pytest.mark.parametrize("value", ["much", [], Broken(), {}])
def test_what_is_no_number_is_said_once_and_not_counted(
    value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    egs.progress(step=7, loss=1)
    for _ in range(2):
        egs.progress(step=8, loss=value)
        egs.progress(step=value)
    for step in (-1, math.nan, math.inf):
        egs.progress(step=step)
    assert told(tmp_path)[:-1] == (7.0, 1.0, False, 1, 1.0, 1.0)
    said = capsys.readouterr().err.splitlines()
    assert all(line.startswith("egs: egs.progress: is not counted: ") for line in said)
    assert len(said) == len(set(said))


def test_without_egs_and_with_a_folder_that_is_gone_it_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(FOLDER)
    egs.progress(step=1, loss=Broken())  # type: ignore[arg-type]  # nobody looks at it
    assert capsys.readouterr().err == ""
    monkeypatch.setenv(FOLDER, str(tmp_path / "gone"))
    egs.progress(step=1)
    egs.progress(step=1)
    assert capsys.readouterr().err.count("\n") == 1
    assert (progress_in(tmp_path), progress_in(tmp_path / "gone")) == (None, None)


TELLS = """
import os, pathlib, sys, time, egs_core as egs
from egs_core.worked import FOLDER
egs.progress(step=10, loss=2.0)
if os.fork() == 0:
    egs.progress(step=12, loss=float(sys.argv[1]))
    os._exit(0)
os.wait()
folder = pathlib.Path(os.environ[FOLDER])
child = max(path.stat().st_mtime for path in folder.glob("[0-9]*.progress"))
while (folder / "clock").touch() or (folder / "clock").stat().st_mtime <= child:  # files' times have ticks
    time.sleep(0.001)
egs.progress(step=11, loss=4.0)
print("told", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("loss", "is_nan", "total"), [("3", False, 9.0), ("nan", True, 6.0)])
def test_processes_of_a_command_are_told_as_one(tmp_path: Path, loss: str, is_nan: bool, total: float) -> None:
    """The furthest step, the latest loss, the losses of all; one that ended with NaN is not forgotten, one that was
    killed has told all. Other files are none, and what an earlier start told is left out."""
    for name, text in {"half": "[1, 2", "odd": '[1, "x", 1, 1, 1, 1]', "few": "[1]", "map": "{}", "inf": "[1]"}.items():
        (tmp_path / f"{name}.progress").write_text(text)
    (tmp_path / "endless.progress").write_text("[1, Infinity, false, 1, 1, 1]")
    early = tmp_path / "early.progress"
    early.write_text(json.dumps([100, 100.0, True, 1, 100.0, 100.0]))
    os.utime(early, (1000, 1000))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", TELLS, loss], **pipes, text=True) as process:  # type: ignore[call-overload]  # of the same pipes each
        assert process.stdout.readline() == "told\n"
        process.send_signal(signal.SIGKILL)
    found = progress_in(tmp_path, 2000.0)
    assert found is not None
    assert (found.step, found.loss, found.is_nan, found.total) == (12.0, 4.0, is_nan, total)
    assert found.at == max(path.stat().st_mtime for path in tmp_path.glob(f"{process.pid}-*"))


HALF = [1, 1.0, False, 1, 1.0, 1e308]


@pytest.mark.parametrize(
    "text",
    [
        "[1, 1.0, false, 1, 1.0, -1]",
        "[1, 1.0, false, 9007199254740993, 1.0, 1.0]",
        "[1, 1.0, false, Infinity, 1.0, 1.0]",
        "[1" + 4000 * "0" + ", 1.0, false, 1, 1.0, 1.0]",
        2000 * "[" + 2000 * "]",
        "[1, 1.0, false, 1, 1.0, 1.0" + 8192 * " " + "]",
    ],
    ids=["negative", "many", "infinite", "huge", "nested", "long"],
)
def test_what_a_server_would_not_take_is_not_told(tmp_path: Path, text: str) -> None:
    """A task may write any file, and its agent tells of all tasks at once: one that is refused is not told at all."""
    (tmp_path / "bad.progress").write_text(text)
    assert progress_in(tmp_path) is None
    egs.progress(step=7, loss=1)
    assert told(tmp_path)[:-1] == (7.0, 1.0, False, 1, 1.0, 1.0)


def test_sums_without_end_are_not_told(tmp_path: Path) -> None:
    """Each is finite, all together are not."""
    for number in range(2):
        (tmp_path / f"{number}.progress").write_text(json.dumps(HALF))
    assert progress_in(tmp_path) is None
    (tmp_path / "0.progress").unlink()
    assert told(tmp_path).squares == 1e308


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    """A FIFO would keep its reader for ever, a link may lead to anything."""
    folder = tmp_path / "told"
    folder.mkdir()
    os.mkfifo(folder / "fifo.progress")
    (folder / "folder.progress").mkdir()
    (tmp_path / "elsewhere").write_text(json.dumps(HALF))
    (folder / "link.progress").symlink_to(tmp_path / "elsewhere")
    assert in_time(lambda: progress_in(folder)) == [None]


def until(condition: Any, text: str) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, text
        time.sleep(0.005)


def test_what_a_task_tells_is_sent_on_now_and_then(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A thousand words are one that has the latest, and all losses; the next are another, later. A process of a
    command that is a task's as well tells both."""
    monkeypatch.setattr(progressed, "EVERY_S", 0.2)
    sent: list[Progressed] = []
    with progress_told(sent.append):
        began = time.monotonic()
        for step in range(1000):
            egs.progress(step=step, loss=1.0)
        until(lambda: sent, "it is sent on")
        assert time.monotonic() - began >= 0.2
        count = len(sent)
        assert sent[-1].losses == sent[-1].total
        egs.progress(step=1000, loss=math.nan)
        until(lambda: len(sent) > count, "the next is sent on")
    assert (sent[-1].step, sent[-1].loss, sent[-1].is_nan, sent[-1].losses) == (1000.0, 1.0, True, 1000)
    assert count <= 1 + (time.monotonic() - began) / 0.2
    assert told(tmp_path)[:-1] == sent[-1][:-1]


def test_a_task_that_tells_nothing_costs_nothing_and_one_that_is_over_tells_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No thread without a word; none is left after the end, and the next task in the process begins with nothing."""
    monkeypatch.delenv(FOLDER)
    monkeypatch.setattr(progressed, "EVERY_S", 0.05)
    sent: list[Progressed] = []
    before = threading.active_count()
    with progress_told(sent.append):
        assert threading.active_count() == before
    with progress_told(sent.append):
        egs.progress(step=1, loss=5.0)
    egs.progress(step=2)
    until(lambda: threading.active_count() == before, "its thread has ended")
    assert [one.step for one in sent] in ([], [1.0])  # it may have been on its way
    with progress_told(sent.append):
        egs.progress(step=3)
        until(lambda: sent and sent[-1].step == 3, "the next is told")
    assert (sent[-1].loss, sent[-1].losses) == (None, 0)


def test_a_child_of_a_task_tells_nothing_on_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a task forks has the line of its parent, where two would write into one another's words."""
    monkeypatch.setattr(progressed, "EVERY_S", 0.01)
    reads, writes = os.pipe()

    def send(one: Progressed) -> None:
        os.write(writes, f"{os.getpid()} {one.step}\n".encode())

    with progress_told(send):
        child = os.fork()
        if not child:
            egs.progress(step=2)
            time.sleep(0.2)
            os._exit(0)
        os.waitpid(child, 0)
        egs.progress(step=1)
        assert os.read(reads, 100).decode() == f"{os.getpid()} 1.0\n"
    os.close(reads)
    os.close(writes)
