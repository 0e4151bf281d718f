"""The number of a task's process comes from the task's own first word, and from nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest

from egs_kubeflow.run import fork_server, forked
from egs_kubeflow.run.forked import ForkServer

OUT_OF_ORDER = """
import os, socket, sys
runner = socket.socket(fileno=int(sys.argv[1]))
_, fds, _, _ = socket.recv_fds(runner, 8, 2)
os.write(fds[1], b"own-word 1\\nbegin 4194304\\nend 1\\n")
os.close(fds[0]), os.close(fds[1])
while runner.recv(4096): pass
"""
"""A server by which the exit code that a short task has in mind comes before its number."""
SHORT_TASK = """
import os, time
from egs_kubeflow.run import fork_server
keeper, tell = os.getpid(), fork_server._tell
def tell_late(*words):
    if os.getpid() == keeper:
        time.sleep(1)
    tell(*words)
fork_server._tell = tell_late
request = fork_server.keep({"output": os.dup(1), "pipe": os.dup(1), "undo": []})
tell(request["pipe"], fork_server.OWN_WORD, 1)
os._exit(1)
"""
"""A task that ends at once, and a keeper that gets no processor meanwhile."""


def test_another_word_first_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exit code 1 taken for a process's number would be a signal to every process of the user: such a server has
    failed, and the task is started in another way."""
    monkeypatch.setattr(forked, "_TEXT", OUT_OF_ORDER)
    server = ForkServer("test", imports=False)
    try:
        assert server.start({"command": ["true"], "environment": {}}) is None
    finally:
        server.close()


def test_a_task_tells_its_number_first() -> None:
    """Whatever its keeper does meanwhile, and however short the task is."""
    told = subprocess.run(
        [sys.executable, "-c", SHORT_TASK], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    words = [line.split()[0] for line in told.splitlines()]
    assert words == [fork_server.BEGIN, fork_server.OWN_WORD, fork_server.END]
