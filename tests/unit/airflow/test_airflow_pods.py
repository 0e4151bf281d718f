"""What a pod says of its task, in mode on for its DAG; and through Airflow's own makers of pods, where they are."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import insert
from sqlalchemy.engine import Connection

pytest.importorskip("airflow.sdk", reason="apache-airflow is not installed")

from egs_airflow import pods
from egs_airflow.order.durations import write_durations
from egs_airflow.policy import pod_mutation_hook

NO_PROVIDER = "apache-airflow-providers-cncf-kubernetes is not installed: its client is newer than kfp allows"
IDS = {"dag_id": "train", "run_id": "manual__2026-11-22T07:40:02+00:00", "task_id": "fit", "map_index": "3"}
SAID = {"egs.io/workload": f"train/{IDS['run_id']}", "egs.io/task": "fit[3]"}
CLUSTER = {
    "current-context": "none",
    "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
    "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:9"}}],
    "users": [{"name": "none", "user": {}}],
}
"""A cluster that is not there: the operator reads which one it is for, and asks it nothing."""
GPU = {"nvidia.com/gpu": "2"}


@pytest.fixture(autouse=True)
def learned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file of durations without any."""
    monkeypatch.setenv("EGS_DURATIONS", str(tmp_path / "durations.json"))
    monkeypatch.setattr("egs_airflow.order.durations.LOOK_S", 0.0)
    return tmp_path / "durations.json"


def made(**annotations: str) -> Any:
    """A V1Pod as objects with attributes, as KubernetesExecutor makes it."""
    metadata = SimpleNamespace(labels={"airflow-worker": "1"}, annotations=annotations)
    return SimpleNamespace(metadata=metadata, spec=SimpleNamespace(active_deadline_seconds=None))


def test_a_pod_says_its_task(monkeypatch: pytest.MonkeyPatch, learned: Path) -> None:
    """Run, task, and how long it is expected to take once that is learned; what stands there already stays."""
    monkeypatch.setenv("EGS_MODE", "on")
    monkeypatch.setenv("EGS_DAGS", "train")
    pod = made(**IDS)
    pod_mutation_hook(pod)
    assert pod.metadata.labels == {"airflow-worker": "1", "egs.io/framework": "airflow"}
    assert pod.metadata.annotations == IDS | SAID
    write_durations(learned, {"train": {"fit": 41.25}})
    pod = made(**IDS, **{"egs.io/task": "mine"})
    pod_mutation_hook(pod)
    assert pod.metadata.annotations == IDS | SAID | {"egs.io/expected-s": "41.25", "egs.io/task": "mine"}


@pytest.mark.proves("airflow kubernetes", "order", "limits", "priority", "max_runtime")
def test_a_pod_keeps_hints(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Kueue's queue, where one is configured, the class of the hinted priority, and a deadline for `max_runtime`; what
    the pod has of these stays. Where the hints cannot be read the rest is said all the same."""
    monkeypatch.setenv("EGS_MODE", "on")
    stated: dict[str, object] = {"priority": 12, "max_runtime": 90.5, "gang": "g"}
    monkeypatch.setattr(pods, "_stored_config", lambda _: {"egs": stated, "pod_override": object()})
    pod = made(**IDS)
    pod_mutation_hook(pod)
    assert pod.metadata.labels == {"airflow-worker": "1", "egs.io/framework": "airflow"}
    assert pod.spec.active_deadline_seconds == 91
    monkeypatch.setenv("EGS_KUBE_QUEUE", "team")
    monkeypatch.setenv("EGS_KUBE_PRIORITY_CLASSES", "low=-100, normal=0 urgent=10, top=100")
    for priority, name in ((12, "urgent"), (0, "normal"), (-1, "low"), (10, "urgent"), (-101, None)):
        stated["priority"] = priority
        pod = made(**IDS)
        pod_mutation_hook(pod)
        assert pod.metadata.labels["kueue.x-k8s.io/queue-name"] == "team"
        assert pod.metadata.labels.get("kueue.x-k8s.io/priority-class") == name
    own = {"kueue.x-k8s.io/queue-name": "mine", "kueue.x-k8s.io/priority-class": "mine"}
    pod = made(**IDS)
    pod.metadata.labels, pod.spec.active_deadline_seconds = dict(own), 5
    pod_mutation_hook(pod)
    assert pod.metadata.labels == own | {"egs.io/framework": "airflow"}
    assert pod.spec.active_deadline_seconds == 5
    assert not [one for one in caplog.records if "pods say" in one.getMessage()]
    monkeypatch.setattr(pods, "_stored_config", lambda _: 1 / 0)
    pod = made(**IDS)
    pod_mutation_hook(pod)
    assert pod.metadata.annotations == IDS | SAID
    assert "egs: pods say nothing of hints: ZeroDivisionError" in caplog.text


def test_hints_are_read_from_airflows_own_row(metadata: Connection) -> None:
    """That of the task instance for which a pod is made, not of another place of a mapped task."""
    from airflow.models.taskinstance import TaskInstance as TI

    TI.__table__.create(metadata)
    for index in (2, 3):
        row: dict[str, object] = {
            column.name: 0 for column in TI.__table__.columns if not column.nullable and column.default is None
        }
        row |= {"id": UUID(int=index), **IDS, "map_index": index, "executor_config": {"egs": {"priority": index}}}
        metadata.execute(insert(TI.__table__).values(row))
    metadata.commit()
    found = pods._stored_config(pods.PodTask(IDS["dag_id"], IDS["run_id"], IDS["task_id"], 3, ()))
    assert found == {"egs": {"priority": 3}}


def test_tags_choose_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a DAG is chosen by a tag, its tags are asked for."""
    monkeypatch.setenv("EGS_MODE", "on")
    monkeypatch.setenv("EGS_TAGS", "gpu")
    for tags, said in ((["gpu"], SAID), (["other"], {})):
        monkeypatch.setattr(pods, "_stored_tags", lambda _, tags=tags: tags)
        pod = made(**IDS)
        pod_mutation_hook(pod)
        assert pod.metadata.annotations == IDS | said


@pytest.mark.parametrize(
    ("mode", "annotations"),
    [("observe", IDS), ("off", IDS), ("on", {}), ("on", IDS | {"dag_id": "other"}), ("on", IDS | {"map_index": "x"})],
)
def test_other_pods_are_left_alone(monkeypatch: pytest.MonkeyPatch, mode: str, annotations: dict[str, str]) -> None:
    """In other modes; of other DAGs; that are of no task, or say things that mean nothing."""
    monkeypatch.setenv("EGS_MODE", mode)
    monkeypatch.setenv("EGS_DAGS", "train")
    pod = made(**annotations)
    pod_mutation_hook(pod)
    assert pod == made(**annotations)


def executor_pod() -> Any:
    """The V1Pod that KubernetesExecutor makes for the task, whose pod override asks for GPUs."""
    generator = pytest.importorskip("airflow.providers.cncf.kubernetes.pod_generator", reason=NO_PROVIDER)
    models = pytest.importorskip("kubernetes.client", reason=NO_PROVIDER).models
    container = models.V1Container(name="base", resources=models.V1ResourceRequirements(limits=GPU))
    return generator.PodGenerator.construct_pod(
        **{**IDS, "map_index": 3},
        pod_id="pod",
        try_number=1,
        kube_image="image",
        date=None,
        args=[],
        pod_override_object=models.V1Pod(spec=models.V1PodSpec(containers=[container])),
        base_worker_pod=models.V1Pod(metadata=models.V1ObjectMeta(), spec=models.V1PodSpec(containers=[])),
        namespace="default",
        scheduler_job_id="1",
        with_mutation_hook=True,
    )


def test_pods_of_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's own generator calls the policy: the pod override's resources are kept."""
    monkeypatch.setenv("EGS_MODE", "on")
    pod = executor_pod()
    assert SAID.items() <= pod.metadata.annotations.items()
    assert pod.metadata.labels["egs.io/framework"] == "airflow"
    assert pod.spec.containers[0].resources.limits == GPU


@pytest.mark.cluster
def test_a_cluster_takes_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server finds nothing wrong with what was put on it (a dry run: no pod is created)."""
    kubernetes = pytest.importorskip("kubernetes", reason=NO_PROVIDER)
    monkeypatch.setenv("EGS_MODE", "on")
    pod = executor_pod()
    try:
        kubernetes.config.load_kube_config()
    except kubernetes.config.ConfigException as error:
        pytest.skip(f"no cluster: {error}")
    taken = kubernetes.client.CoreV1Api().create_namespaced_pod("default", pod, dry_run="All")
    assert SAID.items() <= taken.metadata.annotations.items()
    assert taken.metadata.labels["egs.io/framework"] == "airflow"


def test_pods_of_the_operator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the process of a KubernetesPodOperator: the exact ids, of which its pod's labels have shortened ones."""
    operators = pytest.importorskip("airflow.providers.cncf.kubernetes.operators.pod", reason=NO_PROVIDER)
    from airflow.sdk import DAG

    monkeypatch.setenv("EGS_MODE", "on")
    monkeypatch.setenv("EGS_TAGS", "gpu")
    (tmp_path / "config").write_text(json.dumps(CLUSTER))
    with DAG("train", tags=["gpu"], schedule=None) as dag:
        operator = operators.KubernetesPodOperator(
            task_id="fit", image="image", container_resources={"limits": GPU}, config_file=str(tmp_path / "config")
        )
    ti = SimpleNamespace(**{**IDS, "map_index": 3})
    monkeypatch.setattr("airflow.sdk.get_current_context", lambda: {"ti": ti, "dag": dag})
    pod = operator.build_pod_request_obj()
    assert pod.metadata.annotations == SAID
    assert pod.spec.containers[0].resources == {"limits": GPU}
