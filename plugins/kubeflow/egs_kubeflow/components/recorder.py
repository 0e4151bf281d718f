"""Runs a component's command and notes what it took: in the component's container, so standard library only.

Its text is part of each component's command, and so of kfp's cache keys: a change makes every recorded task run anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Any

PREFIX = "egs-record "
EVERY_S = 5.0
ASK = ["--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]


def watch_gpus(over: threading.Event, found: list[tuple[float, float]]) -> None:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    tool = shutil.which("nvidia-smi")
    if tool is None or visible == "":
        return
    chosen = ["-i", visible] if visible and visible != "all" else []
    while True:
        try:
            said = subprocess.run([tool, *ASK, *chosen], capture_output=True, text=True, timeout=10).stdout
            rows = [[float(cell) for cell in line.split(",")] for line in said.splitlines()]
            if rows:
                found.append((max(row[0] for row in rows), max(row[1] for row in rows)))
        except (OSError, ValueError, IndexError, subprocess.SubprocessError):
            pass
        if over.wait(EVERY_S):
            return


def note(begin: float, code: int, usage: Any, samples: list[tuple[float, float]]) -> None:
    record: dict[str, Any] = {
        "version": 1,
        "start": round(begin, 3),
        "end": round(time.time(), 3),
        "exit_code": code,
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
        "peak_rss_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    }
    if samples:
        record["gpu_samples"] = len(samples)
        record["gpu_busy_share"] = round(sum(used > 0 for used, _ in samples) / len(samples), 3)
        record["gpu_utilization_percent"] = round(sum(used for used, _ in samples) / len(samples), 1)
        record["gpu_peak_memory_bytes"] = int(max(memory for _, memory in samples) * 1024**2)
    line = json.dumps(record, sort_keys=True)
    print(PREFIX + line, flush=True)
    if os.path.exists("/dev/termination-log"):
        with open("/dev/termination-log", "w") as message:
            message.write(line)


def start(command: list[str]) -> tuple[float, int]:
    """What ends this process is for the command, also what comes before there is one."""
    child = 0
    early: list[int] = []

    def forward(number: int, _frame: Any) -> None:
        if child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
        else:
            early.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    begin = time.time()
    child = os.posix_spawnp(command[0], command, os.environ)
    for told in early:
        os.kill(child, told)
    return begin, child


def wait(child: int) -> tuple[int, Any]:
    """Its status and use. By a thread: a signal that comes just before a system call is not seen until that is over."""
    found: list[tuple[int, int, Any]] = []
    try:
        waiter = threading.Thread(target=lambda: found.append(os.wait4(child, 0)), daemon=True)
        waiter.start()
        while waiter.is_alive():
            waiter.join(0.2)
    except RuntimeError:  # no thread can be started: then here
        found.append(os.wait4(child, 0))
    _, status, usage = found[0]
    return status, usage


def finish(begin: float, child: int) -> int:
    over = threading.Event()
    samples: list[tuple[float, float]] = []
    watcher: threading.Thread | None = None
    try:
        watcher = threading.Thread(target=watch_gpus, args=(over, samples), daemon=True)
        watcher.start()
    except RuntimeError:  # no thread can be started: then without
        watcher = None
    status, usage = wait(child)
    code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    try:
        over.set()
        if watcher is not None:
            watcher.join(1.0)
        note(begin, code, usage, samples)
    except Exception:
        pass
    return code


if __name__ == "__main__":
    try:
        started = start(sys.argv[1:])
    except Exception:
        os.execvp(sys.argv[1], sys.argv[1:])
    os._exit(finish(*started))
