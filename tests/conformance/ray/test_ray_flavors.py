"""GPUs of two flavors on a real Ray cluster: a run learns how long its tasks take on each, and the next one uses it.

The GPUs and their speeds are emulated: nodes say that they have some, and a task sleeps by the node that it is on.
"""

from __future__ import annotations

from pathlib import Path

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
prices = os.path.join(folder, "flavors.yaml")
with open(prices, "w") as file:
    file.write("flavors: [{name: a100, gpu_hour: 4.0}, {name: l4, gpu_hour: 1.0}]")
small = dict(object_store_memory=80_000_000)
cluster = Cluster(True, head_node_args=dict(num_cpus=1, include_dashboard=False, temp_dir=folder, **small))
cluster.add_node(num_cpus=2, num_gpus=1, labels={"ray.io/accelerator-type": "L4"}, **small)
cluster.add_node(num_cpus=2, num_gpus=1, resources={"accelerator_type:A100": 1}, **small)
seen = {}

def here():
    row = next(row for row in ray.nodes() if row["NodeID"] == ray.get_runtime_context().get_node_id())
    return row["Labels"].get("ray.io/accelerator-type") or "A100"

def work(fast):
    kind = here()
    time.sleep(1.0 if kind == fast else 2.0)  # emulated speeds
    return kind

def of(name, fast, *flavors):
    @ray.remote(num_gpus=1, num_cpus=0.1)
    @egs.task(name=name, flavors=flavors)
    def job():
        return work(fast)
    return job.bind()

def job(*flavors):
    return of("job", "A100", *flavors)

def other(*flavors):
    return of("other", "L4", *flavors)

@ray.remote(num_gpus=1, num_cpus=0.1)
@egs.task(flavors=("A100",), expect="1h")
def long(file):
    open(file + ".runs", "w").close()
    while not os.path.exists(file):
        time.sleep(0.05)
    return here()

def until(what):
    deadline = time.monotonic() + 120
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)

def run(node, **options):
    until(lambda: ray.available_resources().get("GPU", 0) >= free)
    return egs_ray.run(node, session=session).get(150)

try:
    ray.init(cluster.address, log_to_driver=False)
    import egs_ray
    with egs_ray.Session(egs_ray.Options(preload=False)) as session:
        free = 2
        seen["taught"] = [run(each(flavor)) for each in (job, other) for flavor in ("L4", "A100")]
        seen["both free"] = [run(job()), run(other()), run(job())]
        gate = os.path.join(folder, "gate")
        held = egs_ray.run(long.bind(gate), session=session)
        until(lambda: os.path.exists(gate + ".runs"))
        free = 1
        seen["A100 held"] = run(job())
        open(gate, "w").close()
        held.get(150)
    with egs_ray.Session(egs_ray.Options(preload=False, objective="cost", flavors=prices)) as session:
        free = 2
        seen["cheapest"] = run(job())
    print(json.dumps(seen))
finally:
    ray.shutdown()
    cluster.shutdown()
"""


@pytest.mark.proves("ray run", "flavors", "order")
def test_a_task_is_placed_by_what_it_took_on_each_flavor(tmp_path: Path) -> None:
    """Two tasks, each on both flavors once by its hint; then without one, and with both free: each on the GPU on which
    it took half as long; and on the other one at once while that is held for an hour. In another session, by cost: the
    L4, on which it takes twice as long at a quarter of the price."""
    seen, errors = outcome_of(SCRIPT, tmp_path)
    assert seen == {
        "taught": ["L4", "A100"] * 2,
        "both free": ["A100", "L4", "A100"],
        "A100 held": "L4",
        "cheapest": "L4",
    }, errors
