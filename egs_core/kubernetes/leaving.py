"""Leaving a cluster: the webhook away first, so that no pod is gated any more; then every gate; then all the rest.

A controller may lead from outside of the cluster, where nothing deletes it. It is told by a mark in the Lease, and goes
before what it would write again is deleted (`leader`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from egs_core.client.waiting_words import time_words
from egs_core.kubernetes import gates, names
from egs_core.kubernetes.cluster import CLAIM_TEMPLATES, LEASES, PODS, WEBHOOKS, ApiError, Cluster
from egs_core.kubernetes.clusters import MANAGER
from egs_core.kubernetes.leader import LEASE_S
from egs_core.kubernetes.manifests import KINDS, Installation, objects
from egs_core.kubernetes.objects import Object, moment, part, seconds_of, text
from egs_core.kubernetes.overdue import open_all
from egs_core.kubernetes.placeholding import PlaceholderSettings
from egs_core.kubernetes.pods import pod_of, with_pauses
from egs_core.kubernetes.preloads import preload_of
from egs_core.kubernetes.tiers import NAME as CLAIM_NAME
from egs_core.kubernetes.tiers import ClaimRule

QUIET_ROUNDS = 3
PROCESSES = ("CronJob", "Deployment")
Say = Callable[[str], None]


def leave(cluster: Cluster, of: Installation, say: Say, wait: Callable[[float], None] = time.sleep) -> int:
    """Do it. How many gates could not be opened: then what opens them later is not deleted; and one for a controller
    that leads all the same. Raises ApiError."""
    _delete(cluster, WEBHOOKS.plural, "MutatingWebhookConfiguration", names.CONTROLLER, "", say)
    if failed := _open_until_quiet(cluster, of.serve, say, wait):
        return failed
    everything = {"preloads": True, "placeholders": PlaceholderSettings(most=1), "multikueue": MANAGER}
    made = objects(msgspec.structs.replace(of, **everything, claims=(ClaimRule("any", "any"),)))
    rest = [one for one in reversed(made) if one["kind"] not in ("Namespace", "MutatingWebhookConfiguration")]
    for one in rest:
        if one["kind"] in PROCESSES:
            _delete_made_by_manifests(cluster, one, say)
    leads_on = _send_away(cluster, of.namespace, say, wait)
    for one in rest:
        if one["kind"] not in PROCESSES:
            _delete_made_by_manifests(cluster, one, say)
    _delete_made(cluster, names.PRELOAD, say, lambda raw: preload_of(raw) is not None)
    _delete_made(cluster, names.PLACEHOLDER, say, lambda raw: pod_of(raw).is_placeholder)
    _delete_templates(cluster, say)
    say(f"namespace {of.namespace} is left: others may use it")
    if leads_on:
        say(leads_on)
    return 1 if leads_on else 0


def _send_away(cluster: Cluster, namespace: str, say: Say, wait: Callable[[float], None]) -> str:
    """Tell whoever leads to end, and wait until nobody does: by giving the Lease back, or as it is not renewed for so
    long that another might take it. "", or who leads all the same and what to do."""
    mark = {"metadata": {"annotations": {names.LEFT: moment(cluster.now())}}}
    try:
        told = part(cluster.patch(LEASES, names.CONTROLLER, mark, namespace), "spec")
        if holder := text(told, "holderIdentity"):
            say(f"controller {holder}: has the lease{_renewed(told, cluster.now())} and is told to end")
        for _ in range(int(LEASE_S) if holder else 0):
            found = part(cluster.get(LEASES, names.CONTROLLER, namespace), "spec")
            if not (now_leads := text(found, "holderIdentity")):
                say(f"controller {holder}: has ended")
                return ""
            if (now_leads, found.get("renewTime")) != (holder, told.get("renewTime")):
                return (
                    f"controller {now_leads}: leads all the same{_renewed(found, cluster.now())}: it is of an earlier"
                    " version, or was started since: end it where it runs (Ctrl-C), and repeat `egs kubernetes leave`"
                )
            wait(1.0)
    except ApiError as error:
        if error.status != 404:
            raise
        return ""  # nobody has led there
    if holder:
        say(f"controller {holder}: has not renewed its lease for {LEASE_S:.0f} s: it leads no more")
    return ""


def _renewed(spec: Object, now: float) -> str:
    """How long ago, by the clocks of both."""
    at = seconds_of(spec.get("renewTime"))
    return f" (renewed {time_words(now - at)} ago)" if at else ""


def _open_until_quiet(cluster: Cluster, serve: Sequence[str], say: Say, wait: Callable[[float], None]) -> int:
    """Until a few times in a row no gate is closed: a pod may have been under way through the webhook. Gates in
    namespaces that are not served are somebody else's. What is paused is opened too, for nobody could let it go on."""
    quiet = 0
    while quiet < QUIET_ROUNDS:
        found = (raw for where in serve or ("",) for raw in cluster.list(PODS, where)[0])
        pods = {pod.uid: pod for pod in map(pod_of, found)}
        closed = [pod for pod in pods.values() if pod.is_gated]
        for pod in with_pauses(pods).values():
            if pod.is_paused:
                say(f"{pod.namespace}/{pod.name}: was paused, and is no more")
        quiet = 0 if closed else quiet + 1
        if failed := open_all(cluster, gates.all_gates(closed, gates.LEAVING), say):
            return failed
        wait(1.0)
    return 0


def _delete_made(cluster: Cluster, label: str, say: Say, is_its: Callable[[Object], bool]) -> None:
    """The pods that the controller has made. Last: it may have been making some."""
    for raw in cluster.list(PODS, labels=f"{label}={names.BY_CONTROLLER}")[0]:
        if is_its(raw):
            one = pod_of(raw)
            try:
                cluster.delete(PODS, one.name, one.namespace, uid=one.uid)
            except ApiError as error:
                if error.status not in (404, 409):
                    raise
            say(f"pods/{one.name}: deleted")


def _delete_templates(cluster: Cluster, say: Say) -> None:
    """Of claims: those of pods that are there are made by now."""
    try:
        found = cluster.list(CLAIM_TEMPLATES, labels="app.kubernetes.io/name=egs")[0]
    except ApiError as error:
        if error.status != 404:
            raise
        return  # a cluster without DRA
    for one in found:
        name, namespace = one["metadata"]["name"], one["metadata"]["namespace"]
        if name.startswith(f"{CLAIM_NAME}-"):
            try:
                cluster.delete(CLAIM_TEMPLATES, name, namespace)
            except ApiError as error:
                if error.status != 404:
                    raise
            say(f"resourceclaimtemplates/{name}: deleted")


def _delete_made_by_manifests(cluster: Cluster, one: Object, say: Say) -> None:
    meta = one["metadata"]
    _delete(cluster, KINDS[one["kind"]].plural, one["kind"], meta["name"], meta.get("namespace", ""), say)


def _delete(cluster: Cluster, plural: str, kind: str, name: str, namespace: str, say: Say) -> None:
    try:
        cluster.delete(KINDS[kind], name, namespace)
        say(f"{plural}/{name}: deleted")
    except ApiError as error:
        if error.status != 404:
            raise
