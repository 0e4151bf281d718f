"""Split on a real Airflow: one task of the user's as CPU and GPU tasks, each in its pool, used as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.airflow.live import LiveAirflow, wait_until

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "airflow"
GPU_POOL = "order_gpu"
AIRFLOW_ENVIRONMENT = {
    "AIRFLOW__CORE__EXECUTOR": "egs_airflow.executors.EgsLocalExecutor",
    "EGS_POOLS": f"{GPU_POOL}=2",
}

USED = """
import os
import pathlib
from datetime import timedelta
import egs_core as egs
from airflow.sdk import DAG, task
from egs_airflow.split import split

def decode(n, ti=None):
    if n < 0:
        raise ValueError("nothing to decode")
    return {"n": n, "try": ti.try_number}

def fit(decoded, ti=None):
    if decoded["n"] == 0 and ti.try_number == 1:
        raise ValueError("out of memory, once")
    return decoded["n"] + 10, decoded["try"], ti.try_number

def write(fitted) -> dict:
    return {"fitted": fitted[0], "tries": list(fitted[1:])}

train = split(
    egs.task(gpus=1)(egs.phases(decode, egs.on_gpu(fit), write, name="train")),
    gpu={"retries": 1, "retry_delay": timedelta(seconds=0.1)},
)

def double(n):
    return 2 * n

@split
@egs.task(gpus=1)
def block(n, ti=None):
    doubled = double(n)
    with egs.gpu():
        total = doubled + 1
    return dict(total=total, task=ti.task_id)

@task
def ready():
    pass

@task
def show(value):
    return value

for dag_id, tags in (("split_used", ["egs-on"]), ("split_native", [])):
    with DAG(dag_id, tags=tags, schedule=None):
        trained = train(0)
        ready() >> trained
        show(trained["fitted"])
        show.override(task_id="of_block")(block(3))
        if tags:
            show.override(task_id="all")(train.override(group_id="each").expand(n=[1, 2]))
            broken = train.override(group_id="broken")(-1)
            broken >> ready.override(task_id="when_broken", trigger_rule="one_failed")()
            broken >> ready.override(task_id="whatever_happened", trigger_rule="all_done")()
            broken >> ready.override(task_id="never")()
"""


@pytest.mark.parametrize(
    ("name", "dag_id", "places"), [("01_split", "images", ()), ("02_gang", "shards", ("meeting_place",))]
)
def test_the_example_prints_what_is_recorded(
    airflow: LiveAirflow, name: str, dag_id: str, places: tuple[str, ...]
) -> None:
    """01: only the GPU phase takes a slot of the GPU pool; the value goes on from phase to phase and out of the last.
    02: both members of a gang run at once. places: tasks whose value is another folder each time."""
    airflow.add_dags(**{name: (EXAMPLES / f"{name}.py").read_text()})
    run = airflow.run(dag_id)
    lines = [
        f"{ti['task_id']:14} pool {ti['pool'].replace(GPU_POOL, 'gpu'):14} {value}\n"
        for ti in airflow.task_instances(dag_id, run)
        for value in ["…" if ti["task_id"] in places else value_of(airflow, dag_id, run, ti)]
    ]
    assert "".join(lines) == (EXAMPLES / f"{name}.out").read_text()


@pytest.mark.proves("airflow mode, executor, agent", "split")
def test_a_split_task_is_used_as_one_task(airflow: LiveAirflow) -> None:
    """Retries of the GPU half alone, trigger rules after a phase that failed, mapping, the group in the grid, the same
    tasks in a DAG that is not chosen, one version in two readings; then the GPU half is cleared alone."""
    airflow.add_dags(split_used=USED)
    airflow.reserialize()
    runs = {dag_id: airflow.trigger(dag_id) for dag_id in ("split_used", "split_native")}
    assert airflow.wait_run("split_native", runs["split_native"]) == "success"
    airflow.wait_run("split_used", runs["split_used"])
    found = by_name(airflow, "split_used", runs["split_used"])
    native = by_name(airflow, "split_native", runs["split_native"])

    broken = ("broken.decode", "broken.fit", "broken.write", "when_broken", "whatever_happened", "never")
    after = ["failed", "upstream_failed", "upstream_failed", "success", "success", "upstream_failed"]
    assert [found[name]["state"] for name in broken] == after
    assert [found[f"train.{name}"]["try_number"] for name in ("decode", "fit", "write")] == [1, 2, 1]
    pools = {name.split(".")[1].split("[")[0]: ti["pool"] for name, ti in found.items() if "." in name}
    own = {"before": "default_pool", "gpu": GPU_POOL, "after": "default_pool"}
    assert pools == {"decode": "default_pool", "fit": GPU_POOL, "write": "default_pool", **own}
    assert found["ready"]["end_date"] <= found["train.decode"]["start_date"]
    values = {name: value_of(airflow, "split_used", runs["split_used"], found[name]) for name in ("show", "all")}
    each = [{"fitted": n + 10, "tries": [1, 1]} for n in (1, 2)]
    assert values == {"show": 10, "all": each}
    told = value_of(airflow, "split_used", runs["split_used"], found["of_block"])
    assert told == {"total": 7, "task": "block.after"}

    assert {ti["pool"] for ti in native.values()} == {"default_pool"}
    block = {"block.before", "block.gpu", "block.after", "of_block"}
    assert set(native) == {"ready", "train.decode", "train.fit", "train.write", "show", *block}
    for dag_id in runs:
        assert airflow.rest("GET", f"/dags/{dag_id}/dagVersions")["total_entries"] == 1
    groups = {node["id"]: [child["id"] for child in node.get("children") or []] for node in grid(airflow, "split_used")}
    assert groups["train"] == ["train.decode", "train.fit", "train.write"]
    assert groups["block"] == ["block.before", "block.gpu", "block.after"]

    run = runs["split_native"]
    body = {"dry_run": False, "dag_run_id": run, "task_ids": ["train.fit"], "only_failed": False}
    airflow.rest("POST", "/dags/split_native/clearTaskInstances", body | {"include_downstream": True})
    wait_until(lambda: by_name(airflow, "split_native", run)["train.fit"]["try_number"] > 2, "fit is run again")
    assert airflow.wait_run("split_native", run) == "success"
    tries = {name: ti["try_number"] for name, ti in by_name(airflow, "split_native", run).items()}
    assert tries == {
        **dict.fromkeys(block, 1),
        "ready": 1,
        "train.decode": 1,
        "train.fit": 3,
        "train.write": 2,
        "show": 2,
    }


def by_name(airflow: LiveAirflow, dag_id: str, run: str) -> dict[str, dict[str, Any]]:
    """The task instances of a run; those that are mapped with their index."""
    found = airflow.task_instances(dag_id, run)
    return {ti["task_id"] + (f"[{ti['map_index']}]" if ti["map_index"] >= 0 else ""): ti for ti in found}


def value_of(airflow: LiveAirflow, dag_id: str, run: str, ti: dict[str, Any]) -> Any:
    """What a task has given, as a user of REST sees it."""
    path = f"/dags/{dag_id}/dagRuns/{run}/taskInstances/{ti['task_id']}/xcomEntries/return_value"
    return airflow.rest("GET", f"{path}?map_index={ti['map_index']}&deserialize=false")["value"]


def grid(airflow: LiveAirflow, dag_id: str) -> list[dict[str, Any]]:
    """The rows of the grid page, as the page asks for them."""
    found: list[dict[str, Any]] = airflow.ask("GET", f"/ui/grid/structure/{dag_id}")
    return found
