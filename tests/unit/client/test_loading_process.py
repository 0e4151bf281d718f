"""The process that imports while a run waits: real interpreters and a real parent, which may be killed. No server."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from egs_core.client.loading import NEVER_S, Loading
from egs_core.client.ready import Ready
from tests.unit.client.test_client import waiting

PATIENCE_S = 240.0

PARENT = """
import os, signal, sys, time
from egs_core.client.loading import NEVER_S, Loading
from egs_core.client.ready import Ready
from egs_core.client.messages import RunView
from egs_core.client.processes import adopt_orphans
adopt_orphans()
view, what = RunView.model_validate_json(sys.argv[1]), sys.argv[2]
loading = Loading([sys.executable, "work.py"], ["slow"], dict(os.environ), [], lambda run: view, print)
while not os.path.exists("started"):
    loading.step("2", "waiting")
    time.sleep(0.01)
if what == "gives up":
    loading.close()
else:
    pid = loading.begin({**os.environ, "CUDA_VISIBLE_DEVICES": "0", "EGS_LEASE": "site.2.1"}, None, None)
    assert pid is not None
    if what == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
"""
"""What `egs run` does with it: loads, and while it imports has its turn, and may be killed then; or gives up."""

SLOW = """
import os, time
def say(text):
    with open("started.part", "w") as file: file.write(text)
    os.rename("started.part", "started")
say(str(os.getpid()))
while not os.path.exists("go"): time.sleep(0.01)
"""

STARTS = """
import os, subprocess
below = subprocess.Popen(["sleep", "600"]).pid
apart = subprocess.Popen(["sleep", "600"], start_new_session=True).pid
orphan = subprocess.check_output(["sh", "-c", "sleep 600 >&2 & echo $!"]).decode().strip()
"""


def wait_until(what: Callable[[], bool], text: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < until, text
        time.sleep(0.01)


def has_ended(pid: int) -> bool:
    """Also where nobody has asked for its code yet."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def parent(folder: Path, what: str, slow: str) -> subprocess.Popen[bytes]:
    (folder / "slow.py").write_text(slow)
    (folder / "work.py").write_text("open('has-run', 'w').close()")
    old = time.time() - 60
    os.utime(folder / "slow.py", (old, old))  # else it might have changed while it is loaded
    words = [sys.executable, "-c", PARENT, waiting(rounds=0).model_dump_json(), what]
    return subprocess.Popen(words, cwd=folder)


def pids_in(folder: Path) -> list[int]:
    wait_until((folder / "started").exists, "it did not begin to import")
    return [int(word) for word in (folder / "started").read_text().split()]


@pytest.mark.parametrize("what", ["lives", "is killed"])
def test_nothing_runs_where_its_egs_run_was_killed_after_the_turn(tmp_path: Path, what: str) -> None:
    """It is told of its turn while it imports, and then its `egs run` is killed: when the import ends the server may
    have given the GPU to another. The command runs where `egs run` lives, and nowhere else."""
    begun = parent(tmp_path, what, SLOW)
    (pid,) = pids_in(tmp_path)
    try:
        if what == "is killed":
            assert begun.wait(PATIENCE_S) == -signal.SIGKILL
        (tmp_path / "go").touch()
        wait_until(lambda: has_ended(pid), "it did not end")
        assert (tmp_path / "has-run").exists() == (what == "lives")
    finally:
        begun.kill()
        begun.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("rest", "starts"),
    [
        ("say(f'{os.getpid()} {below} {apart} {orphan}')\nwhile True: time.sleep(1)", "below, apart, orphan"),
        ("say(f'{os.getpid()} {below} {orphan}'); os.kill(apart, 9); raise ValueError", "below, orphan"),
        ("say(f'{os.getpid()} {below} {orphan}'); os.kill(apart, 9); os._exit(0)", "below, orphan"),
    ],
    ids=["given up", "fails", "is gone"],
)
def test_what_imports_have_started_ends_with_it(tmp_path: Path, rest: str, starts: str) -> None:
    """Of a run that is given up all of it; of an import that has failed, or has ended its process, what is of its
    group. Left behind it would hold the GPUs of the command that is started instead."""
    head = SLOW.rpartition("say(str")[0]
    begun = parent(tmp_path, "gives up", head + STARTS + rest)
    pids = pids_in(tmp_path)
    try:
        assert begun.wait(PATIENCE_S) == 0
        assert len(pids) == 1 + len(starts.split())
        wait_until(lambda: all(map(has_ended, pids)), f"of {pids} there are {[p for p in pids if not has_ended(p)]}")
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("name", ["libcuda.so.1", "libcudart.so.1"])
def test_what_has_asked_cuda_for_gpus_is_not_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """CUDA's driver in a process that sees no GPU, as after `torch.cuda.is_available()`: no device file is open,
    nothing says that it was initialised, and no GPU is found later. Here another library bears its name; CUDA's
    runtime, which is there after an import, says nothing."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    libraries = {Path(line.split()[-1]) for line in maps if ".cpython-" in line and line.endswith(".so")}
    shutil.copy(min(libraries, key=lambda one: one.stat().st_size), tmp_path / name)
    (tmp_path / "asks.py").write_text(f"import ctypes\nctypes.CDLL({str(tmp_path / name)!r})\n")
    old = time.time() - 60
    os.utime(tmp_path / "asks.py", (old, old))
    (tmp_path / "work.py").write_text("open('has-run', 'w').close()")
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    view = waiting(rounds=0)
    loading = Loading([sys.executable, "work.py"], ["asks"], dict(os.environ), [], lambda _run: view, told.append)

    def has_settled() -> bool:
        loading.step("2", "waiting")
        process = loading._process
        return bool(told) or (process is not None and any(line.startswith("loaded ") for line in process.hook.said()))

    try:
        wait_until(has_settled, "it was not loaded")
    finally:
        loading.close()
    if name == "libcuda.so.1":
        assert "what is imported initialises CUDA, or asks it for GPUs, and would see no GPU later" in told[0]
    else:
        assert told == []
    assert not (tmp_path / "has-run").exists()


@pytest.mark.parametrize(("is_short", "rounds"), [(False, 0), (True, 1)])
def test_of_short_runs_the_next_but_one_loads_too(is_short: bool, rounds: int) -> None:
    """As the keeper has said of them; and none that is further from its turn."""
    environment = dict(os.environ)
    ready = Ready([sys.executable, "-c", ""], ["json"], environment, [], 1, lambda _: None)
    ready.is_short = is_short
    views = [waiting(rounds=rounds + 1), waiting(rounds=rounds)]
    command = [sys.executable, "-c", ""]
    loading = Loading(command, ["json"], environment, [], lambda _: views[-1], lambda _: None, ready)
    try:
        assert loading.step("2", "waiting") == NEVER_S
        assert loading._trial is not None
    finally:
        loading.close()
    further = Loading(command, ["json"], environment, [], lambda _: views[0], lambda _: None, ready)
    assert further.step("2", "waiting") == pytest.approx(2.0, abs=0.1)
    assert further._trial is None
