"""Whether what made a pod makes it again, however the pod ends: only then may it be deleted so that another may start.

    Argo    the pod's template has a `retryStrategy` with `retryPolicy: Always`, no expression, and tries left. Other
            policies miss a deleted pod, or one that ended in time when it was told to
    Job     its pods have `restartPolicy: Never`, and `backoffLimit` is not used up; no limits by index, no policy of
            failures, no indices: pods with those may work together

For all else nothing is sure. All that is seen are objects, and the owner's own word is taken.
"""

from __future__ import annotations

import re

from egs_core.kubernetes.objects import Object, number, part, text
from egs_core.kubernetes.pods import Pod
from egs_core.kubernetes.workflows import Workflow

USUAL_BACKOFF = 6
_TRY = re.compile(r"\((\d+)\)$")


def may_be_covered(pod: Pod, workflow: Workflow | None) -> bool:
    """Whether it is worth a closer look, for all that is listed: the run's part that made the pod may be noted late."""
    if pod.gang:
        return False
    if pod.workflow:
        return workflow is not None and any(one.retries for one in workflow.templates.values())
    return bool(pod.job)


def why_not_argo(pod: Pod, workflow: Workflow) -> str:
    """Why a pod of Argo would not be made again; "" where it is."""
    node = workflow.nodes.get(pod.argo_node)
    template = workflow.templates.get(node.template) if node is not None else None
    if workflow.is_over or template is None:
        return "its Workflow does not say how it was made"
    if not template.retries:
        return "its template has no retryStrategy with retryPolicy: Always"
    tries = _TRY.search(pod.argo_node)
    if tries is None or int(tries[1]) >= template.retries:
        return "it is its last try"
    return ""


def why_not_job(job: Object) -> str:
    """The same of a pod of a Job."""
    spec, status = part(job, "spec"), part(job, "status")
    if text(part(part(spec, "template"), "spec"), "restartPolicy") != "Never":
        return "its Job restarts containers, not pods"
    if text(spec, "completionMode") == "Indexed" or "backoffLimitPerIndex" in spec or "podFailurePolicy" in spec:
        return "its Job has indices or a policy of failures"
    if spec.get("suspend") or "deletionTimestamp" in part(job, "metadata"):
        return "its Job makes no pods now"
    stated = number(spec.get("backoffLimit"))
    limit = USUAL_BACKOFF if stated is None else stated
    if (number(status.get("failed")) or 0) >= limit:
        return "its Job has no retry left"
    return ""
