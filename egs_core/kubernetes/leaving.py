"""Leaving a cluster: the webhook away first, so that no pod is gated any more; then every gate; then all the rest.

A controller may lead from outside of the cluster, where nothing deletes it. It is told by a mark in the Lease, and goes
before what it would write again is deleted (`leader`). `leaving_tried` says what would be done, and does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from egs_core.client.waiting_words import time_words
from egs_core.kubernetes import gates, names
from egs_core.kubernetes.cluster import CLAIM_TEMPLATES, LEASES, NAMESPACES, PODS, WEBHOOKS, ApiError, Cluster, Kind
from egs_core.kubernetes.clusters import MANAGER
from egs_core.kubernetes.leader import LEASE_S
from egs_core.kubernetes.manifests import KINDS, Installation, objects
from egs_core.kubernetes.objects import Object, moment, part, seconds_of, text
from egs_core.kubernetes.overdue import open_all
from egs_core.kubernetes.placeholding import PlaceholderSettings
from egs_core.kubernetes.pods import Pod, pod_of, with_pauses
from egs_core.kubernetes.preloads import preload_of
from egs_core.kubernetes.tiers import NAME as CLAIM_NAME
from egs_core.kubernetes.tiers import ClaimRule

QUIET_ROUNDS = 3
PROCESSES = (KINDS["CronJob"], KINDS["Deployment"])
Say = Callable[[str], None]


class Thing(msgspec.Struct, frozen=True):
    """What goes. uid: of this very object and no later one of that name."""

    kind: Kind
    name: str
    namespace: str = ""
    uid: str = ""


WEBHOOK = Thing(WEBHOOKS, names.CONTROLLER)


def leave(cluster: Cluster, of: Installation, say: Say, wait: Callable[[float], None] = time.sleep) -> int:
    """Do it. How many gates could not be opened: then what opens them later is not deleted; and one for a controller
    that leads all the same. Raises ApiError."""
    _delete(cluster, WEBHOOK, say)
    if failed := _open_until_quiet(cluster, of.serve, say, wait):
        return failed
    printed = printed_by(of)
    for one in printed:
        if one.kind in PROCESSES:
            _delete(cluster, one, say)
    leads_on = _send_away(cluster, of.namespace, say, wait)
    for one in printed:
        if one.kind not in PROCESSES:
            _delete(cluster, one, say)
    for one in made_in(cluster):
        _delete(cluster, one, say)
    say(f"namespace {of.namespace} is left: others may use it")
    if leads_on:
        say(leads_on)
    return 1 if leads_on else 0


def printed_by(of: Installation) -> list[Thing]:
    """All that `egs kubernetes manifests` may have printed, whatever it was told, but for the webhook and the
    namespace; in the order in which it goes."""
    everything = {"preloads": True, "placeholders": PlaceholderSettings(most=1), "multikueue": MANAGER}
    made = reversed(objects(msgspec.structs.replace(of, **everything, claims=(ClaimRule("any", "any"),))))
    return [one for one in map(_thing, made) if one.kind not in (NAMESPACES, WEBHOOKS)]


def gated_pods(cluster: Cluster, serve: Sequence[str]) -> tuple[list[Pod], list[Pod]]:
    """Those whose gate is closed, and which of them are paused. Gates in namespaces that are not served are somebody
    else's."""
    found = (raw for where in serve or ("",) for raw in cluster.list(PODS, where)[0])
    pods = {pod.uid: pod for pod in map(pod_of, found)}
    gated = [pod for pod in pods.values() if pod.is_gated]
    return gated, [pod for pod in with_pauses(pods).values() if pod.is_paused]


def made_in(cluster: Cluster) -> Iterator[Thing]:
    """What the controller and its webhook have made. Last: they may have been making some, and the claims of pods that
    are there are made by now."""
    for raw in cluster.list(PODS, labels=f"{names.PRELOAD}={names.BY_CONTROLLER}")[0]:
        if preload_of(raw) is not None:
            yield _pod(raw)
    for raw in cluster.list(PODS, labels=f"{names.PLACEHOLDER}={names.BY_CONTROLLER}")[0]:
        if pod_of(raw).is_placeholder:
            yield _pod(raw)
    try:
        templates = cluster.list(CLAIM_TEMPLATES, labels="app.kubernetes.io/name=egs")[0]
    except ApiError as error:
        if error.status != 404:
            raise
        return  # a cluster without DRA
    for raw in templates:
        if raw["metadata"]["name"].startswith(f"{CLAIM_NAME}-"):
            yield Thing(CLAIM_TEMPLATES, raw["metadata"]["name"], raw["metadata"]["namespace"])


def delete(cluster: Cluster, one: Thing, *, is_tried: bool = False) -> bool:
    """Whether it was there. is_tried: it is only asked whether it may be done. Raises ApiError."""
    try:
        cluster.delete(one.kind, one.name, one.namespace, uid=one.uid, is_tried=is_tried)
    except ApiError as error:
        if error.status == 404 or (error.status == 409 and one.uid):
            return False
        raise
    return True


def tell_to_end(cluster: Cluster, namespace: str, *, is_tried: bool = False) -> Object:
    """Mark the Lease for whoever leads. What it says of them. is_tried: as above. Raises ApiError, 404 where nobody has
    led there."""
    mark = {"metadata": {"annotations": {names.LEFT: moment(cluster.now())}}}
    return part(cluster.patch(LEASES, names.CONTROLLER, mark, namespace, is_tried=is_tried), "spec")


def _send_away(cluster: Cluster, namespace: str, say: Say, wait: Callable[[float], None]) -> str:
    """Tell whoever leads to end, and wait until nobody does: by giving the Lease back, or as it is not renewed for so
    long that another might take it. "", or who leads all the same and what to do."""
    try:
        told = tell_to_end(cluster, namespace)
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
    """Until a few times in a row no gate is closed: a pod may have been under way through the webhook. What is paused
    is opened too, for nobody could let it go on."""
    quiet = 0
    while quiet < QUIET_ROUNDS:
        closed, paused = gated_pods(cluster, serve)
        for pod in paused:
            say(f"{pod.namespace}/{pod.name}: was paused, and is no more")
        quiet = 0 if closed else quiet + 1
        if failed := open_all(cluster, gates.all_gates(closed, gates.LEAVING), say):
            return failed
        wait(1.0)
    return 0


def _delete(cluster: Cluster, one: Thing, say: Say) -> None:
    if delete(cluster, one):
        say(f"{one.kind.plural}/{one.name}: deleted")


def _thing(one: Object) -> Thing:
    return Thing(KINDS[one["kind"]], one["metadata"]["name"], one["metadata"].get("namespace", ""))


def _pod(raw: Object) -> Thing:
    one = pod_of(raw)
    return Thing(PODS, one.name, one.namespace, one.uid)
