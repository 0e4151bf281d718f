"""What a list of pods means for an engine that was told of an earlier one: the same list means nothing.

    pod in the list                           status
    gate of ours and no other                 ready
    the same, paused                          waiting: not told yet, or not to be started now
    a gate of its author's                    held: not told yet
    open, no node                             ready; what was granted stays granted
    on a node, whether it has begun or not    running: it has its place
    Succeeded, Failed, or no longer there     over

What comes after a pod is not in the cluster yet (of a run of Argo it is known: `paths`). So that the engine ranks pods
by what waits for them, the rest of their run stands behind them as tasks that never start: a chain, of pods that were
seen together.

    pods with rank, duration     10, 4      ┌► rest 6 ──► rest 2 ──► rest 3       the longest rest first; each pod
                                  9, 4 ─────│────────────┘          │             has its own rest behind it: 11 s of
                                  3, 0 ─────│───────────────────────┘             work at most, and not their sum
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from egs_core.graph.columns import CPU, GPU, Graph, Shape, TaskOptions
from egs_core.kubernetes.pods import Pod
from egs_core.site import PRIOR_S

HELD, WAITING, READY, RUNNING, OVER = "held", "waiting", "ready", "running", "over"
REST = "rest"
SAME_REST_S = 1.0
SAME_SHARE = 0.05


class Known(msgspec.Struct, frozen=True):
    """What the engine was told last of a pod: its numbers there, its place among the tasks of its run, its status, how
    long it takes and how long its run goes on after it. rests: tasks behind it, of which some are behind others too."""

    task: int
    phase: int
    run: str
    status: str
    node: str = ""
    is_gang: bool = False
    rests: tuple[int, ...] = ()
    place: int = 0
    predicted_s: float | None = None
    rest_s: float = 0.0


class Changes(msgspec.Struct, frozen=True):
    """new: pods that the engine does not know, by run; statuses: uid and the status that has changed."""

    new: dict[str, tuple[Pod, ...]]
    statuses: tuple[tuple[str, str], ...]

    @property
    def are_none(self) -> bool:
        return not self.new and not self.statuses


def status_of(pod: Pod) -> str:
    """See the module."""
    if pod.is_over or (pod.is_leaving and not pod.node):
        return OVER
    if pod.node:
        return RUNNING
    if pod.is_paused:
        return WAITING
    return HELD if pod.has_other_gates else READY


def changes(pods: Mapping[str, Pod], known: Mapping[str, Known], among: Iterable[str] | None = None) -> Changes:
    """What is new in a list of pods, by uid: runs and pods in the order in which they were made, runs of one second as
    they are listed. Members of a gang are new together, when all of them are there; one that runs is new by itself.
    among: uids of all that may be others than is known, gangs whole, in the order of the list."""
    statuses: list[tuple[str, str]] = []
    new: dict[str, list[Pod]] = {}
    looked = {**known, **pods} if among is None else among
    whole = _whole_gangs(pods[uid] for uid in looked if uid in pods)
    for uid in looked:
        pod, before = pods.get(uid), known.get(uid)
        status = OVER if pod is None else status_of(pod)
        if before is not None:
            if status not in (before.status, HELD) and before.status != OVER:
                statuses.append((uid, status))
        elif pod is not None and status in (READY, RUNNING) and _may_be_told(pod, whole):
            new.setdefault(pod.run, []).append(pod)
    told = sorted((sorted(found, key=_age) for found in new.values()), key=lambda found: found[0].created)
    return Changes({found[0].run: tuple(found) for found in told}, tuple(statuses))


def as_told(pod: Pod, known: Known | None, there: Collection[str]) -> Pod | None:
    """A pod that got a node which is not listed yet waits until it is: nodes and pods have watches of their own. What
    was told as running there stays so; None: it is not told yet. there: names of nodes."""
    if not (pod.node and pod.run) or pod.node in there or pod.is_over:
        return pod
    if known is None:
        return None
    return pod if known.status in (RUNNING, OVER) else msgspec.structs.replace(pod, node="")


def starts_together(pods: Sequence[Pod]) -> frozenset[str]:
    """Of new pods of one run the gangs that start together: all of their members, or more, are new and wait."""
    sizes: dict[str, int] = {}
    for pod in pods:
        if pod.gang and status_of(pod) == READY and pod.is_gated:
            sizes[pod.gang] = sizes.get(pod.gang, 0) + 1
    wanted = {pod.gang: pod.gang_size for pod in pods if pod.gang}
    return frozenset(gang for gang, size in sizes.items() if size >= wanted[gang] > 1)


def block_of(
    pods: Sequence[Pod], flavors: Mapping[str, tuple[str, ...]], at: int = 0
) -> tuple[Graph, list[tuple[int, ...]]]:
    """New pods of one run as a graph, and behind each pod its rests, by their places in it. flavors: by `Pod.where`, of
    what has its node by `Pod.uid`; none named: any. at: how many tasks the run has, as parents are numbered from its
    first one on."""
    graph, gangs = Graph(), starts_together(pods)
    for pod in pods:
        kind = GPU if pod.shape.gpu_milli else CPU
        gang = pod.gang if pod.gang in gangs else ""
        # where it is it may have come before the node's taints: only its devices are told
        may_run_on = flavors.get(pod.uid if pod.node else pod.where, ())
        options = TaskOptions(priority=pod.rank, gang=gang, flavors=may_run_on, may_restart=pod.may_restart)
        graph.add_task(called(pod), (), ((kind, pod.shape, pod.predicted_s),), name=pod.task, options=options)
    return graph, _add_rests(graph, pods, range(at, at + len(pods)), at, REST)


def rests_of(pods: Sequence[Pod], places: Sequence[int], at: int) -> tuple[Graph, list[tuple[int, ...]]]:
    """The rests of pods that the engine knows already, as one new chain. places: of the pods among the tasks of their
    run; at: as above."""
    graph = Graph()
    return graph, _add_rests(graph, pods, places, at, f"{REST}.{at}")


def called(pod: Pod) -> str:
    """A pod's name for people, unlike that of a later pod of the same name."""
    return f"{pod.name}.{pod.uid[:8]}"


def has_moved(before_s: float, now_s: float) -> bool:
    """Whether a length of time is another one, and not only told more exactly."""
    return abs(now_s - before_s) >= max(SAME_REST_S, SAME_SHARE * max(before_s, now_s))


def rest_s(pod: Pod) -> float:
    """How long its run goes on after it, along the longest path."""
    own_s = PRIOR_S if pod.predicted_s is None else pod.predicted_s
    return 0.0 if pod.rank_s is None else max(0.0, pod.rank_s - own_s)


def _add_rests(graph: Graph, pods: Sequence[Pod], places: Sequence[int], at: int, name: str) -> list[tuple[int, ...]]:
    ways = [round(rest_s(pod) / SAME_REST_S) for pod in pods]
    stops = sorted(set(ways) - {0}, reverse=True)
    tasks: dict[int, int] = {}
    for stop, shorter in zip(stops, [*stops, 0][1:], strict=True):
        before = [number for number, way in enumerate(ways) if way == stop]
        parents = (*(places[number] for number in before), *([at + max(tasks.values())] if tasks else []))
        seconds = (stop - shorter) * SAME_REST_S
        gpu_s = max((pod.rest_gpu_s for pod, way in zip(pods, ways, strict=True) if way == stop))
        next_s = max((pod.rest_gpu_s for pod, way in zip(pods, ways, strict=True) if way <= shorter), default=0.0)
        shape = Shape(0, _gpu_milli((gpu_s - next_s) / seconds))
        phase = GPU if shape.gpu_milli else CPU, shape, seconds
        tasks[stop] = graph.add_task(f"{called(pods[before[0]])}.{name}", parents, (phase,), name=REST)
    return [tuple(task for stop, task in tasks.items() if stop <= way) for way in ways]


def _gpu_milli(share: float) -> int:
    """Quarters of one GPU, or whole ones: what is before GPUs on a path is not told apart from what is behind."""
    return max(0, 250 * round(4 * share) if share < 1 else 1000 * round(share))


def _whole_gangs(pods: Iterable[Pod]) -> set[tuple[str, str]]:
    """(run, gang) of which as many pods are there as it has members; what states no size is whole."""
    there: dict[tuple[str, str], int] = {}
    size: dict[tuple[str, str], int] = {}
    for pod in pods:
        if pod.gang and pod.is_ours and status_of(pod) not in (HELD, WAITING):
            key = pod.run, pod.gang
            there[key] = there.get(key, 0) + 1
            size[key] = max(size.get(key, 0), pod.gang_size)
    return {key for key, count in there.items() if count >= size[key]}


def _may_be_told(pod: Pod, whole: Collection[tuple[str, str]]) -> bool:
    """What runs has its place, whoever else is there of its gang."""
    return pod.is_ours and (not pod.gang or (pod.run, pod.gang) in whole or status_of(pod) == RUNNING)


def _age(pod: Pod) -> tuple[float, str]:
    return pod.created, pod.uid
