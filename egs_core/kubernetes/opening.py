"""What is written into the cluster: opened gates, why one is not open, deadlines, priorities, nominations. All may be
repeated."""

from __future__ import annotations

from typing import Any

from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import APPLY, PODS, STRATEGIC, WORKLOADS, ApiError, Cluster
from egs_core.kubernetes.clusters import Nomination, status_with
from egs_core.kubernetes.limits import Deadline
from egs_core.kubernetes.objects import moment
from egs_core.kubernetes.pods import Pod
from egs_core.kubernetes.priorities import Raise

FIELDS_OF = "kueue-admission"
"""By this name Kueue has the fields of a Workload's admission, nominations among them."""


def open_gate(
    cluster: Cluster, pod: Pod, why: str, now: float, deadline: Deadline | None = None, *, is_tried: bool = False
) -> dict[str, Any] | None:
    """Take our gate off this very pod, and no other gate. The pod as it is then; None where it is gone. deadline: what
    it gets with that, unless it has an earlier one. is_tried: it is only asked whether it may be done."""
    notes: dict[str, Any] = {names.OPENED: f"{moment(now)} {why}", names.WAITS: None}
    spec: dict[str, Any] = {"schedulingGates": [{"name": names.GATE, "$patch": "delete"}]}
    if deadline is not None and (pod.deadline_s is None or deadline.seconds < pod.deadline_s):
        notes |= _said(deadline, now)
        spec["activeDeadlineSeconds"] = deadline.seconds
    body = {"metadata": {"uid": pod.uid, "annotations": notes}, "spec": spec}
    try:
        return cluster.patch(PODS, pod.name, body, pod.namespace, STRATEGIC, is_tried=is_tried)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


def limit(cluster: Cluster, pod: Pod, deadline: Deadline, now: float) -> dict[str, Any]:
    """Write this deadline into this very pod. The pod as it is then."""
    meta = {"uid": pod.uid, "annotations": _said(deadline, now)}
    body = {"metadata": meta, "spec": {"activeDeadlineSeconds": deadline.seconds}}
    return cluster.patch(PODS, pod.name, body, pod.namespace)


def _said(deadline: Deadline, now: float) -> dict[str, str]:
    return {names.LIMIT: f"{moment(now)} at most {deadline.seconds} s: {deadline.why}"}


def tell_why(cluster: Cluster, pod: Pod, text: str, now: float) -> dict[str, Any]:
    """Write into this very pod why it waits. The pod as it is then."""
    body = {"metadata": {"uid": pod.uid, "annotations": {names.WAITS: f"{moment(now)} {text}"}}}
    return cluster.patch(PODS, pod.name, body, pod.namespace)


def raise_priority(cluster: Cluster, one: Raise) -> dict[str, Any]:
    """Write a priority, and beside it what its user gave. The Workload as it is then."""
    body = {"metadata": {"annotations": {names.BASE: str(one.base)}}, "spec": {"priority": one.priority}}
    return cluster.patch(WORKLOADS, one.name, body, one.namespace)


def nominate(cluster: Cluster, one: Nomination) -> dict[str, Any] | None:
    """Write it. The Workload as it is then; None where it waits for no cluster any more."""
    workload = one.choice.workload
    body = status_with(cluster.get(WORKLOADS, workload.name, workload.namespace), one)
    if body is None:
        return None
    place = f"{workload.name}/status?fieldManager={FIELDS_OF}&force=true"
    return cluster.patch(WORKLOADS, place, dict(body), workload.namespace, APPLY)
