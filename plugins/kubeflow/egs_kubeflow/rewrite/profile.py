"""What a site has, as its file says: node pools, queues, priority classes, time limits.

    pools:                                   # the first that fits is taken: cheap ones first
      - {name: cpu, selector: {pool: cpu}}
      - name: a100
        selector: {pool: a100}
        accelerator: nvidia.com/gpu          # the resource of a pod's limits
        gpus_per_node: 8
        gpu_memory: 40GiB
        tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
    queues: [{name: team, exists: true}]     # LocalQueues of Kueue; a label is written for what exists only
    priority_classes:                        # WorkloadPriorityClasses, chosen by the user's priority alone
      - {name: normal, exists: true}
      - {name: urgent, at_least: 10, exists: true}
    time_limits: {cpu: 4h, gpu: 24h}

A pool without an accelerator has no GPUs. For `egs kubeflow manifests` there may be more; what is not said is not
written:

    namespace: team-a                        # where pipelines run
    pools:
      - {name: cpu, selector: {pool: cpu}}
      - {name: a100, selector: {pool: a100}, accelerator: nvidia.com/gpu, device_class: gpu.nvidia.com}  # for DRA
    cluster_queues:                          # of Kueue, with their flavors: the pools
      - {name: shared, cohort: all, quotas: {cpu: {cpus: 64}, a100: {cpus: 48, gpus: 8}}}
    queues: [{name: team, cluster_queue: shared}]
    priority_classes: [{name: urgent, at_least: 10, value: 1000}]
    preload: {takes: 2min, deadline: 10min}  # how long an image takes to pull; when a preload is given up
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from egs_core.errors import InputError
from egs_core.yaml_file import FileModel, Seconds, Size, input_error, line_of, read_text, read_yaml

GPU_RESOURCE = "nvidia.com/gpu"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def _matching(pattern: re.Pattern[str], what: str) -> AfterValidator:
    def check(text: str) -> str:
        if pattern.fullmatch(text) is None:
            raise ValueError(f"{text[:40]!r} is no {what} of Kubernetes")
        return text

    return AfterValidator(check)


ObjectName = Annotated[str, Field(max_length=253), _matching(_NAME, "name")]
Namespace = Annotated[str, _matching(_NAMESPACE, "namespace")]
LabelKey = Annotated[str, _matching(_LABEL_KEY, "label key")]
LabelValue = Annotated[str, _matching(_LABEL_VALUE, "label value")]
Kind = Literal["cpu", "gpu"]


class Toleration(FileModel):
    """As in a pod."""

    key: LabelKey | Literal[""] = ""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: LabelValue = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""

    @model_validator(mode="after")
    def _is_one(self) -> Toleration:
        if self.operator == "Exists" and self.value:
            raise ValueError("a toleration with operator Exists has no value")
        if self.operator == "Equal" and not self.key:
            raise ValueError("a toleration without a key needs operator Exists")
        return self


class Pool(FileModel):
    """Nodes of one kind. cpus, memory: of a node, what a pod may ask for; gpu_memory: of one device. device_class: the
    DeviceClass of its GPUs, where drivers hand them out (DRA)."""

    name: ObjectName
    selector: Annotated[dict[LabelKey, LabelValue], Field(min_length=1, max_length=8)]
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=8)] = ()
    accelerator: LabelKey | Literal[""] = ""
    gpus_per_node: Annotated[int, Field(ge=1)] | None = None
    gpu_memory: Size | None = None
    flavor: str = ""
    cpus: Annotated[float, Field(gt=0)] | None = None
    memory: Size | None = None
    device_class: ObjectName | Literal[""] = ""

    @model_validator(mode="after")
    def _has_an_accelerator(self) -> Pool:
        if not self.accelerator and (self.gpus_per_node or self.gpu_memory is not None):
            raise ValueError(f"pool {self.name!r} says how many GPUs, but not which: add accelerator: {GPU_RESOURCE}")
        if self.device_class and not self.accelerator:
            raise ValueError(f"pool {self.name!r} has a device class, but no GPUs: add accelerator: {GPU_RESOURCE}")
        return self


class Quota(FileModel):
    """What of one pool a cluster queue may use; None: it is not counted."""

    cpus: Annotated[float, Field(ge=0, le=1e9)] | None = None
    memory: Size | None = None
    gpus: Annotated[int, Field(ge=0, le=10**9)] | None = None


class ClusterQueue(FileModel):
    """A ClusterQueue of Kueue that is to be written. quotas: by pool, the first that has room is taken."""

    name: ObjectName
    cohort: ObjectName | Literal[""] = ""
    quotas: Annotated[dict[ObjectName, Quota], Field(min_length=1, max_length=64)]

    @model_validator(mode="after")
    def _counts_alike(self) -> ClusterQueue:
        for what in ("cpus", "memory"):
            counted = {name for name, quota in self.quotas.items() if getattr(quota, what) is not None}
            if counted and (without := sorted(self.quotas.keys() - counted)):
                problem = "Kueue counts them in every pool or in none"
                raise ValueError(f"quota of pool {without[0]!r} without {what}: {problem}")
        return self


class Queue(FileModel):
    """A LocalQueue of Kueue. kind: only for tasks with, or without, a GPU; none: for all. cluster_queue: it is to be
    written, for that ClusterQueue."""

    name: ObjectName
    kind: Kind | None = None
    exists: bool = False
    cluster_queue: ObjectName | Literal[""] = ""


class PriorityClass(FileModel):
    """A WorkloadPriorityClass of Kueue, for tasks whose user's priority is at least that. value: it is to be written,
    with this one."""

    name: ObjectName
    at_least: int = 0
    exists: bool = False
    value: Annotated[int, Field(ge=-(2**31), le=10**9)] | None = None


class PreloadRules(FileModel):
    """How preloads are planned. takes: how long pulling an image is expected to take; deadline: after so long a preload
    is ended; step: pipelines get a step that does it, which can fail a run."""

    takes: Seconds | None = None
    deadline: Annotated[Seconds, Field(ge=1)] = 600.0
    step: bool = False


class TimeLimits(FileModel):
    """How long a task's pod may run where its author says nothing."""

    cpu: Seconds | None = None
    gpu: Seconds | None = None


class Profile(FileModel):
    """One site. gpu_resource: what a task asks for that hints need GPUs for, and no pool has them. namespace: where
    pipelines run; controller_namespace: where a controller that preloads would run."""

    gpu_resource: LabelKey = GPU_RESOURCE
    namespace: Namespace = "kubeflow"
    controller_namespace: Namespace = "egs-system"
    pools: tuple[Pool, ...] = ()
    cluster_queues: tuple[ClusterQueue, ...] = ()
    queues: tuple[Queue, ...] = ()
    priority_classes: tuple[PriorityClass, ...] = ()
    time_limits: TimeLimits = TimeLimits()
    preload: PreloadRules = PreloadRules()

    @model_validator(mode="after")
    def _is_unambiguous(self) -> Profile:
        if self.namespace == self.controller_namespace:
            raise ValueError(
                f"controller_namespace is {self.namespace!r}, where pipelines run: it needs one of its own"
            )
        for what, names in (
            ("pool", [pool.name for pool in self.pools]),
            ("cluster queue", [queue.name for queue in self.cluster_queues]),
            ("queue", [queue.name for queue in self.queues]),
            ("priority class", [one.name for one in self.priority_classes]),
            ("priority class at_least", [str(one.at_least) for one in self.priority_classes]),
        ):
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise ValueError(f"a second {what} {twice!r}")
        return self

    @model_validator(mode="after")
    def _has_the_pools_of_its_quotas(self) -> Profile:
        pools = {pool.name: pool for pool in self.pools}
        for queue in self.cluster_queues:
            for name, quota in queue.quotas.items():
                if name not in pools:
                    raise ValueError(f"cluster queue {queue.name!r} has a quota of pool {name!r}, which is not there")
                if bool(pools[name].accelerator) != (quota.gpus is not None):
                    lack = "no GPUs, but" if quota.gpus is not None else "GPUs, and no"
                    raise ValueError(f"cluster queue {queue.name!r}: pool {name!r} has {lack} gpus in its quota")
        return self


_MODELS = (Profile, Pool, Toleration, Quota, ClusterQueue, Queue, PriorityClass, TimeLimits, PreloadRules)
_FIELDS = [field for model in _MODELS for field in model.model_fields]


def load_profile(path: str | Path) -> Profile:
    """The profile in a YAML file. Raises InputError that names the file, the line and the field."""
    return parse_profile(read_text(Path(path), "a site"), str(path))


def parse_profile(text: str, place: str = "profile") -> Profile:
    """The profile of a YAML text."""
    data, lines = read_yaml(text, place)
    if not isinstance(data, dict):
        raise InputError(f"{place} line {line_of((), lines)}", "is no site", "it has pools, queues, time_limits …")
    try:
        return Profile.model_validate(data)
    except ValidationError as error:
        raise input_error(error, lines, place, _FIELDS) from None
