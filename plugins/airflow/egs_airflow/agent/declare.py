"""What a task's function hints at, written where others can read it: in the task's `executor_config`.

    @egs.task(priority=5, max_wait="10s", deadline="2h", expect="90s", max_runtime="1h", gang="shards")
    executor_config={"egs": {"priority": 5, "max_wait": "10s", …}}          the same by hand, for any operator

Executors pass on what they do not know, the REST API shows it, and the DAG is stored with it. Called where DAG files
are parsed: nothing heavy.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from egs_airflow import config
from egs_airflow.convert.needs import argument_of, callable_of
from egs_core.errors import InputError
from egs_core.hints import HINTS, Files, hints_of

KEY = "egs"
GANG = "gang"
FILES = "files"
ORDERING = "priority", "max_wait", "deadline", "expect"
OTHERS = GANG, FILES, *ORDERING
"""What is there beside limits."""


class Ordering(NamedTuple):
    """What a task states of its place in the order. deadline_s: since its run began; expect_s: of the whole task."""

    priority: int = 0
    max_wait_s: float | None = None
    deadline_s: float | None = None
    expect_s: float | None = None


def declare(task: Any) -> None:
    """For the policy, in mode on; the same at each parse. What the user wrote under our key stays."""
    hints = hints_of(callable_of(task))
    stated: dict[str, Any] = {}
    if hints is not None:
        stated = {"max_runtime": hints.max_runtime_s, "max_gpu_time": hints.max_gpu_s, GANG: hints.gang or None}
        stated |= {"max_wait": hints.max_wait_s, "deadline": hints.deadline_s}
        stated |= {"priority": hints.priority or None, "expect": sum(hints.expect_s) or None}
        stated[FILES] = _absolute(hints.preload, task) or None
    wanted = {name: value for name, value in stated.items() if value is not None}
    present: Mapping[str, Any] = task.executor_config or {}
    if not wanted or KEY in present:
        return
    if task.is_mapped:
        task.partial_kwargs["executor_config"] = {**present, KEY: wanted}
    else:
        task.executor_config = {**present, KEY: wanted}


def ordering(executor_config: object, place: str) -> Ordering:
    """What stands under our key of an `executor_config`, also as the text that REST shows; what means nothing is left
    out, with one warning that names the place."""
    text = executor_config if isinstance(executor_config, str) else ""
    if text and not any(f"'{name}'" in text for name in ORDERING):
        return Ordering()
    try:
        found: Any = ast.literal_eval(text) if text else executor_config
        stated = found[KEY]
        checked = {name: HINTS[name].check(stated[name], f"{KEY}[{name!r}]") for name in ORDERING if name in stated}
    except InputError as error:
        config.warn(f"{place}: executor_config: {error}")
        return Ordering()
    except (ValueError, SyntaxError, LookupError, TypeError):  # not ours
        return Ordering()
    spans: Any = checked.get("expect", ())
    values: Any = checked
    return Ordering(values.get("priority", 0), values.get("max_wait"), values.get("deadline"), sum(spans) or None)


def ordering_of(task: Any) -> Ordering:
    """The same of a task of a DAG, also a stored or a mapped one."""
    return ordering(argument_of(task, "executor_config") or {}, f"{task.dag_id}.{task.task_id}")


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
