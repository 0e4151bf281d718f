"""A run of Argo as a graph that grows, and of each of its pods how long the run goes on from its start.

    templates      entrypoint ─► root-driver ─► root: prepare ─► loop (?) ─► report
    status.nodes                                      over        3 of 5 iterations have begun
    graph          what both say together: a task for each pod that has been, is, or will be

What has not begun counts as if it will be; a condition that is not decided yet is taken. Iterations are as many as have
begun or as an output says, one at least. Tasks come after what they wait for, so there is no cycle; a run with a part
that is not understood has no graph, and its pods keep the ranks of their labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import is_not

import msgspec

from egs_core.kubernetes.learned import NOTHING as NOTHING_LEARNT
from egs_core.kubernetes.learned import Learnt, Pipeline, pipeline_of
from egs_core.kubernetes.pods import Pod
from egs_core.kubernetes.steps import in_any_run, key_of, without_try
from egs_core.kubernetes.workflows import NOTHING, Asks, Loop, Node, Step, Template, Workflow
from egs_core.site import PRIOR_S

MOST_TASKS = 10_000
MOST_DEPTH = 60
MOST_STEPS = 200_000
"""Of tasks, of what each waits for, and of templates that are looked at: whoever may write a Workflow may write one
that unfolds without end."""
_ITERATION = re.compile(r"(.+)\((\d+):[^()]*\)")
ENDED = Template(steps=())
NEVER_BEGAN = ("Skipped", "Omitted")


class Task(msgspec.Struct, frozen=True):
    """name: of Argo's node; parents: places in the graph, all before its own. predicted_s: by its labels; template: ""
    for what only joins others."""

    name: str
    parents: tuple[int, ...]
    template: str = ""
    is_over: bool = False
    is_driver: bool = False
    predicted_s: float | None = None
    asks: Asks = NOTHING


class Way(msgspec.Struct, frozen=True):
    """Of one pod: how long it takes itself, how long its run takes from its start, along the longest path, and how long
    what comes behind it there needs a GPU, times how many."""

    own_s: float
    rank_s: float
    gpu_s: float = 0.0


class _NotUnderstood(Exception):
    """Of this run nothing is said."""


def graph_of(workflow: Workflow) -> tuple[Task, ...] | None:
    """What has begun and what is to come; None where that is not known."""
    if workflow.is_over or not workflow.is_readable:
        return None
    try:
        growing = _Growing(workflow)
        growing.add(workflow.name, workflow.entry, (), Step("", workflow.entry), ())
    except _NotUnderstood:
        return None
    return tuple(growing.tasks)


def ways(
    workflow: Workflow, graph: Sequence[Task], pods: Iterable[Pod], earlier: Pipeline | None = None
) -> dict[str, Way]:
    """By uid, of the pods of this run that have not ended and are in its graph. Durations: what the same task took in
    this run already, in another iteration or try; else in earlier ones; else its labels; of drivers, which have none,
    what others took."""
    mine, own = lengths(workflow, graph, list(pods), earlier)
    ranks, gpu_s = list(own), [0.0] * len(own)
    for number in range(len(graph) - 1, -1, -1):
        behind_s = own[number] * graph[number].asks.gpus + gpu_s[number]
        for parent in graph[number].parents:
            rank = own[parent] + ranks[number]
            if rank > ranks[parent] or (rank == ranks[parent] and behind_s > gpu_s[parent]):
                ranks[parent], gpu_s[parent] = rank, behind_s
    return {uid: Way(own[place], ranks[place], gpu_s[place]) for uid, place in mine.items()}


def lengths(
    workflow: Workflow, graph: Sequence[Task], pods: Sequence[Pod], earlier: Pipeline | None = None
) -> tuple[dict[str, int], list[float]]:
    """By uid the places in the graph of pods that have not ended; and how long each task takes, by its place. pods:
    with what earlier runs say; earlier: what they say of those that are not there yet."""
    learned, drivers = _learned(pods), _drivers_s(workflow)
    places = {task.name: number for number, task in enumerate(graph) if task.template}
    mine = {pod.uid: place for pod in pods if not pod.is_over and (place := _place(pod, places)) is not None}
    labels = {mine[pod.uid]: pod.predicted_s for pod in pods if pod.uid in mine}
    own = []
    for number, task in enumerate(graph):
        said_s = labels.get(number)
        if said_s is None and not (task.is_over or task.is_driver) and task.template:
            likely = None if earlier is None else earlier.likely(in_any_run(workflow.name, task.name))
            said_s = task.predicted_s if likely is None else likely.seconds
        own.append(_own_s(task, learned.get(key_of(task.name), said_s), drivers))
    return mine, own


class Run(msgspec.Struct, frozen=True):
    """What is known of a run: of what it was made, and its pods with the ranks of its graph, by uid. pipeline: as
    `learned.pipeline_of`; earlier: its runs before."""

    workflow: Workflow
    graph: tuple[Task, ...] | None
    pods: tuple[Pod, ...]
    ranked: dict[str, Pod]
    pipeline: str = ""
    earlier: Pipeline | None = None


class Traces:
    """The pods of a cluster with the ranks that their runs' graphs give them. What has not changed is not looked at
    again, and is the very same object as before. ranked: by uid, of all runs that have graphs."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self.ranked: dict[str, Pod] = {}

    def runs(self) -> list[Run]:
        """Those that have pods, as of the last call of `applied`."""
        return list(self._runs.values())

    def applied(self, pods: Mapping[str, Pod], workflows: Iterable[Workflow]) -> dict[str, Pod]:
        """All of these pods, by uid; those of a run with a graph have its ranks and durations in the labels' place."""
        of: dict[tuple[str, str], dict[str, Pod]] = {}
        for pod in pods.values():
            if pod.workflow and pod.is_ours:
                of.setdefault((pod.namespace, pod.workflow), {})[pod.uid] = pod
        self.follow(of, workflows)
        return {**pods, **self.ranked}

    def follow(
        self,
        of: Mapping[tuple[str, str], Mapping[str, Pod]],
        workflows: Iterable[Workflow],
        learnt: Learnt = NOTHING_LEARNT,
    ) -> dict[str, Pod]:
        """All pods of those runs of which something has changed, as `applied` has them. of: pods of ours, with what was
        learnt, by namespace and Workflow, then by uid."""
        runs = {(one.namespace, one.name): one for one in workflows}
        before = self._runs
        self._runs = {
            one.uid: self._run(one, tuple(pods.values()), learnt) for key, one in runs.items() if (pods := of.get(key))
        }
        found: dict[str, Pod] = {}
        for uid, was in before.items():
            if self._runs.get(uid) is not was:
                found.update(of.get((was.workflow.namespace, was.workflow.name), {}))
                for pod in was.ranked:
                    del self.ranked[pod]
        for uid, run in self._runs.items():
            if before.get(uid) is not run:
                self.ranked.update(run.ranked)
                found.update((pod.uid, run.ranked.get(pod.uid, pod)) for pod in run.pods)
        return found

    def _run(self, workflow: Workflow, pods: tuple[Pod, ...], learnt: Learnt) -> Run:
        known = self._runs.get(workflow.uid)
        is_same = known is not None and known.workflow is workflow
        graph = known.graph if known is not None and is_same else graph_of(workflow)
        has_same = known is not None and _are_same(known.pods, pods)
        pipeline = known.pipeline if known is not None and has_same else min(map(pipeline_of, pods))
        earlier = learnt.get(pipeline)
        if known is not None and is_same and has_same and known.earlier is earlier:
            return known
        before = {} if known is None else known.ranked
        told = {} if graph is None else ways(workflow, graph, pods, earlier)
        made = (_ranked(pod, told[pod.uid]) for pod in pods if pod.uid in told)
        return Run(workflow, graph, pods, {pod.uid: _same(before.get(pod.uid), pod) for pod in made}, pipeline, earlier)


def _are_same(before: Sequence[Pod], pods: Sequence[Pod]) -> bool:
    return len(before) == len(pods) and not any(map(is_not, before, pods))


def _ranked(pod: Pod, way: Way) -> Pod:
    found = msgspec.structs.replace(pod, rank_s=way.rank_s, predicted_s=way.own_s, rest_gpu_s=way.gpu_s, is_traced=True)
    return found if way.own_s == pod.predicted_s else msgspec.structs.replace(found, learned_from=0)


def _same(before: Pod | None, pod: Pod) -> Pod:
    return before if before == pod and before is not None else pod


def _place(pod: Pod, places: Mapping[str, int]) -> int | None:
    return places.get(pod.argo_node, places.get(without_try(pod.argo_node)))


def _learned(pods: Iterable[Pod]) -> dict[str, float]:
    took: dict[str, list[float]] = {}
    for pod in pods:
        if pod.ran_s is not None and pod.argo_node:
            took.setdefault(key_of(pod.argo_node), []).append(pod.ran_s)
    return {key: sum(seconds) / len(seconds) for key, seconds in took.items()}


def _drivers_s(workflow: Workflow) -> dict[str, float]:
    """By template, what its drivers took. They wait at no gate of ours, so their nodes say it."""
    took: dict[str, list[float]] = {}
    for node in workflow.nodes.values():
        if node.phase == "Succeeded" and workflow.templates.get(node.template, ENDED).is_driver:
            took.setdefault(node.template, []).append(node.took_s)
    return {template: sum(seconds) / len(seconds) for template, seconds in took.items()}


def _own_s(task: Task, likely_s: float | None, drivers: Mapping[str, float]) -> float:
    if task.is_over or not task.template:
        return 0.0
    if task.is_driver:
        return drivers.get(task.template, 0.0)
    return PRIOR_S if likely_s is None else likely_s


class _Growing:
    """The graph while it is made. Each part returns the tasks after which it is over."""

    def __init__(self, workflow: Workflow) -> None:
        self.tasks: list[Task] = []
        self._left = MOST_STEPS
        self._templates, self._nodes = workflow.templates, workflow.nodes
        self._iterations = _iterations(workflow.nodes.values())

    def add(
        self, name: str, template: str, after: tuple[int, ...], of: Step, within: tuple[str, ...]
    ) -> tuple[int, ...]:
        """A template's run under this node name. of: the step that has said last what its pods will have."""
        self._spend(1)
        made, node = self._templates.get(template), self._nodes.get(name)
        if made is None or len(within) > MOST_DEPTH or (template in within and node is None):
            raise _NotUnderstood
        if node is not None and node.is_over:
            return self._append(Task(name, after, template, is_over=True))
        if made.steps is None:
            likely_s = made.predicted_s if made.predicted_s is not None else of.predicted_s
            asks = NOTHING if made.is_driver else made.asks if of.asks is NOTHING else of.asks
            return self._append(Task(name, after, template, False, made.is_driver, likely_s, asks))
        ends: dict[str, tuple[int, ...]] = {}
        needed: set[str] = set()
        self._spend(sum(1 + len(step.needs) for step in made.steps))
        for step in _ordered(made.steps):
            needs = [need for need in step.needs if need in ends]
            needed.update(needs)
            before = tuple(sorted({end for need in needs for end in ends[need]})) or after
            says = step if step.predicted_s is not None or step.asks is not NOTHING else of
            ends[step.name] = self._step(name, step, before, says, (*within, template))
        last = sorted({end for step, found in ends.items() if step not in needed for end in found})
        return self._joined(name, tuple(last) or after)

    def _step(
        self, boundary: str, step: Step, before: tuple[int, ...], says: Step, within: tuple[str, ...]
    ) -> tuple[int, ...]:
        name = f"{boundary}.{step.name}"
        node = self._nodes.get(name)
        if node is not None and node.is_over:
            ends = self._append(Task(name, before, step.template, is_over=True))
        elif step.loop is None:
            ends = self.add(name, step.template, before, says, within)
        else:
            ends = self._loop(boundary, step, step.loop, before, says, within)
        if step.on_exit and (node is None or node.phase not in NEVER_BEGAN):
            ends = self.add(f"{name}.onExit", step.on_exit, ends, Step("", step.on_exit), within)
        return ends

    def _loop(
        self,
        boundary: str,
        step: Step,
        loop: Loop,
        before: tuple[int, ...],
        says: Step,
        within: tuple[str, ...],
    ) -> tuple[int, ...]:
        """Where a template says how many of its parts run at once, the others wait for them, in turn."""
        name, at_once = f"{boundary}.{step.name}", self._templates[within[-1]].at_once
        begun = self._iterations.get(name, {})
        count = loop.count if not loop.step else self._output(f"{boundary}.{loop.step}", loop.output)
        count = max(1 if count is None else count, max(begun, default=-1) + 1)
        if count > MOST_TASKS:
            raise _NotUnderstood
        ends: list[tuple[int, ...]] = []
        for index in range(count):
            turn = ends[index - at_once] if at_once and index >= at_once else ()
            one = begun.get(index, f"{name}({index}:{index})")
            ends.append(self.add(one, step.template, tuple(sorted({*before, *turn})), says, within))
        return self._joined(name, tuple(end for found in ends for end in found) or before)

    def _output(self, name: str, output: str) -> int | None:
        node = self._nodes.get(name)
        return None if node is None else node.counts.get(output)

    def _joined(self, name: str, ends: tuple[int, ...]) -> tuple[int, ...]:
        """One task in the place of many, so that what comes after waits for one."""
        return self._append(Task(name, ends)) if len(ends) > 1 else ends

    def _append(self, task: Task) -> tuple[int, ...]:
        self._spend(len(task.parents))
        if len(self.tasks) >= MOST_TASKS:
            raise _NotUnderstood
        self.tasks.append(task)
        return (len(self.tasks) - 1,)

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise _NotUnderstood


def _ordered(steps: Sequence[Step]) -> list[Step]:
    """Each after what it needs. Argo refuses a cycle: whoever has one is not understood."""
    places = {step.name: place for place, step in enumerate(steps)}
    behind: list[list[int]] = [[] for _ in steps]
    left = [0] * len(steps)  # what each still waits for
    for place, step in enumerate(steps):
        for need in {places[need] for need in step.needs if need in places}:
            behind[need].append(place)
            left[place] += 1
    found: list[int] = []
    free = [place for place, count in enumerate(left) if not count]
    while free:
        found += free
        freed = []
        for later in chain.from_iterable(behind[place] for place in free):
            left[later] -= 1
            freed += [] if left[later] else [later]
        free = sorted(freed)
    if len(found) < len(steps) or len(places) < len(steps):
        raise _NotUnderstood
    return [steps[place] for place in found]


def _iterations(nodes: Iterable[Node]) -> dict[str, dict[int, str]]:
    """Of each loop's name the names of the iterations that have begun, by their number."""
    found: dict[str, dict[int, str]] = {}
    for node in nodes:
        one = _ITERATION.fullmatch(node.name)
        if one is not None and len(one[2]) < 7:
            found.setdefault(one[1], {})[int(one[2])] = node.name
    return found
