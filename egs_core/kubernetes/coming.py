"""Which steps of runs of Argo start next, and when: those that wait for nothing but pods that run.

    prepare      runs till 40 s ──► train       ready at 40 s: its image may be loaded now
    clean-up     waits at its gate ──► report   nobody knows when: it is not in sight
    train                        ──► evaluate   the same: train has not begun

Conditions that are not decided yet count as true, as in the graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from egs_core.graph.columns import Shape
from egs_core.kubernetes.foreseen import Owner, Wanted, end_of
from egs_core.kubernetes.images import full_name
from egs_core.kubernetes.paths import Run, Task, lengths
from egs_core.kubernetes.pods import Pod
from egs_core.kubernetes.steps import without_try

API, KIND = "argoproj.io/v1alpha1", "Workflow"
GPU_RESOURCE = "nvidia.com/gpu"
"""Of GPUs, where nothing names another one."""
MOST_TASKS = 20_000
"""So many are looked at each time, in all runs together."""


def to_come(runs: Iterable[Run], now: float) -> list[Wanted]:
    """Those of which the image is known, and what they say of nodes; the first first."""
    found: list[Wanted] = []
    left = MOST_TASKS
    for run in runs:
        if run.graph is None or len(run.graph) > left:
            continue
        left -= len(run.graph)
        owner = Owner(API, KIND, run.workflow.name, run.workflow.uid)
        for task, ready_at, takes_s in _next(run, run.graph, now):
            asks = task.asks
            if asks.image and not any(
                "{{" in stated for stated in (asks.image, asks.where)
            ):  # else the run alone knows
                gpus = math.ceil(asks.gpus)
                shape = Shape(asks.cpu_milli, 1000 * gpus, asks.memory_bytes)
                devices = asks.devices or (((GPU_RESOURCE, gpus),) if gpus else ())
                namespace, image, reading = run.workflow.namespace, full_name(asks.image), asks.reading
                if reading is not None:
                    reading = msgspec.structs.replace(reading, namespace=namespace)
                place = namespace, shape, asks.where, takes_s, ready_at
                found.append(Wanted(owner, *place, (image,), asks.pull_secrets, devices, reading=reading))
    return sorted(found, key=lambda one: one.ready_at)


def _next(run: Run, graph: tuple[Task, ...], now: float) -> list[tuple[Task, float, float]]:
    """Tasks, when they are ready and how long they take. A driver takes its time; its pods wait at no gate."""
    pods = [run.ranked.get(pod.uid, pod) for pod in run.pods]
    mine, own_s = lengths(run.workflow, graph, pods, run.earlier)
    at_work: dict[int, Pod] = {mine[pod.uid]: pod for pod in pods if pod.uid in mine}
    have_ended = {without_try(pod.argo_node) for pod in pods if pod.phase == "Succeeded"}  # the Workflow notes it later
    found: list[tuple[Task, float, float]] = []
    ends: list[float | None] = []
    for number, task in enumerate(graph):
        before = [ends[parent] for parent in task.parents]
        known = [at for at in before if at is not None]
        ready_at = max(known, default=now) if len(known) == len(before) else None
        pod, end = at_work.get(number), None
        if task.is_over or task.name in have_ended:
            end = now
        elif pod is not None:
            end = end_of(pod, now) if pod.node else None
        elif ready_at is not None and (task.is_driver or not task.template):
            end = ready_at + own_s[number]
        elif ready_at is not None:
            found.append((task, ready_at, own_s[number]))
        ends.append(end)
    return found
