"""Limits, gang and files that a task's function hints at, written where others can read them: its `executor_config`.

Executors pass on what they do not know, the REST API shows it, and the DAG is stored with it. Called where DAG files
are parsed: nothing heavy.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Mapping
from typing import Any

from egs_airflow import config
from egs_airflow.convert.needs import callable_of
from egs_core.hints import Files, hints_of

KEY = "egs"
GANG = "gang"
FILES = "files"
OTHERS = GANG, FILES
"""What is there beside limits."""


def declare(task: Any) -> None:
    """For the policy, in mode on; the same at each parse. What the user wrote under our key stays."""
    hints = hints_of(callable_of(task))
    stated: dict[str, Any] = {}
    if hints is not None:
        stated = {"max_runtime": hints.max_runtime_s, "max_gpu_time": hints.max_gpu_s, GANG: hints.gang or None}
        stated[FILES] = _absolute(hints.preload, task) or None
    wanted = {name: value for name, value in stated.items() if value is not None}
    present: Mapping[str, Any] = task.executor_config or {}
    if not wanted or KEY in present:
        return
    if task.is_mapped:
        task.partial_kwargs["executor_config"] = {**present, KEY: wanted}
    else:
        task.executor_config = {**present, KEY: wanted}


def stated_files(executor_config: str) -> tuple[str, ...]:
    """The absolute paths that `declare` has put into an `executor_config`, as REST shows it."""
    if f"'{FILES}'" not in executor_config:
        return ()
    try:
        paths = ast.literal_eval(executor_config)[KEY][FILES]
        return tuple(path for path in paths if isinstance(path, str) and os.path.isabs(path))
    except (ValueError, SyntaxError, LookupError, TypeError):
        return ()


def _absolute(preload: Iterable[object], task: Any) -> list[str]:
    """The files to stage; one that is relative is one warning, for only the task's process knows to what."""
    paths = [path for item in preload if isinstance(item, Files) for path in item.paths]
    for path in paths:
        if not os.path.isabs(path):
            place = f"{task.dag_id}.{task.task_id}: egs.files({path!r})"
            config.warn(f"{place} is relative, so no agent can read it ahead: name the whole path")
    return [path for path in paths if os.path.isabs(path)]
