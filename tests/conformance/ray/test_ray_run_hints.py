"""Each hint on a task's place, needs and limits does on a real Ray what it says, in a graph that `egs_ray.run` runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.dag import MultiOutputNode

import egs_core as egs
import egs_ray
from egs_core.cli import app
from egs_core.runlog.io import read_run
from egs_core.runlog.records import Ended, Started, TaskAdded
from egs_ray import Session
from tests.conformance.ray import run_tasks as t
from tests.conformance.ray.test_ray_nodes import outcome_of

pytestmark = pytest.mark.usefixtures("ray_address")


@pytest.fixture
def session(ray_address: str, tmp_path: Path) -> Iterator[Session]:
    """With its run log in the test's folder."""
    assert ray_address
    with t.session(tmp_path) as made:
        yield made


def hinted(function: Callable[..., Any], **hints: Any) -> Any:
    """A copy of the function as a remote function that says nothing to Ray, with these hints."""

    def own(*args: Any) -> Any:
        return function(*args)

    return ray.remote(max_retries=0)(egs.task(**hints)(own))


def nothing() -> None:
    pass


def hold(folder: str, path: str) -> None:
    t.note(folder, "holds", "now")
    t.wait_for(folder, path)


def use_gpu(folder: str) -> None:
    with egs.gpu():
        t.wait_for(folder, "never")


@pytest.mark.proves("ray run", "order", "priority", "max_wait", "deadline", "expect", "name", "audit")
def test_hints_on_the_order(session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Six tasks of both GPUs that nothing connects, the least urgent first: the priority, then what may not be passed
    over, then what its deadline presses from the start, then the longer ones. `egs audit` of the run log knows them by
    their hinted names."""
    told: dict[str, dict[str, Any]] = {
        "short": {"expect": 1},
        "middle": {"expect": "30m"},
        "long": {"expect": "2h"},
        "due": {"expect": "1h", "deadline": "90m"},
        "overdue": {"expect": 1, "max_wait": 0.0},
        "first": {"expect": 1, "priority": 1},
    }
    nodes = [hinted(nothing, name=name, gpus=2, cpus=0.1, **hints).bind() for name, hints in told.items()]
    egs_ray.run(MultiOutputNode(nodes), session=session, name="ordered").get(t.LIMIT_S)
    records = read_run(tmp_path / "run.jsonl").records
    names = {record.task: record.name for record in records if isinstance(record, TaskAdded)}
    assert [names[record.task] for record in records if isinstance(record, Started)] == list(reversed(told))
    assert app.run(["audit", str(tmp_path / "run.jsonl"), "--json"]) == 0
    assert {row["name"] for row in json.loads(capsys.readouterr().out)["by_task"]} == set(told)


@pytest.mark.proves("ray run", "gpus", "cpus", "memory", "gpu_cpus")
def test_hints_on_needs_are_in_rays_books(session: Session, tmp_path: Path) -> None:
    """What only hints say is what Ray's own books have less while the task runs: in a GPU phase its own CPUs."""
    memory = ray.available_resources()["memory"]
    node = hinted(hold, gpus=1, cpus=3, gpu_cpus=2, memory=2**20).bind(str(tmp_path), "end")
    made = egs_ray.run(node, session=session)
    t.until((tmp_path / "holds").exists)
    t.until(lambda: (t.free("GPU"), t.free("CPU")) == (1, 2), "one GPU and two CPUs in the books")
    assert memory - ray.available_resources()["memory"] >= 2**20
    t.signal_to(str(tmp_path), "end")
    made.get(t.LIMIT_S)
    cpu = hinted(hold, cpus=3).bind(str(tmp_path), "end again")
    made = egs_ray.run(cpu, session=session)
    t.until(lambda: (t.free("GPU"), t.free("CPU")) == (2, 1), "three CPUs in the books")
    t.signal_to(str(tmp_path), "end again")
    made.get(t.LIMIT_S)
    t.until(t.is_idle)


@pytest.mark.proves("ray run", "max_gpu_time", "limits")
def test_a_limit_of_gpu_time_ends_a_task(session: Session, tmp_path: Path) -> None:
    """It is of the time in which a GPU is held; the error and the run log name it, and the GPU is free."""
    node = hinted(use_gpu, gpus=1, cpus=0.1, max_gpu_time=1.0, split=True).bind(str(tmp_path))
    made = egs_ray.run(node, session=session)
    with pytest.raises(ray.exceptions.RayError, match="over its limit of 1 s of GPU time"):
        made.get(t.LIMIT_S)
    t.until(t.is_idle)
    ended = [record for record in read_run(tmp_path / "run.jsonl").records if isinstance(record, Ended)]
    assert ended[-1].reason == "over its limit of 1 s of GPU time"


COSTS = """
import json, os, sys
import ray
import egs_core as egs, egs_ray

folder = sys.argv[1]
prices = os.path.join(folder, "flavors.yaml")
open(prices, "w").write("flavors: [{name: a100, gpu_hour: 3600}]")
ray.init(num_cpus=2, num_gpus=1, resources={"accelerator_type:A100": 1}, include_dashboard=False, log_to_driver=False)

@ray.remote(num_gpus=1, num_cpus=0.1, max_retries=0)
@egs.task(max_cost=1.0)
def dear():
    import time
    time.sleep(3600)

@ray.remote(num_gpus=1, num_cpus=0.1)
@egs.task(max_cost=1000)
def cheap():
    return 7

with egs_ray.Session(egs_ray.Options(flavors=prices)) as session:
    try:
        found = egs_ray.run(dear.bind(), session=session).get(240)
    except ray.exceptions.RayError as error:
        found = str(error)
    print(json.dumps({"dear": found, "cheap": egs_ray.run(cheap.bind(), session=session).get(240)}))
"""


@pytest.mark.proves("ray run", "max_cost")
def test_a_limit_of_cost_ends_a_task_where_gpus_have_prices(tmp_path: Path) -> None:
    """At a price of 1 a second a task that may cost 1 ends, and says why; one that may cost more ends by itself."""
    found, errors = outcome_of(COSTS, tmp_path)
    assert "over its limit of 1 in cost" in str(found["dear"]), errors
    assert found["cheap"] == 7
    assert "max_cost is not applied" not in errors
