"""What a look at the host's processes remembers of the one before: real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from egs_core.client import processes
from egs_core.client.processes import LEASE_VARIABLE, Snapshot

AGAIN = """
import os, sys, time
while not os.path.exists(sys.argv[1]): time.sleep(0.02)
program = "import time; open('%s.begun', 'w').close(); time.sleep(600)" % sys.argv[1]
os.execve(sys.executable, [sys.executable, "-c", program], {"EGS_LEASE": sys.argv[2]})
"""
MARK = "site.7.3"


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process without a mark, which starts another program, with one, once TMP/go is there."""
    clean = {name: value for name, value in os.environ.items() if name != LEASE_VARIABLE}
    child = subprocess.Popen([sys.executable, "-c", AGAIN, str(tmp_path / "go"), MARK], env=clean)
    yield child
    child.kill()
    child.wait()


def test_a_process_that_starts_another_program_is_looked_at_again(
    begun: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """Its number and its start stay, its environment is another one: its mark is found by a look that remembers."""
    before = Snapshot(Snapshot())
    assert before.living([], MARK) == []
    (tmp_path / "go").touch()
    until = time.monotonic() + 60
    while not (tmp_path / "go.begun").exists():
        before = Snapshot(before)  # also in the moment in which it changes
        assert time.monotonic() < until, "it did not start its other program"
    assert [one.pid for one in Snapshot(before).living([], MARK)] == [begun.pid]


def test_what_has_done_nothing_is_known_and_what_has_gone_is_not(begun: subprocess.Popen[bytes]) -> None:
    """A look that remembers finds of a process what one without finds: also once it has ended, while it is nothing but
    an exit code, and when that is gone."""
    before = Snapshot()
    named = processes.process(begun.pid)
    assert named is not None
    for step in ("runs", "ended", "gone"):
        is_there = step == "runs"
        if step == "gone":
            begun.wait()
        elif step == "ended":
            begun.kill()
            os.waitid(os.P_PID, begun.pid, os.WEXITED | os.WNOWAIT)  # its exit code stays
        before, anew = Snapshot(before), Snapshot()
        for pid in (begun.pid, os.getpid()):
            assert before._table.get(pid) == anew._table.get(pid)
        assert [one.living([named], "") == [named] for one in (before, anew)] == [is_there, is_there]


def test_what_runs_on_is_not_read_again(begun: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment and a control group each that need no reading; a look that remembers nothing reads all."""
    read: list[int] = []
    mark = processes._mark

    def counted(pid: int) -> str:
        read.append(pid)
        return mark(pid)

    monkeypatch.setattr(processes, "_mark", counted)
    first = Snapshot()
    assert {begun.pid, os.getpid()} <= set(read)
    read.clear()
    again = Snapshot(first)
    assert not {begun.pid, os.getpid()} & set(read)
    assert again._seen[begun.pid][1:] == first._seen[begun.pid][1:]
