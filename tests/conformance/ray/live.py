"""A Ray head with dashboard and pushed events, and an `egs collect` beside it, each a process of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

PATIENCE_S = 200.0
PUSH = {"RAY_enable_core_worker_ray_event_to_aggregator": "1", "RAY_enable_ray_event": "1"}
"""What a driver from outside needs for its events to be pushed."""

CONTENDED = """
import ray, time
ray.init()

@ray.remote(num_gpus=1, max_calls=0)
def leaf(seconds):
    time.sleep(seconds)

@ray.remote(num_gpus=1, max_calls=0)
def step(seconds, before):
    time.sleep(seconds)

@ray.remote
def tail(seconds, before):
    time.sleep(seconds)

leaves = [leaf.remote(2.0) for _ in range(6)]
first = step.remote(2.0, None)
second = step.remote(2.0, first)
last = tail.remote(8.0, step.remote(2.0, second))
ray.get([*leaves, last])
"""
"""On one GPU six leaves go before a chain, on which eight seconds of CPU work wait: 26 s so, 18 s in the best order."""


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def wait_for(condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Until it holds; an AssertionError that names it when it does not in time."""
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not in {patience_s:.0f} s: {what}"
        time.sleep(0.1)


def answers(url: str) -> bool:
    """Whether an HTTP server is there: one that gives what is asked for, or asks who wants it."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code in (401, 403)
    except OSError:
        return False


@contextmanager
def ray_head(*, push_to: str = "", **variables: str) -> Iterator[tuple[str, str]]:
    """A head with four CPUs and one emulated GPU: (address for drivers, dashboard URL). Nothing of it stays."""
    folder = tempfile.mkdtemp(prefix="egs-")
    port, dashboard = free_port(), free_port()
    pushed = {"RAY_DASHBOARD_AGGREGATOR_AGENT_EVENTS_EXPORT_ADDR": push_to, **PUSH}
    arguments = f"start --head --block --num-cpus=4 --num-gpus=1 --port={port} --dashboard-port={dashboard}"
    arguments += f" --dashboard-host=127.0.0.1 --node-ip-address=127.0.0.1 --ray-client-server-port={free_port()}"
    arguments += f" --dashboard-agent-listen-port=0 --object-store-memory=80000000 --temp-dir={folder}"
    with open(Path(folder) / "start.log", "wb") as log:
        head = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", *arguments.split()],
            env={**os.environ, **(pushed if push_to else {}), **variables},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{dashboard}"
        wait_for(lambda: answers(f"{url}/api/version") or head.poll() is not None, "the dashboard answers")
        assert head.poll() is None, (Path(folder) / "start.log").read_text()
        yield f"127.0.0.1:{port}", url
    finally:
        _end(head)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def collector(folder: Path, history: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """An `egs collect` on a free port: (its URL, the process). Ended by SIGTERM, if the test has not ended it."""
    command = [sys.executable, "-m", "egs_core.cli.app", "collect", "--listen", "127.0.0.1:0", "--out", str(folder)]
    process = subprocess.Popen(
        command, env={**os.environ, "EGS_HISTORY": history}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("listening on "), first
        yield first.split()[2].rstrip(";"), process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def _end(head: subprocess.Popen[bytes]) -> None:
    try:
        family = [psutil.Process(head.pid), *psutil.Process(head.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        family = []
    head.terminate()
    _, alive = psutil.wait_procs(family, timeout=20)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=10)
    head.wait(timeout=10)
