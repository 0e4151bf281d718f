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
      - name: a100
        selector: {pool: a100}
        accelerator: nvidia.com/gpu
        device_class: gpu.nvidia.com         # where drivers hand GPUs out (DRA)
        flavor: a100                         # beginning of the product's name, for the hint `flavors`
    cluster_queues:                          # of Kueue, with their flavors: the pools
      - name: shared
        cohort: all
        quotas: {cpu: {cpus: 64, memory: 256GiB}, a100: {cpus: 48, memory: 512GiB, gpus: 8}}
    queues: [{name: team, cluster_queue: shared}]
    priority_classes: [{name: urgent, at_least: 10, value: 1000}]
    claims: true                             # limits of tasks with flavors become claims of these classes (a webhook)
    preload: {takes: 2min, deadline: 10min}  # how long an image takes to pull; when a preload is given up

For `egs kubernetes controller` with --preload, preload may have `files: 8GiB` and `volumes: [models]`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StrictBool,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_after_validator_function

from egs_core.adapter import ClusterProfile, ProfiledPool
from egs_core.errors import InputError
from egs_core.yaml_file import FileModel, Path_, Seconds, Size, input_error, line_of, read_text, read_yaml

GPU_RESOURCE = "nvidia.com/gpu"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DOMAIN = r"(?=.{1,253}/)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/"
_LABEL_KEY = re.compile(rf"({_DOMAIN})?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")
_RESOURCE = re.compile(
    rf"(?!requests\.)(?!([^/]*\.)?kubernetes\.io/){_LABEL_KEY.pattern.replace(f'({_DOMAIN})?', _DOMAIN)}"
)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


@dataclass(frozen=True)
class _Matching:
    """Of a text that Kubernetes takes only in one form: told in our words, and as a pattern in the schema."""

    pattern: re.Pattern[str]
    what: str
    hint: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "pattern": f"^(?:{self.pattern.pattern})$"}

    def _checked(self, text: str) -> str:
        if self.pattern.fullmatch(text) is None:
            raise ValueError(f"{text[:40]!r} is no {self.what} of Kubernetes{self.hint}")
        return text


class _Part(FileModel):
    """Of a profile. What stands below a field is its description, also in the schema."""

    model_config = ConfigDict(use_attribute_docstrings=True)


MOST_NAME = 253
NO_POOLS = "the node pools; `pools: []` where nothing is placed"
ObjectName = Annotated[str, Field(max_length=MOST_NAME), _Matching(_NAME, "name")]
LabelName = Annotated[str, Field(max_length=63), _Matching(_NAME, "name")]
"""Of an object that pods name in a label."""
Resource = Annotated[str, _Matching(_RESOURCE, "extended resource", ", such as nvidia.com/gpu")]
OptionalResource = Annotated[
    str, _Matching(re.compile(f"(?:{_RESOURCE.pattern})?"), "extended resource", ", such as nvidia.com/gpu")
]
Namespace = Annotated[str, _Matching(_NAMESPACE, "namespace")]
LabelKey = Annotated[str, _Matching(_LABEL_KEY, "label key")]
LabelValue = Annotated[str, _Matching(_LABEL_VALUE, "label value")]
Limit = Annotated[Seconds, Field(ge=1)]
Kind = Literal["cpu", "gpu"]
MOST_DEVICES = 32
"""For how many devices of a node there are claims of their own (DRA)."""


class Toleration(_Part):
    """As in a pod."""

    key: LabelKey | Literal[""] = ""
    """Key of the taint."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """`Exists`, or `Equal` with a value."""
    value: LabelValue = ""
    """Value of the taint."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Effect of the taint; left out: all effects."""

    @model_validator(mode="after")
    def _is_one(self) -> Toleration:
        if self.operator == "Exists" and self.value:
            raise ValueError("a toleration with operator Exists has no value")
        if self.operator == "Equal" and not self.key:
            raise ValueError("a toleration without a key needs operator Exists")
        return self


class Pool(_Part):
    """Nodes of one kind. cpus, memory: of a node, what a pod may ask for; gpu_memory: of one device. device_class: the
    DeviceClass of its GPUs, where drivers hand them out (DRA)."""

    name: ObjectName
    """Name of the pool."""
    selector: Annotated[dict[LabelKey, LabelValue], Field(min_length=1, max_length=8)]
    """Node labels that select its nodes."""
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=8)] = ()
    """Tolerations that pods need there."""
    accelerator: OptionalResource = ""
    """Resource name of its GPUs, such as `nvidia.com/gpu`; a pool without one has no GPUs."""
    gpus_per_node: Annotated[int, Field(ge=1)] | None = None
    """GPUs of a node: a task that asks for more does not fit."""
    gpu_memory: Size | None = None
    """Memory of each GPU."""
    flavor: str = ""
    """Kind of hardware, for the hint `flavors`."""
    cpus: Annotated[float, Field(gt=0)] | None = None
    """CPUs of a node that a pod may ask for."""
    memory: Size | None = None
    """Main memory of a node that a pod may ask for."""
    device_class: ObjectName | Literal[""] = ""
    """DeviceClass of its GPUs, where drivers allocate them (DRA)."""

    @model_validator(mode="after")
    def _has_an_accelerator(self) -> Pool:
        if not self.accelerator and (self.gpus_per_node or self.gpu_memory is not None):
            raise ValueError(f"pool {self.name!r} says how many GPUs, but not which: add accelerator: {GPU_RESOURCE}")
        if self.device_class and not self.accelerator:
            raise ValueError(f"pool {self.name!r} has a device class, but no GPUs: add accelerator: {GPU_RESOURCE}")
        if self.device_class and len(self.name) > (most := MOST_NAME - len(f"-x{MOST_DEVICES}")):
            raise ValueError(f"pool {self.name[:40]!r}… has a device class: its claims need a name of at most {most}")
        return self

    @model_validator(mode="after")
    def _has_one_value_a_taint(self) -> Pool:
        found: set[tuple[str, str]] = set()
        for one in self.tolerations:
            taint = one.key, one.effect or "NoSchedule"
            if one.key and taint in found:
                raise ValueError(
                    f"pool {self.name!r} has the taint {':'.join(taint)} twice: a node has one value of it"
                )
            found.add(taint)
        return self


class Quota(_Part):
    """What of one pool a cluster queue may use; None: it is not counted."""

    cpus: Annotated[float, Field(ge=0, le=1e9)] | None = None
    """CPUs; left out: not counted."""
    memory: Size | None = None
    """Main memory; left out: not counted."""
    gpus: Annotated[int, Field(ge=0, le=10**9)] | None = None
    """GPUs; left out: the pool has none."""


class ClusterQueue(_Part):
    """A ClusterQueue of Kueue that is to be written. quotas: by pool, the first that has room is taken."""

    name: ObjectName
    """Name of the ClusterQueue of Kueue that is written."""
    cohort: ObjectName | Literal[""] = ""
    """Its cohort."""
    quotas: Annotated[dict[ObjectName, Quota], Field(min_length=1, max_length=64)]
    """Quota by pool; the first pool that has room is used."""

    @model_validator(mode="after")
    def _counts_alike(self) -> ClusterQueue:
        for what in ("cpus", "memory"):
            counted = {name for name, quota in self.quotas.items() if getattr(quota, what) is not None}
            if counted and (without := sorted(self.quotas.keys() - counted)):
                problem = "Kueue counts them in every pool or in none"
                raise ValueError(f"quota of pool {without[0]!r} without {what}: {problem}")
        return self


class Queue(_Part):
    """A LocalQueue of Kueue. kind: only for tasks with, or without, a GPU; none: for all. cluster_queue: it is to be
    written, for that ClusterQueue."""

    name: LabelName
    """Name of the LocalQueue of Kueue."""
    kind: Kind | None = None
    """Only for tasks with (`gpu`) or without (`cpu`) a GPU; left out: all tasks."""
    exists: StrictBool = False
    """The queue exists in the cluster. Without this no label is written."""
    cluster_queue: ObjectName | Literal[""] = ""
    """The LocalQueue is written, for this ClusterQueue."""


class PriorityClass(_Part):
    """A WorkloadPriorityClass of Kueue, for tasks whose user's priority is at least that. value: it is to be written,
    with this one."""

    name: LabelName
    """Name of the WorkloadPriorityClass of Kueue."""
    at_least: int = 0
    """Used for tasks whose hint `priority` is at least this."""
    exists: StrictBool = False
    """The class exists in the cluster. Without this no label is written."""
    value: Annotated[int, Field(ge=-(2**31), le=10**9)] | None = None
    """The class is written, with this value."""


class PreloadRules(_Part):
    """How preloads are planned. takes: how long pulling an image is expected to take; deadline: after so long a preload
    is ended; step: pipelines get a step that does it, which can fail a run; files, volumes: what the controller may
    read ahead."""

    takes: Seconds | None = None
    """How long pulling an image is expected to take."""
    deadline: Annotated[Seconds, Field(ge=1)] = 600.0
    """A preload is ended after this time."""
    step: StrictBool = False
    """Pipelines get a step that pulls images ahead; a step that fails, fails its run."""
    files: Size | None = None
    """The most that one preload of the controller may read of the files that a task's hint names; left out: nothing."""
    volumes: tuple[ObjectName, ...] = ()
    """Volume claims in the namespace whose files it may read, of all that many nodes may have."""


class TimeLimits(_Part):
    """How long a task's pod may run where its author says nothing."""

    cpu: Limit | None = None
    """Of tasks without a GPU."""
    gpu: Limit | None = None
    """Of tasks with a GPU."""


class CapacityRules(_Part):
    """How nodes are asked for ahead of need. placeholders: so many pods may stand for what needs a node; node_takes:
    how long one takes to come; image: what these pods run once they have a node."""

    placeholders: Annotated[int, Field(ge=0, le=1000)] = 0
    """So many pods may stand for what needs a node, for a cluster autoscaler to see; 0: none."""
    node_takes: Annotated[Seconds, Field(ge=1)] | None = None
    """How long a node takes to come."""
    image: Annotated[str, Field(pattern=r"^[^\s'\"]*$", max_length=1024)] = ""
    """Image of these pods, which has to wait for its end; left out: Kubernetes' pause."""


class Profile(_Part):
    """One site. gpu_resource: what a task asks for that hints need GPUs for, and no pool has them. namespace: where
    pipelines run; controller_namespace: where a controller that preloads would run."""

    gpu_resource: Resource = GPU_RESOURCE
    """Resource name of a GPU for tasks that need one where no pool has GPUs."""
    namespace: Namespace = "kubeflow"
    """Namespace in which pipelines run."""
    controller_namespace: Namespace = "egs-system"
    """Namespace in which a controller that preloads would run."""
    pools: tuple[Pool, ...] = ()
    """Node pools; the first that fits is used, so cheap ones first."""
    cluster_queues: tuple[ClusterQueue, ...] = ()
    """ClusterQueues of Kueue that are written."""
    queues: tuple[Queue, ...] = ()
    """LocalQueues of Kueue."""
    priority_classes: tuple[PriorityClass, ...] = ()
    """WorkloadPriorityClasses of Kueue; chosen by the hint `priority` alone."""
    time_limits: TimeLimits = TimeLimits()
    """How long a pod may run whose author sets no limit."""
    preload: PreloadRules = PreloadRules()
    """How preloads are planned."""
    capacity: CapacityRules = CapacityRules()
    """How the controller asks for nodes ahead of need."""
    claims: StrictBool = False
    """The webhook claims GPUs of a task that names flavors in the place of its limit, of the pools' device classes."""

    @model_validator(mode="after")
    def _has_what_is_claimed(self) -> Profile:
        if self.claims and not _claimed_pools(self):
            raise ValueError("claims: no pool has a flavor and a device_class")
        return self

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
    def _uses_all_queues(self) -> Profile:
        there = [queue for queue in self.queues if queue.exists]
        for number, queue in enumerate(there):
            if first := next((one for one in there[:number] if one.kind in (None, queue.kind)), None):
                problem = f"queue {queue.name!r} would get no task: queue {first.name!r} before it takes the same ones"
                raise ValueError(f"{problem}; say kind: cpu and kind: gpu, or leave one out")
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


_PARTS: dict[str, type[FileModel]] = {
    "pools": Pool,
    "tolerations": Toleration,
    "cluster_queues": ClusterQueue,
    "quotas": Quota,
    "queues": Queue,
    "priority_classes": PriorityClass,
    "time_limits": TimeLimits,
    "preload": PreloadRules,
    "capacity": CapacityRules,
}
"""What is in the fields of a site that have fields themselves."""


def part_at(path: Sequence[str | int]) -> type[FileModel]:
    """What the value at that place in a file has to be, or is part of."""
    return next((_PARTS[str(step)] for step in reversed(path) if step in _PARTS), Profile)


def load_profile(path: str | Path) -> Profile:
    """The profile in a YAML file. Raises InputError that names the file, the line and the field."""
    return parse_profile(read_text(Path(path), "a site"), str(path))


def parse_profile(text: str, place: str = "profile") -> Profile:
    """The profile of a YAML text."""
    data, lines = read_profile(text, place)
    try:
        profile = Profile.model_validate(data)
    except ValidationError as error:
        path = error.errors(include_url=False, include_input=False)[0]["loc"][:-1]
        raise input_error(error, lines, place, list(part_at(path).model_fields)) from None
    if "pools" not in data:
        raise InputError(f"{place} line 1: pools", "is missing", NO_POOLS)
    return profile


def _claimed_pools(site: Profile) -> list[Pool]:
    return [pool for pool in site.pools if pool.device_class and pool.flavor]


def cluster_profile(site: Profile) -> ClusterProfile:
    """What of a site a cluster can be held against. A queue counts where pods get its label."""
    pools = [
        ProfiledPool(
            pool.name,
            dict(pool.selector),
            tuple([{name: value for name, value in one.model_dump().items() if value} for one in pool.tolerations]),
            bool(pool.accelerator),
            pool.gpus_per_node or 0,
            pool.accelerator,
        )
        for pool in site.pools
    ]
    queues = [queue.name for queue in site.queues if queue.exists]
    return ClusterProfile(
        site.namespace,
        site.controller_namespace,
        tuple(pools),
        tuple(queues),
        site.time_limits.cpu,
        site.time_limits.gpu,
        site.preload.takes,
        site.capacity.placeholders,
        site.capacity.node_takes,
        site.capacity.image,
        tuple([(pool.flavor, pool.device_class) for pool in _claimed_pools(site)]) if site.claims else (),
        site.preload.files or 0,
        tuple([f"{site.namespace}/{claim}" for claim in site.preload.volumes]),
    )


def read_profile(text: str, place: str) -> tuple[dict[str, Any], dict[Path_, int]]:
    """What a YAML text has, and the line of everything in it. Raises InputError for what is no mapping."""
    data, lines = read_yaml(text, place)
    if not isinstance(data, dict):
        raise InputError(f"{place} line {line_of((), lines)}", "is no site", "it has pools, queues, time_limits …")
    return data, lines
