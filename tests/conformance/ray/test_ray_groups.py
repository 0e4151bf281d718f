"""Placement groups, and what Ray's libraries run in them, have their turn under the hook: each with a library's own way
to ask for one. Drivers share a site server whose one queue has one GPU, while Ray has two."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.ray import test_ray_site, test_ray_site_actor
from tests.conformance.ray.test_ray_site import Begin, held, output
from tests.unit.server.real_site import RealSite, wait_for

pytestmark = pytest.mark.slow
site, begin = test_ray_site.site, test_ray_site.begin
begin_at_actor = test_ray_site_actor.begin
Script = Callable[..., "subprocess.CompletedProcess[str]"]

# The tutorial's way: a function as trainable, what a trial needs, a grid of values.
TUNE = """
import json, os, sys, tempfile, time
import ray
from ray import tune

name, log, count, hold_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])

def trial(config):
    began = time.time()
    time.sleep(hold_s)
    with open(log, "a") as file:
        file.write(f"{name} {config['x']} {began} {time.time()}\\n")
    return {"score": config["x"] * 2, "gpus": len(ray.get_gpu_ids())}

ray.init(logging_level="ERROR", log_to_driver=False)
with tempfile.TemporaryDirectory() as storage:
    tuner = tune.Tuner(
        tune.with_resources(trial, {"cpu": 0.5, "gpu": 1}),
        param_space={"x": tune.grid_search(list(range(count)))},
        run_config=tune.RunConfig(storage_path=storage, verbose=0),
    )
    found = sorted((one.metrics["score"], one.metrics["gpus"]) for one in tuner.fit())
print("RESULT", json.dumps(found))
"""

GROUPS = """
import pickle
import ray
from ray.util.placement_group import get_placement_group, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

@ray.remote(num_gpus=1, num_cpus=0)
def inside():
    return len(ray.get_gpu_ids()), ray.util.get_current_placement_group()

@ray.remote(num_cpus=0)
def seen(group):
    return group.bundle_specs, group.wait(60)

@ray.remote(num_gpus=1, num_cpus=0)
class Model:
    def gpus(self):
        return len(ray.get_gpu_ids())

def placed(group, bundle=-1):
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)

ray.init(log_to_driver=False)
all_of_it = placement_group([{"GPU": 1}, {"GPU": 1}], strategy="STRICT_PACK")
same = ray.get(all_of_it.ready(), timeout=120)
print(same == all_of_it, all_of_it == same, same.id == all_of_it.id, all_of_it.bundle_specs, all_of_it.wait(1))
waits, gone, used = (placement_group([{"CPU": 1, "GPU": 1}]) for _ in range(3))
print(waits.wait(0.2), ray.wait([waits.ready()], timeout=0.2)[0], waits != gone, len({waits, gone, used}))
remove_placement_group(gone)                                     # before it has been anything
ray.cancel(gone.ready())
try:
    print(ray.get(gone.ready(), timeout=120))
except ray.exceptions.TaskPlacementGroupRemoved:
    print("is removed")
print(placement_group_table(gone)["state"])
task = inside.options(scheduling_strategy=placed(used)).remote()  # nobody asks first whether it is ready
model = Model.options(scheduling_strategy=placed(all_of_it, 1)).remote()
print(ray.get(model.gpus.remote(), timeout=120), ray.wait([task], timeout=0.5)[0])
ready = waits.ready()
remove_placement_group(all_of_it)
gpus, where = ray.get(task, timeout=120)
print(gpus, where == used, used == where, ray.get(ready, timeout=120) == waits, waits.wait(1))
print(ray.get(seen.remote(waits), timeout=120), pickle.loads(pickle.dumps(waits)).id == waits.id)
remove_placement_group(waits)
remove_placement_group(used)
for wrong in ([], [{"GPU": 1}, {}]):
    try:
        print(placement_group(wrong))
    except ValueError as error:
        print(type(error).__name__, str(error)[:40])
named = placement_group([{"GPU": 1}], name="named")
print(named.wait(60), get_placement_group("named") == named, hash(get_placement_group("named")) == hash(named))
remove_placement_group(named)
"""


def test_groups_are_as_natively(run_script: Script) -> None:
    """Waiting, asking, comparing, handing on, placing without asking, removing early or late, wrong calls: a script
    prints the same with EGS and without, and EGS has ordered its groups."""
    native = run_script(GROUPS, EGS_MODE="off")
    ordered = run_script(GROUPS, EGS_MODE="on")
    assert native.returncode == 0, native.stderr
    assert (ordered.returncode, ordered.stdout) == (0, native.stdout), ordered.stderr
    assert "egs: ordered 0 GPU tasks and 4 placement groups" in ordered.stderr


SAID = ("wait", "first", "then", "paused", "resumed", "trials")
EXPECTED: tuple[object, ...] = ([], True, "actor", False, True, [False, True])
ORDER = """
import os, threading, time
import ray
from ray import tune
from ray.util.placement_group import placement_group, remove_placement_group
import egs_core as egs
from egs_ray.control import commands as control

FOLDER = os.getcwd()

@ray.remote(num_gpus=2, num_cpus=0)
def task():
    return "task"

@ray.remote(num_gpus=2, num_cpus=0)
@egs.task(expect=1)
def hinted(before):
    return before

@ray.remote(num_gpus=2, num_cpus=0)
class Model:
    def get(self):
        return "actor"

def until(condition):
    deadline = time.monotonic() + 120
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found

def shown():
    try:
        return control.ps()
    except egs.InputError:
        return []

def both():
    return placement_group([{"GPU": 2}])

ray.init(log_to_driver=False, logging_level="ERROR")
held = both()
ray.get(held.ready(), timeout=120)
second = both()
model = Model.remote()
asked = model.get.remote()
later = task.remote()                                    # submitted after them, and another one needs it
last = hinted.remote(later)
ready = second.ready()
print("wait", ray.wait([ready, asked, later], timeout=0.5)[0])
remove_placement_group(held)
print("first", ray.wait([ready, asked, later], timeout=120)[0] == [later])
ray.get([ready, last], timeout=120)
remove_placement_group(second)
print("then", ray.get(asked, timeout=120))
second = both()                                          # behind the actor
ray.kill(model)
ray.get(second.ready(), timeout=120)

workload = until(shown)[0].workload
third = both()
control.pause(workload)
remove_placement_group(second)
print("paused", third.wait(1))
control.resume(workload)
print("resumed", third.wait(120))
remove_placement_group(third)

def trial(config):
    if config["x"] == 0:
        open(os.path.join(FOLDER, "begun"), "w").close()
        time.sleep(600)

def trials():
    return [task for one in shown() for task in one.running if task.name == "tune-trial"]

def abort():
    until(lambda: os.path.exists(os.path.join(FOLDER, "begun")))
    control.abort(workload, task=until(trials)[0].task, actor="ann", reason="enough")

threading.Thread(target=abort).start()
found = tune.Tuner(
    tune.with_resources(trial, {"cpu": 0.5, "gpu": 2}),
    param_space={"x": tune.grid_search([0, 1])},
    run_config=tune.RunConfig(storage_path=os.path.join(FOLDER, "tune"), verbose=0),
).fit()
print("trials", [one.error is None for one in found])
"""


def results(one: subprocess.Popen[str]) -> Any:
    """What a driver has found, natively or not; EGS has nothing to complain about."""
    code, out, said = output(one)
    assert (code, said) == (0, []), (out, said)
    return json.loads(next(line for line in out.splitlines() if line.startswith("RESULT ")).removeprefix("RESULT "))


@pytest.mark.proves("ray script", "order")
@pytest.mark.proves("ray hinted script", "order")
def test_order_pause_and_abort_of_groups(run_script: Script) -> None:
    """A group, and an actor, go behind a task that was submitted after them and for which another one waits; a pause
    keeps a group that has not begun; an abort of a trial of Tune fails that trial, and the next one runs."""
    pytest.importorskip("pyarrow", reason="Ray Tune and Train need pyarrow, which is not installed")
    done = run_script(ORDER, EGS_MODE="on")
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith(SAID)]
    assert said == [f"{name} {value}" for name, value in zip(SAID, EXPECTED, strict=True)], done.stderr


@pytest.mark.proves("ray site script", "order")
def test_trials_of_two_drivers_are_ordered(begin: Begin, site: RealSite, tmp_path: Path) -> None:
    """Two sweeps of Ray Tune: no two trials at once, as the quota says. What comes later with EGS_PRIORITY=100 has all
    its trials before the other's next one, and both end with what they find natively."""
    pytest.importorskip("pyarrow", reason="Ray Tune and Train need pyarrow, which is not installed")
    log = tmp_path / "log"
    sweeps = [begin(TUNE, "low", log, 4, 0.5)]
    wait_for(lambda: [view for view in site.client.queue().runs if view.kind == "quota"], "a trial waits for quota")
    sweeps.append(begin(TUNE, "high", log, 2, 0.5, EGS_PRIORITY="100"))
    assert [results(sweep) for sweep in sweeps] == [[[2 * x, 1] for x in range(count)] for count in (4, 2)]
    rows = held(log)
    assert all(before[3] <= after[2] for before, after in pairwise(rows)), rows
    names = [row[0] for row in rows]
    first = names.index("high")
    assert (names[first : first + 2], names[-1]) == (["high", "high"], "low"), names
    wait_for(lambda: not site.open(), "the server knows that they have gone")


@pytest.mark.proves("ray cluster", "order")
def test_trials_of_two_drivers_at_the_actor_are_ordered(
    begin_at_actor: test_ray_site_actor.Begin, tmp_path: Path
) -> None:
    """The same where the site is an actor (EGS_GATE=cluster), with a queue of one GPU."""
    pytest.importorskip("pyarrow", reason="Ray Tune and Train need pyarrow, which is not installed")
    log = tmp_path / "log"
    sweeps = [begin_at_actor(TUNE, "low", 6, 3.0)]
    wait_for(log.exists, "a trial has ended")
    sweeps.append(begin_at_actor(TUNE, "high", 2, 0.5, EGS_PRIORITY="100"))
    assert [results(sweep) for sweep in sweeps] == [[[2 * x, 1] for x in range(count)] for count in (6, 2)]
    rows = held(log)
    assert all(before[3] <= after[2] for before, after in pairwise(rows)), rows
    names = [row[0] for row in rows]
    first = names.index("high")
    assert (names[first : first + 2], names[-1]) == (["high", "high"], "low"), names


TRAIN = """
import json, os, sys, tempfile, time
import ray, ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

name, log, go = sys.argv[1:]

def loop(config):
    rank, began = ray.train.get_context().get_world_rank(), time.time()
    while not os.path.exists(go):
        time.sleep(0.05)
    with open(log, "a") as file:
        file.write(f"{name} {rank} {began} {time.time()}\\n")

# Train's own helpers look for a cluster by this variable, and there may be others on the machine.
env = {"env_vars": {"RAY_ADDRESS": os.environ["RAY_ADDRESS"]}}
ray.init(logging_level="ERROR", log_to_driver=False, runtime_env=env)
with tempfile.TemporaryDirectory() as storage:
    scaling = ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"CPU": 0.5, "GPU": 0.5})
    trainer = DataParallelTrainer(loop, scaling_config=scaling, run_config=RunConfig(storage_path=storage))
    print("RESULT", json.dumps(str(trainer.fit().error)))
"""


@pytest.mark.proves("ray site script", "order")
def test_workers_of_two_drivers_are_ordered(begin: Begin, site: RealSite, tmp_path: Path) -> None:
    """Two drivers train with two workers of half a GPU each, in a queue of one GPU, while Ray has two: whose controller
    asks first has both its workers, the other one waits for quota, and has both when the first has ended."""
    pytest.importorskip("pyarrow", reason="Ray Tune and Train need pyarrow, which is not installed")
    log, go = tmp_path / "log", tmp_path / "go"
    runs = [begin(TRAIN, name, log, go) for name in ("a", "b")]
    wait_for(lambda: [view for view in site.client.queue().runs if view.kind == "quota"], "one waits for quota")
    go.touch()
    assert [results(run) for run in runs] == ["None", "None"]
    rows = held(log)
    assert sorted(row[:2] for row in rows) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert max(row[3] for row in rows[:2]) <= min(row[2] for row in rows[2:]), rows
    assert len({row[0] for row in rows[:2]}) == 1, rows
    wait_for(lambda: not site.open(), "the server knows that they have gone")


NESTED = """
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

@ray.remote(num_gpus=1, num_cpus=0)
def inside():
    return len(ray.get_gpu_ids())

@ray.remote(num_cpus=0)
def on_its_own():
    group = placement_group([{"GPU": 1}, {"GPU": 1}])
    ray.get(group.ready())
    placed = inside.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group))
    gpus = ray.get([placed.remote(), placed.remote()])
    remove_placement_group(group)
    return gpus

@ray.remote(num_cpus=0)
class Keeper:
    def keep(self):
        self.group = placement_group([{"GPU": 1}, {"GPU": 1}])
        return self.group.wait(60), self.group

@ray.remote(num_gpus=2, num_cpus=0)
def all_of_it():
    return len(ray.get_gpu_ids())

ray.init(log_to_driver=False)
print(ray.get(on_its_own.remote(), timeout=120))
keeper = Keeper.remote()
is_there, group = ray.get(keeper.keep.remote(), timeout=120)
print(is_there)
waits = all_of_it.remote()
print(ray.wait([waits], timeout=1)[0])
remove_placement_group(group)  # of which the keeper's process is not told
print(ray.get(waits, timeout=120))
"""


def test_groups_of_workers_have_a_turn(run_script: Script) -> None:
    """A task's group is made in its turn and given back when it is removed, an actor's also by another process; the
    script prints what it does natively."""
    native = run_script(NESTED, EGS_MODE="off")
    ordered = run_script(NESTED, EGS_MODE="on")
    assert (native.returncode, ordered.returncode) == (0, 0), native.stderr + ordered.stderr
    assert ordered.stdout == native.stdout
    assert "egs: ordered 1 GPU tasks and 2 placement groups" in ordered.stderr
