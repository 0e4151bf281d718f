"""What was seen of a cluster in the core's words: a run is a workload, a task with a pod is a task, retries are its
attempts; a pod holds what it requests from when it was scheduled to when its last container ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby

from egs_core.audit.waits import CAPACITY, GATE, SCHEDULER
from egs_core.kubernetes import names
from egs_core.runlog.past import Attempt, Needs, Offer, Past, PastRun, PastTask
from egs_kubeflow.audit.seen import NodeSeen, PodSeen, RunSeen, Seen

KUEUE_GATE = "kueue.x-k8s.io/admission"
LOOK_S = 1.0  # a gate that is opened at once is open after that: times are whole seconds
INSIDE = "a task counts as using its GPUs while its container runs: a cluster does not tell what happens inside"
CONTROLLER = "the forecast is of pods let go in EGS's order, as `egs kubernetes controller` does it in a cluster"
OPENED = "pods that got a node had been let go by EGS's controller"
ANYWHERE = "a pod is taken to fit every node with room: selectors, taints and kinds of GPU are not read"
NO_NODES = "no node is in the export: what the cluster offered is not known, nor what was idle (kubectl get nodes)"
GONE = "pods ran on nodes that are not in the export: what those offered is not known"
NO_PODS = "tasks without GPUs are known from their workflow only: their waits count as running"
ENDED_GPU = "GPU tasks are known from their workflow only: they start with their GPU seconds, cold starts are waits"
OFFLOADED = "workflows keep their nodes in Argo's database: only their pods are known"
OTHERS = (
    "pods of no run (of Argo, or by the label egs.io/workload) held resources: what they took is not counted as offered"
)
CLAIMS = "pods claim devices (DRA): those are not counted as GPUs"
CORDONED = "nodes are cordoned, since an unknown time: they count as offered"


def past_of(seen: Seen, label: str = "") -> Past:
    """What was seen, in the core's words."""
    pods: dict[str, list[PodSeen]] = defaultdict(list)
    for _, attempts in groupby(sorted(seen.pods.values(), key=_place), key=lambda pod: (pod.run, pod.task)):
        found = list(attempts)
        _one_after_another(found)
        pods[found[0].run].extend(found)
    is_labelled = bool(seen.runs) and all(run.is_labelled for run in seen.runs.values())
    return Past(
        "kubernetes" if is_labelled else "kubeflow",
        seen.now_s,
        label,
        [_past_run(seen, run, pods[run.key]) for run in seen.runs.values()],
        [offer for node in seen.nodes.values() for offer in _offers(seen, node)],
        notes=list(_notes(seen)),
        edges_known=bool(seen.runs) and all(run.parents is not None for run in seen.runs.values()),
        flavors={node.name: node.flavor for node in seen.nodes.values() if node.flavor},
        by_egs=2 * len(_opened(seen)) > len(_placed(seen)),
        may_split=False,  # nothing of EGS in a cluster loads ahead or splits a component that is compiled
    )


def _one_after_another(pods: Iterable[PodSeen]) -> None:
    """The attempts of one task: the next waits from the end of the one before, whose end may not be known; and each
    is ready before it is scheduled, and that before it ends, whatever the clocks of a cluster have noted."""
    before: PodSeen | None = None
    for pod in pods:
        times = [time for time in (pod.ready_s, pod.scheduled_s) if time is not None]
        if not times:
            continue
        pod.ready_s = min(times)
        if before is not None and before.ended_s is None:
            since_s = before.ready_s if before.scheduled_s is None else before.scheduled_s
            before.ended_s, before.outcome = max(pod.ready_s, since_s or 0.0), before.outcome or "failed"
        if before is not None and before.ended_s is not None:
            pod.ready_s = max(pod.ready_s, before.ended_s)
        if pod.scheduled_s is not None:
            pod.scheduled_s = max(pod.scheduled_s, pod.ready_s)
        if pod.ended_s is not None:
            pod.ended_s = max(pod.ended_s, pod.ready_s if pod.scheduled_s is None else pod.scheduled_s)
        before = pod


def _place(pod: PodSeen) -> tuple[str, str, int]:
    return pod.run, pod.task, pod.attempt


def _past_run(seen: Seen, run: RunSeen, pods: list[PodSeen]) -> PastRun:
    times = [time for time in (run.submitted_s, *(pod.ready_s for pod in pods)) if time is not None]
    past = PastRun(run.key, run.name, min(times, default=seen.now_s), tenant=run.tenant)
    if run.ended_s is not None:
        past.ended_s = max([run.ended_s, *(pod.ended_s for pod in pods if pod.ended_s is not None)])
        past.outcome, past.cut_off_s = run.outcome or "aborted", run.ended_s
    elif run.submitted_s is None and (ends := [pod.ended_s for pod in pods]) and None not in ends:
        # no Workflow tells of its end: it is over where all of its pods are
        past.ended_s = max(end for end in ends if end is not None)
        last = {pod.task: pod.outcome for pod in pods}
        past.outcome = "succeeded" if set(last.values()) == {"succeeded"} else "failed"
    known = {pod.task for pod in pods}
    for pod in {pod.task: pod for pod in pods}.values():
        parents = tuple(one for one in (run.parents or {}).get(pod.task, ()) if one in known)
        past.tasks.append(PastTask(pod.task, pod.name, _needs(pod), parents))
    past.attempts = [_attempt(seen, pod) for pod in pods if pod.ready_s is not None]
    return past


def _attempt(seen: Seen, pod: PodSeen) -> Attempt:
    one = Attempt(pod.task, pod.attempt, pod.ready_s, pod.scheduled_s, None, pod.ended_s, pod.outcome, _needs(pod))
    one.node, one.reason = pod.node, pod.reason
    if pod.scheduled_s is None and pod.gate:
        kind = "quota" if KUEUE_GATE in pod.gate else GATE if names.GATE in pod.gate else "order"
        one.held = ((pod.ready_s or 0.0, kind, pod.waits if kind == GATE else f"gated: {pod.gate}"),)
    else:
        one.held = tuple(_held(pod))
    if pod.in_pod:
        one.code_s = next(time for time in (pod.code_s, pod.ended_s, seen.now_s) if time is not None)
    return one


def _held(pod: PodSeen) -> Iterator[tuple[float, str, str]]:
    """Of one without a gate. Why that was not opened sooner is reckoned from who held what."""
    ready_s = pod.ready_s or 0.0
    if pod.opened_s > ready_s + LOOK_S:
        yield ready_s, CAPACITY, ""
    if pod.refusal and pod.scheduled_s is None:
        yield max(ready_s, pod.opened_s), SCHEDULER, pod.refusal


def _needs(pod: PodSeen) -> Needs:
    return Needs(pod.cpus, pod.gpus, pod.memory_bytes)


def _offers(seen: Seen, node: NodeSeen) -> Iterator[Offer]:
    """What a node offers to pipelines: all it has, less what other pods take of it."""
    start_s = node.started_s or 0.0
    changes: dict[float, list[float]] = defaultdict(lambda: [0.0, 0.0], {start_s: [node.cpus, node.gpus]})
    for pod in seen.others:
        if pod.node == node.name and pod.scheduled_s is not None:
            for at_s, sign in ((pod.scheduled_s, -1.0), (pod.ended_s, 1.0)):
                if at_s is not None:
                    change = changes[max(at_s, start_s)]
                    change[0], change[1] = change[0] + sign * pod.cpus, change[1] + sign * pod.gpus
    cpus = gpus = 0.0
    for at_s, (more_cpus, more_gpus) in sorted(changes.items()):
        cpus, gpus = cpus + more_cpus, gpus + more_gpus
        yield Offer(at_s, node.name, max(0.0, cpus), max(0, int(gpus)), node.memory_bytes)


def _notes(seen: Seen) -> Iterator[str]:
    pods = list(seen.pods.values())
    yield from seen.notes
    yield INSIDE
    if opened := len(_opened(seen)):
        yield f"{opened} of {len(_placed(seen))} {OPENED}"
    if seen.nodes:
        if 2 * opened <= len(_placed(seen)):
            yield CONTROLLER
        yield ANYWHERE
        gone = {pod.node for pod in pods if pod.node} - seen.nodes.keys()
        yield from _counted((pod.node in gone for pod in pods), GONE)
    else:
        yield NO_NODES
    told = [pod for pod in pods if not pod.in_pod]
    yield from _counted((not pod.start_known for pod in told), NO_PODS)
    yield from _counted((bool(pod.gpus) and pod.start_known and pod.scheduled_s is not None for pod in told), ENDED_GPU)
    yield from _counted((run.offloaded for run in seen.runs.values()), OFFLOADED)
    yield from _counted((bool(pod.cpus or pod.gpus) and bool(pod.node) for pod in seen.others), OTHERS)
    yield from _counted((pod.has_claims for pod in pods), CLAIMS)
    yield from _counted((node.cordoned for node in seen.nodes.values()), CORDONED)


def _placed(seen: Seen) -> list[PodSeen]:
    return [pod for pod in seen.pods.values() if pod.scheduled_s is not None]


def _opened(seen: Seen) -> list[PodSeen]:
    """Of these, those whose gate was opened by EGS."""
    return [pod for pod in _placed(seen) if pod.opened_s]


def _counted(found: Iterable[bool], what: str) -> Iterator[str]:
    if count := sum(found):
        yield f"{count} {what}"
