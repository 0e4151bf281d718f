"""Several nodes of unlike hardware: flavors, gangs and soft preferences are carried out on a real cluster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from egs_core.runlog.io import read_run
from egs_core.runlog.records import Started, TaskAdded
from tests.conformance.ray.conftest import _python_path
from tests.conformance.ray.patience import PATIENT

pytestmark = pytest.mark.long

CLUSTER = """
import json, os, sys, tempfile, time
import ray
from ray.cluster_utils import Cluster
from ray.dag import MultiOutputNode
import egs_core as egs

folder, begun = sys.argv[1], tempfile.mkdtemp(dir=sys.argv[1])
small = dict(object_store_memory=80_000_000)
cluster = Cluster(True, head_node_args=dict(num_cpus=1, include_dashboard=False, temp_dir=folder, **small))
cluster.add_node(num_cpus=2, num_gpus=2, resources={"accelerator_type:A100": 1}, **small)
cluster.add_node(num_cpus=2, num_gpus=1, labels={"ray.io/accelerator-type": "L4", "rack": "r1"}, **small)
seen = {}

def here():
    return kinds[ray.get_runtime_context().get_node_id()]

def kind_of(row):
    offered = [name.partition(":")[2] for name in row["Resources"] if name.startswith("accelerator_type:")]
    return row["Labels"].get("ray.io/accelerator-type") or "".join(offered)

"""

RUN = (
    CLUSTER
    + """
@ray.remote(num_gpus=1, num_cpus=0.1)
@egs.task(flavors=("A100",))
def on_a100():
    return here()

@ray.remote(num_gpus=1, num_cpus=0.1)
@egs.task(flavors=("L4",))
def on_l4():
    return here()

@ray.remote(num_gpus=1, num_cpus=0.1, max_retries=0)
@egs.task(gang="spread")
def spread():
    open(os.path.join(begun, ray.get_runtime_context().get_task_id()), "w").close()
    while len(os.listdir(begun)) < 3:   # one that starts without the others waits in vain
        time.sleep(0.02)
    return here()

@ray.remote(num_gpus=1, num_cpus=0.1, max_retries=0)
@egs.task(gang="close", gang_same="node")
def close():
    return here()

@ray.remote(num_gpus=1, num_cpus=0.1, max_retries=0)
@egs.task(gang="racked", gang_same="rack")
def racked():
    return here()

def outcome(nodes):
    try:
        return egs_ray.run(MultiOutputNode(nodes)).get(150)
    except egs_core.errors.InputError as error:
        return str(error)

try:
    ray.init(cluster.address, log_to_driver=False)
    import egs_core.errors, egs_ray
    kinds = {row["NodeID"]: kind_of(row) for row in ray.nodes()}
    seen["flavors"] = outcome([on_a100.bind() for _ in range(4)] + [on_l4.bind() for _ in range(3)])
    seen["spread"] = sorted(outcome([spread.bind() for _ in range(3)]))
    seen["close"] = outcome([close.bind() for _ in range(2)])
    seen["too close"] = outcome([close.bind() for _ in range(3)])
    seen["racked"] = outcome([racked.bind() for _ in range(1)])
    seen["too racked"] = outcome([racked.bind() for _ in range(2)])
    print(json.dumps(seen))
finally:
    ray.shutdown()
    cluster.shutdown()
"""
)

HOOK = (
    CLUSTER
    + """
@ray.remote(num_gpus=1, num_cpus=0.1, max_calls=0)
@egs.task(flavors=("H100", "L4"))
def choosy():
    return here()

@ray.remote(num_gpus=1, num_cpus=0.1, max_calls=0)
@egs.task(flavors=("rack=r1",))
def racked():
    return here()

@ray.remote(num_gpus=1, num_cpus=0.1, max_calls=0)
@egs.task(flavors=("B200",))
def hopeful():
    return here()

try:
    ray.init(cluster.address, log_to_driver=False)
    kinds = {row["NodeID"]: kind_of(row) for row in ray.nodes()}
    def alone(task):  # on an idle cluster, whose nodes know that it is
        deadline = time.monotonic() + 120
        while ray.available_resources().get("GPU", 0) < 3 and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1.0)
        return ray.get(task.remote(), timeout=150)
    seen["second choice"] = [alone(choosy) for _ in range(3)]
    seen["any label"] = [alone(racked) for _ in range(2)]
    seen["unknown"] = alone(hopeful) in ("A100", "L4")
    seen["soft"] = len(ray.get([choosy.remote() for _ in range(6)], timeout=150))
    there = {"accelerator_type:A100": 0.1}
    by_hand = choosy.options(label_selector={"ray.io/accelerator-type": "!L4"}, resources=there)
    seen["by hand"] = ray.get(by_hand.remote(), timeout=150)
    print(json.dumps(seen))
finally:
    ray.shutdown()
    cluster.shutdown()
"""
)


SPREAD = """
import json, sys
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

small = dict(object_store_memory=80_000_000)
cluster = Cluster(True, head_node_args=dict(num_cpus=1, include_dashboard=False, temp_dir=sys.argv[1], **small))
for _ in range(2):
    cluster.add_node(num_cpus=2, num_gpus=2, **small)
seen = {}

@ray.remote(num_gpus=1, num_cpus=0)
def task():
    return "ran"

try:
    ray.init(cluster.address, log_to_driver=False)
    held = placement_group([{"GPU": 1}] * 2, strategy="STRICT_PACK")    # one node is full, the other one has two GPUs
    ray.get(held.ready(), timeout=120)
    apart = placement_group([{"GPU": 1}] * 2, strategy="STRICT_SPREAD")
    ready = apart.ready()
    seen["early"] = len(ray.wait([ready], timeout=1)[0])
    seen["beside"] = ray.get(task.remote(), timeout=120)                # of these two only one is the group's
    seen["still"] = len(ray.wait([ready], timeout=0)[0])
    remove_placement_group(held)
    ray.get(ready, timeout=120)
    seen["nodes"] = len(set(placement_group_table(apart)["bundles_to_node_id"].values()))
    remove_placement_group(apart)
    seen["too many"] = placement_group([{"GPU": 1}] * 3, strategy="STRICT_SPREAD").wait(1)
    print(json.dumps(seen))
finally:
    ray.shutdown()
    cluster.shutdown()
"""


# A driver alone. While one node is full no group has its turn that needs both; while each has a GPU left it has, though
# the driver's engine, which is not told where Ray has put the two tasks, may believe them on one node.
ALONE = """
import json, os, sys, tempfile, time
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
import egs_core as egs

folder = tempfile.mkdtemp(dir=sys.argv[1])
small = dict(object_store_memory=80_000_000)
cluster = Cluster(True, head_node_args=dict(num_cpus=1, include_dashboard=False, temp_dir=sys.argv[1], **small))
for rack in ("r0", "r1"):
    cluster.add_node(num_cpus=2, num_gpus=2, labels={"rack": rack}, **small)
seen = {}

def holding(rack):
    @ray.remote(num_gpus=1, num_cpus=0)
    @egs.task(flavors=(f"rack={rack}",))
    def holds():
        open(f"{folder}/{rack}", "w").close()
        while not os.path.exists(f"{folder}/go"):
            time.sleep(0.05)
        return ray.get_runtime_context().get_node_id()
    return holds

@ray.remote(num_gpus=1, num_cpus=0)
def task():
    return "ran"

try:
    ray.init(cluster.address, log_to_driver=False)
    held = placement_group([{"GPU": 1}] * 2, strategy="STRICT_PACK")    # one node is full, the other one has two GPUs
    ray.get(held.ready(), timeout=120)
    apart = placement_group([{"GPU": 1}] * 2, strategy="STRICT_SPREAD")
    ready = apart.ready()
    seen["early"] = len(ray.wait([ready], timeout=6)[0])
    seen["beside"] = ray.get(task.remote(), timeout=120)
    seen["removed"] = time.time()
    remove_placement_group(held)
    ray.get(ready, timeout=120)
    seen["nodes"] = len(set(placement_group_table(apart)["bundles_to_node_id"].values()))
    remove_placement_group(apart)
    tasks = [holding(rack).remote() for rack in ("r0", "r1")]
    deadline = time.monotonic() + 120
    while len(os.listdir(folder)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    beside = placement_group([{"GPU": 1}] * 2, strategy="STRICT_SPREAD")
    seen["has its turn"] = beside.wait(60)
    open(f"{folder}/go", "w").close()
    seen["held"] = len(set(ray.get(tasks, timeout=120)))
    remove_placement_group(beside)
    print(json.dumps(seen))
finally:
    ray.shutdown()
    cluster.shutdown()
"""


def outcome_of(source: str, folder: Path, **environment: str) -> tuple[dict[str, object], str]:
    """What a script says that starts a cluster of its own."""
    (folder / "script.py").write_text(PATIENT + source)
    short = tempfile.mkdtemp(prefix="egs-")
    variables = {
        **os.environ,
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "PYTHONPATH": _python_path(),
        "EGS_RUNLOG": str(folder / "log.jsonl"),
        "EGS_HISTORY": f"sqlite:///{folder}/history.db",
    }
    variables.pop("RAY_ADDRESS", None)
    command = [sys.executable, str(folder / "script.py"), short]
    try:
        done = subprocess.run(
            command, env={**variables, **environment}, cwd=folder, capture_output=True, text=True, timeout=280
        )
    finally:
        shutil.rmtree(short, ignore_errors=True)
    assert done.stdout, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found, done.stderr


@pytest.mark.proves("ray run", "flavors", "gang", "gang_same")
def test_runs_on_unlike_nodes(tmp_path: Path) -> None:
    """`egs_ray.run`: each task on its flavor; a gang over two nodes in one group, another within one node, and what is
    larger than a node or a rack is refused with the numbers."""
    seen, errors = outcome_of(RUN, tmp_path)
    assert seen["flavors"] == ["A100"] * 4 + ["L4"] * 3, errors
    assert seen["spread"] == ["A100", "A100", "L4"]
    assert seen["close"] == ["A100", "A100"]
    assert "gang 'close' of 3 tasks needs 3 GPUs and 0.3 CPUs at once in one node" in str(seen["too close"])
    assert seen["racked"] == ["L4"]
    assert "gang 'racked' of 2 tasks needs 2 GPUs and 0.2 CPUs at once in one rack" in str(seen["too racked"])


def test_soft_preferences_of_scripts(tmp_path: Path) -> None:
    """Mode on: the second choice where the first is not there, any label, nothing waits for ever, and what the script
    says by hand holds."""
    seen, errors = outcome_of(HOOK, tmp_path, RAY_RUNTIME_ENV_HOOK="egs_ray.hook", EGS_MODE="on")
    assert seen["second choice"] == ["L4"] * 3, errors
    assert seen["any label"] == ["L4"] * 2
    assert seen["unknown"] is True
    assert seen["soft"] == 6
    assert seen["by hand"] == "A100"


def test_bundles_on_nodes_of_their_own(tmp_path: Path) -> None:
    """STRICT_SPREAD, two nodes with two GPUs each: while one is full the group waits at EGS, though the other has two
    GPUs free, and a task has the one of these that is not kept for the group. Three such bundles are more than there
    are nodes: Ray's alone."""
    on = {"RAY_RUNTIME_ENV_HOOK": "egs_ray.hook", "EGS_MODE": "on", "EGS_GATE": "cluster"}
    seen, errors = outcome_of(SPREAD, tmp_path, **on)
    assert seen == {"early": 0, "beside": "ran", "still": 0, "nodes": 2, "too many": False}, errors
    assert "egs: ordered 1 GPU tasks and 2 placement groups" in errors


def test_bundles_on_nodes_of_their_own_of_a_driver_alone(tmp_path: Path) -> None:
    """STRICT_SPREAD with EGS_GATE=local, on the same nodes. While one is full the group has no turn, though two GPUs
    are idle for seconds, and a task that comes later runs. When Ray has put a task on each node, the group has the GPUs
    that are left, while both run."""
    on = {"RAY_RUNTIME_ENV_HOOK": "egs_ray.hook", "EGS_MODE": "on", "EGS_GATE": "local"}
    seen, errors = outcome_of(ALONE, tmp_path, **on)
    removed_s = seen.pop("removed")
    assert seen == {"early": 0, "beside": "ran", "nodes": 2, "has its turn": True, "held": 2}, errors
    run = read_run(tmp_path / "log.jsonl")
    names = {record.task: record.name for record in run.records if isinstance(record, TaskAdded)}
    began = [one.t for one in run.records if isinstance(one, Started) and names[one.task] == "placement-group"]
    assert len(began) == 6, began
    assert isinstance(removed_s, float)
    assert sorted(began)[2] + run.header.started_at >= removed_s, (began, removed_s)
