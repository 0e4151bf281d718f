"""Two checkouts compared: two small ones, whose command burns a known amount of processor time in real processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.pairs import claimed, main, words

BURN = "import time\nuntil = time.process_time() + {seconds}\nwhile time.process_time() < until: pass\n"
WORK = """
import os, subprocess, sys
from pathlib import Path
import egs_core
with open(sys.argv[1], "a") as log:
    print(egs_core.NAME, os.environ.get("EGS_URL"), file=log)
subprocess.run([sys.executable, "-c", {burn!r}], check=True)
print({seconds})
"""
DAEMON = """
import os, subprocess, sys
done = sys.argv[2]
subprocess.run([sys.executable, "-c", "import os\\nif os.fork(): os._exit(0)\\nos.setsid()\\n" + {burn!r}
                + f"open({{done!r}}, 'w').close()"], check=True)
import time
until = time.monotonic() + 60
while not os.path.exists(done) and time.monotonic() < until: time.sleep(0.05)
os.unlink(done)
"""


def checkout(folder: Path, seconds: float, work: str = WORK) -> Path:
    """A folder with an `egs_core` that says its name, and a command `work.py`."""
    package = folder / "egs_core"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"NAME = {folder.name!r}\n")
    (folder / "work.py").write_text(work.format(burn=BURN.format(seconds=seconds), seconds=seconds))
    return folder


@pytest.fixture
def sides(tmp_path: Path) -> tuple[str, str]:
    return str(checkout(tmp_path / "before", 0.6)), str(checkout(tmp_path / "after", 0.1))


def test_a_child_process_that_takes_less_is_seen(
    sides: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each run has its own checkout's code and no server of the user's, first one of each that does not count, then by
    turns; what a child burns is counted; and the exit code says that the new one takes less."""
    monkeypatch.setenv("EGS_URL", "http://127.0.0.1:1")
    log = tmp_path / "log"
    line = [*sides, "--pairs", "3", "--check", "0.9", "--json", "--", "python", "work.py", str(log)]
    assert main(line) == 0
    found = json.loads(capsys.readouterr().out)
    ran = [line.split() for line in log.read_text().splitlines()]
    assert {url for _, url in ran} == {"None"}
    assert " ".join(name for name, _ in ran) == "before after before after after before before after"
    assert (len(found["old_s"]), found["pairs"], found["is_claimed"]) == (3, 3, True)
    assert found["low"] <= found["ratio"] <= found["high"] < 0.9
    assert min(found["old_s"]) >= 0.6
    assert 0.1 <= min(found["new_s"]) < 0.6
    turned = [
        sides[1],
        sides[0],
        "--pairs",
        "2",
        "--warm-up",
        "0",
        "--check",
        "1.0",
        "--",
        "python",
        "work.py",
        str(log),
    ]
    assert main(turned) == 1  # the other way round it takes more


def test_the_figure_may_be_what_the_command_prints(
    sides: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its last line, to the digit; a line that is no number ends the comparison."""
    line = [*sides, "--pairs", "1", "--warm-up", "0", "--printed", "--", "python"]
    assert main([*line, "work.py", str(tmp_path / "log")]) == 0
    assert "one pair" in capsys.readouterr().out
    assert main([*line, "-c", "print('no number')"]) == 2
    assert "--printed: the command's last line is 'no number'" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_daemon_counts_where_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A process that nobody waits for is in the figure with --daemons alone."""
    side = str(checkout(tmp_path / "one", 0.8, DAEMON))
    line = ["python", "work.py", str(tmp_path / "log"), str(tmp_path / "done")]
    took = {}
    for option in ("--warm-up=0", "--daemons"):
        assert main([side, side, "--pairs", "1", "--json", "--warm-up", "0", option, "--", *line]) == 0
        took[option] = json.loads(capsys.readouterr().out)["old_s"][0]
    assert took["--warm-up=0"] < 0.6
    assert took["--daemons"] > 0.6


def test_what_cannot_be_compared_is_one_line(
    sides: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder without EGS, one whose Python runs another checkout's, a program that is not there, and a command that
    fails, whose last words are shown; each with exit code 2."""
    before, after = sides
    other = checkout(tmp_path / "other", 0.1)
    programs = other / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -I "$@"\n')  # -I: as if it had EGS by itself
    (programs / "python").chmod(0o755)
    for old, command, told in (
        (str(tmp_path), ["python", "-V"], f"{tmp_path}: is no checkout of EGS"),
        (str(other), ["python", "-V"], f"{other}: `python` there runs the EGS of "),
        (before, ["no-such-program"], "no-such-program: cannot be started"),
        (before, ["python", "-c", "print('last words'); exit(3)"], "the command ended with exit code 3"),
    ):
        assert main([old, after, "--pairs", "1", "--", *command]) == 2
        err = capsys.readouterr().err
        assert told in err
        assert "Traceback" not in err
    assert "last words" in err


def test_a_difference_that_noise_may_make_is_not_told() -> None:
    """Pairs that disagree say that nothing can be told, with their interval; those that agree say how much."""
    unsure = [(1.0, 0.9), (1.0, 1.1), (1.0, 0.95), (1.0, 1.08)]
    assert words(unsure, claimed(unsure))[-1].startswith("no difference can be told: new takes 1.01")
    sure = [(1.0, 0.9), (2.0, 1.82), (1.5, 1.35)]
    assert words(sure, claimed(sure)) == [
        "old: 1.500 s, from 1.000 to 2.000",
        "new: 1.350 s, from 0.900 to 1.820",
        "new takes 0.900 times as much as old: 95 % from 0.889 to 0.918, 3 pairs",
    ]
