"""Under a real autoscaler: what waits at the gate, or for a gang, is demand, and the cluster grows from nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.ray.conftest import _python_path
from tests.conformance.ray.growing import growing_cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # a node is slow to start on a busy machine

Driver = Callable[..., "subprocess.CompletedProcess[str]"]
OPTIONS = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


@pytest.fixture(scope="module", params=["v1", "v2"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """A cluster that has no GPU and may have two, of each of Ray's autoscalers."""
    with growing_cluster(2, {**OPTIONS, "PYTHONPATH": _python_path()}, is_v2=request.param == "v2") as found:
        yield found


@pytest.fixture
def driver(address: str, tmp_path: Path) -> Driver:
    """Run Python source as a driver of the growing cluster."""

    def run(source: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "script.py"
        path.write_text(BEGIN + source)
        places = {"EGS_RUNLOG": str(tmp_path / "log.jsonl"), "EGS_HISTORY": f"sqlite:///{tmp_path}/history.db"}
        variables = {**os.environ, **OPTIONS, "RAY_ADDRESS": address, "PYTHONPATH": _python_path(), **places}
        command = [sys.executable, str(path)]
        return subprocess.run(
            command, env={**variables, **environment}, cwd=tmp_path, capture_output=True, text=True, timeout=800
        )

    return run


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What the script itself printed."""
    return [line.removeprefix("said: ") for line in done.stdout.splitlines() if line.startswith("said: ")]


BEGIN = """
import os, time
import ray
from egs_ray import autoscaler

def say(*words):  # Ray prints here, too
    print("said:", *words)

def gpu_nodes():
    return sum(1 for row in ray.nodes() if row["Alive"] and row["Resources"].get("GPU"))

def until(condition, limit_s=240):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, (condition.__code__.co_names, ray.nodes())
        time.sleep(0.1)

"""

GATED = """
@ray.remote(num_gpus=1, max_calls=0)
def fit(folder, x):
    open(f"{folder}/begun-{x}", "w").close()
    while not os.path.exists(f"{folder}/go"):  # until as many run as nodes may come: the first one cannot run them all
        time.sleep(0.05)
    return ray.get_runtime_context().get_node_id()

ray.init(log_to_driver=False)
until(autoscaler.has_autoscaler)
until(lambda: gpu_nodes() == 0)  # those of a test before go when they are idle
refs = [fit.remote(os.getcwd(), i) for i in range(8)]
until(lambda: autoscaler.requested_nodes())
say("requested")
until(lambda: sum(name.startswith("begun-") for name in os.listdir()) == 2)
open("go", "w").close()
nodes = ray.get(refs, timeout=150)
say(len(nodes), len(set(nodes)))
until(lambda: not autoscaler.requested_nodes())
say("withdrawn")
"""


def test_a_cluster_grows_for_gated_tasks(driver: Driver) -> None:
    """Eight tasks at the gate of a cluster without a GPU: two nodes come, all tasks end, nothing stays asked for."""
    done = driver(GATED, RAY_RUNTIME_ENV_HOOK="egs_ray.hook", EGS_MODE="on")
    assert said(done) == ["requested", "8 2", "withdrawn"], done.stderr
    assert "ordered 8 GPU tasks" in done.stderr
    assert "no longer ordering" not in done.stderr


GANG = """
import egs_core as egs
import egs_ray
from ray.dag import MultiOutputNode

@ray.remote(num_gpus=1, num_cpus=0.5)
@egs.task(gang="shards")
def shard(name):
    return ray.get_runtime_context().get_node_id()

ray.init(log_to_driver=False)
until(autoscaler.has_autoscaler)
until(lambda: gpu_nodes() == 0)
run = egs_ray.run(MultiOutputNode([shard.bind(i) for i in range(2)]))
until(lambda: "GPU" in autoscaler.requested_nodes())
say(len(set(run.get(150))))
until(lambda: not autoscaler.requested_nodes())
until(lambda: gpu_nodes() == 0)
say("withdrawn")
"""


def test_a_cluster_grows_for_a_gang(driver: Driver) -> None:
    """A gang larger than the cluster is not refused where nodes may come: the engine's hint makes room for all of it,
    it runs on both nodes, and they go again."""
    done = driver(GANG)
    assert said(done) == ["2", "withdrawn"], done.stderr


FOREIGN = """
from ray.autoscaler.sdk import request_resources

@ray.remote(num_gpus=1, max_calls=0)
def fit(x):
    return x

ray.init(log_to_driver=False)
until(autoscaler.has_autoscaler)
request_resources(bundles=[{"GPU": 1}])
mine = autoscaler.requested_nodes()
say(ray.get([fit.remote(i) for i in range(4)], timeout=150))
say(autoscaler.requested_nodes() == mine)
request_resources(bundles=[])
"""


def test_a_users_own_request_is_left_alone(driver: Driver) -> None:
    """What a script asks the autoscaler for stays, gating ends with one line, and its tasks end as without EGS."""
    done = driver(FOREIGN, RAY_RUNTIME_ENV_HOOK="egs_ray.hook", EGS_MODE="on")
    assert said(done) == ["[0, 1, 2, 3]", "True"], done.stderr
    assert done.stderr.count("another program asks the autoscaler for nodes: EGS does not") == 1
