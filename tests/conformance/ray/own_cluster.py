"""A Ray cluster for tests that may not use the session's: a head without GPUs, and two nodes with one GPU each.

Run as a process (`own_cluster.py [dashboard] [one]`), it prints a line of JSON about itself, then answers each line on
its standard input, `books` or `add`, with one line, and shuts everything down when that input ends. `OwnCluster` is the
side of the tests.
"""

from __future__ import annotations

import contextlib
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

from egs_core.testing.conformance.bench import wait_until

STORE_BYTES = 80_000_000
FORGETFUL = {"RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "5000"}
"""So that Ray takes some seconds to know that a node is gone, not 15."""


class OwnCluster:
    """address: for drivers; dashboard: its URL, "" where there is none. one: with one GPU node only."""

    def __init__(self, folder: str, *, dashboard: bool = False, one: bool = False) -> None:
        variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        variables |= {"PYTHONPATH": os.pathsep.join(sys.path), "RAY_TMPDIR": folder, **FORGETFUL}
        program = [sys.executable, "-W", "ignore", str(Path(__file__)), *["dashboard"] * dashboard, *["one"] * one]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(program, env=variables, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        about = self._answer()
        self.address, self.dashboard = str(about["address"]), str(about["dashboard"])
        self._raylets: dict[str, int] = dict(about["raylets"])

    def books(self) -> dict[str, float]:
        """GPUs there, GPUs free, living actors."""
        return self._ask("books")

    def lose(self, node: str = "", *, whole: bool = True) -> None:
        """kill -9 of a node's raylet, and, of a whole node, of all its workers; by default of the newest. Returns when
        Ray knows."""
        node = node or list(self._raylets)[-1]
        raylet = psutil.Process(self._raylets.pop(node))
        for process in [raylet, *(raylet.children(recursive=True) if whole else [])]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        wait_until(lambda: self.books()["gpus"] == len(self._raylets), "Ray knows that the node is gone")

    def add(self) -> None:
        """One more node with a GPU."""
        self._raylets |= self._ask("add")["raylets"]

    def repair(self) -> None:
        """Two nodes with GPUs again."""
        while len(self._raylets) < 2:
            self.add()
        wait_until(lambda: self.books()["gpus"] == 2, "two nodes with a GPU each")

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

    def _ask(self, word: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ANSWER "):
                return dict(json.loads(line.removeprefix("ANSWER ")))
        raise AssertionError(f"the cluster's process has ended: {self.process.communicate()[1]}")


@contextmanager
def own_cluster(*, dashboard: bool = False, one: bool = False) -> Iterator[OwnCluster]:
    """The cluster; nothing of it stays."""
    with tempfile.TemporaryDirectory(prefix="egs-", ignore_cleanup_errors=True) as folder:  # short: for sockets
        made = OwnCluster(folder, dashboard=dashboard, one=one)
        try:
            yield made
        finally:
            made.close()


# --- the process ---


def main(*words: str) -> None:
    """Be the cluster until standard input ends."""
    import ray
    from ray.cluster_utils import Cluster

    from tests.conformance.ray.patience import be_patient

    be_patient()
    head: dict[str, Any] = {"num_cpus": 2, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    if "dashboard" in words:
        head |= {"include_dashboard": True, "dashboard_host": "127.0.0.1", "dashboard_port": 0}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [_add(cluster) for _ in range(1 if "one" in words else 2)]
    context = ray.init(address=cluster.address, log_to_driver=False)
    url = f"http://{context.dashboard_url}" if "dashboard" in words else ""
    _print({"address": cluster.address, "dashboard": url, "raylets": _raylets(nodes)})
    for line in sys.stdin:
        for node in nodes:
            node.all_processes["raylet"][0].process.poll()  # to its workers a killed one lives until it is waited for
        if line.strip() == "add":
            nodes.append(_add(cluster))
            _print({"raylets": _raylets(nodes[-1:])})
        else:
            _print(_books())
    ray.shutdown()
    cluster.shutdown()


def _add(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=4, num_gpus=1, object_store_memory=STORE_BYTES)


def _raylets(nodes: list[Any]) -> dict[str, int]:
    return {node.node_id: node.all_processes["raylet"][0].process.pid for node in nodes}


def _books() -> dict[str, float]:
    """What Ray's books say: GPUs that are there, GPUs that are free, and actors that live."""
    import ray
    from ray._private.state import actors

    total, free = ray.cluster_resources(), ray.available_resources()
    living = [a for a in actors().values() if a["State"] != "DEAD" and a["Name"] != "egs-control"]  # the cluster's own
    return {"gpus": total.get("GPU", 0.0), "free": round(free.get("GPU", 0.0), 2), "actors": len(living)}


def _print(answer: dict[str, Any]) -> None:
    print("ANSWER", json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
