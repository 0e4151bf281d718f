"""A pod as one attempt of a task, and a node as what it offers.

created ───────────► scheduled ──────────────► main container runs ──────► last container ended
   Ready   gates, room   Started   image, init     (end of ColdStart)           Ended
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from egs_core.flavor_names import flavor_of_labels
from egs_core.kubernetes import names
from egs_core.kubernetes.objects import seconds_of
from egs_core.out_of_memory import HOST
from egs_kubeflow.audit.amounts import amounts_of, held_by
from egs_kubeflow.audit.labelled import Labelled
from egs_kubeflow.audit.seen import NodeSeen, PodSeen, Seen, name_of, task_of
from egs_kubeflow.audit.shapes import Condition, ContainerStatus, Node, Pod, Stretch

WORKFLOW = "workflows.argoproj.io/workflow"
NODE_NAME = "workflows.argoproj.io/node-name"
RUN_ID = "pipeline/runid"
KILLED = "OOMKilled"  # a container that has more memory than its limit, or than its node has left
MOST_WORDS = 300
OUTCOMES = {"Succeeded": "succeeded", "Failed": "failed"}


def take_pod(seen: Seen, pod: Pod, labelled: Labelled) -> None:
    """Add a pod, of Argo's or of EGS's labels; what a Workflow has told of the same attempt is kept where the pod does
    not say it."""
    meta, labels = pod.metadata, pod.metadata.labels or {}
    namespace = meta.namespace or ""
    workflow = labels.get(WORKFLOW) or labels.get(RUN_ID) or ""
    node_name = (meta.annotations or {}).get(NODE_NAME) or meta.name
    task, attempt = task_of(node_name, workflow)
    one = _pod_seen(pod, PodSeen(f"{namespace}/{workflow}".lstrip("/"), task, attempt, in_pod=True))
    seen.now_s = max([seen.now_s, *_moments(pod)])
    if not workflow:
        if not labelled.take(seen, pod, one):
            seen.others.append(one)
        return
    run = seen.run(one.run, workflow, namespace)
    one.name = name_of(run, task)
    key = (one.run, task, attempt)
    if (told := seen.pods.get(key)) is not None:
        if told.outcome and one.outcome != "preempted":  # a workflow knows more of failures, but not of that
            one.outcome = told.outcome
        one.ended_s = one.ended_s if one.ended_s is not None else told.ended_s
        one.ready_s = one.ready_s if one.ready_s is not None else told.ready_s
    seen.pods[key] = one


def take_node(seen: Seen, node: Node) -> None:
    """Add a node."""
    name, started = node.metadata.name, node.metadata.creation_timestamp
    cpus, gpus, memory = amounts_of(node.status.allocatable or {}, f"node {name}")
    for condition in node.status.conditions or []:
        seen.now_s = max([seen.now_s, *_condition_times(condition)])
    started_s = started.timestamp() if started else None
    flavor = flavor_of_labels(node.metadata.labels or {})
    seen.nodes[name] = NodeSeen(name, started_s, cpus, gpus, memory, bool(node.spec.unschedulable), flavor)


def _pod_seen(pod: Pod, one: PodSeen) -> PodSeen:
    spec, status = pod.spec, pod.status
    one.cpus, one.gpus, one.memory_bytes = held_by(spec, f"pod {pod.metadata.name}")
    one.has_claims = bool(spec.resource_claims)
    one.node, one.ready_s = spec.node_name or "", seconds(pod.metadata.creation_timestamp)
    conditions = {condition.type: condition for condition in status.conditions or []}
    bound = conditions.get("PodScheduled")
    main = _stretch(_main(status.container_statuses or []))
    one.code_s = seconds(main.started_at) if main else None
    if bound is not None and bound.status == "True":
        one.scheduled_s = seconds(bound.last_transition_time)
    elif bound is not None and bound.reason == "Unschedulable":
        one.refusal = (bound.message or "")[:MOST_WORDS]
    one.scheduled_s = one.code_s if one.scheduled_s is None else one.scheduled_s
    one.gate = ", ".join(gate.name for gate in spec.scheduling_gates or [])
    notes = pod.metadata.annotations or {}
    one.opened_s = seconds_of(notes.get(names.OPENED, "").partition(" ")[0])
    one.waits = notes.get(names.WAITS, "").partition(" ")[2]
    if (outcome := OUTCOMES.get(status.phase or "")) is not None:
        disrupted = conditions.get("DisruptionTarget")
        one.outcome = "preempted" if disrupted is not None and disrupted.status == "True" else outcome
        one.ended_s = _end_s(pod)
        if one.outcome == "failed" and main is not None and main.reason == KILLED:
            one.reason = f"{HOST}: {KILLED}"
    return one


def _end_s(pod: Pod) -> float | None:
    """When its last container ended; of one that never had any, its last change."""
    parts = [_stretch(found) for found in _statuses(pod)]
    ends = [part.finished_at.timestamp() for part in parts if part and part.finished_at]
    return max(ends or list(_moments(pod)), default=None)


def _statuses(pod: Pod) -> list[ContainerStatus]:
    return [*(pod.status.init_container_statuses or []), *(pod.status.container_statuses or [])]


def _main(statuses: list[ContainerStatus]) -> ContainerStatus:
    """The container with the user's code: what Argo calls main, else the first."""
    return next((one for one in statuses if one.name == "main"), statuses[0] if statuses else ContainerStatus())


def _stretch(status: ContainerStatus) -> Stretch | None:
    return None if status.state is None else status.state.terminated or status.state.running


def _moments(pod: Pod) -> Iterator[float]:
    """Every time that a pod states."""
    times = [pod.metadata.creation_timestamp]
    for part in map(_stretch, _statuses(pod)):
        times += [part.started_at, part.finished_at] if part else []
    yield from (time.timestamp() for time in times if time is not None)
    for condition in pod.status.conditions or []:
        yield from _condition_times(condition)


def _condition_times(condition: Condition) -> Iterator[float]:
    for time in (condition.last_transition_time, condition.last_heartbeat_time):
        if time is not None:
            yield time.timestamp()


def seconds(time: datetime | None) -> float | None:
    """Unix time."""
    return None if time is None else time.timestamp()
