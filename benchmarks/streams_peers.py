"""The peers of `streams`: which workload goes first on equal slots, and which of its tasks, in a list simulation.

    dask-order       the workload that came first, as dask's scheduler does; within it dask.order as a priority
    workload-fair    the workload that runs the fewest tasks (max-min fair); within it the longest remaining path
    least-work-left  the workload with the least believed work left; within it the longest remaining path
    ready-order      the task that became ready first: what the engine's `fifo` must come to (a test)

A free slot takes a ready task whenever there is one, and nothing is stopped. The rules are asked anew for every task
that starts, so they know more than keys in a queue can: they show what an order across workloads is worth.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec

import msgspec

from egs_core.graph.analysis import upward_rank
from egs_core.graph.columns import Graph


class Arrival(msgspec.Struct, frozen=True):
    """A workload of a stream: when it comes, and what its tasks take and are believed to take, in seconds."""

    at_s: float
    graph: Graph
    seconds: list[float]
    believed_s: list[float]


class Open(msgspec.Struct):
    """A workload that is not over. ready: heap of (place in its own order, task)."""

    number: int
    waiting: list[int]
    children: list[list[int]]
    place: list[float]
    left_s: float
    ready: list[tuple[float, int]]
    running: int = 0
    left: int = 0


Rule = Callable[[Open], tuple[float, float]]
RULES: dict[str, Rule] = {
    "dask-order": lambda w: (w.number, 0),
    "workload-fair": lambda w: (w.running, w.number),
    "least-work-left": lambda w: (w.left_s, w.number),
    "ready-order": lambda w: (w.ready[0][0], w.number),
}
PEERS = ("dask-order", "workload-fair", "least-work-left")
USE_BELIEFS = frozenset({"workload-fair", "least-work-left"})


def missing_peers() -> dict[str, str]:
    """Peers that cannot run here, and why."""
    return {} if find_spec("dask") else {"dask-order": "pip install 'egs-core[bench]'"}


def own_order(peer: str, arrival: Arrival) -> list[float]:
    """The place of each task within its workload, the smallest first."""
    graph = arrival.graph
    if peer == "dask-order":
        tasks = {t: (_work, *graph.parents[t]) for t in range(graph.n_tasks)}  # numbers: their order in sets is fixed
        priority = import_module("dask.order").order(tasks)
        return [priority[t] for t in range(graph.n_tasks)]
    return [-rank for rank in upward_rank(graph, arrival.believed_s)]


def run_peer(peer: str, arrivals: Sequence[Arrival], slots: int) -> list[float]:
    """Seconds from arrival to the end of each workload; arrivals in the order of their time."""
    rule, open_ones, jct = RULES[peer], dict[int, Open](), [0.0] * len(arrivals)
    ends: list[tuple[float, int, int]] = []  # time, workload, task
    coming, free, now, became_ready = 0, slots, 0.0, 0
    while coming < len(arrivals) or ends:
        if coming < len(arrivals) and (not ends or arrivals[coming].at_s < ends[0][0]):
            now = arrivals[coming].at_s
            entered = open_ones[coming] = _enter(peer, coming, arrivals[coming])
            fresh = [t for t, waits in enumerate(entered.waiting) if not waits]
            coming += 1
        else:
            now, number, task = heapq.heappop(ends)
            entered, free = open_ones[number], free + 1
            fresh = _end(entered, task)
            if not entered.left:
                jct[number] = now - arrivals[number].at_s
                del open_ones[number]
        for task in fresh:
            became_ready += 1
            place = became_ready if peer == "ready-order" else entered.place[task]
            heapq.heappush(entered.ready, (place, task))
        while free and (able := [w for w in open_ones.values() if w.ready]):
            chosen = min(able, key=rule)
            task = heapq.heappop(chosen.ready)[1]
            free -= 1
            chosen.running += 1
            chosen.left_s -= arrivals[chosen.number].believed_s[task]
            heapq.heappush(ends, (now + arrivals[chosen.number].seconds[task], chosen.number, task))
    return jct


def _enter(peer: str, number: int, arrival: Arrival) -> Open:
    graph = arrival.graph
    waiting = [len(parents) for parents in graph.parents]
    order = own_order(peer, arrival)
    return Open(number, waiting, graph.children(), order, sum(arrival.believed_s), [], 0, graph.n_tasks)


def _end(workload: Open, task: int) -> list[int]:
    """A task is over: the tasks that became ready with it."""
    workload.running -= 1
    workload.left -= 1
    for child in workload.children[task]:
        workload.waiting[child] -= 1
    return [child for child in workload.children[task] if not workload.waiting[child]]


def _work(*_parents: object) -> None:
    """Stands in dask's graph for a task's function; never called."""
