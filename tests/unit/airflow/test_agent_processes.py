"""The task processes of a host: found by their title, and ended with all that they have started, and no others."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import psutil
import pytest

from egs_airflow.agent import processes
from egs_airflow.agent.processes import TaskProcess, end_processes, is_of_user, is_there, task_processes

TASK = """
import os, signal, subprocess, sys, time
from setproctitle import setproctitle

name, leads, forks, on_term = sys.argv[1:]
if leads == "yes":
    os.setpgid(0, 0)
signal.signal(signal.SIGTERM, lambda *_: print(on_term, flush=True) if on_term else sys.exit(0))
child = subprocess.Popen(["sleep", "600"])
setproctitle(f"airflow worker -- {name}")
if forks == "yes" and os.fork() == 0:
    child = os.getppid()
    while os.getppid() == child:
        time.sleep(0.02)
    sys.exit()
print(child.pid, flush=True)
while True:
    time.sleep(60)
"""
WAIT_S = 120.0
Start = Callable[..., tuple[TaskProcess, psutil.Process, "subprocess.Popen[str]"]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process that looks like Airflow's; it and its child are gone at the end."""
    with ExitStack() as started:

        def make(
            *, leads: str = "yes", forks: str = "no", on_term: str = ""
        ) -> tuple[TaskProcess, psutil.Process, subprocess.Popen[str]]:
            name = str(uuid.uuid4())
            command = [sys.executable, "-c", TASK, name, leads, forks, on_term]
            process = started.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            started.callback(process.kill)
            assert process.stdout is not None
            child = psutil.Process(int(process.stdout.readline()))
            started.callback(_kill, child)
            return TaskProcess(process.pid, name, time.time()), child, process

        yield make


def test_finds_task_processes(start: Start) -> None:
    """By title, oldest first, with the time of their start; not what one has forked, which has its title too."""
    older, newer = start()[0], start(forks="yes")[0]
    found = {one.instance: one for one in task_processes()}
    assert found[older.instance].pid == older.pid
    assert found[newer.instance].pid == newer.pid
    assert found[older.instance].started_s == pytest.approx(psutil.Process(older.pid).create_time(), abs=1.0)
    assert [one for one in found if one in (older.instance, newer.instance)] == [older.instance, newer.instance]


def test_ends_a_task_with_its_children(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that goes on after SIGTERM, as Airflow's do, hears of it once, and is killed with its child when its time
    is over; one that obeys is waited for no longer than that takes."""
    stubborn, child, process = start(on_term="on_kill")
    assert process.stdout is not None
    heard, send = [], processes._signal

    def send_and_hear(pid: int, number: int, *, to_group: bool) -> None:
        """Its time begins when it has heard of SIGTERM, however busy this machine is."""
        send(pid, number, to_group=to_group)
        if number == signal.SIGTERM and process.stdout is not None:
            heard.append(process.stdout.readline())

    with monkeypatch.context() as patch:
        patch.setattr(processes, "_signal", send_and_hear)
        assert end_processes([stubborn], 0.3) == [stubborn]
    assert process.wait(WAIT_S) == -9
    assert [*heard, process.stdout.read()] == ["on_kill\n", ""]
    _gone(child)
    obeying, child, process = start()
    end_processes([obeying], 10 * WAIT_S)  # more than this test may take
    assert process.wait(WAIT_S) == 0
    _gone(child)


def test_ends_a_task_that_leads_no_group(start: Start) -> None:
    """As Airflow 3.2's: with its child, and without whatever else is in the group, such as this test and another."""
    task, child, process = start(leads="no", on_term="on_kill")
    other, _, beside = start(leads="no")
    assert os.getpgid(task.pid) == os.getpgid(other.pid) == os.getpgid(0)
    assert end_processes([task], 0.1) == [task]
    assert process.wait(WAIT_S) == -9
    _gone(child)
    assert beside.poll() is None
    assert is_there(other)


def test_leaves_a_process_that_has_taken_the_number(start: Start) -> None:
    """The number now belongs to another try: nothing is sent to it."""
    now, _, process = start()
    before = now._replace(instance=str(uuid.uuid4()))
    assert not is_there(before)
    assert end_processes([before], 0.1) == []
    assert process.poll() is None
    assert is_there(now)


def _gone(process: psutil.Process) -> None:
    until = time.monotonic() + WAIT_S
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until, f"{process} lives on"
        time.sleep(0.01)


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()


NOBODY, OTHER = 65534, 65533
TITLED = 'exec -a "airflow worker -- {name}" cat'


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="starts processes of other users")
def test_a_title_alone_makes_nobodys_process_a_task() -> None:
    """Of Airflow's user is what runs as that user, or was started for it by root, as `sudo` does for `run_as_user`; not
    what another user calls so, below a daemon of root's or below a shell, nor a setuid program that one has started."""
    become = "setpriv --clear-groups --reuid {user} {command}; true"
    titled = f"bash -c {shlex.quote(TITLED)}"
    own = become.format(user=NOBODY, command=titled)
    inner = become.format(user=OTHER, command=titled)
    # as sudo does: of another real user, below one of root's or none, which one of Airflow's has started
    as_airflow = f"setpriv --clear-groups --ruid {NOBODY} bash -p -c {{}}; true"
    replaced = as_airflow.format(shlex.quote(inner))
    by_sudo = as_airflow.format(shlex.quote(f"setpriv --ruid 0 bash -c {shlex.quote(inner)}; true"))
    setuid = f"setpriv --clear-groups --ruid {OTHER} bash -p -c {shlex.quote(TITLED)}; true"
    for script, of_nobody, of_root in (
        (own, True, False),
        (inner, False, False),
        (by_sudo, True, False),
        (replaced, True, False),
        (setuid, False, False),
        (titled + "; true", False, True),
    ):
        name = str(uuid.uuid4())
        command = ["bash", "-c", script.replace("{name}", name)]
        with subprocess.Popen(command, stdin=subprocess.PIPE):  # whose end ends all of them
            until = time.monotonic() + WAIT_S
            while not (found := [one.pid for one in task_processes() if one.instance == name]):
                assert time.monotonic() < until
                time.sleep(0.02)
            assert [is_of_user(found[0], user) for user in (NOBODY, 0)] == [of_nobody, of_root], script
