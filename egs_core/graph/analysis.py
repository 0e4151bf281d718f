"""Orders, ranks and times of a graph, all in linear time and without recursion.

        head(t)         own time         tail(t)
    |-------------->|=== t ====|------------------->|
    start                                        makespan

head(t): longest path that must end before t starts; tail(t): longest path that can only start after t ended; neither
counts t itself. upward rank(t) = own time + tail(t), the b-level of HEFT (Topcuoglu et al., 2002). The critical path
is the largest head + own time + tail; slack(t) = critical path - (head + own time + tail).

Every function takes tasks' seconds as one list; `task_durations` makes it from the graph (unknown phases count zero).
Ties break by the lower task number, so results are the same on every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from egs_core.errors import InputError
from egs_core.graph.columns import Graph


class Levels(msgspec.Struct, frozen=True):
    """How deep and wide a graph is: levels by longest hop count, and the tasks of the fullest level."""

    depth: int
    width: int


def task_durations(graph: Graph) -> list[float]:
    """Seconds of each task's phases together; unknown phases count as zero."""
    seconds = [d or 0.0 for d in graph.phase_duration_s]
    if graph.n_phases == graph.n_tasks and all(b - a == 1 for a, b in pairwise(graph.phase_offsets)):
        return seconds
    return [sum(seconds[a:b]) for a, b in pairwise(graph.phase_offsets)]


def topological_order(graph: Graph) -> list[int]:
    """Task numbers, every parent before its children; a graph already in such order keeps it.

    Raises InputError on a cycle (`validate` names the tasks on it).
    """
    parents = graph.parents
    if all(not ps or max(ps) < task for task, ps in enumerate(parents)):
        return list(range(len(parents)))
    order = peel_sinks(parents)
    if len(order) < len(parents):
        raise InputError("graph", "tasks depend on each other in a cycle")
    order.reverse()
    return order


def peel_sinks(parents: Sequence[Sequence[int]]) -> list[int]:
    """Tasks with every child before its parents; what can reach a cycle is missing.

    Kahn's algorithm from the sinks: it needs only the parent lists, so no child lists are built.
    """
    waiting = [0] * len(parents)
    for ps in parents:
        for parent in ps:
            waiting[parent] += 1
    order = [task for task in range(len(parents) - 1, -1, -1) if not waiting[task]]
    for task in order:  # grows while it is walked
        for parent in parents[task]:
            waiting[parent] -= 1
            if not waiting[parent]:
                order.append(parent)
    return order


def tails(graph: Graph, durations_s: Sequence[float] | None = None, order: Sequence[int] | None = None) -> list[float]:
    """Seconds of the longest path after each task, without the task itself."""
    seconds, order = _defaults(graph, durations_s, order)
    tail, parents = [0.0] * graph.n_tasks, graph.parents
    for task in reversed(order):
        rank = seconds[task] + tail[task]
        for parent in parents[task]:
            if tail[parent] < rank:
                tail[parent] = rank
    return tail


def upward_rank(
    graph: Graph, durations_s: Sequence[float] | None = None, order: Sequence[int] | None = None
) -> list[float]:
    """Seconds of the longest path from each task to an exit, the task included (HEFT's b-level)."""
    seconds, order = _defaults(graph, durations_s, order)
    return [own + tail for own, tail in zip(seconds, tails(graph, seconds, order), strict=True)]


def heads(graph: Graph, durations_s: Sequence[float] | None = None, order: Sequence[int] | None = None) -> list[float]:
    """Seconds of the longest path before each task, without the task itself: its earliest start."""
    seconds, order = _defaults(graph, durations_s, order)
    head, parents = [0.0] * graph.n_tasks, graph.parents
    end = [0.0] * graph.n_tasks
    for task in order:
        start = 0.0
        for parent in parents[task]:
            if end[parent] > start:
                start = end[parent]
        head[task] = start
        end[task] = start + seconds[task]
    return head


def ranked_plan(rank: Sequence[float]) -> list[int]:
    """Task numbers by falling rank, equal ranks by number: the order a list scheduler would take them in."""
    return sorted(range(len(rank)), key=rank.__getitem__, reverse=True)


def critical_path(
    graph: Graph, durations_s: Sequence[float] | None = None, order: Sequence[int] | None = None
) -> tuple[float, list[int]]:
    """Length in seconds and the tasks of one longest path, first to last."""
    if not graph.n_tasks:
        return 0.0, []
    seconds, order = _defaults(graph, durations_s, order)
    head = heads(graph, seconds, order)
    last = max(range(graph.n_tasks), key=lambda t: (head[t] + seconds[t], -t))
    path = [last]
    while parents := graph.parents[path[-1]]:
        path.append(max(parents, key=lambda p: (head[p] + seconds[p], -p)))
    return head[last] + seconds[last], path[::-1]


def slack(graph: Graph) -> list[float]:
    """Seconds by which each task can be late without delaying the end, given slots without limit."""
    seconds, order = _defaults(graph, None, None)
    head, tail = heads(graph, seconds, order), tails(graph, seconds, order)
    longest = max((h + s + t for h, s, t in zip(head, seconds, tail, strict=True)), default=0.0)
    return [max(0.0, longest - h - s - t) for h, s, t in zip(head, seconds, tail, strict=True)]


def work_s(graph: Graph) -> float:
    """Seconds of all phases of all tasks; unknown phases count as zero."""
    return sum(d for d in graph.phase_duration_s if d is not None)


def depth_and_width(graph: Graph, order: Sequence[int] | None = None) -> Levels:
    """Levels by longest hop count from a source, and the number of tasks on the fullest one."""
    level, counts = [0] * graph.n_tasks, [0] * graph.n_tasks
    for task in topological_order(graph) if order is None else order:
        level[task] = max((level[p] + 1 for p in graph.parents[task]), default=0)
        counts[level[task]] += 1
    return Levels(depth=max(level, default=-1) + 1, width=max(counts, default=0))


def edges_bytes(graph: Graph) -> int:
    """Bytes on all edges: what a parent writes and its child reads, counted once for each such edge."""
    writers: dict[int, list[int]] = {}
    for task, files in graph.outputs.items():
        for file in set(files):
            writers.setdefault(file, []).append(task)
    total = 0
    for task, files in graph.inputs.items():
        parents = set(graph.parents[task])
        total += sum(graph.file_sizes[f] for f in set(files) for w in writers.get(f, ()) if w in parents)
    return total


def _defaults(
    graph: Graph, durations_s: Sequence[float] | None, order: Sequence[int] | None
) -> tuple[Sequence[float], Sequence[int]]:
    seconds = task_durations(graph) if durations_s is None else durations_s
    return seconds, topological_order(graph) if order is None else order


def find_gang_cycle(graph: Graph, first: int = 0) -> list[str]:
    """Names of gangs that wait for each other, or for themselves: tasks of one gang must not depend on each other,
    directly or through other tasks or gangs. Empty when there is none. first: the number of the block's first task."""
    unit: dict[int, str | int] = {first + t: f"/{o.gang}" for t, o in graph.options.items() if o.gang}
    if not unit:
        return []
    waiting: dict[str | int, set[str | int]] = {}
    for task, parents in enumerate(graph.parents, start=first):
        own = unit.get(task, task)
        waiting.setdefault(own, set()).update(unit.get(p, p) for p in parents if p >= first)
    children: dict[str | int, list[str | int]] = {}
    for own, before in waiting.items():
        for other in before:
            children.setdefault(other, []).append(own)
    counts = {own: len(before) for own, before in waiting.items()}
    free = [own for own, count in counts.items() if not count]
    for own in free:  # grows while it is walked
        for child in children.get(own, ()):
            counts[child] -= 1
            if not counts[child]:
                free.append(child)
    done = set(free)
    return sorted(str(own)[1:] for own in waiting if own not in done and isinstance(own, str))
