"""Ending a run, a stage of it or a pod, with the rights of whoever asks: the controller has none for it.

run of Argo   its Workflow is told to end (`spec.shutdown: Terminate`), then its pods are deleted: Argo alone would
              leave gated ones
other run     its pods are deleted; what has made them may make others, which is said
stage, pod    the same, for those
"""

from __future__ import annotations

import getpass
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from egs_core.errors import InputError
from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import EVENTS, PODS, WHO_AM_I, WORKFLOWS, ApiError, Cluster, Kind
from egs_core.kubernetes.makers import SAY_GANGS
from egs_core.kubernetes.objects import Object, items, moment, part, text
from egs_core.kubernetes.pods import pod_of
from egs_core.kubernetes.standing import run_of

TERMINATE = "Terminate"
MOST_OWNERS = 5
AT_ITS_TIME = re.compile("Cron|Schedule")
"""Kinds that make runs, and no pod of one again."""
OF_A_GROUP, PLAIN = re.compile(r"[a-z0-9][a-z0-9.-]*/v[a-z0-9]+"), re.compile(r"[a-z0-9][a-z0-9.-]*")
"""Who may make a pod may write what they like of its owners."""


class Asked(msgspec.Struct, frozen=True):
    """What is meant. name: of a run, or of a pod, which is_pod says where both are so called; stage: only that of the
    run. is_tried: nothing is done, and it is asked whether it may be."""

    namespace: str
    name: str
    stage: str = ""
    is_pod: bool = False
    reason: str = ""
    is_tried: bool = False


class Target(msgspec.Struct, frozen=True):
    """What was found. workflow: of Argo, that goes on; pods: as the API server has them; is_pod: one that was named."""

    workflow: str
    pods: Sequence[Object]
    is_pod: bool = False


class Aborted(msgspec.Struct, frozen=True):
    """What was done. workflow: that was told to end; pods: deleted; makers: what may make such pods again."""

    namespace: str
    workflow: str = ""
    pods: tuple[str, ...] = ()
    makers: tuple[str, ...] = ()


def abort(cluster: Cluster, asked: Asked) -> Aborted:
    """End it. Raises InputError where there is none of that name or two, and ApiError."""
    found, by = target_of(cluster, asked), actor_of(cluster)
    members = list(found.pods)
    if found.workflow:
        body = {"spec": {"shutdown": TERMINATE}}
        cluster.patch(WORKFLOWS, found.workflow, body, asked.namespace, is_tried=asked.is_tried)
        of_argo = cluster.list(PODS, asked.namespace, f"{names.ARGO_RUN}={found.workflow}")[0]
        members = list({name_of(one): one for one in [*members, *of_argo] if not pod_of(one).is_over}.values())
    gone = [name_of(one) for one in members if _delete(cluster, asked, one, by)]
    makers = _makers(cluster, members, but=f"Workflow {found.workflow}" if found.workflow else "")
    return Aborted(asked.namespace, found.workflow, tuple(sorted(gone)), makers)


def target_of(cluster: Cluster, asked: Asked) -> Target:
    """What goes on under that name. Raises InputError where there is none or two, and ApiError."""
    namespace, name = asked.namespace, asked.name
    found = cluster.list(PODS, namespace, names.WORKLOAD)[0]
    ours = [one for one in found if pod_of(one).is_ours and not pod_of(one).is_over]
    named = [] if asked.stage else [one for one in ours if name_of(one) == name]
    workflow = not asked.is_pod and _is_workflow(cluster, namespace, name)
    members = [] if asked.is_pod else [one for one in ours if run_of(one) == name and one not in named]
    if asked.stage:
        workflow, members = False, [one for one in members if pod_of(one).stage == asked.stage]
    if named and (workflow or members):
        raise InputError(f"{namespace}/{name}", "is a run and a pod", "--pod means the pod")
    if not (named or members or workflow):
        what = "pod" if asked.is_pod else f"stage {asked.stage}" if asked.stage else "run or pod"
        raise InputError(f"{namespace}/{name}", f"no {what} of EGS's goes on there", "egs kubernetes ps -A lists them")
    return Target(name if workflow else "", named or members, bool(named))


def actor_of(cluster: Cluster) -> str:
    """Who asks, as the API server knows them; else the user of this machine."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    with suppress(ApiError):
        status = part(cluster.create(WHO_AM_I, body), "status")
        if found := text(part(status, "userInfo"), "username"):
            return found
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name
        return "somebody"


def name_of(raw: Object) -> str:
    return text(part(raw, "metadata"), "name")


def note_event(cluster: Cluster, raw: Object, reason: str, message: str) -> None:
    """An event of a pod, which outlives it by an hour. Who may write none does without."""
    meta, at = part(raw, "metadata"), moment(cluster.now())
    about = {"apiVersion": "v1", "kind": "Pod", "name": name_of(raw), "namespace": text(meta, "namespace")}
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name_of(raw)[:200]}.{time.time_ns():x}", "namespace": text(meta, "namespace")},
        "involvedObject": about | {"uid": text(meta, "uid")},
        "reason": reason,
        "message": message[:1000],
        "type": "Normal",
        "source": {"component": "egs"},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
    with suppress(ApiError):
        cluster.create(EVENTS, body, text(meta, "namespace"))


def _is_workflow(cluster: Cluster, namespace: str, name: str) -> bool:
    """Whether a Workflow of this name goes on."""
    try:
        raw = cluster.get(WORKFLOWS, name, namespace)
    except ApiError as error:
        if error.status in (403, 404):  # without Argo, or without a right there, a run is its pods
            return False
        raise
    return not part(raw, "status").get("finishedAt")


def _delete(cluster: Cluster, asked: Asked, raw: Object, by: str) -> bool:
    try:
        cluster.delete(PODS, name_of(raw), asked.namespace, is_tried=asked.is_tried)
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    if not asked.is_tried:
        note_event(cluster, raw, "Aborted", f"by {by}{asked.reason and ': '}{asked.reason}")
    return True


def _makers(cluster: Cluster, pods: Iterable[Object], but: str) -> tuple[str, ...]:
    """What may make them again: what owns them, or what the labels of its pods name above that."""
    owners: dict[str, Object] = {}
    for one in pods:
        meta, maker = part(one, "metadata"), pod_of(one).maker
        if maker.kind:
            group, version, _ = SAY_GANGS[maker.kind]
            found: list[Object] = [{"apiVersion": f"{group}/{version}", "kind": maker.kind, "name": maker.name}]
        else:
            found = items(meta, "ownerReferences")
        owners |= {f"{text(meta, 'namespace')}/{_called(owner)}": owner for owner in found if _called(owner) != but}
    return tuple(sorted({_called(_top(cluster, one, key.partition("/")[0])) for key, one in owners.items()}))


def _top(cluster: Cluster, owner: Object, namespace: str) -> Object:
    """What makes such pods again, whatever is deleted below it: of a JobSet its TrainJob. What makes another run at its
    time is not meant. Who may not read an object is told of what is known."""
    for _ in range(MOST_OWNERS):
        version, kind, name = (text(owner, key) for key in ("apiVersion", "kind", "name"))
        if not (OF_A_GROUP.fullmatch(version) and kind.isalnum() and PLAIN.fullmatch(name)):
            break
        try:
            found = cluster.get(Kind(f"/apis/{version}", f"{kind.lower()}s"), name, namespace)
        except ApiError:
            break
        above = [one for one in items(part(found, "metadata"), "ownerReferences") if one.get("controller")]
        if not above or AT_ITS_TIME.search(text(above[0], "kind")):
            break
        owner = above[0]
    return owner


def _called(owner: Object) -> str:
    return f"{text(owner, 'kind')} {text(owner, 'name')}"
