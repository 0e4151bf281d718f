"""A GPU that a namespace gives to every container, taken off a pod whose task says that it needs none.

    LimitRange: default: {nvidia.com/gpu: 1}    egs.io/hints: {"gpus": 0}    ──►    limits: {nvidia.com/gpu: "0"}

Only what the LimitRange has written, as the API server notes it in the pod: a limit that its author has stated stays.
It is set to 0 and not removed, as the API server would fill in the default again after the webhook.

Source: plugin/pkg/admission/limitranger of Kubernetes 1.36.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from egs_core.flavor_names import is_gpu_resource
from egs_core.kubernetes.objects import Object, items, number, part, quantity, text
from egs_core.kubernetes.pods import hints_of

NOTE = "kubernetes.io/limit-ranger"
"""Annotation: what was filled in, for example `cpu, nvidia.com/gpu limit for container main; …`."""
_GIVEN = re.compile(r"(?P<names>[^;]+) limit for (?P<kind>container|init container) (?P<container>[^\s;]+)")
_FIELDS = {"container": "containers", "init container": "initContainers"}
Patch = list[dict[str, Any]]


class Given(msgspec.Struct, frozen=True):
    """field, at: which container; gpu: the resource; kinds: of its limits and requests those that have it."""

    field: str
    at: int
    gpu: str
    kinds: tuple[str, ...]


def given(pod: Object) -> list[Given]:
    """The GPUs that a task without any was given."""
    notes = part(part(pod, "metadata"), "annotations")
    if number(hints_of(notes).get("gpus")) != 0:
        return []
    found = []
    for one in _GIVEN.finditer(text(notes, NOTE).partition(":")[2]):
        field = _FIELDS[one["kind"]]
        gpus = [name.strip() for name in one["names"].split(",") if is_gpu_resource(name.strip())]
        for at, container in enumerate(items(part(pod, "spec"), field)):
            resources = part(container, "resources")
            for gpu in gpus if text(container, "name") == one["container"] else ():
                kinds = tuple(kind for kind in ("limits", "requests") if quantity(part(resources, kind).get(gpu)) > 0)
                found += [Given(field, at, gpu, kinds)] if kinds else []
    return found


def are_needed(found: Iterable[Given], limit_ranges: Iterable[Object]) -> bool:
    """Whether the namespace takes no pod without: it has a least number, or a ratio, which there is not of 0."""
    limits = [one for raw in limit_ranges for one in items(part(raw, "spec"), "limits")]
    rules = [part(one, rule) for one in limits for rule in ("min", "maxLimitRequestRatio")]
    return any(quantity(rule.get(one.gpu)) > 0 for rule in rules for one in found)


def patch_of(found: Iterable[Given]) -> Patch:
    """JSON Patch."""
    return [
        {"op": "add", "path": f"/spec/{one.field}/{one.at}/resources/{kind}/{one.gpu.replace('/', '~1')}", "value": "0"}
        for one in found
        for kind in one.kinds
    ]
