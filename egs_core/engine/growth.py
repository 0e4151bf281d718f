"""How the state grows by a block of tasks, and how ranks follow: functions that only `State`'s methods call."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from egs_core.engine.lifecycle import COLD, PENDING
from egs_core.graph.columns import Graph, Shape

if TYPE_CHECKING:
    from egs_core.engine.state import State

PRIOR_S = 1.0  # what a phase is believed to take until an estimate says otherwise


def append_block(state: State, number: int, graph: Graph) -> list[int]:
    """Append the block's tasks to workload `number`; returns the earlier tasks whose rank or children changed."""
    workload = state.workloads[number]
    known, start = len(workload.numbers), len(state.task_ids)
    order = block_order(graph, known)
    numbers = workload.numbers + [0] * len(order)
    for offset, local in enumerate(order):
        numbers[known + local] = start + offset
    workload.numbers = numbers
    workload.open_tasks += len(order)
    shape_of = [_shape_number(state, shape) for shape in graph.shapes]
    outside: set[int] = set()
    for local in order:
        parents = tuple([numbers[p] for p in graph.parents[local]])
        outside.update(p for p in parents if p < start)
        _append_task(state, graph, local, number, parents, shape_of)
    for task in range(len(state.task_ids) - 1, start - 1, -1):
        _rank_task(state, task)
    return refresh_ranks(state, outside)


def block_order(graph: Graph, known: int) -> list[int]:
    """Indices of the block's tasks in an order that puts parents first; parents below `known` are earlier blocks'.

    Raises ValueError for a cycle, a parent that does not exist, or a task without phases.
    """
    parents, n = graph.parents, graph.n_tasks
    if any(not 0 <= p < known + n for ps in parents for p in ps):
        raise ValueError("the block names a parent that does not exist")
    if any(graph.phase_offsets[i] == graph.phase_offsets[i + 1] for i in range(n)):
        raise ValueError("the block has a task without phases")
    if all(p < known + i for i, ps in enumerate(parents) for p in ps):
        return list(range(n))
    children: list[list[int]] = [[] for _ in range(n)]
    missing = [0] * n
    for i, ps in enumerate(parents):
        for p in ps:
            if p >= known:
                children[p - known].append(i)
                missing[i] += 1
    order = [i for i in range(n) if not missing[i]]
    for i in order:  # grows while it is walked
        for child in children[i]:
            missing[child] -= 1
            if not missing[child]:
                order.append(child)
    if len(order) != n:
        raise ValueError("the block has a cycle")
    return order


def _append_task(
    state: State, graph: Graph, local: int, workload: int, parents: tuple[int, ...], shape_of: Sequence[int]
) -> None:
    task = len(state.task_ids)
    state.task_ids.append(graph.ids[local])
    state.task_names.append(graph.names[local])
    state.task_workload.append(workload)
    state.parents.append(parents)
    state.children.append([])
    waiting = 0
    for parent in parents:
        state.children[parent].append(task)
        waiting += not state.is_done(parent)
    state.waiting.append(waiting)
    state.cursor.append(len(state.kind))
    state.attempt.append(1)
    state.warmth.append(COLD)
    options = graph.options.get(local)
    if options is not None:
        state.options[task] = options
    for p in graph.phases_of(local):
        _append_phase(state, task, graph.phase_kind[p], shape_of[graph.phase_shape[p]], graph.phase_duration_s[p])
    state.first_phase.append(len(state.kind))


def _append_phase(state: State, task: int, kind: int, shape: int, seconds: float | None) -> None:
    estimate = PRIOR_S if seconds is None else seconds
    state.kind.append(kind)
    state.shape.append(shape)
    state.task_of.append(task)
    state.estimate_s.append(estimate)
    state.estimate_p95_s.append(estimate)
    state.rank_s.append(0.0)
    state.status.append(PENDING)
    state.ready_at.append(0.0)
    state.started_at.append(0.0)
    state.order.append(0)


def _shape_number(state: State, shape: Shape) -> int:
    if shape in state.shapes:
        return state.shapes.index(shape)
    state.shapes.append(shape)
    return len(state.shapes) - 1


def refresh_ranks(state: State, tasks: Iterable[int]) -> list[int]:
    """Recompute the ranks of these tasks and of every ancestor they change; returns the tasks computed.

    Highest number first: a parent's number is below its children's, so each task is computed once.
    """
    pending = [-task for task in tasks]
    heapq.heapify(pending)
    computed: list[int] = []
    while pending:
        task = -heapq.heappop(pending)
        if computed and computed[-1] == task:
            continue
        computed.append(task)
        if _rank_task(state, task):
            for parent in state.parents[task]:
                heapq.heappush(pending, -parent)
    return computed


def _rank_task(state: State, task: int) -> bool:
    """Compute the ranks of a task's phases from its children's; whether the first one's changed."""
    rank_s, first_phase = state.rank_s, state.first_phase
    first = first_phase[task]
    before, rank = rank_s[first], 0.0
    for child in state.children[task]:
        rank = max(rank, rank_s[first_phase[child]])
    for p in range(first_phase[task + 1] - 1, first - 1, -1):
        rank += state.estimate_s[p]
        rank_s[p] = rank
    return rank != before
