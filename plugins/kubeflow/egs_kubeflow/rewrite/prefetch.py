"""Steps inside a pipeline that pull images before the tasks that need them: only where they were asked for.

Such a step begins with the run and nothing waits for it, but a run of Kubeflow Pipelines fails when any of its tasks
does: an image that is gone, or a node that is full until the deadline, then ends a run that would have got through.
"""

from __future__ import annotations

import math
from typing import Any

from egs_kubeflow import compat
from egs_kubeflow.convert.documents import Spec, parsed
from egs_kubeflow.convert.pipeline import Converted
from egs_kubeflow.rewrite.changes import Log
from egs_kubeflow.rewrite.preloads import PREFETCH, Preload
from egs_kubeflow.rewrite.task import TASK, WORKLOAD, label_value

_CPUS = 0.1


def add_step(spec: Spec, converted: Converted, preload: Preload, deadline_s: float, log: Log) -> None:
    """Add the step of a preload to the root of a pipeline, or note why there is none."""
    first = converted.facts[preload.tasks[0]]
    for_task = converted.graph.ids[preload.tasks[0]]
    if not preload.command:
        log.note(for_task, "has no prefetch step: nothing is known that its image can run without failing")
        return
    name = _unused_step(spec, f"egs-prefetch-{first.name}")
    _add_task(spec, name)
    executor = spec.executors[f"exec-{name}"]
    executor.container.image = preload.image
    executor.container.command.extend(preload.command)
    executor.container.resources.cpu_request = _CPUS
    executor.container.resources.resource_cpu_request = f"{_CPUS:g}"
    config = parsed(preload.place, compat.executor_config(), name)
    config.active_deadline_seconds = math.ceil(deadline_s)
    labels = {WORKLOAD: label_value(spec.name), TASK: label_value(name), PREFETCH: preload.key}
    config.pod_metadata.labels.update(labels)
    spec.kubernetes[f"exec-{name}"] = config
    loads = f"pulls its image{' and loads what its hint says' if preload.modules or preload.files else ''}"
    log.change(
        name,
        "task",
        None,
        f"{preload.image} on the nodes of {for_task}, from the start of the run",
        f"{loads} ahead, as was asked for; IF THIS STEP FAILS, THE RUN FAILS",
    )


def _unused_step(spec: Spec, name: str) -> str:
    taken: set[Any] = {*spec.pipeline.root.dag.tasks, *(label.removeprefix("exec-") for label in spec.executors)}
    taken |= {label.removeprefix("comp-") for label in spec.pipeline.components}
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found


def _add_task(spec: Spec, name: str) -> None:
    """A task at the root that waits for nothing and is never answered by the cache: a cached one pulls nothing."""
    spec.pipeline.components[f"comp-{name}"].executor_label = f"exec-{name}"
    task = spec.pipeline.root.dag.tasks[name]
    task.task_info.name = name
    task.component_ref.name = f"comp-{name}"
    task.caching_options.SetInParent()
    spec.executors[f"exec-{name}"] = type(next(iter(spec.executors.values())))()
