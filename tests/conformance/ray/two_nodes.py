"""Run as a script: what a GPU task on a second node finds there when its turn comes. Prints one JSON object.

node A (3 CPUs)     make 50 MB ──────────────────────────────┐
                    first ──► gate (waits for the signal) ──►│
node B (1 GPU)           warm, files read, argument fetched ─┴► use
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster
from ray.experimental import get_object_locations
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import egs_core as egs
import egs_ray
from egs_core.hints import is_warm
from tests.conformance.ray import run_tasks as t

BYTES = 50_000_000


@ray.remote(num_cpus=2)
@egs.task(expect=0.5)
def make() -> Any:
    return np.ones(BYTES, dtype=np.uint8)


@ray.remote(num_cpus=0)
def take(_value: Any) -> float:
    return time.time()


def make_use(path: Path) -> Any:
    """The task on the second node."""

    @ray.remote(num_cpus=1, num_gpus=1)
    @egs.task(preload=[egs.modules("wave"), egs.files(path), egs.call(t.load_model)], expect=0.2)
    def use(data: Any, ended: float) -> dict[str, Any]:
        began = time.time()
        node = ray.get_runtime_context().get_node_id()
        read, model = is_warm((egs.files(path),)), egs.loaded(t.load_model)
        return {"node": node, "after_s": began - ended, "size": data.size, "read": read, "loaded_at": model["at"]}

    return use


def plain_transfer_s(node: str) -> float:
    """How long a task of Ray's own waits for such a value on the second node, in a process that is there."""
    there = take.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
    ray.get(there.remote(0))
    value = ray.put(np.zeros(BYTES, dtype=np.uint8))
    began = time.time()
    return float(ray.get(there.remote(value))) - began


def run(folder: Path, second: str) -> dict[str, Any]:
    path = folder / "weights.bin"
    path.write_bytes(b"x" * 1_000_000)
    with t.session(folder) as session:
        t.until(lambda: session.site.call(lambda: len(session._shared.offers.nodes)) == 2, "the site knows both nodes")
        name = str(folder)
        first = t.before.bind(name, "first")
        gate = t.before.bind(name, "gate", first)
        data = make.bind()
        task = t.with_folder(make_use(path), folder)
        made = egs_ray.run(task.bind(data, gate), session=session)
        jobs = {job.run.converted.graph.ids[job.index]: job for job in t.until(lambda: made._books.jobs)}
        use = jobs["use-0"]
        t.until(lambda: use.is_warm, "the process is warm while two steps before it are still to end")
        steps_ahead = made.why("before-1").status
        t.signal_to(name, "first.end")
        t.until(Path(name, "gate.runs").exists, "the last step before it runs")
        value = made._books.results[jobs["make-0"].index]
        t.until(lambda: second in get_object_locations([value])[value]["node_ids"], "the argument is there")
        signalled = time.time()
        t.signal_to(name, "gate.end")
        found = made.get(t.LIMIT_S)
        found["loaded_before_s"] = signalled - found.pop("loaded_at")
        return {**found, "gate_when_warm": steps_ahead}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="egs2-", dir="/tmp") as folder:
        cluster = Cluster()
        cluster.add_node(num_cpus=3, num_gpus=0, object_store_memory=200_000_000, include_dashboard=False)
        cluster.connect()
        try:
            second = cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=200_000_000)
            cluster.wait_for_nodes()
            found = run(Path(folder), second.node_id)
            print(json.dumps({**found, "second": second.node_id, "plain_s": plain_transfer_s(second.node_id)}))
        finally:
            ray.shutdown()
            cluster.shutdown()


if __name__ == "__main__":
    main()
