"""A command that uses a real GPU, by CUDA's driver library alone; its words are its steps, one after the other.

    cuda_program.py FILE STEP…

    take:BYTES      a context, and so much of the device's memory     idle:SECONDS      nothing
    fill:WORD       that memory, with a word                          holds:WORD        it is all that is there
    compute:S       keep the device at work                           until:PATH        wait for a file
    block:…,…       steps inside of `with egs.gpu():`                 child:…,…         in a process of its own

Behind each step it writes a line of JSON into FILE: what it was, and what CUDA shows by then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import egs_core as egs
from benchmarks.cuda_memory import (
    compute,
    fill_device,
    in_sight,
    take_device_memory,
    visible_count,
    words_on_device,
)

FOR_EVER_S = 600.0


def step(file: str, words: str) -> None:
    what, _, much = words.partition(":")
    if what == "take":
        take_device_memory(int(much))
    elif what == "fill":
        fill_device(int(much))
    elif what == "holds":
        assert words_on_device() == {int(much)}
    elif what == "compute":
        compute(float(much))
    elif what == "idle":
        time.sleep(float(much))
    elif what == "until":
        end = time.monotonic() + FOR_EVER_S
        while not os.path.exists(much) and time.monotonic() < end:
            time.sleep(0.02)
    elif what == "block":
        with egs.gpu():
            for inner in much.split(","):
                step(file, inner)
    elif what == "child":
        subprocess.Popen([sys.executable, __file__, file, *much.split(",")], start_new_session=True)
    shown = visible_count() if os.environ.get("CUDA_VISIBLE_DEVICES") else 0
    told = {"step": words, "pid": os.getpid(), "visible": in_sight(), "shown": shown}
    with open(file, "a") as out:
        out.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    for one in sys.argv[2:]:
        step(sys.argv[1], one)
