"""kill -9 under load: with EGS every pipeline ends or fails as on Ray alone, and nothing of it stays held or running.

Each test runs one pipeline three times on a cluster of its own, natively, by `egs_ray.run` and with the hook in mode
`on`, kills the same part each time while GPU tasks run and others wait, and compares.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from egs_core.testing.conformance.bench import Mark, begun, give_signal, marks_of, wait_for_mark, wait_until
from egs_core.testing.conformance.pipeline import HOLDS, Phase, Pipeline, Task, cpu_task, gpu_task
from tests.conformance.ray.bench_script import Driver, RayScripts, is_alive
from tests.conformance.ray.own_cluster import OwnCluster, own_cluster

pytestmark = pytest.mark.long
WAYS = {"native": ("script", "native"), "run": ("run", "on"), "hook": ("script", "on")}


@pytest.fixture(scope="module")
def cluster() -> Iterator[OwnCluster]:
    """A cluster of its own for this module."""
    with own_cluster() as made:
        yield made


Start = Callable[[str, Pipeline], Driver]


@pytest.fixture
def start(cluster: OwnCluster, tmp_path: Path) -> Iterator[Start]:
    """Starts a pipeline as a driver of that cluster, in one of `WAYS`."""
    benches: list[RayScripts] = []

    def start_one(way: str, pipeline: Pipeline) -> Driver:
        kind, mode = WAYS[way]
        benches.append(RayScripts(tmp_path / f"{way}{len(benches)}", cluster.address, kind))
        return benches[-1].start(pipeline, "on" if mode == "on" else "native")

    yield start_one
    for bench in benches:
        bench.close()


def loaded(name: str, retries: int = 2) -> Pipeline:
    """Both GPUs taken until told, a dozen GPU tasks behind them, and a chain."""
    firsts = [Task(f"first{i}", (), (Phase(1.0, HOLDS, ("go",)),), (HOLDS,), retries=retries) for i in range(2)]
    crowd = [gpu_task(f"crowd{i}", seconds=0.1) for i in range(12)]
    return Pipeline(name, (*firsts, *crowd, gpu_task("next", "first0"), cpu_task("last", "next", "first1", "crowd0")))


def wait_for_firsts(running: Driver) -> list[Mark]:
    return [wait_for_mark(running, f"first{i}") for i in range(2)]


def require_nothing_left(cluster: OwnCluster) -> None:
    """All GPUs are free, no actor lives, and no process of EGS's own does."""
    books = cluster.books
    wait_until(lambda: (found := books())["free"] == found["gpus"] and not found["actors"], "all is given back")
    wait_until(lambda: not egs_processes(cluster), "no process of EGS is left")


def egs_processes(cluster: OwnCluster) -> list[str]:
    """Titles of the cluster's processes that work for EGS; idle ones have another title."""
    titles = []
    for process in psutil.Process(cluster.process.pid).children(recursive=True):
        try:
            titles.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return [title for title in titles if title.startswith("ray::") and "egs" in title.split()[0]]


@pytest.mark.parametrize("retries", [2, 0])
def test_worker_is_killed(cluster: OwnCluster, start: Start, retries: int) -> None:
    """A worker in its GPU phase: its task is tried again where it may be, else its pipeline fails, with Ray's error."""
    outcomes, tries = {}, {}
    for way in WAYS:
        running = start(way, loaded("worker", retries))
        victim = wait_for_firsts(running)[0]
        os.kill(victim.pid, signal.SIGKILL)
        if retries:
            wait_until(lambda running=running: count(running, "first0") == 2, "the second try")  # type: ignore[misc]  # mypy has no types for such a lambda
        give_signal(running, "go")
        outcome = running.wait()
        outcomes[way] = (dict(outcome.values), outcome.error.partition(":")[0])
        tries[way] = count(running, "first0")
        require_nothing_left(cluster)
    assert outcomes["native"][0] == (loaded("worker").values if retries else {}), outcomes
    assert outcomes["run"] == outcomes["hook"] == outcomes["native"]
    assert tries["run"] == tries["hook"] == tries["native"] == (2 if retries else 1)


def test_driver_is_killed(cluster: OwnCluster, start: Start) -> None:
    """The driver, with GPU tasks running and others waiting: none of these starts any more, and all is given back."""
    for way in WAYS:
        running = start(way, loaded("driver"))
        marks = wait_for_firsts(running)
        running.process.kill()
        running.process.communicate()
        wait_until(lambda marks=marks: not any(is_alive(mark.pid) for mark in marks), f"{way}: its tasks have ended")  # type: ignore[misc]  # mypy has no types for such a lambda
        give_signal(running, "go")
        require_nothing_left(cluster)
        assert sorted(begun(running)) == ["first0", "first1"], way


def count(running: Driver, task: str) -> int:
    """How often a task has begun."""
    return sum(mark.task == task and mark.what == "begin" for mark in marks_of(running))
