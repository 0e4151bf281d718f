"""What a task's pod says of the task, for whoever looks at the cluster, and cannot know it there.

    label        egs.io/framework    airflow
    annotations  egs.io/workload     <dag id>/<run id>, as `airflow egs abort` takes it
                 egs.io/task         fit[3]
                 egs.io/expected-s   seconds; only where they were learned
    labels       kueue.x-k8s.io/queue-name, …/priority-class     where options name them: the class by hinted priority
    deadline     of the task's hinted `max_runtime`, since its pod has a node

Written when Airflow makes the pod: by KubernetesExecutor in the scheduler, by KubernetesPodOperator in the task's own
process. So nothing of it is stored with the DAG, whose versions do not change with what is learned. Resources, and what
the pod has under such a name, stay. Only in mode on for the DAG.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from egs_airflow import compat, config
from egs_core.errors import InputError

PREFIX = "egs.io/"
KUEUE = "kueue.x-k8s.io/"


class PodTask(NamedTuple):
    """The task that a pod is for; map_index is -1 where it is not mapped. config: its `executor_config`; None where it
    is to be read from Airflow's database."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    tags: Collection[str]
    config: object = None

    @property
    def name(self) -> str:
        """As EGS has it everywhere."""
        return self.task_id if self.map_index < 0 else f"{self.task_id}[{self.map_index}]"


def mark_pod(pod: Any) -> None:
    """Put label and annotations on a pod that Airflow is about to make (a V1Pod), if it is for a chosen DAG's task."""
    if config.settings().mode != "on":
        return
    task = _running_task() or _task_of(pod.metadata.annotations or {})
    if task is None or config.mode_of(task.dag_id, task.tags) != "on":
        return
    from egs_airflow.agent.declare import KEY, ordering
    from egs_airflow.agent.limits import stated_limits
    from egs_airflow.order.durations import current_durations

    said = {"workload": f"{task.dag_id}/{task.run_id}", "task": task.name}
    expected_s = current_durations().get(task.dag_id, {}).get(task.task_id)
    if expected_s is not None:
        said["expected-s"] = f"{expected_s:g}"
    stated = _stated_config(task)
    place = f"{task.dag_id}.{task.task_id}"
    labels = {f"{PREFIX}framework": "airflow", **_queue_labels(ordering(stated, place).priority)}
    pod.metadata.labels = {**labels, **(pod.metadata.labels or {})}
    pod.metadata.annotations = _with(pod.metadata.annotations, said)
    limit_s = stated_limits(str({KEY: stated[KEY]}), place).max_runtime_s if KEY in stated else None
    if limit_s is not None and pod.spec.active_deadline_seconds is None:
        pod.spec.active_deadline_seconds = math.ceil(limit_s)


def _with(present: Mapping[str, str] | None, said: Mapping[str, str]) -> dict[str, str]:
    return {PREFIX + name: text for name, text in said.items()} | dict(present or {})


def _queue_labels(priority: int) -> dict[str, str]:
    """Kueue's labels, where its queue is named; the class is the highest that begins at or below that priority."""
    queue = config.option("kube_queue").strip()
    if not queue:
        return {}
    classes = priority_classes(config.option("kube_priority_classes"))
    reached = [(least, name) for name, least in classes if least <= priority]
    return {f"{KUEUE}queue-name": queue} | ({f"{KUEUE}priority-class": max(reached)[1]} if reached else {})


def priority_classes(text: str) -> list[tuple[str, int]]:
    """Classes, each with the priority from which on it holds. Raises InputError for a text that means nothing."""
    found = []
    for part in config.split(text):
        name, equals, least = part.partition("=")
        if not (name and equals and least.removeprefix("-").isdecimal()):
            problem = f"{part!r} is no class with a priority"
            raise InputError("[egs] kube_priority_classes", problem, "normal=0, urgent=10")
        found.append((name, int(least)))
    return found


def _stated_config(task: PodTask) -> Mapping[str, Any]:
    """The task's `executor_config`; nothing where it is none, or cannot be read."""
    try:
        found = task.config if task.config is not None else _stored_config(task)
    except Exception as error:  # of the database: what else a pod says holds
        config.warn(f"pods say nothing of hints: {type(error).__name__}: {error}")
        return {}
    return found if isinstance(found, Mapping) else {}


def _stored_config(task: PodTask) -> object:
    from airflow.models.taskinstance import TaskInstance as TI
    from sqlalchemy import select

    of_it = (TI.dag_id == task.dag_id, TI.run_id == task.run_id, TI.task_id == task.task_id)
    with compat.connect() as connection:
        return connection.execute(select(TI.executor_config).where(*of_it, TI.map_index == task.map_index)).scalar()


def _running_task() -> PodTask | None:
    """The task in whose process this is; the labels of a pod operator's pod have shortened ids."""
    from airflow.sdk import get_current_context

    try:
        context = get_current_context()
    except RuntimeError:  # no task runs here
        return None
    ti, stated = context["ti"], getattr(context.get("task"), "executor_config", None) or {}
    index = -1 if ti.map_index is None else ti.map_index
    return PodTask(ti.dag_id, ti.run_id, ti.task_id, index, context["dag"].tags, stated)


def _task_of(annotations: Mapping[str, str]) -> PodTask | None:
    """The task that KubernetesExecutor names in a pod's annotations; None for a pod that is none of its own."""
    if not {"dag_id", "run_id", "task_id"} <= annotations.keys():
        return None
    dag_id, map_index = annotations["dag_id"], int(annotations.get("map_index", -1))
    return PodTask(dag_id, annotations["run_id"], annotations["task_id"], map_index, _stored_tags(dag_id))


def _stored_tags(dag_id: str) -> Collection[str]:
    if config.mode_of(dag_id) == "on":  # chosen by its id
        return ()
    from egs_airflow.executors.reading import tags_of

    with compat.connect() as connection:
        return tags_of(connection, dag_id)
