"""`egs.progress` in tasks of a real Ray whose driver is at a site server, and in what Ray's libraries run: people see
where each is, and rules look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from egs_core.client.messages import TaskProgress
from egs_core.runlog.io import read_run
from egs_core.runlog.records import Granted, TaskAdded, Work
from tests.conformance.ray.conftest import LIMIT_S, drivers
from tests.unit.server.real_site import RealSite, wait_for
from tests.unit.server.served import own_site
from tests.unit.server.test_serve_watching import Gpus, played

if TYPE_CHECKING:
    import subprocess

pytestmark = pytest.mark.slow

RULES = """
alerts: {webhook: "http://127.0.0.1:9"}
rules:
  - {name: diverged, when: {loss: nan}, for: 0s, do: [alert, stop]}
  - {name: hangs, when: {no_progress_for: 3s}, do: [alert]}
"""
TELLS = """
import os, sys, time
import ray
import egs_core as egs

go = sys.argv[2]

def tell(step, loss):
    for number in range(step + 1):
        egs.progress(step=number, loss=loss)
    while not os.path.exists(go):
        time.sleep(0.05)
    return step

"""
HOOKED = (
    TELLS
    + """
@ray.remote(num_gpus=1, num_cpus=0)
def plain(step):
    return tell(step, 0.5)

@ray.remote(num_gpus=1, num_cpus=0)
@egs.task(gpus=1, cpus=0)
def hinted(step):
    with egs.gpu():
        return tell(step, float("nan"))

ray.init(logging_level="ERROR", log_to_driver=False)
print(ray.get([plain.remote(3), hinted.remote(4)]))
"""
)
ACTOR = (
    TELLS
    + """
@ray.remote(num_gpus=1, num_cpus=0)
class Trainer:
    def train(self, step):
        return tell(step, 0.5)

ray.init(logging_level="ERROR", log_to_driver=False)
trainer = Trainer.remote()
print(ray.get(trainer.train.remote(6)))
"""
)
GRAPH = (
    TELLS
    + """
import egs_ray
from ray.dag import MultiOutputNode

def prepare(step):
    return step

def fit(step):
    return tell(step, float("nan"))

@ray.remote(max_retries=0)
@egs.task(gpus=1, cpus=0.1, name="hinted")
def hinted(step):
    with egs.gpu():
        return tell(step, 0.5)

stepped = ray.remote(max_retries=0)(egs.task(gpus=1, cpus=0.1)(egs.phases(prepare, egs.on_gpu(fit), name="stepped")))
ray.init(logging_level="ERROR", log_to_driver=False)
print(egs_ray.run(MultiOutputNode([hinted.bind(3), stepped.bind(4)]), name="told").get(600))
"""
)
# Train's two workers have half a GPU each, and what they submit, too.
TRAIN = (
    TELLS
    + """
import tempfile
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

@ray.remote(num_gpus=0.5, num_cpus=0)
def helper(x):
    return x

def loop(config):
    rank = ray.train.get_context().get_world_rank()
    egs.work(samples=10 + rank)
    assert ray.get(helper.remote(rank)) == rank
    tell(3 + rank, [0.5, float("nan")][rank])
    egs.work(samples=100)

# Train's own helpers look for a cluster by this variable, and there may be others on the machine.
env = {"env_vars": {"RAY_ADDRESS": os.environ["RAY_ADDRESS"]}}
ray.init(logging_level="ERROR", log_to_driver=False, runtime_env=env)
with tempfile.TemporaryDirectory() as storage:
    scaling = ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"CPU": 0.5, "GPU": 0.5})
    trainer = DataParallelTrainer(loop, scaling_config=scaling, run_config=RunConfig(storage_path=storage))
    print(trainer.fit().error)
"""
)
# Of two trials one tells itself, the other one from a task that its group captures.
TUNE = (
    TELLS
    + """
import tempfile
from ray import tune

@ray.remote(num_cpus=0)
def child(step):
    return tell(step, float("nan"))

def trial(config):
    egs.work(samples=10)
    step = ray.get(child.remote(4)) if config["x"] else tell(3, 0.5)
    egs.work(samples=100 + config["x"])
    return {"step": step}

ray.init(logging_level="ERROR", log_to_driver=False)
with tempfile.TemporaryDirectory() as storage:
    tuner = tune.Tuner(
        tune.with_resources(trial, {"cpu": 0.5, "gpu": 1}),
        param_space={"x": tune.grid_search([0, 1])},
        run_config=tune.RunConfig(storage_path=storage, verbose=0),
    )
    print(sorted(one.metrics["step"] for one in tuner.fit()))
"""
)
Begin = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RealSite]:
    """A server with rules, which only say what they would do."""
    with own_site(tmp_path, 1, rules=RULES) as found:
        yield found


@pytest.fixture
def begin(ray_address: str, tmp_path: Path, site: RealSite) -> Iterator[Begin]:
    with drivers(ray_address, tmp_path) as start:
        url = f"unix://{site.ready['socket']}"
        yield lambda source: start(source, "told", ("told", tmp_path / "go"), EGS_URL=url)


def told(site: RealSite) -> dict[str, str]:
    """Of each task that tells, by name: in words."""
    found = [view.tasks.told for view in site.client.runs().runs if view.tasks is not None]
    return {one.task.partition("-")[0]: one.words for tasks in found for one in tasks}


def places(site: RealSite, name: str) -> list[TaskProgress]:
    """What tasks have told that are called so."""
    found = [view.tasks.told for view in site.client.runs().runs if view.tasks is not None]
    return [one for tasks in found for one in tasks if one.task.startswith(name)]


def fired(site: RealSite, rule: str) -> list[dict[str, Any]]:
    return [one for one in site.told("watch")["done"] if one["rule"] == rule]


def own_lines(out: str) -> list[str]:
    """Without Ray's word on how many processes it has."""
    return [line for line in out.splitlines() if "(raylet)" not in line]


@pytest.mark.parametrize(
    ("source", "where", "answer"),
    [
        (HOOKED, {"plain": "step 3, loss 0.5", "hinted": "step 4, loss is NaN"}, "[3, 4]"),
        (GRAPH, {"hinted": "step 3, loss 0.5", "stepped": "step 4, loss is NaN"}, "[3, 4]"),
    ],
    ids=["script", "graph"],
)
def test_where_tasks_are_is_seen_and_looked_at(
    source: str, where: dict[str, str], answer: str, begin: Begin, site: RealSite, tmp_path: Path
) -> None:
    """Of a script's tasks, with hints and without, and of a graph's, from a GPU block and from a step in a process of
    its own: `egs why`, `egs ps` and the driver's tasks have the latest; NaN is told of at once, silence when it has
    lasted, each with the task's name and the driver's number. A rule that would stop says that it does not. The script
    ends as natively, and nothing is known of it afterwards."""
    script = begin(source)
    wait_for(lambda: told(site) == where, "both have told")
    (driver,) = site.client.runs().runs
    why, listed = site.egs("why", driver.id).stdout, site.egs("ps").stdout
    for name, words in where.items():
        assert f"{name}" in why, why
        assert f": {words}, told " in why, why
    assert any(words in listed for words in where.values()), listed
    (alert, stop) = wait_for(lambda: fired(site, "diverged"), "the rule fires")
    assert [(one["action"], one["outcome"]) for one in (alert, stop)] == [("alert", "would"), ("stop", "left")]
    assert f" of driver {driver.id} (ray: " in alert["text"]
    assert "tells a loss that is NaN" in alert["text"]
    assert "which starts and stops it" in stop["text"]
    silent = wait_for(lambda: len(fired(site, "hangs")) == 2 and fired(site, "hangs"), "both tell no more")
    assert all("has told of no more work for " in one["text"] for one in silent)
    (tmp_path / "go").touch()
    out, errors = script.communicate(timeout=LIMIT_S)
    assert (script.returncode, own_lines(out)[-1:]) == (0, [answer]), (out, errors)
    wait_for(lambda: not site.open(), "it has gone")
    wait_for(lambda: site.told("watch")["seen"] == [], "the next look finds nothing")


def test_what_an_actor_tells_is_heard_to_its_end(begin: Begin, site: RealSite, tmp_path: Path) -> None:
    """From its methods, which are no tasks of their own."""
    script = begin(ACTOR)
    wait_for(lambda: told(site) == {"Trainer": "step 6, loss 0.5"}, "it has told")
    (tmp_path / "go").touch()
    assert own_lines(script.communicate(timeout=LIMIT_S)[0])[-1] == "6"


@pytest.mark.parametrize(
    ("source", "name", "answer", "worked", "ordered"),
    [
        (TRAIN, "train-workers", "None", {"RayTrainWorker": [110.0, 111.0]}, {"train-workers": 2, "helper": 2}),
        (TUNE, "tune-trial", "[3, 4]", {"ImplicitFunc": [110.0, 111.0]}, {"tune-trial": 2}),
    ],
    ids=["train", "tune"],
)
def test_where_rays_libraries_are_is_seen_and_looked_at(
    source: str,
    name: str,
    answer: str,
    worked: dict[str, list[float]],
    ordered: dict[str, int],
    begin: Begin,
    site: RealSite,
    tmp_path: Path,
) -> None:
    """Of two workers of Ray Train, and of two trials of Ray Tune: the driver's tasks, `egs why` and `egs ps` have what
    each has told last, by the name of its place in the order; rules look at it. Their work, to the last word, is in the
    run log with the actor that holds the GPU. What a worker of Train submits has had its turn; what a trial does is in
    its group. The script ends as natively."""
    pytest.importorskip("pyarrow", reason="Ray Tune and Train need pyarrow, which is not installed")
    script = begin(source)
    words = ["step 3, loss 0.5", "step 4, loss is NaN"]
    wait_for(lambda: sorted(view.words for view in places(site, name)) == words, "both have told")
    (driver,) = site.client.runs().runs
    why = site.egs("why", driver.id).stdout
    assert all(f": {one}, told " in why for one in words), why
    assert any(one in site.egs("ps").stdout for one in words)
    (alert, _) = wait_for(lambda: fired(site, "diverged"), "the rule fires")
    assert f" of driver {driver.id} (ray: " in alert["text"]
    assert name in alert["text"]
    wait_for(lambda: len(fired(site, "hangs")) == 2, "both tell no more")
    (tmp_path / "go").touch()
    out, errors = script.communicate(timeout=LIMIT_S)
    assert (script.returncode, own_lines(out)[-1:]) == (0, [answer]), (out, errors)
    records = read_run(tmp_path / "told.jsonl").records
    names = {(one.workload, one.task): one.name for one in records if isinstance(one, TaskAdded)}
    works = [(names[one.workload, one.task], one.amounts) for one in records if isinstance(one, Work)]
    assert {name for name, _ in works} == set(worked)
    assert sorted(amounts["samples"] for _, amounts in works) == next(iter(worked.values()))
    granted = Counter(names[one.workload, one.task] for one in records if isinstance(one, Granted))
    assert granted == ordered
    wait_for(lambda: not site.open(), "it has gone")


IDLE = """
rules:
  - {name: idle, when: {idle_for: 4s}, do: [hook]}
"""
HOLDS = (
    TELLS.split("def tell")[0]
    + """
@ray.remote(num_gpus=1, num_cpus=0)
def plain():
    while not os.path.exists(go):
        time.sleep(0.05)

@ray.remote(num_gpus=1, num_cpus=0)
@egs.task(gpus=1, cpus=0)
def hinted():
    with egs.gpu():
        while not os.path.exists(go):
            time.sleep(0.05)

variables = {"EGS_DEVICE_FOLDER": sys.argv[3]}
ray.init(logging_level="ERROR", log_to_driver=False, runtime_env={"env_vars": variables})
ray.get([plain.remote(), hinted.remote()])
print("done")
"""
)


def test_a_task_that_holds_a_gpu_and_does_nothing_is_told_of(ray_address: str, tmp_path: Path) -> None:
    """On one host with its Ray, whose driver and NVML are played: a script's tasks, with hints and without, each have
    one of the server's GPUs. While both compute nothing is told; then one does not any more, and it is told of the task
    that has this one."""
    gpus = Gpus(tmp_path / "gpus.json")
    for number, name in enumerate("ab"):
        folder = tmp_path / "driver" / "gpus" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t NVIDIA A100\nGPU UUID: \t GPU-{name}\n")
    (tmp_path / "watch.yaml").write_text(IDLE)
    site = RealSite(tmp_path / "site", gpus=None)
    site.environment |= played(tmp_path)
    try:
        site.start("--rules", str(tmp_path / "watch.yaml"))
        with drivers(ray_address, tmp_path) as start:
            words = "holds", tmp_path / "go", tmp_path / "driver"
            script = start(HOLDS, "holds", words, EGS_URL=f"unix://{site.ready['socket']}")

            def rule() -> tuple[int, int]:
                (found,) = site.told("watch")["rules"]
                return found["looked_at"], found["unknown"]

            wait_for(lambda: rule() == (2, 0), "it is known which each has")
            assert site.told("watch")["seen"] == []
            gpus.set("b", busy=0)
            (seen,) = wait_for(lambda: site.told("watch")["seen"], "one is idle")
            assert "holds 1 GPU, of which none has computed for" in seen["text"]
            gpus.set("a", busy=0)
            wait_for(lambda: len(site.told("watch")["seen"]) == 2, "both are idle")
            gpus.set("b", busy=50)
            wait_for(lambda: len(site.told("watch")["seen"]) == 1, "one computes again")
            assert site.told("watch")["seen"][0]["subject"] != seen["subject"]
            (tmp_path / "go").touch()
            out, errors = script.communicate(timeout=LIMIT_S)
            assert own_lines(out)[-1] == "done", errors
    finally:
        site.close()
