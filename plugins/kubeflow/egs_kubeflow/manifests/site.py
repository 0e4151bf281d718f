"""The objects of Kueue and of DRA, and the node profile, that a site's profile asks for.

What it does not say is not written: a queue needs its cluster queue, a priority class its value, a pool its device
class.
"""

from __future__ import annotations

from typing import Any

from egs_kubeflow.manifests.objects import Object, made
from egs_kubeflow.rewrite.profile import MOST_DEVICES, ClusterQueue, Pool, Profile, Quota
from egs_kubeflow.yaml_text import dump_objects

KUEUE = "kueue.x-k8s.io/v1beta2"
DRA = "resource.k8s.io/v1"
_EVALUATED = ("NoSchedule", "NoExecute")  # of a flavor's taints; Kueue passes over the third


def node_profile(profile: Profile) -> list[Object]:
    """One ConfigMap with an entry a pool: labels and taints of its nodes, and what of them pods may ask for."""
    expected = {pool.name: _expected(pool) for pool in profile.pools}
    data = {name: dump_objects([entry]) for name, entry in expected.items()}
    return [made("v1", "ConfigMap", "egs-nodes", "nodes", profile.controller_namespace, data=data)] if data else []


def kueue_objects(profile: Profile) -> list[Object]:
    """ResourceFlavors of the pools that a quota is about, ClusterQueues, LocalQueues and WorkloadPriorityClasses."""
    used = {name for queue in profile.cluster_queues for name in queue.quotas}
    flavors = [_flavor(pool) for pool in profile.pools if pool.name in used]
    queues = [_cluster_queue(queue, profile) for queue in profile.cluster_queues]
    local = [
        made(KUEUE, "LocalQueue", one.name, "kueue", profile.namespace, spec={"clusterQueue": one.cluster_queue})
        for one in profile.queues
        if one.cluster_queue
    ]
    classes = [
        made(KUEUE, "WorkloadPriorityClass", one.name, "kueue", value=one.value, description=_reached_by(one.at_least))
        for one in profile.priority_classes
        if one.value is not None
    ]
    return [*flavors, *queues, *local, *classes]


def device_claims(profile: Profile) -> list[Object]:
    """ResourceClaimTemplates of the pools with a device class: one for each number of devices that a node has."""
    return [
        _claim(pool, count, profile.namespace)
        for pool in profile.pools
        if pool.device_class
        for count in range(1, min(pool.gpus_per_node or 1, MOST_DEVICES) + 1)
    ]


def taints_of(pool: Pool) -> list[Object]:
    """Taints that a pod of the pool tolerates, and so its nodes may have; what tolerates any key names none."""
    return [
        {"key": one.key, **({"value": one.value} if one.value else {}), "effect": one.effect or "NoSchedule"}
        for one in pool.tolerations
        if one.key
    ]


def _expected(pool: Pool) -> Object:
    amounts = {pool.accelerator: pool.gpus_per_node, "cpu": pool.cpus, "memory": pool.memory}
    allocatable = {name: quantity(amount) for name, amount in amounts.items() if name and amount is not None}
    if pool.accelerator and pool.gpus_per_node is None:
        allocatable[pool.accelerator] = "1"
    selector = ",".join(f"{key}={value}" for key, value in sorted(pool.selector.items()))
    found = {"selector": selector, "labels": dict(sorted(pool.selector.items())), "taints": taints_of(pool)}
    return found | {"allocatable_at_least": allocatable}


def _flavor(pool: Pool) -> Object:
    taints = [taint for taint in taints_of(pool) if taint["effect"] in _EVALUATED]
    spec: Object = {"nodeLabels": dict(sorted(pool.selector.items()))}
    return made(KUEUE, "ResourceFlavor", pool.name, "kueue", spec=spec | ({"nodeTaints": taints} if taints else {}))


def _cluster_queue(queue: ClusterQueue, profile: Profile) -> Object:
    accelerators = {pool.name: pool.accelerator for pool in profile.pools}
    amounts = {name: _amounts(quota, accelerators[name]) for name, quota in queue.quotas.items()}
    covered = list(dict.fromkeys(resource for found in amounts.values() for resource in found))
    flavors = [
        {"name": name, "resources": [{"name": one, "nominalQuota": found.get(one, "0")} for one in covered]}
        for name, found in amounts.items()
    ]
    spec: Object = {"cohortName": queue.cohort} if queue.cohort else {}
    spec["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": profile.namespace}}
    spec["resourceGroups"] = [{"coveredResources": covered, "flavors": flavors}]
    # Kueue preempts by deleting pods, which Kubeflow Pipelines does not make again: stated, so that it is a choice.
    spec["preemption"] = {"withinClusterQueue": "Never", "reclaimWithinCohort": "Never"}
    return made(KUEUE, "ClusterQueue", queue.name, "kueue", spec=spec)


def _amounts(quota: Quota, accelerator: str) -> dict[str, str]:
    stated = {"cpu": quota.cpus, "memory": quota.memory, accelerator: quota.gpus}
    return {name: quantity(amount) for name, amount in stated.items() if name and amount is not None}


def _reached_by(at_least: int) -> str:
    return f"Tasks whose author gave them a priority of at least {at_least}."


def _claim(pool: Pool, count: int, namespace: str) -> Object:
    request: dict[str, Any] = {"deviceClassName": pool.device_class, "allocationMode": "ExactCount", "count": count}
    spec = {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": request}]}}}
    return made(DRA, "ResourceClaimTemplate", f"{pool.name}-x{count}", "devices", namespace, spec=spec)


def quantity(amount: float) -> str:
    """An amount as Kubernetes writes it, bytes in the largest unit that is exact.

    >>> quantity(1.5), quantity(40 * 2**30), quantity(8)
    ('1500m', '40Gi', '8')
    """
    if amount != int(amount):
        return f"{round(amount * 1000)}m"
    whole = int(amount)
    for power, unit in ((4, "Ti"), (3, "Gi"), (2, "Mi")):
        if whole and whole % 1024**power == 0:
            return f"{whole // 1024**power}{unit}"
    return str(whole)
