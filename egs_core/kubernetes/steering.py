"""Ending a run or a pod, with the rights of whoever asks: the controller has none for it.

run of Argo   its Workflow is told to end (`spec.shutdown: Terminate`), then its pods are deleted: Argo alone would
              leave gated ones
other run     its pods are deleted; what has made them may make others, which is said
pod           it is deleted
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from egs_core.errors import InputError
from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import PODS, WORKFLOWS, ApiError, Cluster
from egs_core.kubernetes.pods import Object, items, part, pod_of, text
from egs_core.kubernetes.standing import run_of

TERMINATE = "Terminate"


class Aborted(msgspec.Struct, frozen=True):
    """What was done. workflow: that was told to end; pods: deleted; makers: what may make such pods again."""

    namespace: str
    workflow: str = ""
    pods: tuple[str, ...] = ()
    makers: tuple[str, ...] = ()


def abort(cluster: Cluster, namespace: str, name: str, *, is_pod: bool = False) -> Aborted:
    """End the run, or the pod, of this name. Raises InputError where there is none or both, and ApiError."""
    found = cluster.list(PODS, namespace, names.WORKLOAD)[0]
    ours = [one for one in found if pod_of(one).is_ours and not pod_of(one).is_over]
    named = [one for one in ours if _name(one) == name]
    workflow = None if is_pod else _workflow(cluster, namespace, name)
    members = [] if is_pod else [one for one in ours if run_of(one) == name and one not in named]
    if named and (workflow or members):
        raise InputError(f"{namespace}/{name}", "is a run and a pod", "--pod means the pod")
    if not (named or members or workflow):
        what = "pod" if is_pod else "run or pod"
        raise InputError(f"{namespace}/{name}", f"no {what} of EGS's goes on there", "egs kubernetes ps -A lists them")
    if workflow:
        cluster.patch(WORKFLOWS, name, {"spec": {"shutdown": TERMINATE}}, namespace)
        of_argo = cluster.list(PODS, namespace, f"{names.ARGO_RUN}={name}")[0]
        members = list({_name(one): one for one in [*members, *of_argo] if not pod_of(one).is_over}.values())
    gone = [_name(one) for one in named or members if _delete(cluster, namespace, _name(one))]
    makers = _makers(named or members, but=f"Workflow {name}" if workflow else "")
    return Aborted(namespace, name if workflow else "", tuple(sorted(gone)), makers)


def _workflow(cluster: Cluster, namespace: str, name: str) -> bool:
    """Whether a Workflow of this name goes on."""
    try:
        raw = cluster.get(WORKFLOWS, name, namespace)
    except ApiError as error:
        if error.status in (403, 404):  # without Argo, or without a right there, a run is its pods
            return False
        raise
    return not part(raw, "status").get("finishedAt")


def _delete(cluster: Cluster, namespace: str, name: str) -> bool:
    try:
        cluster.delete(PODS, name, namespace)
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    return True


def _makers(pods: Iterable[Object], but: str) -> tuple[str, ...]:
    owners = {
        f"{text(o, 'kind')} {text(o, 'name')}" for one in pods for o in items(part(one, "metadata"), "ownerReferences")
    }
    return tuple(sorted(owners - {but}))


def _name(raw: Object) -> str:
    return text(part(raw, "metadata"), "name")
