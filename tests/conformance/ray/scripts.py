"""Scripts that several files of tests give to Ray, and what EGS said while they ran."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

Script = Callable[..., "subprocess.CompletedProcess[str]"]


def egs_lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What EGS said to the user."""
    return [line for line in done.stderr.splitlines() if line.startswith("egs:")]


ORDER = """
import os, time
import ray

WAITS = os.environ["WAITS"]

@ray.remote(num_gpus=2, max_calls=0)
def step(name, *after):
    began = time.time()
    while name == "leaf 0" and not os.path.exists(WAITS):   # until all are there
        time.sleep(0.02)
    return name, began

@ray.remote
def report(name, *after):
    return name, time.time()

ray.init(log_to_driver=False)
ray.get([step.remote("first"), report.remote("first")])  # both have a process now
leaves = [step.remote(f"leaf {i}") for i in range(6)]
one = step.remote("one")
two = step.remote("two", one)
three = step.remote("three", two)
last = report.remote("report", three)
open(WAITS, "w").close()
done = ray.get([*leaves, one, two, three, last])
print([name for name, _ in sorted(done, key=lambda entry: entry[1])])
"""
