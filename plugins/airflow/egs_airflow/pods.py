"""What a task's pod says of the task, for whoever looks at the cluster, and cannot know it there.

    label        egs.io/framework    airflow
    annotations  egs.io/workload     <dag id>/<run id>, as `airflow egs abort` takes it
                 egs.io/task         fit[3]
                 egs.io/expected-s   seconds; only where they were learned

Written when Airflow makes the pod: by KubernetesExecutor in the scheduler, by KubernetesPodOperator in the task's own
process. So nothing of it is stored with the DAG, whose versions do not change with what is learned. Resources, and what
the pod has under such a name, stay. Only in mode on for the DAG.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from egs_airflow import compat, config

PREFIX = "egs.io/"


class PodTask(NamedTuple):
    """The task that a pod is for; map_index is -1 where it is not mapped."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    tags: Collection[str]

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
    from egs_airflow.order.durations import current_durations

    said = {"workload": f"{task.dag_id}/{task.run_id}", "task": task.name}
    expected_s = current_durations().get(task.dag_id, {}).get(task.task_id)
    if expected_s is not None:
        said["expected-s"] = f"{expected_s:g}"
    pod.metadata.labels = _with(pod.metadata.labels, {"framework": "airflow"})
    pod.metadata.annotations = _with(pod.metadata.annotations, said)


def _with(present: Mapping[str, str] | None, said: Mapping[str, str]) -> dict[str, str]:
    return {PREFIX + name: text for name, text in said.items()} | dict(present or {})


def _running_task() -> PodTask | None:
    """The task in whose process this is; the labels of a pod operator's pod have shortened ids."""
    from airflow.sdk import get_current_context

    try:
        context = get_current_context()
    except RuntimeError:  # no task runs here
        return None
    ti = context["ti"]
    return PodTask(ti.dag_id, ti.run_id, ti.task_id, -1 if ti.map_index is None else ti.map_index, context["dag"].tags)


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
