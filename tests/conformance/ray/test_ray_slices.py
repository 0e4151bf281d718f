"""Nodes of a real Ray whose GPUs are slices that MIG has made, and parts of GPUs. The UUIDs are made up: no device has
them here, and nothing isolates anything. What is shown is which of them a task is given, and where."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from tests.conformance.ray.test_ray_nodes import outcome_of

pytestmark = pytest.mark.long

SCRIPT = """
import json, os, sys, time
import ray
from ray.cluster_utils import Cluster
from ray.dag import MultiOutputNode
import egs_core as egs

folder = sys.argv[1]
small = dict(object_store_memory=80_000_000)
cluster = Cluster(True, head_node_args=dict(num_cpus=1, include_dashboard=False, temp_dir=folder, **small))

def add(devices, kind, count):  # as `ray start` with this environment and these options
    os.environ["CUDA_VISIBLE_DEVICES"] = devices
    cluster.add_node(num_cpus=2, num_gpus=count, labels={"ray.io/accelerator-type": kind}, **small)
    del os.environ["CUDA_VISIBLE_DEVICES"]

add("MIG-a,MIG-b", "MIG-1g.10gb", 2)
add("GPU-c", "A100", 1)

def together(name):  # until both are there
    open(os.path.join(folder, f"{name}-{os.getpid()}"), "w").close()
    deadline = time.monotonic() + 120
    while sum(one.startswith(name + "-") for one in os.listdir(folder)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return os.environ["CUDA_VISIBLE_DEVICES"]

@ray.remote(num_gpus=1, num_cpus=0.1)
@egs.task(flavors=("MIG-1g.10gb",))
def on_slice():
    return together("slice")

@ray.remote(num_gpus=0.5, num_cpus=0.1)
@egs.task(flavors=("A100",))
def on_half():
    return together("half")

def needing(memory):
    @ray.remote(num_gpus=1, num_cpus=0.1)
    @egs.task(gpu_memory=memory, expect=1.0)
    def fit():
        return os.environ["CUDA_VISIBLE_DEVICES"]
    return fit.bind()

@ray.remote(num_cpus=0.1)
@egs.task(gpus=1, flavors=("MIG-1g.10gb",))
def split():
    before = os.environ["CUDA_VISIBLE_DEVICES"]
    with egs.gpu():
        return before, os.environ["CUDA_VISIBLE_DEVICES"]

seen = {}
try:
    ray.init(cluster.address, log_to_driver=False)
    import egs_ray
    seen["slices"] = sorted(egs_ray.run(MultiOutputNode([on_slice.bind() for _ in range(2)])).get(150))
    seen["halves"] = egs_ray.run(MultiOutputNode([on_half.bind() for _ in range(2)])).get(150)
    file = os.path.join(folder, "flavors.yaml")
    with open(file, "w") as out:
        out.write("flavors: [{name: mig, memory: 10GiB, gpu_hour: 1}, {name: a100, memory: 80GiB, gpu_hour: 9}]")
    with egs_ray.Session(egs_ray.Options(preload=False, objective="cost", flavors=file)) as session:
        seen["memory"] = [egs_ray.run(needing(one), session=session).get(150) for one in ("8GiB", "20GiB", "100GiB")]
    before, inside = ray.get(split.remote(), timeout=150)
    seen["script"] = before, inside in ("MIG-a", "MIG-b")
finally:
    ray.shutdown()
    cluster.shutdown()
print(json.dumps(seen))
"""


@pytest.mark.proves("ray run", "gpu_memory")
def test_a_task_gets_a_slice_by_its_uuid(tmp_path: Path) -> None:
    """A Ray node started with slices in CUDA_VISIBLE_DEVICES, their number and a label that says what they are: tasks
    whose hint names it run there at once, each with a slice of its own, of a script, too, and there in its GPU block
    only. Two halves of a GPU are one UUID for both. By cost what needs 8 GiB has a slice, where a file says that these
    have 10; what needs 20 has the whole GPU, and what no GPU can hold runs all the same, with a warning."""
    seen, errors = outcome_of(SCRIPT, tmp_path, RAY_RUNTIME_ENV_HOOK="egs_ray.hook", EGS_MODE="on")
    small, large, too_large = cast("list[str]", seen.pop("memory"))
    assert (small[:4], large, too_large[:3]) == ("MIG-", "GPU-c", "MIG"), errors
    assert "fit: its gpu_memory of 100 GiB is not kept: the largest GPU has 80 GiB" in errors
    assert seen == {"slices": ["MIG-a", "MIG-b"], "halves": ["GPU-c"] * 2, "script": ["", True]}, errors
