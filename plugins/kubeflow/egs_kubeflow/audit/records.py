"""Run log records from what was seen of a cluster: a run is a workload, a task with a pod is a task, retries are its
attempts; a pod holds what it requests from when it was scheduled to when its last container ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby

from egs_core.audit.observed import Observed
from egs_core.runlog.records import (
    Capacity,
    ColdStart,
    Ended,
    Header,
    Held,
    Ready,
    Record,
    Started,
    TaskAdded,
    WorkloadEnded,
    WorkloadSubmitted,
)
from egs_kubeflow.audit.seen import NodeSeen, PodSeen, RunSeen, Seen

KUEUE_GATE = "kueue.x-k8s.io/admission"
INSIDE = "a task counts as using its GPUs while its container runs: a cluster does not tell what happens inside"
CONTROLLER = "the forecast is of pods let go in EGS's order, which needs a controller in the cluster: EGS has none yet"
ANYWHERE = "a pod is taken to fit every node with room: selectors, taints and kinds of GPU are not read"
NO_NODES = "no node is in the export: what the cluster offered is not known, nor what was idle (kubectl get nodes)"
GONE = "pods ran on nodes that are not in the export: what those offered is not known"
NO_PODS = "tasks without GPUs are known from their workflow only: their waits count as running"
ENDED_GPU = "GPU tasks are known from their workflow only: they start with their GPU seconds, cold starts are waits"
OFFLOADED = "workflows keep their nodes in Argo's database: only their pods are known"
OTHERS = "pods outside of pipelines held resources: what they took is not counted as offered"
CLAIMS = "pods claim devices (DRA): those are not counted as GPUs"
CORDONED = "nodes are cordoned, nobody knows since when: they count as offered"


def observed(seen: Seen, label: str) -> Observed:
    """What was seen, as an audit takes it."""
    begin_s = _begin_s(seen)
    header = Header(run_id=label, driver="kubeflow", policy="native", mode="off", started_at=begin_s, label=label)
    return Observed(
        header,
        tuple(_Records(seen, begin_s).records()),
        edges_known=bool(seen.runs) and all(run.parents is not None for run in seen.runs.values()),
        notes=tuple(_notes(seen)),
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


def _begin_s(seen: Seen) -> float:
    times = [run.submitted_s for run in seen.runs.values()] + [pod.ready_s for pod in seen.pods.values()]
    return min((time for time in times if time is not None), default=0.0)


class _Records:
    """The records of one export; times are relative to its first submission."""

    def __init__(self, seen: Seen, begin_s: float) -> None:
        self._seen, self._begin_s = seen, begin_s
        self._pods: dict[str, list[PodSeen]] = defaultdict(list)
        for _, attempts in groupby(sorted(seen.pods.values(), key=_place), key=lambda pod: (pod.run, pod.task)):
            pods = list(attempts)
            _one_after_another(pods)
            self._pods[pods[0].run].extend(pods)

    def records(self) -> list[Record]:
        made = [record for run in self._seen.runs.values() for record in self._run(run)]
        for node in self._seen.nodes.values():
            made.extend(self._capacity(node))
        return sorted(made, key=lambda record: getattr(record, "t", 0.0))

    def _run(self, run: RunSeen) -> Iterator[Record]:
        pods = self._pods[run.key]
        times = [run.submitted_s, *(pod.ready_s for pod in pods)]
        submitted_s = min((time for time in times if time is not None), default=self._seen.now_s)
        yield WorkloadSubmitted(self._t(submitted_s), run.key, run.name, run.tenant)
        known = {pod.task for pod in pods}
        for pod in {pod.task: pod for pod in pods}.values():
            parents = tuple(one for one in (run.parents or {}).get(pod.task, ()) if one in known)
            needs = ("gpu" if pod.gpus else "cpu", pod.cpus, pod.gpus, pod.memory_bytes)
            yield TaskAdded(self._t(submitted_s), run.key, pod.task, pod.name, parents, (needs,))
        for pod in pods:
            yield from self._pod(run, pod)
        if run.ended_s is not None:
            last_s = max([run.ended_s, *(pod.ended_s for pod in pods if pod.ended_s is not None)])
            yield WorkloadEnded(self._t(last_s), run.key, run.outcome or "aborted")

    def _pod(self, run: RunSeen, pod: PodSeen) -> Iterator[Record]:
        place = (run.key, pod.task)
        first_s, at_s, ended_s = pod.ready_s, pod.scheduled_s, pod.ended_s
        if first_s is None:
            return
        if ended_s is None and run.ended_s is not None:
            ended_s = max(run.ended_s, first_s, at_s or 0.0)
        yield Ready(self._t(first_s), *place, 0, pod.attempt)
        if at_s is None:
            if pod.gate:
                kind = "quota" if KUEUE_GATE in pod.gate else "order"
                yield Held(self._t(first_s), *place, 0, kind, f"gated: {pod.gate}")
            if ended_s is not None:
                yield Ended(self._t(ended_s), *place, 0, pod.attempt, "skipped")
            return
        yield Started(self._t(at_s), *place, 0, pod.attempt, pod.node, (), pod.cpus, pod.gpus, pod.memory_bytes)
        if pod.in_pod:
            code_s = next(time for time in (pod.code_s, ended_s, self._seen.now_s) if time is not None)
            if code_s > at_s:
                yield ColdStart(self._t(at_s), self._t(code_s), *place, 0, pod.attempt)
        if ended_s is not None:
            yield Ended(self._t(ended_s), *place, 0, pod.attempt, pod.outcome or "aborted")

    def _capacity(self, node: NodeSeen) -> Iterator[Record]:
        """What a node offers to pipelines: all it has, less what other pods take of it; repeated at the end, so that
        what is still open is measured up to then."""
        end_s = max(self._end_s(), self._begin_s)
        start_s = max(node.started_s or 0.0, self._begin_s)
        changes: dict[float, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for pod in self._seen.others:
            if pod.node == node.name and pod.scheduled_s is not None:
                for at_s, sign in ((pod.scheduled_s, -1.0), (pod.ended_s, 1.0)):
                    if at_s is not None:
                        change = changes[min(max(at_s, start_s), max(start_s, end_s))]
                        change[0], change[1] = change[0] + sign * pod.cpus, change[1] + sign * pod.gpus
        cpus, gpus = node.cpus, node.gpus
        for at_s in sorted({start_s, max(start_s, end_s), *changes}):
            by = changes.get(at_s, (0.0, 0.0))
            cpus, gpus = cpus + by[0], gpus + by[1]
            yield Capacity(self._t(at_s), node.name, max(0.0, cpus), max(0, int(gpus)), node.memory_bytes)

    def _end_s(self) -> float:
        """Where nothing is open any more, the last end; else the latest time that is known."""
        ends = [run.ended_s for run in self._seen.runs.values()] + [pod.ended_s for pod in self._seen.pods.values()]
        known = [end for end in ends if end is not None]
        return self._seen.now_s if len(known) < len(ends) else max(known, default=self._seen.now_s)

    def _t(self, at_s: float) -> float:
        return round(max(0.0, at_s - self._begin_s), 6)


def _notes(seen: Seen) -> Iterator[str]:
    pods = list(seen.pods.values())
    yield INSIDE
    if seen.nodes:
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


def _counted(found: Iterable[bool], what: str) -> Iterator[str]:
    if count := sum(found):
        yield f"{count} {what}"
