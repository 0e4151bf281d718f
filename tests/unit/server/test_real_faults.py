"""Real faults: a real `egs serve` is killed again and again while real `egs run` processes work, some killed too.

What happened is read afterwards, from what the commands have written and from the server's records.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from egs_core.client import messages as c
from tests.unit.server.real_site import PATIENCE_S, RealSite, wait_for

KILLS = 20
CLIENTS = 4  # at one time
GPUS = 3
CODES = (0, 0, 7)  # and not 1, which is Python's own for an error

COMMAND = """
import fcntl, os, sys, time
folder, name, length_s, code = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
devices = os.environ['CUDA_VISIBLE_DEVICES']
def note(what):
    log = os.open(os.path.join(folder, 'log'), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(log, f'{what} {name} {os.environ["EGS_LEASE"]} {devices}\\n'.encode())
    os.close(log)
held = [open(os.path.join(folder, 'device-' + one), 'a') for one in devices.split(',')]
try:
    for one in held: fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    note('collision')
note('begin')
time.sleep(length_s)
note('end')
sys.exit(code)
"""
"""It holds a lock of each of its devices as long as it lives: the kernel says whether another one has it."""


class Begun(msgspec.Struct):
    """An `egs run`. code: of its command."""

    name: str
    process: subprocess.Popen[str]
    code: int
    is_killed: bool = False


class Havoc:
    """A site, its clients, and what kills them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.site = RealSite(folder / "site", gpus=GPUS)
        self.notes = folder / "notes"
        self.notes.mkdir()
        self.begun: list[Begun] = []

    def lines(self) -> list[list[str]]:
        """What the commands wrote, in order: what, name, lease, devices."""
        log = self.notes / "log"
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []

    def kill_servers(self, times: int) -> None:
        """So often, at any moment: of its start, of a request, of the work."""
        self.site.start()
        for _ in range(times):
            self._begin_some()
            if self.random.random() < 0.75:
                self._wait_for_work()
            time.sleep(self.random.uniform(0, 0.5))  # the moment of the fault
            if self.random.random() < 0.3:
                self._kill_a_client()
            self.site.kill()
            self._begin_some()
            if self.random.random() < 0.3:
                self._kill_a_client()
            self.site.start()

    def end(self) -> list[c.RunView]:
        """Wait until all has ended; what the server knows of it."""
        for one in self.begun:
            one.process.wait(PATIENCE_S)
        wait_for(lambda: not self.site.open(), "all runs end")
        return list(self.site.client.runs(with_ended=True).runs)

    def _wait_for_work(self) -> None:
        before = len(self.lines())
        wait_for(lambda: len(self.lines()) > before, "a command begins or ends")

    def _begin_some(self) -> None:
        while sum(one.process.poll() is None for one in self.begun) < CLIENTS:
            name, code = f"job{len(self.begun)}", self.random.choice(CODES)
            length = f"{self.random.uniform(0.1, 1.5):.2f}"
            words = (sys.executable, "-c", COMMAND, str(self.notes), name, length, str(code))
            gpus = self.random.choice("112")
            url = f"unix://{self.site.folder}/run/egs.sock"
            self.begun.append(
                Begun(name, self.site.run("--gpus", gpus, "--name", name, "--", *words, EGS_URL=url), code)
            )

    def _kill_a_client(self) -> None:
        living = [one for one in self.begun if one.process.poll() is None]
        if living:
            victim = self.random.choice(living)
            victim.is_killed = True
            victim.process.send_signal(signal.SIGKILL)


def check(havoc: Havoc, known: list[c.RunView]) -> None:
    """Each command at most once a grant, and once where its client lived; no device with two; each with its end."""
    lines = havoc.lines()
    assert not [line for line in lines if line[0] == "collision"]
    holder: dict[str, str] = {}
    for what, name, _, devices in lines:
        for device in devices.split(","):
            if what == "begin":
                assert device not in holder, f"{name} begins on {device}, which {holder[device]} has"
                holder[device] = name
            else:
                assert holder.pop(device) == name
    assert not holder
    assert set(Counter(lease for what, _, lease, _ in lines if what == "begin").values()) == {1}
    begins = Counter(name for what, name, _, _ in lines if what == "begin")
    views = {view.name: view for view in known}
    assert len(views) == len(known), "a request was taken for two"
    for one in havoc.begun:
        if one.is_killed:
            assert begins[one.name] <= 1
            assert one.name not in views or views[one.name].state == "ended"
            continue
        assert one.process.stderr is not None
        assert (one.process.returncode, begins[one.name]) == (one.code, 1), one.process.stderr.read()
        expected = ("succeeded" if one.code == 0 else "failed", one.code)
        assert (views[one.name].outcome, views[one.name].exit_code) == expected


@pytest.mark.slow
def test_a_server_that_is_killed_again_and_again(tmp_path: Path) -> None:
    """`kill -9` of the server 20 times, and of some of its clients, while they work: no device is used by two commands
    at one time, none is started twice, and each that keeps its client ends with its own exit code."""
    havoc = Havoc(tmp_path, seed=17)
    try:
        havoc.kill_servers(KILLS)
        check(havoc, havoc.end())
    finally:
        havoc.site.close()
    assert any(one.is_killed for one in havoc.begun)
