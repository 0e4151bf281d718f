"""Objects of Kueue and MultiKueue as the API server would list them."""

from __future__ import annotations

from typing import Any

from tests.unit.kubernetes.made_pods import pod

GPU = "nvidia.com/gpu"
BEGAN = "2026-01-01T00:00:00Z"
BEGAN_S = 1767225600.0
CHECK = "elsewhere"


def multikueue(*connected: str, away: tuple[str, ...] = ()) -> dict[str, list[dict[str, Any]]]:
    """By kind: an admission check, what it names, and the clusters of that. away: those that are not connected."""
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": "all"}
    spec = {"controllerName": "kueue.x-k8s.io/multikueue", "parameters": parameters}

    def cluster(name: str, status: str) -> dict[str, Any]:
        source = {"kubeConfig": {"locationType": "Secret", "location": name}}
        conditions = [{"type": "Active", "status": status}]
        return {"metadata": {"name": name}, "spec": {"clusterSource": source}, "status": {"conditions": conditions}}

    return {
        "admissionchecks": [
            {"metadata": {"name": CHECK}, "spec": spec},
            {"metadata": {"name": "other"}, "spec": {"controllerName": "example.com/other"}},
        ],
        "multikueueconfigs": [{"metadata": {"name": "all"}, "spec": {"clusters": [*connected, *away]}}],
        "multikueueclusters": [*(cluster(one, "True") for one in connected), *(cluster(one, "False") for one in away)],
    }


def cluster_queue(gpus: int, name: str = "cq", **stated: Any) -> dict[str, Any]:
    """Of one flavor, that preempts nothing."""
    resources = [{"name": GPU, "nominalQuota": str(gpus)}, {"name": "cpu", "nominalQuota": "64"}]
    group = {"coveredResources": [GPU, "cpu"], "flavors": [{"name": "any", "resources": resources}]}
    never = {"withinClusterQueue": "Never", "reclaimWithinCohort": "Never"}
    return {"metadata": {"name": name}, "spec": {"resourceGroups": [group], "preemption": never, **stated}}


def local_queue(name: str = "lq", of: str = "cq", **stated: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "team"}, "spec": {"clusterQueue": of, **stated}}


def workload(name: str, gpus: int = 1, predicted: float | None = None, **stated: Any) -> dict[str, Any]:
    """Of one pod, as Kueue makes it of a Job. quota: it has some; check: the state of the admission check of
    `multikueue`; since: when it got quota and, admitted: began; labels: of its own; status: more of it."""
    labels = {} if predicted is None else {"egs.io/predicted-s": str(predicted)}
    template = {"metadata": {"labels": labels}, "spec": pod("p", gpus=gpus)["spec"]}
    spec = {"queueName": stated.get("queue", "lq"), "priority": stated.get("priority", 0), "active": True}
    spec |= {"podSets": [{"name": "main", "count": 1, "template": template}]}
    meta = {"name": name, "namespace": "team", "uid": f"uid-{name}", "creationTimestamp": BEGAN}
    meta["labels"] = stated.get("labels", {})
    status: dict[str, Any] = {"conditions": []}
    if stated.get("quota", True):
        flavors, usage = {GPU: "any", "cpu": "any"}, {GPU: str(gpus), "cpu": "1"}
        assignment = {"name": "main", "count": 1, "flavors": flavors, "resourceUsage": usage}
        status["admission"] = {"clusterQueue": "cq", "podSetAssignments": [assignment]}
        kinds = ("QuotaReserved", "Admitted") if stated.get("admitted") else ("QuotaReserved",)
        since = stated.get("since", BEGAN)
        status["conditions"] = [{"type": one, "status": "True", "lastTransitionTime": since} for one in kinds]
    if "check" in stated:
        status["admissionChecks"] = [{"name": CHECK, "state": stated["check"]}]
    made = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": meta, "spec": spec}
    return made | {"status": status | stated.get("status", {})}
