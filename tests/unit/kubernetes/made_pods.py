"""Pods, nodes and Workloads as the API server would list them."""

from __future__ import annotations

import json
from typing import Any

GATE = "egs.io/order"


def pod(name: str, **stated: Any) -> dict[str, Any]:
    """A pod of EGS's, gated unless gate=False. labels, notes, spec, status: more of them; hints: as compilers write
    them; cpu, gpus, and asks: of other resources."""
    labels = {"egs.io/workload": "w", "egs.io/run": stated.get("run", "r"), "egs.io/task": name}
    labels |= {f"egs.io/{key}": str(stated[key]) for key in ("rank", "gang") if key in stated}
    if "predicted" in stated:
        labels["egs.io/predicted-s"] = str(stated["predicted"])
    limits = {"cpu": str(stated.get("cpu", 1))}
    if stated.get("gpus"):
        limits["nvidia.com/gpu"] = str(stated["gpus"])
    limits |= {name: str(count) for name, count in stated.get("asks", {}).items()}
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "image:1", "resources": {"limits": limits}}]}
    if stated.get("gate", True):
        spec["schedulingGates"] = [{"name": GATE}]
    notes = dict(stated.get("notes", {}))
    if "hints" in stated:
        notes["egs.io/hints"] = json.dumps(stated["hints"])
    if "size" in stated:
        notes["egs.io/gang-size"] = str(stated["size"])
    meta = {"name": name, "namespace": stated.get("namespace", "team"), "annotations": notes}
    meta["labels"] = labels | stated.get("labels", {})
    meta |= {key: stated[key] for key in ("uid", "creationTimestamp") if key in stated}
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec | stated.get("spec", {})}
    return made | ({"status": stated["status"]} if "status" in stated else {})


def node(name: str, cpu: int = 8, gpus: int = 0, **stated: Any) -> dict[str, Any]:
    """A node that is ready. offers: of other resources."""
    offered = {"cpu": str(cpu), "memory": "64Gi", "pods": "110"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    offered |= {resource: str(count) for resource, count in stated.get("offers", {}).items()}
    status = {"allocatable": offered, "conditions": [{"type": "Ready", "status": "True"}]}
    meta = {"name": name, "labels": {"kubernetes.io/hostname": name} | stated.get("labels", {})}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": stated.get("spec", {}), "status": status}


def kueue_workload(name: str, pod_uid: str, priority: int = 0, queue: str = "lq") -> dict[str, Any]:
    """A Workload of Kueue for one pod."""
    meta = {"name": name, "namespace": "team", "ownerReferences": [{"kind": "Pod", "uid": pod_uid}]}
    spec = {"queueName": queue, "priority": priority, "active": True}
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": meta, "spec": spec}
