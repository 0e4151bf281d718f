"""Pausing a run, a stage of it or a pod, and going on with it, with the rights of whoever asks.

run of Argo   its Workflow makes no more pods (`spec.suspend`), and its pods that wait stay behind their gates
other run     its pods that wait do; and those that are made later, while one of them is listed
stage, pod    the same, for those

What runs goes on to its end: `suspend` of a Job, which deletes what runs, is not used. The pause is an annotation of
the pods, so whoever opens gates sees it, whether a controller lives or not, and no release-by time ends it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from egs_core.errors import InputError
from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import PODS, WORKFLOWS, ApiError, Cluster
from egs_core.kubernetes.objects import Object, moment, part, text
from egs_core.kubernetes.pods import Pod, pod_of
from egs_core.kubernetes.standing import run_of
from egs_core.kubernetes.steering import Asked, Target, actor_of, name_of, target_of


class Steered(msgspec.Struct, frozen=True):
    """What was done. workflow: of Argo, that makes no more pods, or does again; held: pods that wait, and are paused or
    no longer so; runs: those that go on all the same; queued: those that Kueue holds back, which is not ours."""

    namespace: str
    workflow: str = ""
    held: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    queued: tuple[str, ...] = ()


def pause(cluster: Cluster, asked: Asked) -> Steered:
    """Nothing more of it starts. Raises InputError where there is none of that name or two, and ApiError."""
    found = target_of(cluster, asked)
    what = "pod" if found.is_pod else "stage" if asked.stage else "run"
    said = f"{what} {moment(cluster.now())} by {actor_of(cluster)}{asked.reason and ': '}{asked.reason}"
    notes: dict[str, str | None] = {names.PAUSED: said, names.RESUMED: None}
    if found.workflow:
        _patch_workflow(cluster, asked, found.workflow, suspend=True, notes={names.PAUSED: said})
    for one in found.pods:
        _annotate(cluster, asked, one, notes)
    return _steered(asked, found)


def resume(cluster: Cluster, asked: Asked) -> Steered:
    """It may start again; of a run also what was paused alone. Raises as `pause`."""
    found = target_of(cluster, asked)
    now = moment(cluster.now())
    pods = [pod_of(one) for one in found.pods]
    if found.is_pod and pods[0].paused.partition(" ")[0] in ("run", "stage"):
        which = pods[0].paused.partition(" ")[0]
        problem = f"it is paused with its {which}"
        raise InputError(f"{asked.namespace}/{asked.name}", problem, f"egs kubernetes resume, with the {which}'s name")
    if found.workflow:
        _patch_workflow(cluster, asked, found.workflow, suspend=None, notes={names.PAUSED: None})
    for raw, pod in zip(found.pods, pods, strict=True):
        if pod.paused or pod.is_gated:
            _annotate(cluster, asked, raw, {names.PAUSED: None, names.RESUMED: now if pod.is_gated else None})
    for raw in _ended_with_pause(cluster, asked, found):
        _annotate(cluster, asked, raw, {names.PAUSED: None})
    return _steered(asked, found)


def _ended_with_pause(cluster: Cluster, asked: Asked, found: Target) -> list[Object]:
    """Pods that are over and still say that their run or stage is paused."""
    if found.is_pod:
        return []
    listed = [(one, pod_of(one)) for one in cluster.list(PODS, asked.namespace, names.WORKLOAD)[0]]
    over = [(one, pod) for one, pod in listed if pod.is_over and pod.paused and run_of(one) == asked.name]
    return [one for one, pod in over if not asked.stage or pod.stage == asked.stage]


def _patch_workflow(
    cluster: Cluster, asked: Asked, name: str, *, suspend: bool | None, notes: dict[str, str | None]
) -> None:
    body: dict[str, Any] = {"metadata": {"annotations": notes}, "spec": {"suspend": suspend}}
    cluster.patch(WORKFLOWS, name, body, asked.namespace, is_tried=asked.is_tried)


def _annotate(cluster: Cluster, asked: Asked, raw: Object, notes: dict[str, str | None]) -> None:
    """This very pod; one that is gone needs no word."""
    body = {"metadata": {"uid": text(part(raw, "metadata"), "uid"), "annotations": notes}}
    try:
        cluster.patch(PODS, name_of(raw), body, asked.namespace, is_tried=asked.is_tried)
    except ApiError as error:
        if error.status not in (404, 409):
            raise


def _steered(asked: Asked, found: Target) -> Steered:
    pods = sorted(map(pod_of, found.pods), key=lambda pod: pod.name)

    def of(kind: str) -> tuple[str, ...]:
        return tuple(pod.name for pod in pods if _kind(pod) == kind)

    return Steered(asked.namespace, found.workflow, of("held"), of("runs"), of("queued"))


def _kind(pod: Pod) -> str:
    if pod.is_gated:
        return "held"
    return "queued" if pod.queue and pod.has_other_gates else "runs"
