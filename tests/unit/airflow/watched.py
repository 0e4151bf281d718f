"""A task as a process of Airflow's LocalExecutor runs it, with Airflow's client of an api-server that is not there."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import httpx


def supervise(dag_id: str, path: str, answer: Callable[[httpx.Request], httpx.Response]) -> None:
    """Run the task `work` of a DAG file, to the end of its process. answer: what the api-server says."""
    from airflow.executors.workloads import BundleInfo
    from airflow.sdk.api.client import Client
    from airflow.sdk.execution_time import supervisor

    run: Any = getattr(supervisor, "supervise_task", None) or supervisor.supervise  # 3.2
    client = Client(base_url="http://egs", token="", transport=httpx.MockTransport(answer))
    bundle = BundleInfo(name="dags-folder", version=None)
    run(ti=_task(dag_id), bundle_info=bundle, dag_rel_path=path, token="", server="http://egs", client=client)


def lets_run(request: httpx.Request) -> httpx.Response:
    """Every task may run."""
    if not request.url.path.endswith("/run"):
        return httpx.Response(204)
    times = dict.fromkeys(("logical_date", "data_interval_start", "data_interval_end", "end_date"), None)
    now = dict.fromkeys(("run_after", "start_date"), "2026-01-01T00:00:00Z")
    run: dict[str, Any] = {
        "dag_id": "ready_dag",
        "run_id": "r",
        "run_type": "manual",
        "state": "running",
        "partition_key": None,
    }
    run |= {"consumed_asset_events": [], "conf": {}, **times, **now}
    return httpx.Response(200, json={"dag_run": run, "max_tries": 0, "should_retry": False})


def _task(dag_id: str) -> Any:
    from airflow.sdk.api.datamodels._generated import TaskInstance

    names = {"dag_id": dag_id, "task_id": "work", "run_id": "r", "try_number": 1, "map_index": -1}
    return TaskInstance.model_validate(
        {
            **names,
            "id": uuid.uuid4(),
            "dag_version_id": uuid.uuid4(),
            "pool_slots": 1,
            "queue": "default",
            "priority_weight": 1,
        }
    )
