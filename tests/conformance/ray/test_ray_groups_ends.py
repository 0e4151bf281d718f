"""Ends of placement groups that have a turn under the hook, other than by their scripts: drivers that are killed, an
operator's word, Ray's refusal. Each with a real Ray of two GPUs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
from ray.util.placement_group import placement_group, remove_placement_group

from egs_core.adapter import RunningTask
from egs_core.errors import InputError
from egs_ray.control import commands as control
from egs_ray.groups import WaitingGroup
from egs_ray.own_values import make_own_values
from egs_ray.session.operations import PASSED, WAITS
from tests.conformance.ray import run_tasks as t
from tests.conformance.ray import test_ray_site
from tests.conformance.ray.conftest import LIMIT_S, drivers, end_control, end_site
from tests.conformance.ray.test_ray_site import QUEUES, Begin
from tests.unit.server.real_site import RealSite, wait_for

pytestmark = pytest.mark.slow
site, begin = test_ray_site.site, test_ray_site.begin
Script = Callable[..., "subprocess.CompletedProcess[str]"]

# Groups that have to wait for each other: each is held, with an actor in it, until a file says that it may go.
GROUPS = """
import os, sys, time
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

name, folder, count = sys.argv[1], sys.argv[2], int(sys.argv[3])

@ray.remote(num_gpus=1, num_cpus=0)
class Model:
    def gpus(self):
        return len(ray.get_gpu_ids())

ray.init(logging_level="ERROR", log_to_driver=False)
groups = [placement_group([{"GPU": 1}]) for _ in range(count)]
waits = {group.ready(): number for number, group in enumerate(groups)}
while waits:
    (ready,), _ = ray.wait(list(waits))
    number = waits.pop(ready)
    try:
        group = ray.get(ready)
        strategy = PlacementGroupSchedulingStrategy(groups[number])
        model = Model.options(scheduling_strategy=strategy).remote()
        open(f"{folder}/{name}.{number}.held", "w").close()
        while not os.path.exists(f"{folder}/go"):
            ray.get(model.gpus.remote())
            time.sleep(0.05)
    except ray.exceptions.RayError as error:
        print(number, type(error).__name__, flush=True)
    remove_placement_group(groups[number])
print("end", flush=True)
"""


def has(folder: Path, driver: str) -> list[str]:
    """The driver's groups that are held or have been."""
    return sorted(path.name.split(".")[1] for path in folder.glob(f"{driver}.*.held"))


def test_a_killed_driver_gives_its_turns_back(begin: Begin, site: RealSite, tmp_path: Path) -> None:
    """A driver holds one group and waits for its quota with another one, when it is killed: the server knows of none of
    both any more, and the next driver has its turns, one after the other."""
    first = begin(GROUPS, "first", tmp_path, 2)
    wait_for(lambda: has(tmp_path, "first"), "one is held")
    wait_for(lambda: [view for view in site.client.queue().runs if view.kind == "quota"], "another one waits for quota")
    second = begin(GROUPS, "second", tmp_path, 2)
    wait_for(lambda: len(site.open()) == 2, "another driver has come")
    assert not has(tmp_path, "second")
    first.kill()
    wait_for(lambda: has(tmp_path, "second"), "it has its turn")
    assert len(has(tmp_path, "first")) == 1
    (tmp_path / "go").touch()
    out, errors = second.communicate(timeout=LIMIT_S)
    assert (second.returncode, out) == (0, "end\n"), errors
    assert has(tmp_path, "second") == ["0", "1"]
    wait_for(lambda: not site.open(), "the server knows that they have gone")


@pytest.fixture
def drive(ray_address: str, tmp_path: Path) -> Iterator[Begin]:
    """Start a script with `EGS_GATE=cluster` and a queue of one of Ray's two GPUs; it is ended with the test."""
    end_site()
    end_control()
    (tmp_path / "queues.yaml").write_text(QUEUES)
    own = {"EGS_GATE": "cluster", "EGS_QUEUES": str(tmp_path / "queues.yaml")}
    with drivers(ray_address, tmp_path) as start:
        yield lambda source, *words, **environment: start(source, words[0], words, **own, **environment)
    end_site()
    t.until(t.is_idle)


def test_a_killed_driver_gives_its_turns_back_to_the_actor(drive: Begin, tmp_path: Path) -> None:
    """The same with `EGS_GATE=cluster`: two drivers share one GPU of a queue, the first one is killed."""
    first = drive(GROUPS, "first", tmp_path, 2)
    t.until(lambda: has(tmp_path, "first"))
    second = drive(GROUPS, "second", tmp_path, 2)
    t.until(lambda: [task.state for task in listed()] == [PASSED, WAITS, WAITS, WAITS], limit_s=60)
    assert not has(tmp_path, "second")
    first.kill()
    t.until(lambda: has(tmp_path, "second"), limit_s=60)
    assert len(has(tmp_path, "first")) == 1
    (tmp_path / "go").touch()
    out, errors = second.communicate(timeout=LIMIT_S)
    assert (second.returncode, out) == (0, "end\n"), errors
    assert has(tmp_path, "second") == ["0", "1"]


def listed() -> list[RunningTask]:
    """What `egs ps --on ray` shows of scripts, those in their turn first."""
    try:
        tasks = [task for one in control.ps() for task in one.running]
    except InputError:
        return []  # nobody has reported yet
    return sorted(tasks, key=lambda task: (PASSED, WAITS).index(task.state) if task.state in (PASSED, WAITS) else 2)


def test_an_operator_ends_groups(drive: Begin, tmp_path: Path) -> None:
    """With `EGS_GATE=cluster` and a queue of one GPU one group is held, with an actor in it, and another one waits:
    paused, it keeps waiting though the first is aborted, with its actor; resumed, it has its turn; aborted, its actor
    dies, too. The script hears of both as an error of Ray's, and goes on."""
    driver = drive(GROUPS, "one", tmp_path, 2)
    t.until(lambda: [task.state for task in listed()] == [PASSED, WAITS] and len(has(tmp_path, "one")) == 1)
    held, waits = listed()
    assert held.name == waits.name == "placement-group"
    (workload,) = [one.workload for one in control.ps()]
    assert control.pause(workload, task=waits.task).tasks == (waits.task,)
    assert control.abort(workload, task=held.task, actor="ann").tasks == (held.task,)
    assert driver.stdout is not None
    assert driver.stdout.readline() == "0 ActorUnschedulableError\n"
    t.until(lambda: [task.state for task in listed()] == [WAITS])
    assert has(tmp_path, "one") == ["0"]
    control.resume(workload, task=waits.task)
    t.until(lambda: has(tmp_path, "one") == ["0", "1"])
    assert control.abort(workload, task=waits.task).tasks == (waits.task,)
    assert driver.communicate(timeout=LIMIT_S)[0] == "1 ActorUnschedulableError\nend\n"


# One of two groups has its turn, with an actor in it. What is heard of the other one, that waits, and of what is placed
# in it, when an operator has ended it.
ENDED = """
import sys, time
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

@ray.remote(num_gpus=1, num_cpus=0)
def fit(x):
    return x

@ray.remote(num_gpus=1, num_cpus=0)
class Model:
    def __init__(self, x):
        self.x = x

    def get(self):
        return self.x

def heard(name, ask):
    try:
        print(name, ask(), flush=True)
    except Exception as error:
        is_rays = isinstance(error, ray.exceptions.TaskPlacementGroupRemoved | ray.exceptions.ActorDiedError)
        print(name, is_rays, "removed the placement group: aborted by ann: enough" in str(error), flush=True)

ray.init(logging_level="ERROR", log_to_driver=False)
held, ended = placement_group([{"GPU": 1}]), placement_group([{"GPU": 1}])
ray.get(held.ready())
model = Model.options(scheduling_strategy=PlacementGroupSchedulingStrategy(held)).remote(1)
early = ended.ready()
heard("early", lambda: ray.get(early, timeout=120))
heard("later", lambda: ray.get(ended.ready(), timeout=120))
heard("wait", lambda: ended.wait(120))
placed = PlacementGroupSchedulingStrategy(ended)
heard("task", lambda: ray.get(fit.options(scheduling_strategy=placed, max_retries=3).remote(1), timeout=120))
heard("actor", lambda: ray.get(Model.options(scheduling_strategy=placed).remote(1).get.remote(), timeout=120))
heard("handed on", lambda: ray.get(ray.remote(num_cpus=0)(lambda group: 1).remote(ended), timeout=120))
remove_placement_group(ended)
heard("model", lambda: ray.get(model.get.remote(), timeout=120))
remove_placement_group(held)
heard("next", lambda: placement_group([{"GPU": 1}]).wait(120))
"""


def test_who_waits_for_a_group_that_is_ended_is_told(drive: Begin) -> None:
    """An operator ends a group that waits for its turn: who waits for it, who asks later, and what is placed in it get
    Ray's error of a removed group, with the operator's name and reason. The other group's actor lives on, and the next
    group has its turn: nothing is held."""
    driver = drive(ENDED, "ended")
    t.until(lambda: [task.state for task in listed()] == [PASSED, WAITS])
    (workload,) = [one.workload for one in control.ps()]
    control.abort(workload, task=listed()[1].task, actor="ann", reason="enough")
    out, errors = driver.communicate(timeout=LIMIT_S)
    told = [f"{name} True True" for name in ("early", "later", "wait", "task", "actor", "handed on")]
    assert (driver.returncode, out.splitlines()) == (0, [*told, "model 1", "next True"]), errors


SWEEP = """
import json, os, sys, time
import ray
from ray import tune

name, folder = sys.argv[1:]

def trial(config):
    open(f"{folder}/begun.{config['x']}", "w").close()
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.05)
    return {"x": config["x"]}

ray.init(logging_level="ERROR", log_to_driver=False)
found = tune.Tuner(
    tune.with_resources(trial, {"cpu": 0.5, "gpu": 1}),
    param_space={"x": tune.grid_search([0, 1, 2])},
    run_config=tune.RunConfig(storage_path=f"{folder}/tune", verbose=0),
).fit()
print("RESULT", json.dumps([str(one.error or "") for one in found]))
"""


@pytest.mark.parametrize("is_whole", [False, True], ids=["trials that wait", "the whole sweep"])
def test_a_sweep_goes_on_without_trials_that_are_ended(is_whole: bool, drive: Begin, tmp_path: Path) -> None:
    """Ray Tune, three trials, one GPU: two wait when an operator ends these, or all. They are failed trials, with the
    operator's words; the driver ends by itself, and nothing of it is left."""
    pytest.importorskip("pyarrow", reason="Ray Tune and Train need pyarrow, which is not installed")
    driver = drive(SWEEP, "sweep", tmp_path)
    t.until(lambda: [task.state for task in listed()] == [PASSED, WAITS, WAITS] and list(tmp_path.glob("begun.*")))
    (workload,) = [one.workload for one in control.ps()]
    for task in [""] if is_whole else [task.task for task in listed()[1:]]:
        control.abort(workload, task=task, actor="ann", reason="enough")
    if not is_whole:
        t.until(lambda: [task.state for task in listed()] == [PASSED])
    (tmp_path / "go").touch()
    out, errors = driver.communicate(timeout=LIMIT_S)
    assert driver.returncode == 0, errors
    found = json.loads(next(line for line in out.splitlines() if line.startswith("RESULT ")).removeprefix("RESULT "))
    assert [bool(error) for error in found].count(True) == (3 if is_whole else 2), found
    assert ["aborted by ann: enough" in error for error in found].count(True) >= 2, found
    t.until(t.is_idle)


# Two runs of Ray Train: the first one waits for a group that is held, the second one runs.
TRAINS = """
import os, sys, tempfile, time
import ray, ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.util.placement_group import placement_group, remove_placement_group

folder = sys.argv[2]

def loop(config):
    with open(f"{folder}/begun", "a") as file:
        file.write(str(ray.train.get_context().get_world_rank()))
    time.sleep(600)

def fit(name, **failures):
    with tempfile.TemporaryDirectory() as storage:
        scaling = ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"CPU": 0.5, "GPU": 0.5})
        run = RunConfig(storage_path=storage, failure_config=FailureConfig(**failures))
        try:
            DataParallelTrainer(loop, scaling_config=scaling, run_config=run).fit()
        except ray.train.TrainingFailedError as error:
            said = "removed the placement group: aborted by ann: enough" in str(error)
            print(name, type(error).__name__, said, flush=True)

# Train's own helpers look for a cluster by this variable, and there may be others on the machine.
env = {"env_vars": {"RAY_ADDRESS": os.environ["RAY_ADDRESS"]}}
ray.init(logging_level="ERROR", log_to_driver=False, runtime_env=env)
held = placement_group([{"GPU": 1}])
ray.get(held.ready())
fit("waits", max_failures=3, controller_failure_limit=-1)
remove_placement_group(held)
fit("runs", max_failures=1)
print("end", flush=True)
"""


def test_a_run_of_train_whose_workers_are_ended(drive: Begin, tmp_path: Path) -> None:
    """An operator ends the group of Train's workers. While it waits the run ends with the operator's words, whatever
    its FailureConfig says: Train takes an error of a waiting group for a time-out, and would ask for another one
    without end. While it runs Train asks for another group as often as `max_failures` says, which has its turn, and
    ends when that is ended, too. Nothing is held afterwards."""
    pytest.importorskip("pyarrow", reason="Ray Tune and Train need pyarrow, which is not installed")
    driver = drive(TRAINS, "trains", tmp_path)
    begun = tmp_path / "begun"

    ended: set[str] = set()

    def workers(state: str) -> set[str]:
        found = {one.task for one in listed() if one.name == "train-workers" and one.state == state}
        return found - ended

    t.until(lambda: len(workers(WAITS)) == 2)
    (workload,) = [one.workload for one in control.ps()]
    control.abort(workload, task=min(workers(WAITS)), actor="ann", reason="enough")
    assert driver.stdout is not None
    assert driver.stdout.readline() == "waits ControllerError True\n"
    assert not begun.exists()
    for tries in (2, 4):
        t.until(lambda tries=tries: begun.exists() and len(begun.read_text()) == tries)  # type: ignore[misc]
        t.until(lambda: len(workers(PASSED)) == 2)
        own = workers(PASSED)
        control.abort(workload, task=min(own), actor="ann", reason="enough")
        ended |= own
    out, errors = driver.communicate(timeout=LIMIT_S)
    assert (driver.returncode, out.splitlines()) == (0, ["runs WorkerGroupError False", "end"]), errors
    assert len(begun.read_text()) == 4
    t.until(t.is_idle)


@pytest.mark.usefixtures("ray_address")
def test_what_ray_refuses_late_is_told() -> None:
    """Ray refuses a group when its turn has come, here for a name that is taken: whoever has asked before whether it is
    ready, and whoever asks later, gets Ray's error, in a task's place too, and waits for nothing."""
    values = make_own_values()
    assert values is not None
    taken = placement_group([{"CPU": 1}], name="taken")
    assert taken.wait(60)
    try:
        group = WaitingGroup(lambda: placement_group([{"CPU": 1}], name="taken"), [{"CPU": 1}], values, lambda: None)
        early = [group.ready(), group.ready()]
        assert ray.wait(early, timeout=0.2)[0] == []
        with pytest.raises(Exception, match="taken") as refused:
            group.make()
        for ref in (*early, group.ready()):
            with pytest.raises(type(refused.value), match="taken"):
                ray.get(ref, timeout=60)
        after = ray.remote(num_cpus=0)(lambda group: group).remote(group.ready())
        with pytest.raises(type(refused.value), match="taken"):
            ray.get(after, timeout=60)
        with pytest.raises(type(refused.value), match="taken"):
            group.wait(60)
    finally:
        remove_placement_group(taken)
