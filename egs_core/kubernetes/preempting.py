"""Deleting a pod of lower priority so that another may start, where what made it makes it again: verified just before.

The engine says who should stop (`rules/victims`: of lower priority, the least work lost, and not where the other would
start soon anyway). Then the owner is read anew, the pod is told so in an annotation, and it is deleted, by its uid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import JOBS, PODS, WORKFLOWS, ApiError, Cluster
from egs_core.kubernetes.objects import moment
from egs_core.kubernetes.pods import Pod
from egs_core.kubernetes.retries import may_be_covered, why_not_argo, why_not_job
from egs_core.kubernetes.steering import note_event
from egs_core.kubernetes.workflows import Workflow, workflow_of

SAID = "for a pod of higher priority; what made it makes it again"


class Preempting:
    """See the module. workflows: those that are listed; say: hears a line for each pod that is deleted, and why one is
    not."""

    def __init__(
        self, cluster: Cluster, workflows: Callable[[], Iterable[Workflow]], say: Callable[[str], None]
    ) -> None:
        self._cluster, self._workflows, self._say = cluster, workflows, say
        self._refused: set[tuple[str, str]] = set()  # run and task of which a pod was found not to be covered
        self._is_off = False

    def may_restart(self, pod: Pod) -> bool:
        """As far as is known now."""
        if self._is_off or (pod.run, pod.task) in self._refused:
            return False
        found = (one for one in self._workflows() if (one.namespace, one.name) == (pod.namespace, pod.workflow))
        return may_be_covered(pod, next(found, None) if pod.workflow else None)

    def carry_out(self, uids: Iterable[str], pods: Mapping[str, Pod], now: float) -> bool:
        """Delete these. False where one is not to be, or cannot: then the engine, which takes it for gone, is to be
        told all anew."""
        are_done = [self._delete(pods[uid], pods, now) for uid in uids if uid in pods and not pods[uid].is_leaving]
        return all(are_done)

    def _delete(self, pod: Pod, pods: Mapping[str, Pod], now: float) -> bool:
        place = f"{pod.namespace}/{pod.name}"
        try:
            problem = self._why_not(pod, pods.values())
            if not problem:
                note = {names.PREEMPTED: f"{moment(now)} {SAID}"}
                body = {"metadata": {"uid": pod.uid, "annotations": note}}
                raw = self._cluster.patch(PODS, pod.name, body, pod.namespace)
                note_event(self._cluster, raw, "Preempted", SAID)
                self._cluster.delete(PODS, pod.name, pod.namespace, uid=pod.uid)
                self._say(f"pod {place}: deleted {SAID}")
                return True
        except ApiError as error:
            if error.status in (404, 409):  # it is gone
                return True
            self._is_off = error.status == 403
            problem = f"{error}{': nothing is preempted any more' if self._is_off else ''}"
        self._refused.add((pod.run, pod.task))
        self._say(f"pod {place}: is not preempted: {problem}")
        return False

    def _why_not(self, pod: Pod, pods: Iterable[Pod]) -> str:
        waiting = [one.rank for one in pods if one.is_ours and one.is_gated and not one.is_paused]
        if max(waiting, default=pod.rank) <= pod.rank:
            return "nothing of higher priority waits"
        if pod.workflow:
            found = workflow_of(self._cluster.get(WORKFLOWS, pod.workflow, pod.namespace))
            return why_not_argo(pod, found)
        if pod.job:
            return why_not_job(self._cluster.get(JOBS, pod.job, pod.namespace))
        return "nothing is known to make it again"
