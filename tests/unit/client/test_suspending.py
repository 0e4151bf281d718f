"""What is put aside, in one process: which processes are told to stay so."""

from __future__ import annotations

import select
import subprocess
import time

import pytest

from egs_core.client import suspending
from egs_core.client.messages import Process
from egs_core.client.processes import is_stopped, process

PATIENCE_S = 30.0


@pytest.mark.parametrize("is_its_own", [True, False])
def test_only_what_was_put_aside_is_stopped_again(is_its_own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of its own that somebody has let go on is; one that has the number of one that has ended goes on."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            found = process(child.pid)
            assert found is not None
            there = found if is_its_own else Process(pid=child.pid, started=found.started - 1)
            monkeypatch.setattr(suspending, "put_aside", lambda *_: suspending.Aside(child.pid, (), (there,), ()))
            suspension = suspending.Suspension(lambda _: None, lambda: None, lambda: None)
            assert suspension.begin("7", "another goes first", child.pid, ())
            suspension.stay()
            until = time.monotonic() + PATIENCE_S
            while is_its_own and not is_stopped(child.pid):
                assert time.monotonic() < until, "it is not stopped"
                time.sleep(0.005)
            if not is_its_own:
                assert child.stdin is not None
                assert child.stdout is not None
                child.stdin.write(b"goes on\n")
                child.stdin.flush()
                assert select.select([child.stdout], [], [], PATIENCE_S)[0], "it answers no more"
        finally:
            child.kill()
