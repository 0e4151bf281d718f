"""What an actor tells by `egs.work`, from its process: each second, and before somebody ends it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("ray", reason="ray is not installed")

PROGRAM = """
import json, os, threading
import egs_core as egs
from egs_ray.worker.working import say_last_words, work_told_to_the_end

heard = threading.Event()

def tell(word):
    print(json.dumps([word["m"], word["amounts"]]), flush=True)
    heard.set()

egs.work(before=1)                  # of another task of this process
work_told_to_the_end(tell)
work_told_to_the_end(tell)          # a method's, of the same actor
say_last_words()                    # there are none
egs.work(tokens=1)
egs.work(tokens=2, images=5)
assert heard.wait(60)               # both together
if os.fork() == 0:
    egs.work(tokens=100)            # a process that it starts has no line
    say_last_words()
    raise SystemExit(0)
os.wait()
egs.work(tokens=4)
say_last_words()
say_last_words()                    # there are no others
"""


def test_an_actors_work_is_told_to_its_end() -> None:
    """One word for all of a second, one when somebody asks before the end: in all what was told since the actor began,
    once. In a process of its own, as an actor's."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240, check=True)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert told == [
        ["worked", {"tokens": 3, "images": 5}],
        ["worked", {"tokens": 4}],
    ], done.stderr
