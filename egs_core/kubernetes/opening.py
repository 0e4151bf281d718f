"""What is written into the cluster: a gate that is opened, why one is not, a priority. All may be repeated."""

from __future__ import annotations

from typing import Any

from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import PODS, STRATEGIC, WORKLOADS, ApiError, Cluster
from egs_core.kubernetes.pods import Pod, moment
from egs_core.kubernetes.priorities import Raise


def open_gate(cluster: Cluster, pod: Pod, why: str, now: float) -> dict[str, Any] | None:
    """Take our gate off this very pod, and no other gate. The pod as it is then; None where it is gone."""
    body = {
        "metadata": {"uid": pod.uid, "annotations": {names.OPENED: f"{moment(now)} {why}", names.WAITS: None}},
        "spec": {"schedulingGates": [{"name": names.GATE, "$patch": "delete"}]},
    }
    try:
        return cluster.patch(PODS, pod.name, body, pod.namespace, STRATEGIC)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


def tell_why(cluster: Cluster, pod: Pod, text: str, now: float) -> dict[str, Any]:
    """Write into this very pod why it waits. The pod as it is then."""
    body = {"metadata": {"uid": pod.uid, "annotations": {names.WAITS: f"{moment(now)} {text}"}}}
    return cluster.patch(PODS, pod.name, body, pod.namespace)


def raise_priority(cluster: Cluster, one: Raise) -> None:
    """Write a priority, and beside it what its user gave."""
    body = {"metadata": {"annotations": {names.BASE: str(one.base)}}, "spec": {"priority": one.priority}}
    cluster.patch(WORKLOADS, one.name, body, one.namespace)
