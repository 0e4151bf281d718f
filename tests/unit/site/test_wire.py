"""Decoding what a site and its holders tell each other."""

from __future__ import annotations

import subprocess
import sys

RACE = """
import os, sys, threading
import msgspec
from egs_core.site import wire

def work(kind, body, begin):
    begin.wait()
    msgspec.json.decode(body, type=kind)

sys.setswitchinterval(1e-6)
for kind, body in ((wire.Messages, b'{"messages":[]}'), (wire.Batch, b'{"epoch":"","seq":1,"items":[]}')):
    for _ in range(60):  # each in a process in which nothing has been decoded yet
        child = os.fork()
        if not child:
            begin = threading.Barrier(4)
            threads = [threading.Thread(target=work, args=(kind, body, begin)) for _ in range(4)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit("the process has crashed")
"""


def test_threads_may_decode_for_the_first_time_together() -> None:
    """msgspec has ended the process (SIGSEGV) where two threads described a type at once: drivers poll in threads."""
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, check=False, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
