"""Limits that a task's function hints at, written where the agent can read them: into the task's `executor_config`.

Executors pass on what they do not know, and the REST API shows it. Called where DAG files are parsed: nothing heavy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from egs_airflow.convert.needs import callable_of
from egs_core.hints import hints_of

KEY = "egs"


def declare(task: Any) -> None:
    """For the policy, in mode on; the same at each parse. What the user wrote under our key stays."""
    hints = hints_of(callable_of(task))
    stated = {"max_runtime": hints.max_runtime_s, "max_gpu_time": hints.max_gpu_s} if hints is not None else {}
    wanted = {name: limit for name, limit in stated.items() if limit is not None}
    present: Mapping[str, Any] = task.executor_config or {}
    if not wanted or KEY in present:
        return
    if task.is_mapped:
        task.partial_kwargs["executor_config"] = {**present, KEY: wanted}
    else:
        task.executor_config = {**present, KEY: wanted}
