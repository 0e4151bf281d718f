"""What a task says that it needs, read from wherever it says so; and nothing where it does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("airflow.sdk", reason="apache-airflow is not installed")

from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.python import PythonOperator

import egs_core as egs
from egs_airflow.convert.needs import Needs, needs_of
from egs_core.errors import InputError
from egs_core.flavor_names import is_gpu_resource

GPU = "nvidia.com/gpu"


def read(operator: Any) -> tuple[float | None, float | None, int | None]:
    """GPUs, CPUs and bytes of memory."""
    needs: Needs = needs_of(operator, "t")
    return needs.gpus, needs.cpus, needs.memory_bytes


def bash(**arguments: Any) -> Any:
    """A task that states something with arguments that every operator has."""
    return BashOperator(task_id="t", bash_command="true", **arguments)


def pod_task(**arguments: Any) -> Any:
    """A task with the attributes of KubernetesPodOperator, whose provider need not be installed."""
    return SimpleNamespace(is_mapped=False, **arguments)


def pod(*containers: dict[str, Any]) -> Any:
    """A V1Pod as objects with attributes, as the Kubernetes client makes them."""
    made = [SimpleNamespace(name="c", resources=SimpleNamespace(**resources)) for resources in containers]
    return SimpleNamespace(spec=SimpleNamespace(containers=made))


def test_nothing_is_guessed() -> None:
    """A task that states nothing has nothing, although Airflow fills defaults in."""
    assert read(bash()) == (None, None, None)
    assert read(bash(executor_config={"other": 1})) == (None, None, None)
    assert read(PythonOperator(task_id="t", python_callable=print)) == (None, None, None)


def test_arguments_of_operators() -> None:
    """`resources`: what is not Airflow's default was stated; memory is in megabytes there."""
    assert read(bash(resources={"gpus": 2})) == (2.0, None, None)
    assert read(bash(resources={"cpus": 4, "ram": 2048})) == (None, 4.0, 2_048_000_000)


def test_pod_overrides() -> None:
    """`executor_config`: containers of a pod together, the request before the limit; as objects and as dictionaries."""
    limits = {GPU: "1", "cpu": "2", "memory": "4Gi"}
    override = pod({"limits": limits, "requests": {"cpu": "500m"}}, {"limits": None, "requests": {"memory": "1Gi"}})
    assert read(bash(executor_config={"pod_override": override})) == (1.0, 0.5, 5 << 30)
    plain = {"spec": {"containers": [{"name": "base", "resources": {"limits": {GPU: 1}}}]}}
    assert read(bash(executor_config={"pod_override": plain})) == (1.0, None, None)


def test_pods_of_operators() -> None:
    """KubernetesPodOperator: `container_resources`, an object or a dictionary, and `full_pod_spec`; mapped too."""
    resources = SimpleNamespace(limits={GPU: "4", "memory": "1e9"}, requests=None)
    assert read(pod_task(container_resources=resources)) == (4.0, None, 10**9)
    assert read(pod_task(container_resources={"requests": {"amd.com/gpu": 2}})) == (2.0, None, None)
    assert read(pod_task(full_pod_spec=pod({"limits": {GPU: "1"}, "requests": {}}))) == (1.0, None, None)
    mapped = SimpleNamespace(is_mapped=True, partial_kwargs={"container_resources": resources})
    assert read(mapped) == (4.0, None, 10**9)


def test_what_a_pod_calls_gpus_is_what_the_core_does() -> None:
    """Of all vendors; slices and shared replicas count as one each, beside whole ones too. Other devices are none."""
    names = (
        "nvidia.com/mig-1g.5gb",
        "nvidia.com/gpu.shared",
        "amd.com/cpx_nps4",
        "aws.amazon.com/neuron",
        "google.com/tpu",
    )
    for name in names:
        assert is_gpu_resource(name)
        assert read(pod_task(container_resources={"limits": {name: "2"}})) == (2.0, None, None)
    both = {"limits": {GPU: 1, "nvidia.com/mig-1g.5gb": 2, "rdma/hca": 4}}
    assert read(pod_task(container_resources=both)) == (3.0, None, None)
    with pytest.raises(InputError, match=r"nvidia.com/mig-1g.5gb: '{{ params.n }}' is known at run time only"):
        read(pod_task(container_resources={"limits": {"nvidia.com/mig-1g.5gb": "{{ params.n }}"}}))


def test_stored_pods_are_text_and_say_nothing() -> None:
    """Airflow stores a pod's resources as text: what is not an amount is not read as one."""
    assert read(pod_task(container_resources="{'limits': {'nvidia.com/gpu': 1}}")) == (None, None, None)


def test_what_is_known_at_run_time_is_unknown() -> None:
    """A template is no amount: unknown for CPUs and memory, an error for GPUs, of which there is no unknown number."""
    templated = {"limits": {"cpu": "{{ params.cpus }}", "memory": "{{ params.memory }}"}}
    assert read(pod_task(container_resources=templated)) == (None, None, None)
    with pytest.raises(InputError, match=r"t: container_resources: nvidia.com/gpu: '{{ params.n }}' is known at run"):
        read(pod_task(container_resources={"limits": {GPU: "{{ params.n }}"}}))


def test_places_must_agree() -> None:
    """A hint and a pod that say the same are one statement; two that differ are an error that names both."""

    def train() -> None: ...

    def operator(gpus: int) -> Any:
        hinted = egs.task(gpus=1, cpus=4)(train)
        override = {"spec": {"containers": [{"resources": {"limits": {GPU: gpus}}}]}}
        return PythonOperator(task_id="t", python_callable=hinted, executor_config={"pod_override": override})

    assert read(operator(1)) == (1.0, 4.0, None)
    with pytest.raises(InputError, match=r"@egs.task says gpus=1, executor_config gpus=2"):
        read(operator(2))
