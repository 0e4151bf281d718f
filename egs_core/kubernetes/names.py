"""Labels, annotations and the gate of pods: what is written into pipelines (decision 40), and what is added to pods."""

from __future__ import annotations

GATE = "egs.io/order"
"""The one scheduling gate that is ever added or removed."""

WORKLOAD, TASK, RANK, PREDICTED_S, GANG = (
    f"egs.io/{name}" for name in ("workload", "task", "rank", "predicted-s", "gang")
)
RUN = "egs.io/run"
"""Labels: of which run of its workload the pod is; where it is absent, what made it says so."""
PRELOAD = "egs.io/preload"
"""Label of pods that load something ahead: they are never gated."""
PLACEHOLDER = "egs.io/placeholder"
"""Label of pods that stand for what will need a node: no work, and never told to an engine."""
BY_CONTROLLER = "controller"
"""Its value in those that the controller makes."""
GANG_SIZE, HINTS = "egs.io/gang-size", "egs.io/hints"
RELEASE_BY = "egs.io/release-by"
"""Annotation: the moment, as RFC 3339, after which the gate is opened whatever else is so."""
OPENED = "egs.io/opened"
"""Annotation: when our gate was opened, and why: order, ahead, nowhere, queued, overdue, alone,
leaving."""
WAITS = "egs.io/waits"
"""Annotation of a pod whose gate is closed: when the controller looked at it last, and why it waits."""
RUN_LIMITS, STAGE_LIMITS = "egs.io/run-limits", "egs.io/stage-limits"
"""Annotations: the most that all pods of the run, or of the pod's stage, may use together."""
LIMIT = "egs.io/limit"
"""Annotation: the deadline that was written into the pod, and which limit it keeps."""
PAUSED, RESUMED = "egs.io/paused", "egs.io/resumed"
"""Annotations: what was paused with the pod (run, stage or pod), when and by whom; and when that was taken back."""
PREEMPTED = "egs.io/preempted"
"""Annotation of a pod that is deleted so that another may start: since when, and that what made it makes it again."""
BASE = "egs.io/base-priority"
"""Annotation of a Workload whose priority was raised: what its user gave it."""

ORIGIN = "kueue.x-k8s.io/multikueue-origin"
"""Label of Workloads that MultiKueue has made for those of another cluster."""

ARGO_RUN, ARGO_NODE = "workflows.argoproj.io/workflow", "workflows.argoproj.io/node-name"
ARGO_OVER = "workflows.argoproj.io/completed"
JOB_INDEX = "batch.kubernetes.io/job-completion-index"
QUEUE, POD_GROUP = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/pod-group-name"
SYSTEM = "egs-system"
"""The usual namespace of the controller."""
CONTROLLER, OVERDUE = "egs-controller", "egs-overdue"
"""Service accounts, and what belongs to them."""
PRELOAD_CLASS = "egs-controller-preload"
"""Priority class of what the controller makes to load images ahead."""
PLACEHOLDER_CLASS = "egs-controller-placeholder"
"""Priority class of what it makes to have nodes added ahead."""
DURATIONS = "egs-controller-durations"
"""The ConfigMap with what the pods of earlier runs took."""
