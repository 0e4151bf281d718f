"""Control where the controller is on another node than the tasks, and their driver hangs."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from egs_ray.control import commands as control
from egs_ray.control import controller
from tests.conformance.ray import control_tasks as c
from tests.conformance.ray import run_tasks as t

pytestmark = pytest.mark.long


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A cluster with the controller on its first node and all GPUs on its second; this process is connected to it. Its
    address."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    folder = tempfile.mkdtemp(prefix="egs-")
    small: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 80_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "temp_dir": folder})
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        ray.get(controller.get_or_make().ready.remote())  # while there is no other node for it
        cluster.add_node(**small, num_gpus=2)
        yield str(cluster.address)
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def test_processes_on_another_node_are_ended(two_nodes: str, tmp_path: Path) -> None:
    """The controller is on the node without GPUs; the tasks' processes end all the same, and their GPUs are free."""
    driver = c.start("run", tmp_path, two_nodes)
    (tmp_path / "0").mkdir()
    folder = tmp_path / "0"
    try:
        for name in ("load0.end", "load1.end"):
            t.signal_to(str(folder), name)
        t.until(lambda: c.starts(folder, "fit0") and c.starts(folder, "fit1"))
        t.until(lambda: [len(row["pids"]) for row in rows_of_fits()] == [2, 2])
        assert {node for row in rows_of_fits() for node, _ in row["pids"]} != {node_of_controller()}
        driver.send_signal(signal.SIGSTOP)
        assert control.abort("pipe#0").hangs
        t.until(lambda: all(c.is_dead(c.starts(folder, f"fit{i}")[0]) for i in range(2)))
        t.until(lambda: t.free("GPU") == 2)
        driver.send_signal(signal.SIGCONT)
        t.until((folder / "out.txt").exists)
        assert [len(c.starts(folder, name)) for name in ("fit0", "fit1", "after")] == [1, 1, 0]
    finally:
        driver.kill()
        driver.wait()


def rows_of_fits() -> list[dict[str, Any]]:
    found = controller.find()
    table = ray.get(found.table.remote()) if found is not None else []
    return [row for driver in table for row in driver["tasks"] if row["stage"] == "fit"]


def node_of_controller() -> str:
    """Where Ray has put the actor."""
    return str(ray.get(controller.find().ready.remote()))  # type: ignore[union-attr]  # it is there
