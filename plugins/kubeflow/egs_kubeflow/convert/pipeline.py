"""A compiled pipeline as a workload graph: one task a task that is no DAG, and beside it what the graph cannot say.

    Documents ─┐                      Converted.graph   tasks, edges, phases, options
               ├─► convert(…) ──►
    Pipeline ──┘                      Converted.facts   loops, conditions, exit handlers, executors, what is unknown

A loop's tasks are there once; how many iterations there are is in their facts. Stages are the DAGs around a task. An
amount that is fixed at run time only is in `facts.unknown`; the graph has the least that the task may hold.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from egs_core.adapter import options_of_hints
from egs_core.errors import InputError
from egs_core.graph.columns import CPU, GPU, Graph, Shape, TaskOptions
from egs_core.graph.load import LoadedWorkload
from egs_core.graph.places import did_you_mean, join
from egs_core.graph.validate import validate
from egs_core.hints import TaskHints
from egs_kubeflow.convert.documents import Documents, Spec, checked, documents_of, load_documents
from egs_kubeflow.convert.flatten import FlatTask, Flattener, Loop
from egs_kubeflow.convert.hints import ANNOTATION, decode_hints
from egs_kubeflow.convert.needs import Needs, needs_of
from egs_kubeflow.convert.values import Scope

EMPTY = (CPU, Shape(cpu_milli=1), 0.0)
"""What no container runs: an importer, or a join. A phase must hold something: a thousandth."""
_FUNCTION = "--function_to_execute"


class TaskFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """One task of a pipeline.

    dag: the component in whose DAG it is written, "" for the root, and name: its name there. executor: its label,
    kind: what it is: "container", "importer", … or "join". loops: outermost first. conditions: all of them must hold.
    after_failure: it runs when its parents have ended, however they did. unknown: see `Needs`.
    """

    dag: str
    name: str
    component: str = ""
    executor: str = ""
    kind: str = "container"
    loops: tuple[Loop, ...] = ()
    conditions: tuple[str, ...] = ()
    after_failure: bool = False
    caching: bool = False
    hints: TaskHints = TaskHints()
    needs: Needs = Needs()

    @property
    def width(self) -> int | None:
        """How many instances of it run; None where that is known at run time only."""
        width = 1
        for loop in self.loops:
            if loop.width is None:
                return None
            width *= loop.width
        return width


class Converted(msgspec.Struct):
    """A pipeline and its workload graph. facts[i] is about task i, whose id is the path of task names."""

    name: str
    graph: Graph
    facts: list[TaskFacts]


def convert(source: Documents | Any, arguments: Mapping[str, Any] | None = None, place: str = "") -> Converted:
    """Convert a compiled pipeline, or a live one, which is compiled in memory. arguments: of the pipeline.

    Raises InputError that names the task and what of it a workload cannot say; no edge is ever dropped.
    """
    documents = source if isinstance(source, Documents) else documents_of(source)
    place = place or f"pipeline {documents.name!r}"
    return convert_spec(checked(documents, place), arguments or {}, place)


def convert_spec(spec: Spec, arguments: Mapping[str, Any], place: str) -> Converted:
    """Convert checked documents."""
    parameters = spec.pipeline.root.input_definitions.parameters
    for name in arguments:
        if name not in parameters:
            raise InputError(place, f"has no argument {name!r}", did_you_mean(name, parameters))
    converted = Converted(spec.name, Graph(), [])
    for task in Flattener(spec, place).flatten(Scope(spec.pipeline.root, arguments=arguments)):
        _add(converted, task, spec, join(place, f"task {task.id!r}"))
    validate(converted.graph, place)
    return converted


def load_workload(path: Path) -> LoadedWorkload:
    """The workload of a compiled pipeline's file; one line to stderr says which of its tasks are loops."""
    return workload_of(load_documents(path), str(path))


def workload_of(source: Documents | Any, place: str = "") -> LoadedWorkload:
    """A compiled or a live pipeline as a workload, with the same line. Its tasks are called by their paths, as in the
    history of local runs."""
    converted = convert(source, place=place)
    if loops := loops_of(converted):
        place = place or converted.name
        print(f"egs: {place}: once in the graph, and run as often as its loop goes: {loops}", file=sys.stderr)
    graph = msgspec.structs.replace(converted.graph, names=list(converted.graph.ids))
    return LoadedWorkload(converted.name, converted.name, "", "", 0.0, graph)


def loops_of(converted: Converted) -> str:
    """The tasks in loops, each with how many instances of it run."""
    looped = [(task, one) for task, one in zip(converted.graph.ids, converted.facts, strict=True) if one.loops]
    return ", ".join(f"{task} ({one.width if one.width is not None else 'known at run time'})" for task, one in looped)


def _add(converted: Converted, task: FlatTask, spec: Spec, place: str) -> None:
    facts = _facts(task, spec, place)
    phase = _phase(facts) if facts.kind == "container" else EMPTY
    options = TaskOptions() if task.join else _options(task, facts, _timeout_s(spec, facts.executor))
    name = facts.hints.name
    if facts.kind == "container":
        name = name or _function(spec.executors[facts.executor].container)
    converted.graph.add_task(task.id, task.parents, (phase,), name=name or facts.name, options=options)
    converted.facts.append(facts)


def _facts(task: FlatTask, spec: Spec, place: str) -> TaskFacts:
    around = task.around
    if task.join or task.scope is None:
        return TaskFacts(around.component, task.name, kind="join", loops=around.loops, conditions=around.conditions)
    label = task.component.executor_label
    if label not in spec.executors:
        raise InputError(place, f"there is no executor {label!r}", did_you_mean(label, spec.executors))
    executor = spec.executors[label]
    kind = executor.WhichOneof("spec")
    if kind is None:
        raise InputError(place, f"executor {label!r} says nothing of what it runs")
    hints = _hints(spec, label, place)
    container = kind == "container"
    needs = needs_of(executor.container, hints, task.scope, place) if container else Needs()
    return TaskFacts(
        around.component,
        task.name,
        task.component_name,
        label,
        kind,
        around.loops,
        task.conditions,
        task.after_failure,
        task.spec.caching_options.enable_cache,
        hints,
        needs,
    )


def _hints(spec: Spec, label: str, place: str) -> TaskHints:
    config = spec.kubernetes.get(label)
    if config is None or ANNOTATION not in config.pod_metadata.annotations:
        return TaskHints()
    return decode_hints(config.pod_metadata.annotations[ANNOTATION], place)


def _phase(facts: TaskFacts) -> tuple[int, Shape, float | None]:
    hints, needs = facts.hints, facts.needs
    seconds = sum(hints.expect_s) if hints.expect_s else None
    gpus = 1.0 if needs.gpus is None and {"gpus", "accelerator"} & set(needs.unknown) else needs.gpus or 0.0
    cpus = 1.0 if needs.cpus is None else needs.cpus  # a task is a process, whatever else it is
    if gpus and hints.gpu_cpus is not None:
        cpus = hints.gpu_cpus
    gpu_memory_bytes = (hints.gpu_memory_bytes or 0) if gpus else 0
    shape = Shape(_milli(cpus) or 1, _milli(gpus), needs.memory_bytes or 0, gpu_memory_bytes)
    return GPU if gpus else CPU, shape, seconds


def _options(task: FlatTask, facts: TaskFacts, timeout_s: float | None) -> TaskOptions:
    """What the engine is told. timeout_s: the pod's, where the pipeline sets one."""
    hints = facts.hints
    return options_of_hints(
        hints,
        stage=hints.stage or ".".join(task.around.path),
        max_runtime_s=_least(hints.max_runtime_s, timeout_s),
        retries=max(0, task.spec.retry_policy.max_retry_count),
    )


def _timeout_s(spec: Spec, label: str) -> float | None:
    config = spec.kubernetes.get(label)
    return float(config.active_deadline_seconds) if config is not None and config.active_deadline_seconds else None


def _least(*limits_s: float | None) -> float | None:
    return min((limit for limit in limits_s if limit is not None), default=None)


def _function(container: Any) -> str:
    """The name of the function that a lightweight component runs: tasks with one name are runs of the same code."""
    arguments = [*container.command, *container.args]
    at = arguments.index(_FUNCTION) if _FUNCTION in arguments else len(arguments)
    return re.sub(r"[^\w-]", "", arguments[at + 1]) if at + 1 < len(arguments) else ""


def _milli(amount: float) -> int:
    return max(1, round(amount * 1000)) if amount else 0
