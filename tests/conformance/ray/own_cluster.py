"""A Ray cluster for tests that may not use the session's: a head without GPUs, and two nodes with one GPU each.

Run as a process (`own_cluster.py [dashboard]`), it prints a line of JSON about itself, then answers each line on its
standard input with one about its books, and shuts all down when that input ends. `OwnCluster` is the tests' side.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

STORE_BYTES = 80_000_000


class OwnCluster:
    """address: for drivers; dashboard: its URL, "" where there is none."""

    def __init__(self, folder: str, *, dashboard: bool = False) -> None:
        variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        variables |= {"PYTHONPATH": os.pathsep.join(sys.path), "RAY_TMPDIR": folder}
        program = [sys.executable, "-W", "ignore", str(Path(__file__)), *(["dashboard"] if dashboard else [])]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(program, env=variables, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        about = self._answer()
        self.address, self.dashboard = str(about["address"]), str(about["dashboard"])

    def books(self) -> dict[str, float]:
        """GPUs there, GPUs free, living actors."""
        assert self.process.stdin is not None
        self.process.stdin.write("books\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        started = psutil.Process(self.process.pid).children(recursive=True)
        try:
            self.process.communicate(timeout=60)  # its input ends
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
        _, alive = psutil.wait_procs(started, timeout=10)
        for process in alive:
            process.kill()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ANSWER "):
                return dict(json.loads(line.removeprefix("ANSWER ")))
        raise AssertionError(f"the cluster's process has ended: {self.process.communicate()[1]}")


@contextmanager
def own_cluster(*, dashboard: bool = False) -> Iterator[OwnCluster]:
    """The cluster; nothing of it stays."""
    with tempfile.TemporaryDirectory(prefix="egs-", ignore_cleanup_errors=True) as folder:  # short: for sockets
        made = OwnCluster(folder, dashboard=dashboard)
        try:
            yield made
        finally:
            made.close()


# --- the process ---


def main(*words: str) -> None:
    """Be the cluster until standard input ends."""
    import ray
    from ray.cluster_utils import Cluster

    head: dict[str, Any] = {"num_cpus": 2, "object_store_memory": STORE_BYTES}
    if "dashboard" in words:
        head |= {"include_dashboard": True, "dashboard_host": "127.0.0.1", "dashboard_port": 0}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(num_cpus=4, num_gpus=1, object_store_memory=STORE_BYTES)
    context = ray.init(address=cluster.address, log_to_driver=False)
    url = f"http://{context.dashboard_url}" if "dashboard" in words else ""
    _print({"address": cluster.address, "dashboard": url})
    for _ in sys.stdin:
        _print(_books())
    ray.shutdown()
    cluster.shutdown()


def _books() -> dict[str, float]:
    """What Ray's books say: GPUs that are there, GPUs that are free, and actors that live."""
    import ray
    from ray._private.state import actors

    total, free = ray.cluster_resources(), ray.available_resources()
    living = [actor for actor in actors().values() if actor["State"] != "DEAD"]
    return {"gpus": total.get("GPU", 0.0), "free": round(free.get("GPU", 0.0), 2), "actors": len(living)}


def _print(answer: dict[str, Any]) -> None:
    print("ANSWER", json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
