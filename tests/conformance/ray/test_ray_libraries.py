"""Ray's own libraries, and whatever runs in a placement group, give in mode `on` what they give natively.

They place their GPU work themselves. Placement groups with GPUs have a turn, before Ray makes them, and what runs in
them has its place there; pools of actors and streaming generators pass as they are. Each test is a script of a user of
that library.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from egs_core.runlog.io import read_run
from egs_core.runlog.records import Ended, Granted, TaskAdded
from tests.conformance.ray import run_tasks as t

Script = Callable[..., "subprocess.CompletedProcess[str]"]


HEAD = """
import json, os, tempfile
import ray

@ray.remote(num_gpus=1, max_calls=0)
def plain(x):
    return x, len(ray.get_gpu_ids())

# Train's own helpers look for a cluster by this variable, and there may be others on the machine.
env = {"env_vars": {"RAY_ADDRESS": os.environ["RAY_ADDRESS"]}}
ray.init(log_to_driver=False, runtime_env=env)
assert ray.get(plain.remote("ordered")) == ("ordered", 1)

def give(result):
    print("RESULT", json.dumps(result), flush=True)
"""

GROUP = """
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

@ray.remote(num_gpus=1, max_calls=0, num_cpus=1)
def grouped(x):
    return x, len(ray.get_gpu_ids())

@ray.remote(num_gpus=1, num_cpus=1)
class Model:
    def predict(self, x):
        return x, len(ray.get_gpu_ids())

group = placement_group([{"CPU": 1, "GPU": 1}, {"CPU": 1, "GPU": 1}])
ray.get(group.ready())                                   # both GPUs are the group's
waits = plain.remote("ordered")                          # at the gate or in Ray's queue, until the group is gone
inside = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
model = Model.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, 1)).remote()
tasks = [grouped.options(scheduling_strategy=inside).remote(i) for i in range(3)]
out = ray.get([*tasks, model.predict.remote("model")], timeout=150)
still_waits = not ray.wait([waits], timeout=0)[0]
ray.kill(model)
remove_placement_group(group)
give([out, still_waits, ray.get(waits, timeout=150)])
"""

DATA = """
import ray.data

class Add:
    def __call__(self, batch):
        return {"id": batch["id"] + len(ray.get_gpu_ids())}

def double(batch):
    return {"id": batch["id"] * 2 * len(ray.get_gpu_ids())}

rows = ray.data.range(8, override_num_blocks=2)
pool = ray.data.ActorPoolStrategy(size=1)
made = rows.map_batches(Add, num_gpus=1, compute=pool, batch_size=4).map_batches(double, num_gpus=1, batch_size=4)
give(sorted(row["id"] for row in made.take_all()))
"""

TRAIN = """
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

def loop(config):
    rank = ray.train.get_context().get_world_rank()
    with open(os.path.join(config["folder"], f"rank{rank}"), "w") as file:
        file.write(str(len(ray.get_gpu_ids())))

with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as storage:
    scaling = ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"CPU": 0.5, "GPU": 1})
    run = RunConfig(storage_path=storage)
    trainer = DataParallelTrainer(
        loop, train_loop_config={"folder": folder}, scaling_config=scaling, run_config=run
    )
    error = trainer.fit().error
    give([str(error), {name: open(os.path.join(folder, name)).read() for name in sorted(os.listdir(folder))}])
"""

TUNE = """
from ray import tune

def trial(config):
    return {"score": config["x"] * 2, "gpus": len(ray.get_gpu_ids())}

with tempfile.TemporaryDirectory() as storage:
    tuner = tune.Tuner(
        tune.with_resources(trial, {"cpu": 0.5, "gpu": 1}),
        param_space={"x": tune.grid_search([1, 2, 3])},
        run_config=tune.RunConfig(storage_path=storage, verbose=0),
    )
    give(sorted((found.metrics["score"], found.metrics["gpus"]) for found in tuner.fit()))
"""

SERVE = """
from ray import serve

@serve.deployment(ray_actor_options={"num_gpus": 1, "num_cpus": 0.5})
class Model:
    def __call__(self, x):
        return x, len(ray.get_gpu_ids())

serve.start(proxy_location="Disabled")
try:
    give(serve.run(Model.bind()).remote(4).result(timeout_s=60))
finally:
    serve.shutdown()
"""

GROUPED = [[[i, 1] for i in range(3)] + [["model", 1]], True, ["ordered", 1]]
LIBRARIES = {
    "placement group": (GROUP, GROUPED, 2, {"grouped": 3, "Model": 1}, {"placement-group": 2}),
    "data": (DATA, [2 * (i + 1) for i in range(8)], 1, {"MapWorker(MapBatches(Add))": 1, "_map_task": 2}, {}),
    "train": (TRAIN, ["None", {"rank0": "1", "rank1": "1"}], 1, {"RayTrainWorker": 2}, {"train-workers": 2}),
    "tune": (TUNE, [[2, 1], [4, 1], [6, 1]], 1, {"ImplicitFunc": 3}, {"tune-trial": 3}),
    "serve": (SERVE, [4, 1], 1, {}, {}),
}
"""Name -> script, what it gives natively, how many tasks of its own it has outside of the library, what else holds
GPUs for it (a Serve's replicas are its controller's, which outlives the driver), and what bundles have a turn."""


@pytest.mark.parametrize("gate", ["local", pytest.param("cluster", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name != "placement group")) for name in LIBRARIES]
)
def test_gives_what_it_gives_natively(run_script: Script, tmp_path: Path, name: str, gate: str) -> None:
    """The library ends with its native result, GPUs included; the script's own plain tasks were ordered, and bundles of
    its groups. What held GPUs is in the run log with them, in the script's one workload, whoever has submitted it and
    in whatever group."""
    if name == "serve":
        pytest.importorskip("ray.serve")
    elif name != "placement group":
        pytest.importorskip("pyarrow")
    script, result, plain, others, bundles = LIBRARIES[name]
    done = run_script(HEAD + script, EGS_MODE="on", EGS_GATE=gate)
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), "")
    assert line, done.stdout + done.stderr
    assert json.loads(line.removeprefix("RESULT ")) == result
    records = read_run(tmp_path / "log.jsonl").records
    names = {record.task: record.name for record in records if isinstance(record, TaskAdded)}
    granted = Counter(names[record.task] for record in records if isinstance(record, Granted))
    assert granted == {"plain": plain, **bundles}
    ended = {record.task for record in records if isinstance(record, Ended)}
    assert all(task in ended for task, called in names.items() if called in bundles)
    holders = [record for record in records if isinstance(record, TaskAdded) and record.phases[0][2] == 1]
    lasting = Counter(record.name for record in holders if not record.name.endswith(".__init__"))
    assert lasting == {"plain": plain, **others}
    assert len({record.workload for record in holders}) == 1
    assert f"egs: ordered {plain} GPU tasks" in done.stderr
    t.until(t.is_idle, "all resources are free")
