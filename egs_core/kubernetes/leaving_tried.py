"""What leaving a cluster would do: the API server is asked whether each change may be made, and makes none.

Everything is looked for once, as it is now: what is made before EGS is really taken out is not in it.
"""

from __future__ import annotations

import msgspec

from egs_core.kubernetes.cluster import PODS, ApiError, Cluster
from egs_core.kubernetes.gates import LEAVING
from egs_core.kubernetes.leaving import WEBHOOK, Thing, delete, gated_pods, made_in, printed_by, tell_to_end
from egs_core.kubernetes.manifests import Installation
from egs_core.kubernetes.objects import Object, seconds_of, text
from egs_core.kubernetes.opening import open_gate


class Deleted(msgspec.Struct, frozen=True):
    """An object that would go. kind: as in `kubectl get KIND`."""

    kind: str
    name: str
    namespace: str


class Leads(msgspec.Struct, frozen=True):
    """Who has the Lease. renewed_s: seconds ago, by the clocks of both; None: it does not say. is_outside: it is no pod
    of the controller's namespace, so that it ends by the mark in the Lease alone."""

    holder: str
    renewed_s: float | None
    is_outside: bool


class Tried(msgspec.Struct, frozen=True):
    """What would be done. deleted: in this order, but for the gates after the webhook; opened: gates of these pods,
    NAMESPACE/NAME; paused: those of them that are; is_told: there is a Lease, which would be marked; leads: who has it;
    refused: gates that may not be opened, and why. With one of these no more than the webhook would be deleted."""

    namespace: str
    deleted: tuple[Deleted, ...] = ()
    opened: tuple[str, ...] = ()
    paused: tuple[str, ...] = ()
    is_told: bool = False
    leads: Leads | None = None
    refused: tuple[str, ...] = ()


def try_leaving(cluster: Cluster, of: Installation) -> Tried:
    """See the module. Raises ApiError."""
    deleted = [_deleted(one) for one in (WEBHOOK, *printed_by(of)) if delete(cluster, one, is_tried=True)]
    deleted += [_deleted(one) for one in made_in(cluster) if delete(cluster, one, is_tried=True)]
    opened, paused, refused = _gates(cluster, of)
    told = _told(cluster, of.namespace)
    leads = None if told is None else _leads(cluster, of.namespace, told)
    return Tried(of.namespace, tuple(deleted), opened, paused, told is not None, leads, refused)


def _deleted(one: Thing) -> Deleted:
    return Deleted(one.kind.plural, one.name, one.namespace)


def _gates(cluster: Cluster, of: Installation) -> tuple[tuple[str, ...], ...]:
    """Pods that would be opened, those of them that are paused, and what is said against others."""
    opened, paused, refused = [], [], []
    gated, waiting = gated_pods(cluster, of.serve)
    uids = {pod.uid for pod in waiting}
    for pod in gated:
        place = f"{pod.namespace}/{pod.name}"
        try:
            is_there = open_gate(cluster, pod, LEAVING, cluster.now(), is_tried=True) is not None
        except ApiError as error:
            if error.status != 409:
                refused.append(f"{place}: cannot be opened: {error}")
            continue
        if is_there:
            opened.append(place)
            if pod.uid in uids:
                paused.append(place)
    return tuple(opened), tuple(paused), tuple(refused)


def _told(cluster: Cluster, namespace: str) -> Object | None:
    """What the Lease says; None: there is none."""
    try:
        return tell_to_end(cluster, namespace, is_tried=True)
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def _leads(cluster: Cluster, namespace: str, lease: Object) -> Leads | None:
    if not (holder := text(lease, "holderIdentity")):
        return None
    at = seconds_of(lease.get("renewTime"))
    hosts = {raw["metadata"]["name"] for raw in cluster.list(PODS, namespace)[0]}
    return Leads(holder, cluster.now() - at if at else None, holder.rpartition("-")[0] not in hosts)
