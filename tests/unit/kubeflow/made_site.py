"""A site with all that a profile may say, and a pipeline whose preloads can be reckoned by hand."""

from typing import Any

from kfp import dsl, kubernetes

from egs_core.hints import TaskHints, modules
from egs_kubeflow.convert.hints import ANNOTATION, encode_hints
from egs_kubeflow.rewrite.profile import Profile, parse_profile

SITE_TEXT = """
namespace: team-a
controller_namespace: egs
pools:
  - {name: cpu, selector: {pool: cpu}, cpus: 15.5, memory: 60GiB}
  - name: a100
    selector: {pool: a100, zone: b}
    accelerator: nvidia.com/gpu
    gpus_per_node: 2
    device_class: gpu.nvidia.com
    tolerations:
      - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
      - {key: team, value: a}
      - {key: soft, operator: Exists, effect: PreferNoSchedule}
      - {operator: Exists, effect: NoExecute}
  - {name: tpu, selector: {pool: tpu}, accelerator: google.com/tpu}
cluster_queues:
  - {name: shared, cohort: all, quotas: {cpu: {cpus: 31.5, memory: 1GiB}, a100: {cpus: 48, memory: 100, gpus: 8}}}
  - {name: devices, quotas: {tpu: {gpus: 4}}}
queues: [{name: team, cluster_queue: shared}, {name: old, exists: true}]
priority_classes: [{name: normal, exists: true}, {name: urgent, at_least: 10, value: 1000}]
preload: {takes: 100s, deadline: 10min}
"""
SITE: Profile = parse_profile(SITE_TEXT)


@dsl.component(base_image="python:3.11")
def decode(x: int = 1) -> int:
    return x


@dsl.component(base_image="trainer:1")
def train(x: int) -> int:
    return x


@dsl.container_component
def serve() -> dsl.ContainerSpec:
    return dsl.ContainerSpec(image="server:2", command=["/server"])


def hinted(task: Any, **hints: Any) -> Any:
    """A task with hints."""
    return kubernetes.add_pod_annotation(task, ANNOTATION, encode_hints(TaskHints(**hints)))


def gpu(task: Any) -> Any:
    """A task with a GPU."""
    return task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(1)


@dsl.pipeline(name="Made up")
def made_up() -> None:
    """first 60 s ─► second 300 s ─► fit, again (GPU, one image) ─► serve (GPU, another image)"""
    first = hinted(decode(), expect_s=(60.0,))
    second = hinted(decode(x=first.output), expect_s=(300.0,))
    fit = hinted(gpu(train(x=second.output)), expect_s=(50.0,), preload=(modules("torch"),))
    again = hinted(gpu(train(x=second.output)), expect_s=(50.0,), preload=(modules("torch"),))
    hinted(gpu(serve().after(fit, again)), expect_s=(10.0,))
