"""What Airflow says about a task that the workload graph has no column for.

The same for a DAG object and for its stored form, but `defers`: stored is only which tasks start in the triggerer.

    edges of the graph     all of Airflow's own, and none besides
    facts.trigger_rule     how the parents must have ended for the task to run
    facts.width            how many instances of it run: 1, a number where it is written in the DAG, else unknown (None)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from egs_airflow import compat
from egs_core.errors import InputError

TRIGGER_RULES = (
    *("all_success", "all_failed", "all_done", "all_skipped", "all_done_min_one_success", "all_done_setup_success"),
    *("one_success", "one_failed", "one_done"),
    *("none_failed", "none_skipped", "none_failed_min_one_success", "always"),
)


class TaskFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """One task of a DAG.

    operator: name of its class. role: "setup", "teardown" or "". mapped_by: id of the task or group whose instances
    it has one of each. skips: what follows may be skipped by it (branch, short circuit, LatestOnly). defers: frees its
    slot while it waits. empty: no process is started for it. reads, writes: assets.
    """

    operator: str
    trigger_rule: str = "all_success"
    role: str = ""
    width: int | None = 1
    mapped_by: str = ""
    skips: bool = False
    sensor: bool = False
    defers: bool = False
    empty: bool = False
    retries: int = 0
    pool: str = "default_pool"
    pool_slots: int = 1
    queue: str = "default"
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


def task_id_of(task: Any) -> str:
    """The id as Airflow stores it. Members of a str enum, which DAGs do use for ids, would show as something else."""
    return str.__str__(task.task_id)


def facts_of(task: Any, place: str) -> TaskFacts:
    """The facts of an operator; InputError for a trigger rule that EGS does not know."""
    rule = str(getattr(task.trigger_rule, "value", task.trigger_rule))
    if rule not in TRIGGER_RULES:
        raise InputError(place, f"trigger rule {rule!r} is not one that EGS knows", "update airflow-provider-egs")
    mapped_by, width = _mapping_of(task)
    return TaskFacts(
        operator=str(task.task_type),
        trigger_rule=rule,
        role="setup" if task.is_setup else "teardown" if task.is_teardown else "",
        width=width,
        mapped_by=mapped_by,
        skips=bool(task.inherits_from_skipmixin),
        sensor=compat.is_sensor(task),
        defers=bool(getattr(task, "deferrable", False) or task.start_from_trigger),
        empty=bool(task.inherits_from_empty_operator),
        retries=int(task.retries or 0),
        pool=str(task.pool),
        pool_slots=int(task.pool_slots),
        queue=str(task.queue),
        reads=_asset_names(task.inlets),
        writes=_asset_names(task.outlets),
    )


def _mapping_of(task: Any) -> tuple[str, int | None]:
    """What a task is mapped by and how often; Airflow allows one mapping a task: its own or that of a group."""
    groups = list(task.iter_mapped_task_groups())
    sources = ([(task_id_of(task), task)] if task.is_mapped else []) + [(str(g.group_id), g) for g in groups]
    if not sources:
        return "", 1
    widths = [_written_width(compat.mapped_over(source)) for _, source in sources]
    total = 1
    for width in widths:
        if width is None:
            return sources[0][0], None
        total *= width
    return sources[0][0], total


def _written_width(value: Any) -> int | None:
    """How many instances the arguments of an expansion make; None where one of them is made at run time."""
    if isinstance(value, Mapping):  # expand(a=[…], b=[…]): every combination
        total = 1
        for argument in value.values():
            if not isinstance(argument, Mapping | Sequence) or isinstance(argument, str):
                return None
            total *= len(argument)
        return total
    if isinstance(value, Sequence) and not isinstance(value, str):  # expand_kwargs([{…}, {…}])
        return len(value)
    return None


def _asset_names(assets: Any) -> tuple[str, ...]:
    """Assets by their URI, and those that are only named (aliases, references) by their name."""
    return tuple(str(getattr(asset, "uri", None) or getattr(asset, "name", asset)) for asset in assets or ())
