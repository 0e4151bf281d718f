"""A node is lost, by kill -9 of its raylet: `egs_ray.run` ends as Ray alone does, and the session goes on.

Each test runs the same graph natively and by `egs_ray.run` on a cluster of its own, loses the same node each time, and
compares values and how often each task has run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from egs_core.testing.conformance.bench import wait_until
from tests.conformance.ray.conftest import _python_path
from tests.conformance.ray.own_cluster import OwnCluster, own_cluster

pytestmark = pytest.mark.long
WAYS = ("native", "run")
START_S = 150.0  # a driver and its workers, on a machine that does other things, too


class Driver:
    """A driver process under way in a folder of its own."""

    def __init__(self, folder: Path, way: str, graph: str, address: str) -> None:
        folder.mkdir()
        self.folder, self.way = folder, way
        variables = {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": _python_path()}
        variables |= {"EGS_RUNLOG": str(folder / "log.jsonl"), "EGS_HISTORY": f"sqlite:///{folder}/history.db"}
        command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("node_loss_driver.py"))]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [*command, way, str(folder), graph], env=variables, cwd=folder, stdout=pipe, stderr=pipe, text=True
        )

    def marks(self, what: str = "begin") -> list[dict[str, str]]:
        """Each start, or end, of a task: its name and its node."""
        path = self.folder / "marks"
        marks = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [mark for mark in marks if mark["what"] == what]

    def node_of(self, *tasks: str, what: str = "begin") -> str:
        """Where one of these has begun, or ended, as soon as it has."""
        found: list[str] = []
        deadline = time.monotonic() + START_S
        while not found:
            assert time.monotonic() < deadline, f"{self.way}: no {what} of {tasks}"
            time.sleep(0.05)
            found.extend(mark["node"] for mark in self.marks(what) if mark["task"] in tasks)
        return found[0]

    def go(self) -> None:
        (self.folder / "go").touch()

    def result(self) -> dict[str, Any]:
        """What it printed, without times."""
        out, err = self.process.communicate(timeout=200)
        line = next((line for line in out.splitlines() if line.startswith("RESULT ")), "")
        assert line, f"{self.way}: {out}{err}"
        print(self.way, line, dict(self.tries()), err)  # pytest shows it when a test fails
        found = json.loads(line.removeprefix("RESULT "))
        return {name: value for name, value in found.items() if not name.endswith("_s")}

    def tries(self) -> Counter[tuple[str, str]]:
        """How often each task has begun on each node."""
        return Counter((mark["task"], mark["node"][:6]) for mark in self.marks())


Start = Callable[[OwnCluster, str, str], Driver]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a graph on a cluster, in one of `WAYS`."""
    started: list[Driver] = []

    def start_one(cluster: OwnCluster, way: str, graph: str) -> Driver:
        started.append(Driver(tmp_path / f"{way}{len(started)}", way, graph, cluster.address))
        return started[-1]

    yield start_one
    for driver in started:
        if driver.process.poll() is None:
            driver.process.kill()
            driver.process.communicate()


@pytest.fixture(scope="module")
def pair() -> Iterator[OwnCluster]:
    """A cluster with two GPU nodes."""
    with own_cluster() as made:
        yield made


def require_all_free(cluster: OwnCluster) -> None:
    """No GPU is held, and no actor lives."""
    wait_until(lambda: (found := cluster.books())["free"] == found["gpus"] and not found["actors"], "all is given back")


@pytest.mark.parametrize("whole", [False, True])
def test_one_of_two_nodes(pair: OwnCluster, start: Start, whole: bool) -> None:
    """What ran on it runs again on the other, once, and then what waited: the raylet only, whose workers end by
    themselves, or all its processes at once."""
    results, tries = {}, {}
    for way in WAYS if whole else ("run",):
        pair.repair()
        running = start(pair, way, "load")
        lost = running.node_of("first1")
        assert running.node_of("first0") != lost
        pair.lose(lost, whole=whole)
        running.go()
        results[way], tries[way] = running.result(), running.tries()
        require_all_free(pair)
        assert results[way] == {"load": [1.0] * 5 + [5.0], "after": [3.0]}, (way, results, tries)
    assert set(tries["run"].values()) == {1}, tries  # again only what had run, or left its value, on the lost node


def test_values_are_lost_with_their_node(pair: OwnCluster, start: Start) -> None:
    """Values that nothing else has are made again where a GPU is, though the task that needs them has been granted the
    only one that is left."""
    results, tries = {}, {}
    for way in WAYS:
        pair.repair()
        running = start(pair, way, "values")
        lost = running.node_of("warm", what="end")
        running.node_of("gate")
        wait_until(lambda: pair.books()["free"] == 2, "it has ended")
        pair.lose(lost)
        running.go()
        results[way], tries[way] = running.result(), running.tries()
        require_all_free(pair)
        assert results[way] == {"values": [4.0], "after": [3.0]}, (way, results, tries)
    assert sum(tries["run"].values()) <= sum(tries["native"].values()), tries


def test_the_only_node_with_gpus(start: Start) -> None:
    """Nothing starts on nodes without GPUs; when a node comes that has one, all goes on there."""
    results, tries = {}, {}
    with own_cluster(one=True) as cluster:
        for way in WAYS:
            running = start(cluster, way, "load")
            cluster.lose(running.node_of("first0", "first1"))
            cluster.add()
            running.go()
            results[way], tries[way] = running.result(), running.tries()
            require_all_free(cluster)
            assert results[way] == {"load": [1.0] * 5 + [5.0], "after": [3.0]}, (way, results, tries)
    assert set(tries["run"].values()) == {1}, tries
