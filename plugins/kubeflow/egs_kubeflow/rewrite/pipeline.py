"""The rewrite: a compiled pipeline, a site's profile and a history in; the pipeline for that site out.

    rewrite(documents, profile, history) -> Rewritten(documents, changes, notes)

Nothing is read, written or asked besides, so equal inputs give equal bytes, and a rewritten pipeline is rewritten to
itself. What the author set wins. Commands, arguments and images stay as they are, and so do the keys of kfp's cache.
A component that several tasks run gets a copy for each of them, because labels belong to a task.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import msgspec

from egs_core.graph.analysis import heads, topological_order
from egs_core.graph.columns import Graph
from egs_core.predict import Predictor
from egs_kubeflow import compat
from egs_kubeflow.convert.documents import Documents, Spec, as_plain, checked
from egs_kubeflow.convert.needs import common_needs
from egs_kubeflow.convert.pipeline import Converted, TaskFacts, convert_spec
from egs_kubeflow.convert.unknown import merged, names_of
from egs_kubeflow.rewrite.changes import Log, Rewritten
from egs_kubeflow.rewrite.expected import expect, lengths_of, together
from egs_kubeflow.rewrite.gangs import gangs_of, write_gang
from egs_kubeflow.rewrite.prefetch import add_step
from egs_kubeflow.rewrite.preloads import select_preloads, step_key
from egs_kubeflow.rewrite.profile import Profile
from egs_kubeflow.rewrite.task import (
    Written,
    note_defaults,
    write_labels,
    write_limits,
    write_place,
    write_queue,
    write_resources,
)


class _Task(msgspec.Struct):
    """A task as it is written, once, however often the graph has it. numbers: of its instances there; facts: of the
    first, with the needs that all have in common."""

    facts: TaskFacts
    numbers: list[int]


def rewrite(
    documents: Documents,
    profile: Profile,
    history: Predictor | None = None,
    arguments: Mapping[str, Any] | None = None,
    run_id: str = "",
    place: str = "",
) -> Rewritten:
    """The pipeline for a site. Raises InputError for documents that are no pipeline.

    arguments: of the pipeline, where it is written for one run: amounts and widths may depend on them. run_id: text
    that no other run has, for names that must be unique among runs (Kueue's pod groups); without it none are written,
    and notes say what a default of the pipeline has decided, since a run may have other arguments.
    The documents that were given are not changed.
    """
    place = place or f"pipeline {documents.name!r}"
    spec = checked(documents, place, strict=True)
    converted = convert_spec(spec, arguments or {}, place)
    expected = expect(converted, history)
    tasks = _tasks(converted)
    log = Log(is_final=bool(run_id))
    _separate(spec, tasks)
    gangs = gangs_of([converted.facts[number] for task in tasks for number in task.numbers], log)
    for task in _in_order(tasks, converted.graph):
        if step_key(spec, task.facts.executor):
            continue
        written = _written(spec, task, converted.graph, log)
        if unknown := spec.unknown.get(task.facts.executor):
            names = ", ".join(sorted(names_of(unknown)))
            log.note(written.id, f"{names}: not known to this kfp-kubernetes, and kept as it is")
        write_resources(written, profile)
        note_defaults(written, profile)
        write_place(written, profile)
        write_limits(written, profile)
        write_labels(written, spec.name, together([expected[number] for number in task.numbers]))
        write_queue(written, profile)
        if gang := gangs.get(task.facts.hints.gang):
            write_gang(written, gang, _written_task(spec, task.facts), spec.name, run_id)
    if profile.preload.step:
        _add_steps(spec, arguments or {}, history, profile, log)
    return Rewritten(_documents(spec, documents.comments), tuple(log.changes), tuple(log.notes))


def _tasks(converted: Converted) -> list[_Task]:
    """The tasks that run a container, by where they are written."""
    found: dict[tuple[str, str], list[int]] = {}
    for number, facts in enumerate(converted.facts):
        if facts.kind == "container":
            found.setdefault((facts.dag, facts.name), []).append(number)
    tasks = []
    for _, numbers in sorted(found.items()):
        facts = converted.facts[numbers[0]]
        needs = common_needs([converted.facts[number].needs for number in numbers])
        tasks.append(_Task(msgspec.structs.replace(facts, needs=needs), numbers))
    return tasks


def _add_steps(spec: Spec, arguments: Mapping[str, Any], history: Predictor | None, profile: Profile, log: Log) -> None:
    """Steps that preload for the tasks as they are written now."""
    converted = convert_spec(spec, arguments, spec.name)
    starts_s = heads(converted.graph, [length.p50_s for length in lengths_of(converted, history)])
    preloads, notes = select_preloads(spec, converted, starts_s)
    log.notes.extend(notes)
    for preload in preloads:
        add_step(spec, converted, preload, profile.preload.deadline, log)


def _in_order(tasks: list[_Task], graph: Graph) -> list[_Task]:
    """As a person reads a pipeline: what waits for another comes after it."""
    place = {number: at for at, number in enumerate(topological_order(graph))}
    return sorted(tasks, key=lambda task: min(place[number] for number in task.numbers))


def _separate(spec: Spec, tasks: list[_Task]) -> None:
    """Give each task a component and an executor that no other task runs."""
    taken: set[str] = set()
    for task in tasks:
        label = task.facts.executor
        if label not in taken:
            taken.add(label)
            continue
        components = spec.pipeline.components
        component = _unused(f"comp-{task.facts.name}", components)
        new_label = _unused(f"exec-{task.facts.name}", spec.executors)
        components[component].CopyFrom(components[task.facts.component])
        components[component].executor_label = new_label
        spec.executors[new_label] = copy.deepcopy(spec.executors[label])
        for of_label in (spec.kubernetes, spec.unknown):
            if label in of_label:
                of_label[new_label] = copy.deepcopy(of_label[label])
        _written_task(spec, task.facts).component_ref.name = component
        task.facts = msgspec.structs.replace(task.facts, component=component, executor=new_label)
        taken.add(new_label)


def _unused(name: str, taken: Any) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found


def _written_task(spec: Spec, facts: TaskFacts) -> Any:
    """The PipelineTaskSpec of a task."""
    around = spec.pipeline.components[facts.dag] if facts.dag else spec.pipeline.root
    return around.dag.tasks[facts.name]


def _written(spec: Spec, task: _Task, graph: Graph, log: Log) -> Written:
    label = task.facts.executor
    config = spec.kubernetes.setdefault(label, compat.executor_config())
    task_id = graph.ids[task.numbers[0]] if len(task.numbers) == 1 else task.facts.name
    return Written(task_id, task.facts, spec.executors[label], config, log)


def _documents(spec: Spec, comments: str) -> Documents:
    """The documents of changed messages; what belongs to other platforms stays as it was."""
    pipeline, platform = as_plain(spec.pipeline), as_plain(spec.platform)
    pipeline["deploymentSpec"]["executors"] = {label: as_plain(one) for label, one in spec.executors.items()}
    configs = {label: merged(as_plain(one), spec.unknown.get(label, {})) for label, one in spec.kubernetes.items()}
    kubernetes = platform.setdefault("platforms", {}).setdefault("kubernetes", {})
    kubernetes.setdefault("deploymentSpec", {})["executors"] = configs
    return Documents(pipeline, platform, comments)
