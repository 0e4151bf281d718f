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

A pool without an accelerator has no GPUs.
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
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def _matching(pattern: re.Pattern[str], what: str) -> AfterValidator:
    def check(text: str) -> str:
        if pattern.fullmatch(text) is None:
            raise ValueError(f"{text[:40]!r} is no {what} of Kubernetes")
        return text

    return AfterValidator(check)


ObjectName = Annotated[str, Field(max_length=253), _matching(_NAME, "name")]
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
    """Nodes of one kind. cpus, memory: of a node, what a pod may ask for; gpu_memory: of one device."""

    name: ObjectName
    selector: Annotated[dict[LabelKey, LabelValue], Field(min_length=1, max_length=8)]
    tolerations: tuple[Toleration, ...] = ()
    accelerator: LabelKey | Literal[""] = ""
    gpus_per_node: Annotated[int, Field(ge=1)] | None = None
    gpu_memory: Size | None = None
    flavor: str = ""
    cpus: Annotated[float, Field(gt=0)] | None = None
    memory: Size | None = None

    @model_validator(mode="after")
    def _has_an_accelerator(self) -> Pool:
        if not self.accelerator and (self.gpus_per_node or self.gpu_memory is not None):
            raise ValueError(f"pool {self.name!r} says how many GPUs, but not which: add accelerator: {GPU_RESOURCE}")
        return self


class Queue(FileModel):
    """A LocalQueue of Kueue. kind: only for tasks with, or without, a GPU; none: for all."""

    name: ObjectName
    kind: Kind | None = None
    exists: bool = False


class PriorityClass(FileModel):
    """A WorkloadPriorityClass of Kueue, for tasks whose user's priority is at least that."""

    name: ObjectName
    at_least: int = 0
    exists: bool = False


class TimeLimits(FileModel):
    """How long a task's pod may run where its author says nothing."""

    cpu: Seconds | None = None
    gpu: Seconds | None = None


class Profile(FileModel):
    """One site. gpu_resource: what a task asks for that hints need GPUs for, and no pool has them."""

    gpu_resource: LabelKey = GPU_RESOURCE
    pools: tuple[Pool, ...] = ()
    queues: tuple[Queue, ...] = ()
    priority_classes: tuple[PriorityClass, ...] = ()
    time_limits: TimeLimits = TimeLimits()

    @model_validator(mode="after")
    def _is_unambiguous(self) -> Profile:
        for what, names in (
            ("pool", [pool.name for pool in self.pools]),
            ("queue", [queue.name for queue in self.queues]),
            ("priority class", [one.name for one in self.priority_classes]),
            ("priority class at_least", [str(one.at_least) for one in self.priority_classes]),
        ):
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise ValueError(f"a second {what} {twice!r}")
        return self


_FIELDS = [f for model in (Profile, Pool, Toleration, Queue, PriorityClass, TimeLimits) for f in model.model_fields]


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
