"""Leaving a cluster: the webhook away first, so that no pod is gated any more; then every gate; then all the rest."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from egs_core.kubernetes import gates, names
from egs_core.kubernetes.cluster import PODS, WEBHOOKS, ApiError, Cluster
from egs_core.kubernetes.manifests import KINDS, Installation, objects
from egs_core.kubernetes.overdue import open_all
from egs_core.kubernetes.pods import pod_of
from egs_core.kubernetes.preloads import preload_of

QUIET_ROUNDS = 3
Say = Callable[[str], None]


def leave(cluster: Cluster, of: Installation, say: Say, wait: Callable[[float], None] = time.sleep) -> int:
    """Do it. How many gates could not be opened: then what opens them later is not deleted. Raises ApiError."""
    _delete(cluster, WEBHOOKS.plural, "MutatingWebhookConfiguration", names.CONTROLLER, "", say)
    if failed := _open_until_quiet(cluster, say, wait):
        return failed
    for one in reversed(objects(msgspec.structs.replace(of, preloads=True))):
        if one["kind"] not in ("Namespace", "MutatingWebhookConfiguration"):
            meta = one["metadata"]
            _delete(cluster, KINDS[one["kind"]].plural, one["kind"], meta["name"], meta.get("namespace", ""), say)
    _delete_preloads(cluster, say)  # last: its controller may have been making some
    say(f"namespace {of.namespace} is left: others may use it")
    return 0


def _open_until_quiet(cluster: Cluster, say: Say, wait: Callable[[float], None]) -> int:
    """Until a few times in a row no gate is closed: a pod may have been under way through the webhook."""
    quiet = 0
    while quiet < QUIET_ROUNDS:
        closed = [pod for pod in map(pod_of, cluster.list(PODS)[0]) if pod.is_gated]
        quiet = 0 if closed else quiet + 1
        if failed := open_all(cluster, gates.all_gates(closed, gates.LEAVING), say):
            return failed
        wait(1.0)
    return 0


def _delete_preloads(cluster: Cluster, say: Say) -> None:
    for one in map(preload_of, cluster.list(PODS, labels=f"{names.PRELOAD}={names.BY_CONTROLLER}")[0]):
        if one is not None:
            try:
                cluster.delete(PODS, one.name, one.namespace, uid=one.uid)
            except ApiError as error:
                if error.status not in (404, 409):
                    raise
            say(f"pods/{one.name}: deleted")


def _delete(cluster: Cluster, plural: str, kind: str, name: str, namespace: str, say: Say) -> None:
    try:
        cluster.delete(KINDS[kind], name, namespace)
        say(f"{plural}/{name}: deleted")
    except ApiError as error:
        if error.status != 404:
            raise
