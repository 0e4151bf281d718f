"""A DAG as a workload graph: one task a task, Airflow's own edges, and beside it what the graph has no column for.

    DAG object ──────┐                     Converted.graph   tasks, edges, phases, options
                     ├─► convert(dag) ──►
    stored DAG ──────┘                     Converted.facts   trigger rules, setup and teardown, mapping, pools, assets …

Stored DAGs have no functions, hence no hints. A mapped task is one task of the graph; how many instances of it run is
in its facts. Pools and trigger rules decide when Airflow starts a task; the graph does not repeat that.
"""

from __future__ import annotations

from typing import Any

import msgspec

from egs_airflow import compat
from egs_airflow.convert.facts import TaskFacts, facts_of, task_id_of
from egs_airflow.convert.needs import Needs, callable_of, needs_of
from egs_core.adapter import options_of_hints
from egs_core.errors import InputError
from egs_core.graph.columns import CPU, GPU, Graph, Shape, TaskOptions
from egs_core.graph.validate import validate
from egs_core.hints import OnGpu, TaskHints, hints_of, phase_kinds, phase_steps

EMPTY = (CPU, Shape(cpu_milli=1), 0.0)
"""An empty operator: the scheduler itself ends it, without a process. A phase must hold something: a thousandth."""


class Converted(msgspec.Struct):
    """A DAG and its workload graph. facts[i] is about task i, whose id is Airflow's task id."""

    dag_id: str
    graph: Graph
    facts: list[TaskFacts]


def convert(dag: Any) -> Converted:
    """Convert a DAG object or a stored DAG that Airflow has read back.

    Raises InputError that names the task and what of it a workload cannot say; no edge is ever dropped.
    """
    place = f"DAG {dag.dag_id!r}"
    tasks = _in_order(list(dag.tasks), place)
    numbers = {task_id_of(task): number for number, task in enumerate(tasks)}
    converted = Converted(str(dag.dag_id), Graph(), [])
    for task in tasks:
        where = f"{place}: task {task_id_of(task)!r}"
        facts = facts_of(task, where)
        converted.facts.append(facts)
        _add(converted.graph, task, facts, tuple(sorted(numbers[up] for up in task.upstream_task_ids)), where)
    validate(converted.graph, place)
    return converted


def _in_order(tasks: list[Any], place: str) -> list[Any]:
    """Parents before children, else in the order of the DAG. Not recursive: chains are long."""
    by_id = {task_id_of(task): task for task in tasks}
    waiting: dict[str, int] = {}
    for task in tasks:
        if unknown := sorted(task.upstream_task_ids - by_id.keys()):
            problem = f"waits for {unknown[0]!r}, which is not in the DAG"
            raise InputError(f"{place}: task {task_id_of(task)!r}", problem)
        waiting[task_id_of(task)] = len(task.upstream_task_ids)
    out = [task for task in tasks if not task.upstream_task_ids]
    for task in out:  # grows while it is read
        for down in sorted(task.downstream_task_ids):
            waiting[down] -= 1
            if not waiting[down]:
                out.append(by_id[down])
    if len(out) < len(tasks):
        stuck = next(task_id for task_id, count in waiting.items() if count)
        raise InputError(f"{place}: task {stuck!r}", "waits for itself", "a DAG has no cycle")
    return out


def _add(graph: Graph, task: Any, facts: TaskFacts, parents: tuple[int, ...], place: str) -> None:
    function = callable_of(task)
    hints = hints_of(function) or TaskHints()
    phases = (EMPTY,) if facts.empty else _phases(function, hints, needs_of(task, place))
    task_id = task_id_of(task)
    graph.add_task(task_id, parents, phases, name=hints.name or task_id, options=_options(task, hints))


def _phases(function: Any, hints: TaskHints, needs: Needs) -> tuple[tuple[int, Shape, float | None], ...]:
    kinds = phase_kinds(function, needs.gpus)
    steps = phase_steps(function)
    expected = hints.expect_s if len(hints.expect_s) == len(kinds) else (None,) * len(kinds)
    cpus = 1.0 if needs.cpus is None else needs.cpus  # a task is a process, whatever else it is
    out: list[tuple[int, Shape, float | None]] = []
    for number, kind in enumerate(kinds):
        if kind == "cpu":
            out.append((CPU, Shape(_milli(cpus), memory_bytes=needs.memory_bytes or 0), expected[number]))
            continue
        step = steps[number] if len(steps) == len(kinds) else None
        stated = step.cpus if isinstance(step, OnGpu) else None
        gpu_cpus = next(c for c in (stated, hints.gpu_cpus, cpus) if c is not None)
        gpus = needs.gpus or 1.0  # code that asks for a GPU without saying how many means one
        shape = Shape(_milli(gpu_cpus), _milli(gpus), needs.memory_bytes or 0, hints.gpu_memory_bytes or 0)
        out.append((GPU, shape, expected[number]))
    return tuple(out)


def _options(task: Any, hints: TaskHints) -> TaskOptions:
    """What the engine is told. Not preloading, which Airflow cannot do, and no retries, which it does by itself.

    The weight that the user set goes before the hint; Airflow's default of 1 says nothing.
    """
    weight = int(task.priority_weight) - 1
    return options_of_hints(
        hints,
        stage=hints.stage or stage_of(task),
        priority=weight or hints.priority,
        max_runtime_s=_least(hints.max_runtime_s, compat.seconds(task.execution_timeout)),
    )


def stage_of(task: Any) -> str:
    """The id of the innermost task group around a task; empty for one in none."""
    group = task.task_group
    return "" if group is None or group.is_root else str(group.group_id or "")


def _least(*limits_s: float | None) -> float | None:
    return min((limit for limit in limits_s if limit is not None), default=None)


def _milli(amount: float) -> int:
    return max(1, round(amount * 1000)) if amount else 0
