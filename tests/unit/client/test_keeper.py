"""What the keeper of `egs run --keep-ready` goes by, and where none is begun. Its runs are tested on a real server
(`server/test_serve_ready.py`, `server/test_serve_ready_same.py`)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from egs_core.client import keeper
from egs_core.client.surroundings import ignored

LIMITS = {
    "of the group": ((), ("10000", "5000"), 4000),
    "of one above it": (("10000", "8000"), ("max", "7000"), 1000),
    "of the nearer to its limit": (("10000", "5000"), ("6000", "5000"), 400),
    "nothing left": (("10000", "9200"), ("max", "9200"), 0),
    "so little that all end": (("10000", "9600"), ("max", "9600"), -1),
}


@pytest.mark.parametrize(("above", "own", "room"), LIMITS.values(), ids=LIMITS)
def test_a_control_groups_memory_bounds_what_stands_ready(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, above: tuple[str, ...], own: tuple[str, ...], room: int
) -> None:
    """A tenth stays free, and where half of that is left all end. The files are the kernel's own kind, in a folder."""
    (tmp_path / "above/own").mkdir(parents=True)
    for folder, told in (("above", above), ("above/own", own)):
        for name, text in zip(("memory.max", "memory.current"), told, strict=False):
            (tmp_path / folder / name).write_text(text + "\n")
    monkeypatch.setattr(keeper, "GROUPS", tmp_path)
    monkeypatch.setattr(keeper, "_group", lambda: "above/own")
    assert keeper.room_bytes() == room


def test_which_signals_a_process_ignores_is_the_same_however_it_was_begun() -> None:
    """The C library has two of its own ignored in what `posix_spawn` begins."""
    words = [sys.executable, "-c", "from egs_core.client.surroundings import ignored; print(ignored())"]
    forked = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout
    reading, writing = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, writing, 1)]
    pid = os.posix_spawn(sys.executable, words, dict(os.environ), file_actions=actions, setsigdef=[signal.SIGPIPE])
    os.close(writing)
    with os.fdopen(reading) as said:
        assert said.read() == forked
    assert os.waitpid(pid, 0)[1] == 0
    assert int(ignored(), 16) >> (signal.SIGPIPE - 1) & 1


ALONE = """
import os, signal
from egs_core.client.ready import Ready
assert os.getpid() == 1
Ready(["python3", "work.py"], ["json"], {}, [], 1, print).start()
"""


def test_the_first_process_of_a_container_begins_no_keeper() -> None:
    """It would be its child, for whose end `egs run` waits."""
    begin = ["unshare", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*begin, "true"], capture_output=True).returncode:
        pytest.skip("this user may make no namespace of processes")
    done = subprocess.run([*begin, sys.executable, "-c", ALONE], stdout=subprocess.PIPE, text=True, check=True)
    assert "this is the first process of its container" in done.stdout
