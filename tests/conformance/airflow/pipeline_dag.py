"""A DAG file: a pipeline of the conformance suite as its author would have written it for Airflow.

The bench copies this text, with the two constants filled in, into the folder of DAG files. It needs nothing but Airflow
unless the pipeline is hinted: a worker may lack EGS. native: each task is one Airflow task, which holds its GPUs, slots
of a pool, from start to end. hinted: phases, limits and gangs are declared, as an author who uses EGS does.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

LEAST_LIMIT_S = 15.0  # Airflow counts from before the process starts, which takes seconds on a busy machine
FOLDER = ""
DAG_ID = ""


def read(name: str) -> Any:
    """What the bench has left beside the marks."""
    return json.loads(Path(FOLDER, name).read_text())


def make_body() -> Any:
    """`egs_core.testing.conformance.body`, from a copy of its file."""
    spec = importlib.util.spec_from_file_location("conformance_body", Path(FOLDER, "body.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_step(body: Any, task: dict[str, Any], number: int) -> Callable[..., str]:
    """One phase; the first takes the parents' values, each other one what its predecessor returned."""
    name, phase = task["name"], task["phases"][number]
    fails = task["fails"] and number == len(task["phases"]) - 1

    def step(*values: str) -> str:
        body.do_phase(FOLDER, name, number, phase["seconds"], tuple(phase["until"]))
        if fails:
            raise ValueError(f"{name} fails")
        return values[0] if number else str(body.value(name, values))

    step.__name__ = step.__qualname__ = f"phase{number}"
    return step


def whole(steps: list[Callable[..., str]]) -> Callable[..., str]:
    """All phases in one function."""

    def run(*values: str) -> str:
        out = steps[0](*values)
        for step in steps[1:]:
            out = step(out)
        return out

    return run


def pool_of(task: dict[str, Any], pool: str) -> dict[str, Any]:
    """The slots of the largest phase, one a GPU."""
    gpus = max(phase["gpus"] for phase in task["phases"])
    return {"pool": pool, "pool_slots": int(gpus)} if gpus else {}


def make_task(task: dict[str, Any], values: list[Any], hinted: bool, pool: str) -> Any:
    """The task, or the group of its phases, with its parents' values."""
    from airflow.sdk import task as airflow_task

    body, arguments = make_body(), {"retries": task["retries"], "retry_delay": timedelta(seconds=0.1)}
    steps = [make_step(body, task, number) for number in range(len(task["phases"]))]
    if not hinted:
        return airflow_task(task_id=task["name"], **arguments, **pool_of(task, pool))(whole(steps))(*values)
    import egs_core as egs

    hints = {"gpus": max(phase["gpus"] for phase in task["phases"]), "gang": task["gang"]}
    limit_s = task["max_runtime_s"] and max(task["max_runtime_s"], LEAST_LIMIT_S)
    hint = egs.task(**hints, max_runtime=limit_s)
    if len(steps) == 1:
        function = hint(whole(steps))
        return airflow_task(task_id=task["name"], **arguments, **pool_of(task, pool))(function)(*values)
    from egs_airflow.split import split

    marked = [egs.on_gpu(s) if p["gpus"] else s for s, p in zip(steps, task["phases"], strict=True)]
    return split(hint(egs.phases(*marked)), group_id=task["name"], **arguments)(*values)


def build() -> Any:
    """The DAG."""
    from airflow.sdk import DAG

    pipeline, how = read("pipeline.json"), read("how.json")
    made: dict[str, Any] = {}
    with DAG(DAG_ID, schedule=None, tags=how["tags"], max_active_tasks=64) as dag:
        for task in pipeline["tasks"]:
            values = [made[parent] for parent in task["after"]]
            made[task["name"]] = make_task(task, values, how["hinted"], how["pool"])
    return dag


if DAG_ID:
    dag = build()
