"""Signals that are blocked and taken one by one, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

BEGIN = """
import os, signal, sys, threading
from egs_core.client.signals import SignalQueue
taken = {signal.SIGTERM, signal.SIGHUP, signal.SIGURG, signal.SIGCHLD}
signal.pthread_sigmask(signal.SIG_BLOCK, taken)
signals = SignalQueue(taken)
print('ready', flush=True)
"""
Begin = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def begin() -> Begin:
    def begun(program: str) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", BEGIN + program], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    return begun


def said(process: subprocess.Popen[str]) -> str:
    output: str = process.communicate(timeout=240)[0]
    return output.strip()


def test_one_that_was_stopped_for_longer_than_its_patience_has_had_no_signal(begin: Begin) -> None:
    """Also when that happens again and again: nothing is made up, as Python's `sigtimedwait` does."""
    process = begin("print([signals.next(0.2) for _ in range(3)])")
    for _ in range(3):
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        time.sleep(0.3)  # longer than its patience: that is the point
        process.send_signal(signal.SIGCONT)
    assert said(process) == "[None, None, None]"


def test_a_signal_that_comes_while_it_is_stopped_is_had_afterwards(begin: Begin) -> None:
    process = begin("print(signals.next(0.2) or signals.next(0.2))")
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    process.send_signal(signal.SIGCONT)
    assert said(process) == str(int(signal.SIGTERM))


def test_each_signal_is_had_once(begin: Begin) -> None:
    """From another process, from another thread, and of a child; then none is left, and who has sent them is known to
    be no terminal."""
    process = begin(
        "os.spawnvp(os.P_WAIT, 'true', ['true'])\n"
        "thread = threading.Thread(target=lambda: os.kill(os.getpid(), signal.SIGURG))\n"
        "thread.start(); thread.join()\n"
        "found = {signals.next(60).name for _ in range(3)}\n"
        "print(sorted(found), signals.next(0), signals.is_from_terminal)"
    )
    process.send_signal(signal.SIGTERM)
    assert said(process) == "['SIGCHLD', 'SIGTERM', 'SIGURG'] None False"
