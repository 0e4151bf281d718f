"""A planned preload as a pod: the task's image on the task's nodes, no GPU, gone when anything else needs the room."""

from __future__ import annotations

import math
from typing import Any

from egs_kubeflow.manifests.objects import PART, Object, made
from egs_kubeflow.manifests.plan import Plan, Planned
from egs_kubeflow.rewrite.profile import Profile
from egs_kubeflow.rewrite.task import TASK, WORKLOAD, label_value

CLASS = "egs-preload"
PRELOAD = "egs.io/preload"
PRIORITY = -100  # the cluster autoscaler adds no node for pods below -10 (--expendable-pods-priority-cutoff)
NO_SIDECAR = {"sidecar.istio.io/inject": "false"}
"""A sidecar would bring volumes and init containers, which the guard refuses, and never end."""
_NOBODY = 65534
_RESOURCES = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}


def priority_class() -> Object:
    """The class of preload pods."""
    about = "Preloads: they preempt nothing, make way for everything, and make no autoscaler add a node."
    content: Object = {"value": PRIORITY, "preemptionPolicy": "Never", "globalDefault": False, "description": about}
    return made("scheduling.k8s.io/v1", "PriorityClass", CLASS, "preload", **content)


def pod(plan: Plan, planned: Planned, profile: Profile) -> Object:
    """The pod of a preload. Its name is a beginning, since each run makes its own: `kubectl create -f`, not `apply`."""
    place = planned.preload.place
    labels = {WORKLOAD: label_value(plan.pipeline), TASK: label_value(planned.task), PRELOAD: planned.preload.key}
    labels |= NO_SIDECAR
    metadata = {"generateName": "egs-preload-", "namespace": profile.namespace, "labels": {PART: "preload", **labels}}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": math.ceil(profile.preload.deadline),
        "terminationGracePeriodSeconds": 0,
        "priorityClassName": CLASS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _NOBODY,
            "runAsGroup": _NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    spec |= where(place)
    spec["containers"] = [_container(planned)]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def where(place: dict[str, Any]) -> Object:
    """Fields of a pod's spec for those of a `Preload.place`; what its task would only prefer is left out."""
    found: Object = {}
    if labels := place.get("nodeSelector", {}).get("labels"):
        found["nodeSelector"] = dict(sorted(labels.items()))
    if tolerations := place.get("tolerations"):
        found["tolerations"] = [_toleration(one) for one in tolerations]
    terms = [
        {name: term[name] for name in ("matchExpressions", "matchFields") if name in term}
        for term in place.get("nodeAffinity", [])
        if "weight" not in term
    ]
    if terms:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        found["affinity"] = {"nodeAffinity": required}
    if secrets := place.get("imagePullSecret"):
        found["imagePullSecrets"] = [{"name": one["secretName"]} for one in secrets if one.get("secretName")]
    return found


def _toleration(one: dict[str, Any]) -> Object:
    """protobuf writes whole numbers of 64 bits as text."""
    seconds = one.get("tolerationSeconds")
    return one | ({"tolerationSeconds": int(seconds)} if seconds is not None else {})


def _container(planned: Planned) -> Object:
    policy = planned.preload.place.get("imagePullPolicy") or "IfNotPresent"
    return {
        "name": "preload",
        "image": planned.preload.image,
        "imagePullPolicy": policy,
        # An image without `true` ends in an error when it has been pulled, which is all that was wanted.
        "command": list(planned.preload.command or ("true",)),
        "resources": _RESOURCES,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
        },
    }
