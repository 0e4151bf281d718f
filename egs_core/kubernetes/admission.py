"""What the webhook writes into a pod that is about to be made: our gate, its release-by time, a priority class; and,
beside this module, a claim (`claims`).

Admission may call twice, so what is there already is not written again. Nothing that its author has set is changed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from egs_core.kubernetes import names
from egs_core.kubernetes.gates import RELEASE_BY_S
from egs_core.kubernetes.objects import Object, items, moment, part, text
from egs_core.kubernetes.tiers import ClaimRule

Patch = list[dict[str, Any]]


class Rules(msgspec.Struct, frozen=True):
    """What a site wants written. release_by_s: how long a gate may stay; priority_class: of pods that name none, "" for
    none. It must be in the cluster: a pod that names a missing one is refused. claims: flavors that are claimed of
    drivers (DRA) in the place of a limit (`claims`)."""

    release_by_s: float = RELEASE_BY_S
    priority_class: str = ""
    claims: tuple[ClaimRule, ...] = ()


def patch_of(pod: Object, rules: Rules, now: float) -> Patch:
    """The patch (JSON Patch) for a pod; empty where there is nothing to do. now: Unix time."""
    meta, spec = part(pod, "metadata"), part(pod, "spec")
    labels = part(meta, "labels")
    if not is_served(pod):
        return []
    queued = bool(text(labels, names.QUEUE))  # Kueue holds it back itself
    gating = [] if queued else _gate(meta, spec, now + rules.release_by_s)
    return [*gating, *_priority(spec, rules)]


def is_served(pod: Object) -> bool:
    """Whether anything is written into such a pod."""
    labels = part(part(pod, "metadata"), "labels")
    is_ours = bool(text(labels, names.WORKLOAD)) and names.PRELOAD not in labels
    return is_ours and not part(pod, "spec").get("nodeName")


def _gate(meta: Object, spec: Object, until: float) -> Patch:
    gates = items(spec, "schedulingGates")
    if any(text(one, "name") == names.GATE for one in gates):
        return []
    gate = {"name": names.GATE}
    found: Patch = [
        {"op": "add", "path": "/spec/schedulingGates/-", "value": gate}
        if gates
        else {"op": "add", "path": "/spec/schedulingGates", "value": [gate]}
    ]
    notes = part(meta, "annotations")
    if names.RELEASE_BY in notes:
        return found
    if not notes:
        return [*found, {"op": "add", "path": "/metadata/annotations", "value": {names.RELEASE_BY: moment(until)}}]
    path = f"/metadata/annotations/{names.RELEASE_BY.replace('~', '~0').replace('/', '~1')}"
    return [*found, {"op": "add", "path": path, "value": moment(until)}]


def _priority(spec: Object, rules: Rules) -> Patch:
    """The class, with its value: the API server's own admission has run before, and would refuse the difference."""
    if not rules.priority_class or text(spec, "priorityClassName"):
        return []
    found: Patch = [{"op": "add", "path": "/spec/priorityClassName", "value": rules.priority_class}]
    for field in ("priority", "preemptionPolicy"):
        if field in spec:
            found.append({"op": "remove", "path": f"/spec/{field}"})
    return found


def review_of(request: Object, patch: Patch, warnings: Sequence[str] = ()) -> dict[str, Any]:
    """The answer to an AdmissionReview: always allowed. warnings: what whoever makes the pod is shown."""
    response: dict[str, Any] = {"uid": text(part(request, "request"), "uid"), "allowed": True}
    if warnings:
        response["warnings"] = [f"EGS: {one}" for one in warnings]
    if patch:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
