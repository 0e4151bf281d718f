"""How an operator sees a task that the cluster's gate has let go, and the answers to what nobody can do to it."""

from __future__ import annotations

from typing import Any

from egs_core.errors import listed
from egs_ray.gate.messages import PASSED
from egs_ray.submission import Needs

Request = dict[str, Any]


def label(name: str, task_id: str) -> str:
    """A task as `egs ps` lists it."""
    return f"{name}-{task_id[:8]}"


def row_of(workload: str, task_id: str, needs: Needs, since: float) -> dict[str, Any]:
    """A script's task that a gate has let go, as the controller is told of it. since: Unix time."""
    return {
        "workload": workload,
        "stage": "",
        "task": label(needs.name, task_id),
        "name": needs.name,
        "state": PASSED,
        "since": round(since, 3),
        "gpus": needs.gpus,
        "node": "",
        "pid": 0,
        "pids": [],
        "framework_id": task_id,
    }


def refused(request: Request) -> dict[str, Any]:
    """The answer to what nobody can do to a script's tasks; empty for the rest."""
    if request["stage"]:
        return {"problem": "the tasks of a script have no stages", "known": "name a task, or the workload"}
    if request["verb"] == "preempt":
        return {"problem": "the tasks of a script cannot be started again for it", "known": "use egs_ray.run"}
    return {}


def unknown_task(task: str, there: list[str]) -> dict[str, Any]:
    """The answer that names what there is."""
    return {"problem": f"has no task {task!r}", "known": f"its tasks: {listed(there)}"}


def reason_of(request: Request) -> str:
    """Why a task was aborted, for the run log."""
    return f"aborted by {request['actor']}" + (f": {request['reason']}" if request["reason"] else "")
